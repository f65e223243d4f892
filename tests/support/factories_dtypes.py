"""Numbers of every dtype and shape with arbitrary bit patterns, and what must stay the same when they are stored."""

from __future__ import annotations

from typing import Any

import numpy as np

import holdfast as hold
from holdfast.data.formats.columns import RaggedColumn
from holdfast.schema import DTYPES, Column

ROWS = 64
SHAPES: dict[str, Any] = {
    "one": hold.Array,
    "grid": lambda dtype: hold.Array(dtype, 2, 3),
    "list": lambda dtype: hold.Ragged(hold.Array(dtype)),
    "boxes": lambda dtype: hold.Ragged(hold.Array(dtype, 4)),
    "lists": lambda dtype: hold.Ragged(hold.Ragged(hold.Array(dtype))),
}
SCHEMA: dict[str, Column] = {"id": hold.Int64()} | {
    f"{shape}_{dtype}": make(dtype)
    for dtype in DTYPES
    for shape, make in SHAPES.items()
    if shape != "lists" or dtype in ("bool", "uint8", "float64")  # lists of lists cost most
}


def numbers(rng: np.random.Generator, dtype: str, *shape: int) -> Any:
    """Of any bits: all extremes, and of floats infinities, both zeros, subnormal numbers and NaN with a payload."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    bits = rng.integers(0, 256, (*shape, kind.itemsize), np.uint8).view(f"u{kind.itemsize}")[..., 0]
    some = rng.random(shape)
    ones, top = np.array(-1).astype(bits.dtype), np.array(1).astype(bits.dtype) << (8 * kind.itemsize - 1)
    for share, special in enumerate([0, 1, top, top - 1, ones]):  # as floats: 0, the least, -0.0, and two NaN
        bits[(some > share / 20) & (some < (share + 1) / 20)] = special
    if kind.kind == "f":
        infinite = np.array([np.inf, -np.inf], kind).view(bits.dtype)
        bits[(some > 0.3) & (some < 0.35)] = infinite[0]
        bits[(some > 0.35) & (some < 0.4)] = infinite[1] | bits.dtype.type(1)  # a signaling NaN
    return bits.view(kind)


def made(rng: np.random.Generator, rows: int) -> dict[str, Any]:
    found: dict[str, Any] = {"id": np.arange(rows)}
    for name in list(SCHEMA)[1:]:
        shape, dtype = name.split("_")
        splits = np.concatenate([[0], np.cumsum(rng.integers(0, 4, rows))])
        steps = np.concatenate([[0], np.cumsum(rng.integers(0, 3, splits[-1]))])
        found[name] = {
            "one": lambda d=dtype: numbers(rng, d, rows),
            "grid": lambda d=dtype: numbers(rng, d, rows, 2, 3),
            "list": lambda d=dtype, s=splits: RaggedColumn(numbers(rng, d, int(s[-1])), s),
            "boxes": lambda d=dtype, s=splits: RaggedColumn(numbers(rng, d, int(s[-1]), 4), s),
            "lists": lambda d=dtype, s=splits, t=steps: RaggedColumn(RaggedColumn(numbers(rng, d, int(t[-1])), t), s),
        }[shape]()
    return found


def bits_of(column: Any) -> Any:
    """A row's dtype, shape and bytes, or those of its items."""
    if isinstance(column, RaggedColumn):
        return [bits_of(row) for row in column]
    return [(row.dtype.name, row.shape, row.tobytes()) for row in column]
