"""The options of a dataset: they validate themselves, and can be pickled."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import isfinite
from operator import index
from typing import Any, Literal, get_args

import numpy as np

from .order.sharding import Remainder
from .order.shuffle import WINDOW_BYTES

Where = Literal["inline", "threads", "processes"]
Each = Literal["sample", "batch"]
Collate = Literal["stack", "pad", "ragged"]
OnError = Literal["raise", "skip"]
OnCorrupt = Literal["raise", "skip", "salvage"]

MEMORY_BYTES = 2_000_000_000
STALL_S = 300.0
_PREFETCH_SHARE = 4  # the part of the memory that prefetched batches take, where their number was given
STEP_SAMPLES = 256  # samples of a step where there is no batch()


def check_choice(name: str, value: object, allowed: object) -> None:
    choices = get_args(allowed)
    if value not in choices:
        raise ValueError(f"expected {name} to be one of {', '.join(map(repr, choices))}, got {value!r}")


def as_int(name: str, value: Any, low: Literal[0, 1] | None = None, high: int | None = None) -> int:
    """Checks an integer and returns it as an int: numpy's integers are accepted, but JSON cannot hold them."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = index(value)
    except TypeError:
        number = None
    if number is None or (low is not None and number < low) or (high is not None and number > high):
        kind = {None: "an integer", 0: "a non-negative integer", 1: "a positive integer"}[low]
        bound = f" up to {high:,}" if high is not None else ""
        raise ValueError(f"{name} must be {kind}{bound}, got {value!r}")
    return number


def is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and isfinite(float(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function of the user's, and where it runs.

    kind:       "map" returns another sample or batch, "filter" whether to keep a sample (of a batch: which rows)
    max_errors: with on_error="skip", how many samples may be lost: a number, or a fraction of all samples
    random:     the function also gets a numpy Generator, seeded by seed, epoch and sample
    stall_s:    how long a worker process may take over one sample
    """

    kind: Literal["map", "filter"]
    function: Callable[..., Any]
    each: Each
    where: Where = "inline"
    workers: int = 0
    on_error: OnError = "raise"
    max_errors: int | float = 100
    random: bool = False
    stall_s: float | None = STALL_S
    start: Literal["forkserver", "spawn"] = "forkserver"

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"{self.kind}: expected a function, got {self.function!r}")
        check_choice("where", self.where, Where)
        check_choice("on_error", self.on_error, OnError)
        check_choice("start", self.start, Literal["forkserver", "spawn"])
        as_int("num_workers", self.workers, 0 if self.where == "inline" else 1)
        if not is_number(self.max_errors) or self.max_errors < 0:
            raise ValueError(
                f"max_errors must be a non-negative integer or a fraction below 1, got {self.max_errors!r}"
            )
        if self.stall_s is not None and not (is_number(self.stall_s) and self.stall_s > 0):
            raise ValueError(f"expected a timeout of seconds above 0, or None to wait for ever, got {self.stall_s!r}")

    @property
    def name(self) -> str:
        inner = self.function
        while isinstance(inner, partial):
            inner = inner.func
        return getattr(inner, "__name__", None) or type(inner).__name__

    @property
    def executor_key(self) -> tuple[object, ...]:
        """Neighbouring functions with the same key run together."""
        return (self.where, self.workers, self.start, self.stall_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """A cache of samples after the first `after` functions, up to `max_bytes`: in memory, or in a file in `folder`."""

    max_bytes: int
    folder: str | None
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All that was asked of a dataset, apart from its data."""

    seed: int | None = None
    window_bytes: int = WINDOW_BYTES
    window_samples: int | None = None
    lanes: int | None = None
    shard: str | tuple[int, int] | None = None
    shard_given: bool = False
    remainder: Remainder = "keep"
    batch: int | None = None
    global_batch: int | None = None
    collate: Collate | None = None
    pad_value: float = 0
    functions: tuple[Function, ...] = ()
    cache: Cache | None = None
    first_sample: int = 0  # of an epoch's order: what skip() and take() select
    stop_sample: int | None = None
    first_batch: int = 0  # the same after batch(), in batches of every rank
    stop_batch: int | None = None
    repeat: int | None = 1
    prefetch_batches: int = 0  # without batch(), samples
    prefetch_bytes: int = 0
    open_files: int | Literal["auto"] = "auto"
    memory_bytes: int = MEMORY_BYTES
    on_corrupt: OnCorrupt = "raise"
    max_corrupt: int = 100

    @property
    def batched(self) -> bool:
        return self.batch is not None or self.global_batch is not None

    @property
    def selection(self) -> str:
        """Describes what skip() and take() select of an epoch, for a saved state."""
        parts = [
            f"{what} {first:,} to {'the end' if stop is None else f'{stop:,}'}"
            for what, first, stop in (
                ("samples", self.first_sample, self.stop_sample),
                ("batches", self.first_batch, self.stop_batch),
            )
            if first or stop is not None
        ]
        return ", ".join(parts) or "all samples"

    @property
    def prefetches(self) -> bool:
        return bool(self.prefetch_batches or self.prefetch_bytes)

    @property
    def prefetch_max_items(self) -> int:
        """How many items prefetch() makes ready at most; without batch(), an item is a step of single samples."""
        if not self.prefetch_batches:
            return sys.maxsize
        return self.prefetch_batches if self.batched else -(-self.prefetch_batches // STEP_SAMPLES)

    @property
    def prefetch_max_bytes(self) -> int:
        """How many bytes prefetch() makes ready at most, except for the first batch."""
        return self.prefetch_bytes or self.memory_bytes // _PREFETCH_SHARE
