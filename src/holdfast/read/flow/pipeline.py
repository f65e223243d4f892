"""The stages of an iteration, put together from its settings."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

from ...errors import HoldfastError, MapError
from ...formats.columns import Batch
from ...schema import Schema
from ..settings import Function, Settings
from .collate import nbytes_of
from .item import Item
from .keep import SampleCache
from .losses import Losses
from .stages import run_stage
from .stats import Meter
from .work import Failure, Outcome, Work


class Stage(NamedTuple):
    """A work, and the function that says where it runs."""

    work: Work
    place: Function | None


def plan_stages(settings: Settings, schema: Schema) -> tuple[list[Stage], list[Stage]]:
    """The works before the cache and those behind it. Neighbours that run in the same place are one.

    The batch is made where the last function of samples runs: what is large then crosses between processes once.
    """
    at = settings.cache.after if settings.cache else 0
    before, behind = settings.functions[:at], settings.functions[at:]
    first = [list(run) for _, run in groupby(before, key=lambda one: one.place)]
    second = [list(run) for _, run in groupby(behind, key=lambda one: one.place)]
    samples_in_second = [at for at, run in enumerate(second) if any(one.each == "sample" for one in run)]
    makes_batch = (samples_in_second[-1] if samples_in_second else -1) if settings.batched else None
    keeps = [Stage(_work(settings, schema, run, batches=False), run[0]) for run in first]
    gives = [Stage(_work(settings, schema, run, batches=at == makes_batch), run[0]) for at, run in enumerate(second)]
    mapped = bool(before) or settings.cache is not None
    if makes_batch == -1 and (settings.how == "pad" or mapped):
        gives.insert(0, Stage(_work(settings, schema, [], batches=True), None))
    return keeps, gives


def _work(settings: Settings, schema: Schema, functions: list[Function], *, batches: bool) -> Work:
    return Work(
        functions=tuple(functions),
        seed=settings.seed,
        batches=batches,
        how=settings.how,
        pad_value=settings.pad_value,
        schema=schema,
    )


class Pipeline:
    """Runs items through the stages; notes what is lost on the way."""

    def __init__(self, settings: Settings, schema: Schema, losses: Losses, meter: Meter) -> None:
        self._before, self._behind = plan_stages(settings, schema)
        self._losses, self._meter, self._memory_bytes = losses, meter, settings.memory_bytes
        self._form: Batch = {}
        self._counts = settings.prefetch_bytes > 0  # only who keeps batches needs to know how large they are

    def run(self, items: Iterator[Item], cache: SampleCache | None) -> Iterator[Item]:
        for stage in self._before:
            items = run_stage(items, stage.work, stage.place, self._finish, self._meter, self._memory_bytes)
        if cache is not None:
            items = cache.merge(items)
        for stage in self._behind:
            items = run_stage(items, stage.work, stage.place, self._finish, self._meter, self._memory_bytes)
        return self._measured(items)

    def _measured(self, items: Iterator[Item]) -> Iterator[Item]:
        for item in items:
            rows = item.rows
            if isinstance(rows, dict):
                if not rows and self._form:
                    item.rows = {name: column[:0] for name, column in self._form.items()}
                elif rows and not self._form:
                    self._form = {name: column[:0] for name, column in rows.items() if hasattr(column, "__getitem__")}
                item.size_bytes = _size(rows) if self._counts else 0
            elif isinstance(rows, list):
                item.size_bytes = sum(map(_size, rows)) if self._counts else 0
            yield item

    def _finish(self, item: Item, work: Work, outcome: Outcome) -> Item:
        for failure in outcome.failures:
            error = _error(item, work, failure)
            function = work.functions[failure.function] if failure.function >= 0 else None
            if function is None or function.on_error == "raise" or failure.row < 0 or not isinstance(error, MapError):
                raise error from failure.error
            self._losses.failed(error, function.max_errors)
        item.rows = outcome.rows
        if outcome.stay is not None:
            item.select(outcome.stay)
        return item


def _error(item: Item, work: Work, failure: Failure) -> HoldfastError:
    if failure.function < 0:  # made into a batch they cannot be: the message has their places in it
        return (
            type(failure.error)(*failure.error.args)
            if isinstance(failure.error, HoldfastError)
            else MapError(*_first_place(item), "batch", failure.reason)
        )
    path, record = item.place_of(failure.row) if failure.row >= 0 else _first_place(item)
    reason = (
        failure.reason if failure.row >= 0 else f"{failure.reason} (in a batch of {len(item.kept)} that begins there)"
    )
    return MapError(path, record, work.functions[failure.function].name, reason, failure.trace)


def _first_place(item: Item) -> tuple[str, int]:
    return item.place_of(0) if len(item.kept) else ("an empty batch", 0)


def _size(rows: Any) -> int:
    try:
        return nbytes_of(rows)
    except (AttributeError, TypeError):  # a function may put anything into a batch
        return sum(getattr(value, "nbytes", 64) for value in rows.values()) if isinstance(rows, dict) else 64
