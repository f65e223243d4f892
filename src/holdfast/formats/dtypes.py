"""Numbers in the dtype that a column has: which one that is in numpy, and casts that refuse what does not fit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ..schema import DTYPES, Array, Value
from .columns import ColumnData, Ints, RaggedColumn

_NUMPY: dict[str, np.dtype[Any]] = {name: np.dtype(name) for name in DTYPES}
_UINT8 = np.dtype(np.uint8)


def is_exact(value: Value) -> bool:
    """Whether floats must not be rounded to fit the column."""
    return isinstance(value, Array) and value.exact


def dtype_of(value: Value) -> np.dtype[Any]:
    """Returns the dtype of a column's values in a batch; those of Bytes are joined as uint8."""
    return _NUMPY[value.dtype] if isinstance(value, Array) else _UINT8


class Misfit(ValueError):
    """A number that a dtype cannot hold. `row` is its place along the first axis of what was to be cast."""

    def __init__(self, row: int, what: str) -> None:
        super().__init__(f"got {what}")
        self.row, self.what = row, what

    def of_list(self, splits: Ints) -> Misfit:
        """The same of the list that the number is in."""
        return Misfit(int(np.searchsorted(splits, self.row, "right")) - 1, self.what)


def cast(array: npt.NDArray[Any], dtype: np.dtype[Any], *, exact: bool = False) -> npt.NDArray[Any]:
    """Returns the numbers in this dtype, without a copy if they have it already.

    Raises Misfit for an integer that is out of range or that a float cannot hold exactly, and for a number that would
    become infinite. Floats are rounded, unless `exact`: then they must have the same bits when they are cast back.
    """
    if array.dtype == dtype:
        # h5py's dtypes may carry metadata, of an enumeration for instance, that equality does not look at.
        return array if array.dtype.metadata is None else array.view(dtype)
    if dtype.kind in "biu":
        _check_range(array, dtype)
        return array.astype(dtype)
    try:
        with np.errstate(over="raise", invalid="ignore"):  # numpy sees it on the way: no second look at the numbers
            found = array.astype(dtype)
    except FloatingPointError:
        with np.errstate(over="ignore", invalid="ignore"):
            found = array.astype(dtype)
        _refuse(array, np.isfinite(found) != np.isfinite(array), f"{dtype} cannot hold" + " exactly" * exact)
    if array.dtype.kind in "iu":
        _check_whole(array, dtype)
    elif exact and array.dtype.kind == "f":
        bits = f"u{array.dtype.itemsize}"
        with np.errstate(invalid="ignore"):
            back = found.astype(array.dtype)
        _refuse(array, back.view(bits) != np.ascontiguousarray(array).view(bits), f"{dtype} cannot hold exactly")
    return found


def cast_column(column: ColumnData, dtype: np.dtype[Any], *, exact: bool = False) -> ColumnData:
    """Casts an array that was read, or what lists hold. Misfit names the outermost row.

    `exact` asks nothing of floats that become wider: at the worst a signaling NaN becomes a quiet one.
    """
    if not isinstance(column, RaggedColumn):
        array = np.asarray(column)
        return cast(array, dtype, exact=exact and array.dtype.itemsize > dtype.itemsize)
    values, splits = column.values, column.row_splits
    try:
        return RaggedColumn(cast_column(values, dtype, exact=exact), splits)
    except Misfit as error:
        raise error.of_list(splits) from None


def _check_range(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> None:
    if not array.size or np.can_cast(array.dtype, dtype, "safe"):
        return
    low, high = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    if int(array.min()) < low or int(array.max()) > high:
        # Compared as Python's numbers: numpy would make floats of int64 beside uint64.
        wrong = np.array([not low <= one <= high for one in array.reshape(-1).tolist()], bool)
        _refuse(array, wrong, f"{dtype} cannot hold")


def _check_whole(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Refuses integers that this dtype of floats cannot hold exactly: all up to a power of two, and some above."""
    most = 2 ** (int(np.finfo(dtype).nmant) + 1)
    if array.size and (int(array.max()) > most or int(array.min()) < -most):
        with np.errstate(over="ignore"):
            floats = [float(dtype.type(one)) for one in array.reshape(-1).tolist()]
        numbers = zip(floats, array.reshape(-1).tolist(), strict=True)
        wrong = np.array([not math.isfinite(one) or int(one) != number for one, number in numbers], bool)
        _refuse(array, wrong, f"{dtype} cannot hold exactly")


def _refuse(array: npt.NDArray[Any], wrong: npt.NDArray[np.bool_], why: str) -> None:
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        row = at // (array.size // len(array)) if array.ndim else 0
        raise Misfit(row, f"{array.reshape(-1)[at]!s}, which {why}")
