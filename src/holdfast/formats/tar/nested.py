"""Members that are more than one array: .npz files of `values`, `offsets` and `row_splits`, as layout.py says."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...schema import Bytes, Ragged, Value
from ..columns import BytesColumn, ColumnData, Ints, RaggedColumn
from ..dtypes import dtype_of
from .numbers import Unfit, read_npy

Array = npt.NDArray[Any]


# ---- writing


def pack(arrays: dict[str, Array]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            data = io.BytesIO()
            np.lib.format.write_array(data, np.ascontiguousarray(array), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), data.getvalue())  # without a time of its own
    return file.getvalue()


# ---- reading


def nested_column(items: Sequence[bytes], column: Value | Ragged) -> ColumnData:
    """One item a row. An item of no bytes is an empty list: a sample may lack the member."""
    rows = [_read(i, item, column) for i, item in enumerate(items)]
    value = column.value if isinstance(column, Ragged) else column
    per_item = value.count if value.shape else 0
    if isinstance(value, Bytes):
        joined: Any = BytesColumn(_join([row[0] for row in rows], np.uint8), _ends([row[1] for row in rows]), per_item)
        counts = [(len(row[1]) - 1) // value.count for row in rows]
    else:
        joined = _join([row[0] for row in rows], dtype_of(value)).reshape(-1, *value.shape)
        counts = [len(row[0]) for row in rows]
    if not isinstance(column, Ragged):
        return joined  # type: ignore[no-any-return]
    if column.depth > 1:
        joined = RaggedColumn(joined, _ends([row[2] for row in rows]))
        counts = [len(row[2]) - 1 for row in rows]
    return RaggedColumn(joined, np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64))


def _read(place: int, item: bytes, column: Value | Ragged) -> tuple[Array, Ints, Ints]:
    """A row's values, where its strings end, and where its inner lists do."""
    value = column.value if isinstance(column, Ragged) else column
    try:
        arrays = _arrays(item) if item or not isinstance(column, Ragged) else _nothing(value)
        values, count = _values(arrays, value)
        offsets = np.zeros(1, np.int64)
        if isinstance(value, Bytes):
            offsets = _checked(arrays, "offsets", count)
            count, rest = divmod(len(offsets) - 1, value.count)
            if rest or (not isinstance(column, Ragged) and count != 1):
                raise ValueError(f"expected {value.count:,} strings, got {len(offsets) - 1:,}")
        splits = np.zeros(1, np.int64)
        if isinstance(column, Ragged) and column.depth > 1:
            splits = _checked(arrays, "row_splits", count)
    except (ValueError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise Unfit(place, f"{error}; it begins with {item[:40]!r}") from None
    return values, offsets, splits


def _arrays(item: bytes) -> dict[str, Array]:
    found = {}
    with zipfile.ZipFile(io.BytesIO(item)) as archive:
        for info in archive.infolist():
            if info.compress_type != zipfile.ZIP_STORED:  # a few bytes could be unpacked to more than the memory
                raise ValueError(f"expected an .npz that is not packed, got {info.filename!r} packed")
            found[info.filename.removesuffix(".npy")] = read_npy(archive.read(info))
    return found


def _nothing(value: Value) -> dict[str, Array]:
    kind = np.uint8 if isinstance(value, Bytes) else np.int64
    return {"values": np.zeros(0, kind), "offsets": np.zeros(1, np.int64), "row_splits": np.zeros(1, np.int64)}


def _values(arrays: dict[str, Array], value: Value) -> tuple[Array, int]:
    found = _array(arrays, "values")
    if isinstance(value, Bytes):
        if found.dtype != np.uint8 or found.ndim != 1:
            raise ValueError(f"expected values of uint8, got {found.dtype} of shape {found.shape}")
        return found, len(found)
    kind = dtype_of(value)
    shaped = found.shape[1:] == value.shape or not found.size
    if (found.dtype != kind and found.size) or found.ndim < 1 or not shaped:
        raise ValueError(f"expected values of {kind} and shape {value.shape}, got {found.dtype} of {found.shape[1:]}")
    values = found.astype(kind).reshape(-1, *value.shape)
    return values, len(values)


def _checked(arrays: dict[str, Array], name: str, last: int) -> Ints:
    ends = _array(arrays, name)
    if ends.dtype != np.int64 or ends.ndim != 1 or not len(ends):
        raise ValueError(f"expected {name} of int64, got {ends.dtype} of shape {ends.shape}")
    if ends[0] or int(ends[-1]) != last or (np.diff(ends) < 0).any():
        raise ValueError(f"expected {name} that go from 0 up to {last:,}")
    return ends


def _array(arrays: dict[str, Array], name: str) -> Array:
    if name not in arrays:
        raise ValueError(f"expected an array {name!r} in the .npz, got {', '.join(arrays) or 'none'}")
    return arrays[name]


def _join(parts: list[Array], kind: Any) -> Array:
    return np.concatenate(parts) if parts else np.zeros(0, kind)


def _ends(rows: list[Ints]) -> Ints:
    sizes = [np.diff(row) for row in rows]
    return np.concatenate([[0], np.cumsum(np.concatenate(sizes))]).astype(np.int64) if sizes else np.zeros(1, np.int64)
