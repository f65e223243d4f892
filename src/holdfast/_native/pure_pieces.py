"""A run of decoded rows, cut into batches."""

from __future__ import annotations

from typing import Any


def pieces(names: tuple[str, ...], columns: tuple[Any, ...], n: int, /) -> list[dict[str, Any]]:
    if len(names) != len(columns) or n < 0:
        raise ValueError("expected a name for every column, and a number of pieces from 0 up")
    made = [[_piece(column, i) for i in range(n)] for column in columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*made, strict=True)] if made else [{} for _ in range(n)]


def _piece(column: Any, i: int) -> Any:
    if not isinstance(column, tuple):
        return column[i]
    items, kind, slot, others = column
    made = kind.__new__(kind)
    setattr(made, slot, items[i])
    for name, value in others:
        setattr(made, name, value)
    return made
