"""What is done with the rows of one step: the user's functions, one after the other, and the batch made of them.

A Transform can be pickled: the same one runs inline, in a thread or in a worker process. It raises nothing that the
user's functions raise: what failed comes back as a Failure, so that the message can name the sample wherever it ran.
"""

from __future__ import annotations

import random
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ....errors import HoldfastError
from ....schema import Schema
from ...formats.columns import Batch, Ints, map_leaves, rows_of, split_samples
from ...formats.gather import empty_batch, gather_rows
from ...formats.images import ImageColumn
from ..options import Collate, Function
from ..order.shuffle import key_of
from .collate import SlotPool, Slots, collate, pad_columns
from .run_context import Sample, WorkItem

ReportSample = Callable[[int], None]  # called with the row that is worked on; -1: the whole batch


def ignore_sample(_: int) -> None:
    """Reports nothing: only a worker process has to say which sample it is at."""


class Failure(NamedTuple):
    """Function number `function` of a transform failed on row `row`, or on the whole batch if that is -1.

    Function -1: the samples could not be collated into a batch.
    """

    row: int
    function: int
    reason: str
    traceback: str
    error: Exception | None  # None if it came from another process

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception of the user's may not unpickle; its text always does.
        return Failure, (*self[:4], self.error if self.function < 0 else None)


class TransformResult(NamedTuple):
    """What a transform made of an item.

    selected: indices of the rows that are left; None: all
    """

    rows: Any
    selected: Ints | None
    failures: list[Failure]
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Transform:
    """Functions of samples, the batch if this transform makes it, and functions of batches, in that order.

    makes_batch: collate the samples as `collate`, `pad_value` and `schema` say
    mapped:      whether samples may have other columns by now than `schema` says
    """

    functions: tuple[Function, ...]
    seed: int | None
    makes_batch: bool
    collate: Collate | None = None
    pad_value: float = 0
    schema: Schema | None = None
    mapped: bool = True
    slots: SlotPool = field(default_factory=SlotPool, compare=False)

    @property
    def name(self) -> str:
        return " · ".join(function.name for function in self.functions) or "batch"

    def __repr__(self) -> str:
        return self.name

    def __call__(self, item: WorkItem, report_sample: ReportSample = ignore_sample) -> TransformResult:
        start = perf_counter()
        run = TransformRun(self, item, report_sample)
        run.run()
        return run.finish()._replace(seconds=perf_counter() - start)


