"""What is done with the rows of one step: the user's functions, one after the other, and the batch made of them.

A Work can be pickled: the same one runs here, in a thread or in a worker process. It raises nothing of the user's: what
failed comes back as a Failure, so that the message can name the sample wherever it happened.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...errors import HoldfastError
from ...formats.columns import Batch, Ints, map_leaves, rows_of, split_samples
from ...formats.gather import empty_batch, gather_rows
from ...schema import Schema
from ..options import Collate, Function
from ..order.shuffle import key_of
from .collate import collate, pad_columns
from .work_item import Sample, WorkItem

Tell = Callable[[int], None]


class Failure(NamedTuple):
    """Function number `function` of the work failed on row `row`; on the whole batch when that is -1.

    Function -1: the samples could not be made a batch.
    """

    row: int
    function: int
    reason: str
    trace: str
    error: Exception | None  # None where it came from another process


class TransformInput(NamedTuple):
    """What a work needs of an item, and no more: it may go to another process."""

    rows: Batch | list[Sample]
    shard: Ints
    sample: Ints
    epoch: int


class TransformResult(NamedTuple):
    """`stay`: which rows are still there; None: all."""

    rows: Any
    stay: Ints | None
    failures: list[Failure]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """`batches`: make a batch of the samples, `how`; then the functions of batches run.

    mapped: whether samples may have other columns by now than `schema` says
    """

    functions: tuple[Function, ...]
    seed: int | None
    batches: bool
    how: Collate | None = None
    pad_value: float = 0
    schema: Schema | None = None
    mapped: bool = True

    @property
    def name(self) -> str:
        return " · ".join(function.name for function in self.functions) or "batch"

    def __call__(self, given: TransformInput, tell: Tell) -> TransformResult:
        doing = TransformRun(self, given, tell)
        doing.run()
        return doing.finish()

    def finish(
        self, given: TransformInput, tell: Tell, rows: Any, stay: Ints | None, failures: list[Failure]
    ) -> TransformResult:
        """All that is done with the rows together, after the functions of samples."""
        if failures and any(self.functions[one.function].on_error == "raise" for one in failures):
            return TransformResult(None, stay, failures)
        if self.batches:
            try:
                rows = self._batch(rows)
            except HoldfastError as error:
                return TransformResult(None, stay, [*failures, Failure(-1, -1, str(error), "", error)])
        for number, function in enumerate(self.functions):
            # Of no samples it is not known what the functions before would have made: such a batch has no columns.
            if function.each == "batch" and rows != {}:
                tell(-1)
                rows, stay, failure = self._on_batch(number, function, rows, given, stay)
                if failure:
                    return TransformResult(None, stay, [*failures, failure])
        return TransformResult(rows, stay, failures)

    def _batch(self, rows: Batch | list[Sample]) -> Any:
        if isinstance(rows, list):
            if rows:
                return collate(rows, self.how, self.schema, self.pad_value)
            if self.mapped or self.schema is None:
                return {}
            rows = empty_batch(self.schema)
        return pad_columns(rows, self.pad_value) if self.how == "pad" else rows

    def _on_batch(
        self, number: int, function: Function, rows: Any, given: TransformInput, stay: Ints | None
    ) -> tuple[Any, Ints | None, Failure | None]:
        try:
            # By the first row that is left: the same wherever a filter before it ran.
            first = 0 if stay is None or not len(stay) else int(stay[0])
            found = function.function(rows, self._chance(given, first)) if function.random else function.function(rows)
            if function.kind == "map":
                if found is None:
                    raise TypeError("expected a batch, got None: does it return one?")
                return found, stay, None
            which = _mask(found, rows_of(rows))
        except Exception as error:  # noqa: BLE001 - whatever the user's function raises is told with its place
            return None, stay, _failure(-1, number, error)
        rows = map_leaves(lambda column: _rows_at(column, which), rows)
        return rows, which if stay is None else stay[which], None

    def _chance(self, given: TransformInput, row: int) -> np.random.Generator:
        """The same for a sample in every layout of ranks and workers, and another one in every epoch."""
        if not len(given.shard):
            return np.random.default_rng(key_of(self.seed, given.epoch))
        return np.random.default_rng(key_of(self.seed, given.epoch, given.shard[row], given.sample[row]))


class TransformRun:
    """One item's rows on their way through a work. Threads may `run` it together: each takes the next sample. One of
    them, when all have returned, calls `finish`."""

    def __init__(self, work: Transform, given: TransformInput, tell: Tell) -> None:
        self._work, self._given, self._tell = work, given, tell
        self._each = [function for function in work.functions if function.each == "sample"]
        self._numbers = {id(function): number for number, function in enumerate(work.functions)}
        rows = given.rows
        self._samples: list[Any] = (split_samples(rows) if isinstance(rows, dict) else rows) if self._each else []
        self._found: list[Any] = [None] * len(self._samples)
        self._left = deque(range(len(self._samples)))

    def run(self) -> None:
        """Until no sample is left to be begun."""
        while True:
            try:
                row = self._left.popleft()
            except IndexError:
                return
            self._tell(row)
            found = self._found[row] = self._one(self._each, row, self._samples[row])
            if isinstance(found, Failure) and self._raises(found):
                self.stop()  # those before it are begun: the first that fails is the same however many run this

    def stop(self) -> None:
        """No other sample is begun."""
        self._left.clear()

    def _raises(self, failure: Failure) -> bool:
        return self._work.functions[failure.function].on_error == "raise"

    def finish(self) -> TransformResult:
        if not self._each:
            return self._work.finish(self._given, self._tell, self._given.rows, None, [])
        out: list[Sample] = []
        stay: list[int] = []
        failures: list[Failure] = []
        for row, found in enumerate(self._found):
            if isinstance(found, Failure):
                failures.append(found)
                if self._raises(found):
                    break
            elif found is not None:
                out.append(found)
                stay.append(row)
        stays = None if len(stay) == len(self._samples) else np.array(stay, np.int64)
        return self._work.finish(self._given, self._tell, out, stays, failures)

    def _one(self, functions: list[Function], row: int, sample: Sample) -> Any:
        """What is left of a sample, None if it was filtered out, or why a function failed."""
        for function in functions:
            try:
                found = (
                    function.function(sample, self._work._chance(self._given, row))
                    if function.random
                    else function.function(sample)
                )
                if function.kind == "filter":
                    if not found:
                        return None
                else:
                    sample = _checked(found)
            except Exception as error:  # noqa: BLE001 - as above
                return _failure(row, self._numbers[id(function)], error)
        return sample


def _checked(found: Any) -> Sample:
    if type(found) is not dict and not isinstance(found, (dict, tuple)):  # the first is quicker, and mostly true
        more = ": does it return one?" if found is None else ""
        raise TypeError(f"expected a dict or a tuple of what the sample has now, got {type(found).__name__}{more}")
    return found


def _mask(found: Any, rows: int) -> Ints:
    mask = np.asarray(found)
    if mask.dtype != np.bool_ or mask.shape != (rows,):
        raise TypeError(
            f"expected a filter of batches to say which of the {rows} rows stay, as an array of so many bools, "
            f"got {mask.dtype} of shape {mask.shape}"
        )
    return np.flatnonzero(mask)


def _rows_at(column: Any, which: Ints) -> Any:
    if isinstance(column, np.ndarray):
        return column[which]
    return gather_rows([{"": column}], np.zeros(len(which), np.int64), which)[""]


def _failure(row: int, function: int, error: Exception) -> Failure:
    lines = traceback.format_exception(error)
    # The first frames are this file's: they say nothing to the user.
    return Failure(row, function, f"{type(error).__name__}: {error}", "".join(lines), error)


def given_of(item: WorkItem) -> TransformInput:
    return TransformInput(item.rows, item.shard, item.sample, item.epoch)
