"""The stages of an iteration, put together from its settings."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress
from copy import copy
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from ...errors import HoldfastError, MapError
from ...formats.columns import leaves, map_leaves, nbytes_of, tuple_like
from ...schema import Schema
from ..options import Function, Options
from ..skipped import Losses
from .executors import CancelToken, run_stage
from .memory_budget import MemoryBudget
from .sample_cache import SampleCache
from .stats import Meter
from .transform import Failure, Transform, TransformResult
from .work_item import Items, WorkItem


class Stage(NamedTuple):
    """A work, and the function that says where it runs."""

    work: Transform
    place: Function | None


def plan_stages(settings: Options, schema: Schema) -> tuple[list[Stage], list[Stage]]:
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
    if makes_batch == -1 and (settings.collate == "pad" or mapped):
        gives.insert(0, Stage(_work(settings, schema, [], batches=True), None))
    return keeps, gives


def _work(settings: Options, schema: Schema, functions: list[Function], *, batches: bool) -> Transform:
    return Transform(
        functions=tuple(functions),
        seed=settings.seed,
        batches=batches,
        how=settings.collate,
        pad_value=settings.pad_value,
        schema=schema,
        mapped=any(one.kind == "map" and one.each == "sample" for one in settings.functions),
    )


class Pipeline:
    """Runs items through the stages; notes what is lost on the way."""

    def __init__(self, settings: Options, schema: Schema, losses: Losses, meter: Meter, halt: CancelToken) -> None:
        self._before, self._behind = plan_stages(settings, schema)
        self.room = MemoryBudget(settings, [stage.place for stage in (*self._before, *self._behind)])
        self._halt = halt
        self._losses, self._meter = losses, meter
        self._form: Any = None  # a batch of no rows, in the form that the others have
        self._counts = settings.prefetches  # only who keeps batches needs to know how large they are

    def run(self, items: Items, cache: SampleCache | None) -> Items:
        for stage in self._before:
            items = self._stage(items, stage)
        if cache is not None:
            items = cache.merge(items)
        for stage in self._behind:
            items = self._stage(items, stage)
        return self._measured(items)

    def _stage(self, items: Items, stage: Stage) -> Items:
        return run_stage(items, stage.work, stage.place, self._finish, self._meter, self.room, self._halt)

    def _measured(self, items: Items) -> Items:
        with closing(items):
            for item in items:
                self._measure(item)
                yield item

    def _measure(self, item: WorkItem) -> None:
        """A function of its own: the generator must not keep the rows while the next ones are made."""
        rows = item.rows
        if isinstance(rows, (dict, tuple)):
            if rows and self._form is None:
                self._form = _form_of(rows)
            elif not rows and self._form is not None:
                # What the functions would have made of no sample is not known: as they did before.
                item.rows = rows = map_leaves(_no_rows, self._form)
        if self._counts:
            item.size_bytes = sum(map(_size, rows)) if isinstance(rows, list) else _size(rows)

    def _finish(self, item: WorkItem, work: Transform, outcome: TransformResult) -> WorkItem:
        for failure in outcome.failures:
            error = _error(item, work, failure)
            function = work.functions[failure.function] if failure.function >= 0 else None
            if function is None or function.on_error == "raise" or not isinstance(error, MapError):
                raise error from failure.error
            # A function of batches loses all rows that are still there.
            left = range(len(item.kept)) if outcome.stay is None else outcome.stay.tolist()
            for row in [failure.row] if failure.row >= 0 else left:
                path, record = item.place_of(row)
                lost = MapError(path, record, error.function, error.reason, error.traceback)
                self._losses.failed(lost, function.max_errors, function)
                item.lost.append(int(item.kept[row]))
        item.rows = outcome.rows
        self.room.made(_about(outcome.rows))
        if outcome.failures and outcome.failures[-1].row < 0:
            item.rows, outcome = {}, outcome._replace(stay=np.zeros(0, np.int64))
        if outcome.stay is not None:
            item.select(outcome.stay)
        return item


def _error(item: WorkItem, work: Transform, failure: Failure) -> HoldfastError:
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


def _form_of(rows: Any) -> Any:
    """Its columns with no rows. A copy: a view would keep all of the batch. Of a dict, what has no rows is left out."""
    if isinstance(rows, Mapping):
        form = {name: _form_of(column) for name, column in rows.items()}
        return {name: column for name, column in form.items() if column is not None}
    if isinstance(rows, tuple):
        return tuple_like(rows, [_form_of(column) for column in rows])
    if hasattr(rows, "__len__"):
        with suppress(Exception):  # a function may put anything into a batch
            return copy(rows[:0])
    return None


def _no_rows(column: Any) -> Any:
    return None if column is None else column[:0]


def _first_place(item: WorkItem) -> tuple[str, int]:
    return item.place_of(0) if len(item.kept) else ("an empty batch", 0)


def _about(rows: Any) -> int:
    """The size of a batch; of samples, what it would be if all were as large as the first."""
    if isinstance(rows, list):
        return len(rows) * _size(rows[0]) if rows else 0
    return _size(rows)


def _size(rows: Any) -> int:
    try:
        return nbytes_of(rows)
    except (AttributeError, TypeError):  # a function may put anything into a batch
        return sum(getattr(value, "nbytes", 64) for _, value in leaves(rows))