class TransformRun:
    """One item on its way through a transform. Threads may `run` it together, each taking the next sample. One of
    them calls `finish` when all have returned."""

    def __init__(self, transform: Transform, item: WorkItem, report_sample: ReportSample = ignore_sample) -> None:
        self._transform, self._item, self._report = transform, item, report_sample
        self._numbered = [
            (number, function) for number, function in enumerate(transform.functions) if function.each == "sample"
        ]
        rows = item.rows
        self._samples: list[Any] = (split_samples(rows) if isinstance(rows, dict) else rows) if self._numbered else []
        self._results: list[Any] = [None] * len(self._samples)
        self._left = deque(range(len(self._samples)))
        self._slots = self._make_slots() if transform.makes_batch and self._samples else {}

    def _make_slots(self) -> dict[int, Slots]:
        """Makes the arrays of the batch that functions write into, by their numbers."""
        images = [(number, one.function) for number, one in self._numbered if isinstance(one.function, ImageColumn)]
        return {
            number: self._transform.slots.take((len(self._samples), *image.resize.shape), image.resize.dtype)
            for number, image in images
            if image.resize is not None
        }

    def run(self) -> None:
        """Runs the functions of samples until no sample is left to begin."""
        while True:
            try:
                row = self._left.popleft()
            except IndexError:
                return
            self._report(row)
            result = self._results[row] = self._run_sample(row, self._samples[row])
            if isinstance(result, Failure) and self._raises(result):
                self.stop()  # samples before it have begun: the first failure is the same however many threads run this

    def stop(self) -> None:
        """Lets no other sample begin."""
        self._left.clear()

    def _run_sample(self, row: int, sample: Sample) -> Any:
        """Returns what is left of a sample, None if it was filtered out, or why a function failed."""
        for number, function in self._numbered:
            try:
                result = self._call(number, function, row, sample)
                if function.kind == "filter":
                    if not result:
                        return None
                else:
                    sample = _check_sample(result)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is reported with the sample
                return _failure(row, number, error)
        return sample

    def _call(self, number: int, function: Function, row: int, sample: Sample) -> Any:
        if isinstance(function.function, ImageColumn):
            # Not the generator of map(random=True), whose draws would be those of the crop; and quicker to make.
            rng = random.Random(self._key(row, "crop")) if function.random else None
            slots = self._slots.get(number)
            return function.function(sample, rng, None if slots is None else slots.row(row))
        return function.function(sample, self._rng(row)) if function.random else function.function(sample)

    def finish(self) -> TransformResult:
        """Does what concerns all rows together, after the functions of samples."""
        if not self._numbered:
            return self._finish(self._item.rows, None, [])
        rows: list[Sample] = []
        selected: list[int] = []
        failures: list[Failure] = []
        for row, result in enumerate(self._results):
            if isinstance(result, Failure):
                failures.append(result)
                if self._raises(result):
                    return TransformResult(None, np.array(selected, np.int64), failures)
            elif result is not None:
                rows.append(result)
                selected.append(row)
        all_left = len(selected) == len(self._samples)
        return self._finish(rows, None if all_left else np.array(selected, np.int64), failures)

    def _finish(self, rows: Any, selected: Ints | None, failures: list[Failure]) -> TransformResult:
        if self._transform.makes_batch:
            try:
                rows = self._batch(rows)
            except HoldfastError as error:
                return TransformResult(None, selected, [*failures, Failure(-1, -1, str(error), "", error)])
        for number, function in enumerate(self._transform.functions):
            # What earlier functions would have made of no samples is not known: such a batch has no columns.
            if function.each == "batch" and rows != {}:
                self._report(-1)
                try:
                    result = self._run_batch(function, rows, selected)
                except Exception as error:  # noqa: BLE001 - as above
                    return TransformResult(None, selected, [*failures, _failure(-1, number, error)])
                if function.kind == "map":
                    rows = result
                else:
                    rows = map_leaves(partial(_rows_at, which=result), rows)
                    selected = result if selected is None else selected[result]
        return TransformResult(rows, selected, failures)

    def _batch(self, rows: Batch | list[Sample]) -> Any:
        transform = self._transform
        if isinstance(rows, list):
            if rows:
                return collate(rows, transform.collate, transform.schema, transform.pad_value)
            if transform.mapped or transform.schema is None:
                return {}
            rows = empty_batch(transform.schema)
        return pad_columns(rows, transform.pad_value) if transform.collate == "pad" else rows

    def _run_batch(self, function: Function, rows: Any, selected: Ints | None) -> Any:
        """Returns what a map made of a batch, or the indices of the rows that a filter left."""
        # Seeded by the first row that is left: the same wherever a filter before it ran.
        first = 0 if selected is None or not len(selected) else int(selected[0])
        result = function.function(rows, self._rng(first)) if function.random else function.function(rows)
        if function.kind == "filter":
            return _filtered(result, rows_of(rows))
        if result is None:
            raise TypeError("expected a batch, got None: does it return one?")
        return result

    def _raises(self, failure: Failure) -> bool:
        return self._transform.functions[failure.function].on_error == "raise"

    def _rng(self, row: int) -> np.random.Generator:
        return np.random.default_rng(self._key(row))

    def _key(self, row: int, *use: str) -> int:
        """Hashes seed, epoch and sample: the same in every layout of ranks and workers."""
        seed, epoch = self._transform.seed, self._item.epoch
        shards, records = self._item.samples
        return key_of(seed, epoch, shards[row], records[row], *use) if len(shards) else key_of(seed, epoch, *use)


def _check_sample(result: Any) -> Sample:
    if type(result) is not dict and not isinstance(result, (dict, tuple)):  # the first test is quicker, and mostly true
        more = ": does it return one?" if result is None else ""
        raise TypeError(f"expected a dict or a tuple of what the sample has now, got {type(result).__name__}{more}")
    return result


def _filtered(result: Any, rows: int) -> Ints:
    """Returns the indices of the rows that a filter of batches left."""
    mask = np.asarray(result)
    if mask.dtype != np.bool_ or mask.shape != (rows,):
        raise TypeError(
            f"expected a filter of batches to return one bool for each of the {rows} rows, "
            f"got {mask.dtype} of shape {mask.shape}"
        )
    return np.flatnonzero(mask)


def _rows_at(column: Any, which: Ints) -> Any:
    if isinstance(column, np.ndarray):
        return column[which]
    return gather_rows([{"": column}], np.zeros(len(which), np.int64), which)[""]


def _failure(row: int, function: int, error: Exception) -> Failure:
    return Failure(row, function, f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error)), error)
