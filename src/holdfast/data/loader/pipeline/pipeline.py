"""The stages of an iteration, put together from its options."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress
from copy import copy
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from ....errors import HoldfastError, MapError
from ....schema import Schema
from ...formats.columns import leaves, map_leaves, nbytes_of, tuple_like
from ..options import Function, Options
from .executors import run_stage
from .run_context import Items, RunContext, WorkItem
from .sample_cache import SampleCache
from .transform import Failure, Transform, TransformResult


class Stage(NamedTuple):
    """A transform, and the function that says where it runs; None: inline."""

    transform: Transform
    executor: Function | None


class Pipeline:
    """Runs items through the stages; notes what is lost on the way."""

    def __init__(self, schema: Schema, context: RunContext) -> None:
        self._before_cache, self._after_cache = plan_stages(context.options, schema)
        context.budget.executors = [stage.executor for stage in (*self._before_cache, *self._after_cache)]
        self._context = context
        self._template: Any = None  # a batch of no rows, with the columns that the others have
        self._measures = context.options.prefetches  # only prefetch needs to know how large batches are

    def run(self, items: Items, cache: SampleCache | None) -> Items:
        for stage in self._before_cache:
            items = self._run_stage(items, stage)
        if cache is not None:
            items = cache.merge(items)
        for stage in self._after_cache:
            items = self._run_stage(items, stage)
        return self._complete_all(items)

    def _run_stage(self, items: Items, stage: Stage) -> Items:
        return run_stage(items, stage.transform, stage.executor, self._finish, self._context)

    def _finish(self, item: WorkItem, transform: Transform, result: TransformResult) -> WorkItem:
        """Puts the result of a transform into its item; raises or notes what failed."""
        for failure in result.failures:
            error = _error(item, transform, failure)
            function = transform.functions[failure.function] if failure.function >= 0 else None
            if function is None or function.on_error == "raise" or not isinstance(error, MapError):
                raise error from failure.error
            # A function of batches loses all rows that are left.
            left = range(len(item.row_indices)) if result.selected is None else result.selected.tolist()
            for row in [failure.row] if failure.row >= 0 else left:
                path, record = item.source_of(row)
                lost = MapError(path, record, error.function, error.reason, error.traceback)
                self._context.losses.add_failed(lost, function.max_errors, function)
                item.lost_rows.append(int(item.row_indices[row]))
        item.rows = result.rows
        self._context.budget.note_result(_estimate_bytes(result.rows))
        if result.failures and result.failures[-1].row < 0:
            item.rows = {}
            item.select(np.zeros(0, np.int64))
        elif result.selected is not None:
            item.select(result.selected)
        return item

    def _complete_all(self, items: Items) -> Items:
        with closing(items):
            for item in items:
                self._complete(item)
                yield item

    def _complete(self, item: WorkItem) -> None:
        """Gives an empty batch its columns, and measures the item.

        A function of its own: the generator must not keep the rows while the next ones are made.
        """
        rows = item.rows
        if isinstance(rows, (dict, tuple)):
            if rows and self._template is None:
                self._template = _without_rows(rows)
            elif not rows and self._template is not None:
                # What the functions would have made of no sample is not known: what they made before is assumed.
                item.rows = rows = map_leaves(lambda one: None if one is None else one[:0], self._template)
        if self._measures:
            item.size_bytes = sum(map(_size_bytes, rows)) if isinstance(rows, list) else _size_bytes(rows)


def plan_stages(options: Options, schema: Schema) -> tuple[list[Stage], list[Stage]]:
    """Plans the stages before the cache and those after it. Neighbouring functions that run in one place share one.

    The batch is made where the last function of samples runs: large data then cross between processes once.
    """
    at = options.cache.after if options.cache else 0
    before, after = options.functions[:at], options.functions[at:]
    before_cache = [list(group) for _, group in groupby(before, key=lambda one: one.executor_key)]
    after_cache = [list(group) for _, group in groupby(after, key=lambda one: one.executor_key)]
    of_samples = [n for n, group in enumerate(after_cache) if any(one.each == "sample" for one in group)]
    makes_batch = (of_samples[-1] if of_samples else -1) if options.batched else None
    first = [Stage(_transform(options, schema, group, makes_batch=False), group[0]) for group in before_cache]
    second = [
        Stage(_transform(options, schema, group, makes_batch=n == makes_batch), group[0])
        for n, group in enumerate(after_cache)
    ]
    gets_samples = bool(before) or options.cache is not None
    if makes_batch == -1 and (options.collate == "pad" or gets_samples):
        second.insert(0, Stage(_transform(options, schema, [], makes_batch=True), None))
    return first, second


def _transform(options: Options, schema: Schema, functions: list[Function], *, makes_batch: bool) -> Transform:
    return Transform(
        functions=tuple(functions),
        seed=options.seed,
        makes_batch=makes_batch,
        collate=options.collate,
        pad_value=options.pad_value,
        schema=schema,
        mapped=any(one.kind == "map" and one.each == "sample" for one in options.functions),
    )


def _error(item: WorkItem, transform: Transform, failure: Failure) -> HoldfastError:
    if failure.function < 0:  # the message says which samples do not make a batch
        return (
            type(failure.error)(*failure.error.args)
            if isinstance(failure.error, HoldfastError)
            else MapError(*_first_source(item), "batch", failure.reason)
        )
    path, record = item.source_of(failure.row) if failure.row >= 0 else _first_source(item)
    reason = failure.reason
    if failure.row < 0:
        reason += f" (in a batch of {len(item.row_indices)} that begins there)"
    return MapError(path, record, transform.functions[failure.function].name, reason, failure.traceback)


def _first_source(item: WorkItem) -> tuple[str, int]:
    return item.source_of(0) if len(item.row_indices) else ("an empty batch", 0)


def _without_rows(rows: Any) -> Any:
    """Returns copies of the columns with no rows: a view would keep the batch. Values of a dict that have no rows are
    left out."""
    if isinstance(rows, Mapping):
        found = {name: _without_rows(column) for name, column in rows.items()}
        return {name: column for name, column in found.items() if column is not None}
    if isinstance(rows, tuple):
        return tuple_like(rows, [_without_rows(column) for column in rows])
    if hasattr(rows, "__len__"):
        with suppress(Exception):  # a function may put anything into a batch
            return copy(rows[:0])
    return None


def _estimate_bytes(rows: Any) -> int:
    """The size of a batch; of samples, as if all were as large as the first."""
    if isinstance(rows, list):
        return len(rows) * _size_bytes(rows[0]) if rows else 0
    return _size_bytes(rows)


def _size_bytes(rows: Any) -> int:
    try:
        return nbytes_of(rows)
    except (AttributeError, TypeError):  # a function may put anything into a batch
        return sum(getattr(value, "nbytes", 64) for _, value in leaves(rows))
