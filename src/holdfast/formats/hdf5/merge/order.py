"""Which rows of which source come where: the same for every column, so that a sample stays one."""

from __future__ import annotations

import math
from collections.abc import Callable

from ....schema import Ragged
from .agree import Agreement, Column
from .facts import Refusal, Run, Target

EXACT, ANY = "exact", "any"
_WORTH = 0.5  # of all rows: what must stay in whole chunks for a column's chunks to be kept whole

EndAt = Callable[[Target, int, int], int]  # of ends in a source, the one with this number


def give_runs(made: Agreement, order: str, wanted: list[Run] | None, end_at: EndAt) -> None:
    """Every target gets its rows. `expected`: where the caller says in which order."""
    lengths = {tuple(column.rows) for column in made.columns}
    for target in made.targets.values():
        if target.kept:
            target.runs = [Run(0, 0, target.like.rows)]
    if len(lengths) > 1 and (wanted is not None or order == ANY):
        one, two = _unlike(made.columns)
        told = f"{one.path!r} has {one.rows[0]:,} rows, {two.path!r} has {two.rows[0]:,}"
        if wanted is not None:
            raise Refusal("schema", made.sources[0].path, f"datasets differ in length: {told}")
        made.notes.append(f"datasets differ in length ({told}): the order is kept, so that they still fit together")
    for column in made.columns:
        if wanted is not None:
            runs = _checked(made, column, wanted)
        elif order == ANY and len(lengths) == 1:
            runs = _whole_chunks_first(made)
        else:
            runs = [Run(file, 0, rows) for file, rows in enumerate(column.rows)]
        _give(made, column, [run for run in runs if run.rows], end_at)


def _unlike(columns: list[Column]) -> tuple[Column, Column]:
    first = columns[0]
    return first, next(column for column in columns if column.rows != first.rows)


def _checked(made: Agreement, column: Column, wanted: list[Run]) -> list[Run]:
    for file, rows in enumerate(column.rows):
        at = 0
        for run in sorted(run for run in wanted if run.file == file):
            if run.start != at:
                break
            at = run.stop
        if at != rows:
            text = f"{column.path!r} has {rows:,} rows, its record's runs speak of {at:,}"
            raise Refusal("corrupt", made.sources[file].path, text)
    return wanted


def _whole_chunks_first(made: Agreement) -> list[Run]:
    rows = made.columns[0].rows
    step = _step(made, rows)
    heads = [n // step * step for n in rows]
    return [Run(file, 0, head) for file, head in enumerate(heads)] + [
        Run(file, head, n) for file, (head, n) in enumerate(zip(heads, rows, strict=True))
    ]


def _step(made: Agreement, rows: list[int]) -> int:
    """So many rows that the chunks of all columns end together; of as many columns, by their bytes, as is sensible."""
    plain = [made.targets[column.path] for column in made.columns if column.mark is None]
    chunked = [target for target in plain if target.like.chunks and not target.like.has_objects]
    step = 1
    for target in sorted(chunked, key=lambda one: -one.like.row_bytes):
        assert target.like.chunks is not None
        longer = math.lcm(step, target.like.chunks[0])
        if sum(n // longer * longer for n in rows) >= _WORTH * sum(rows):
            step = longer
    return step


def _give(made: Agreement, column: Column, runs: list[Run], end_at: EndAt) -> None:
    if column.mark is None:
        made.targets[column.path].runs = runs
        return
    path, mark = column.path, column.mark
    while True:
        listed = isinstance(mark, Ragged)
        times = 1 if listed else mark.count
        ends = made.targets[f"{path}/{'row_splits' if listed else 'offsets'}"]
        ends.ends = True
        ends.runs = [Run(run.file, run.start * times, run.stop * times) for run in runs]
        runs = [Run(run.file, end_at(ends, run.file, run.start), end_at(ends, run.file, run.stop)) for run in ends.runs]
        runs = [run for run in runs if run.rows]
        path = f"{path}/values"
        if f"{path}/offsets" not in made.targets and f"{path}/row_splits" not in made.targets:
            break
        mark = mark.inner
    values = made.targets[path]
    for run in runs:
        if run.start < 0 or run.rows < 0 or run.stop > values.sources[run.file].rows:
            text = f"{path!r} has {values.sources[run.file].rows:,} values, its ends speak of {run.stop:,}"
            raise Refusal("corrupt", made.sources[run.file].path, text)
    values.runs = runs
