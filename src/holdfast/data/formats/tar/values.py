"""Maps a schema's columns to the members of a tar: one member for each column of each sample.

Bytes            NAME       the bytes as they are
Int64()          NAME.cls   the number as text, as WebDataset has labels
Array, Ragged
of it            NAME.npy   numpy's own format
Bytes(n), Ragged
of strings, lists
of lists         NAME.npz   `values`, joined; `offsets` of the strings; `row_splits` of the inner lists
__key__          no member  if it is Bytes(): the samples' keys; without it they are numbered

NAME is the column's, in lower case and without characters that a member's name cannot have. The first member,
`__holdfast__`, is JSON with the schema: WebDataset skips members with such names.
"""

from __future__ import annotations

import io
import json
import math
import re
import zipfile
from collections.abc import Callable, Sequence
from functools import lru_cache
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt

from ....errors import SchemaError
from ....schema import DTYPES, Bytes, Column, Int64, Ragged, Schema, Value, schema_from_json, schema_to_json
from ....schema import Array as ArrayColumn
from ..columns import BytesColumn, ColumnData, Ints, RaggedColumn, cast, cast_column, dtype_of, is_exact
from .scan import BLOCK_BYTES, BadHeader, name_in, number_in

KEY = "__key__"
MARK = b"__holdfast__"
_VERSION = 1
_MARK_BYTES = 1 << 24  # limit of the schema member


def is_key(name: str, column: Column) -> bool:
    """Returns whether a column holds the samples' keys."""
    return name == KEY and isinstance(column, Bytes) and not column.shape


def is_nested(column: Column) -> bool:
    """Returns whether a sample's value needs more than one array."""
    if isinstance(column, Ragged):
        return column.depth > 1 or isinstance(column.value, Bytes)
    return isinstance(column, Bytes) and bool(column.shape)


def is_label(column: Column) -> bool:
    """Returns whether a sample's value is one number that is written as text."""
    return isinstance(column, Value) and column.alike() == Int64()


def suffix_of(column: Column) -> str:
    if is_nested(column):
        return ".npz"
    if isinstance(column, Bytes):
        return ""
    return ".cls" if is_label(column) else ".npy"


def extensions_of(schema: Schema) -> dict[str, str]:
    """Returns the extension of each column's members; the key column has none. Raises a SchemaError if there are
    none."""
    found: dict[str, str] = {}
    for name, column in schema.items():
        if is_key(name, column):
            continue
        base = re.sub(r"[^a-z0-9_.-]", "_", name.lower()).strip(".") or "column"
        suffix, tries = suffix_of(column), 1
        if not suffix and base.endswith("__"):  # after a key that begins so, the name would be a special one
            base = base.rstrip("_.") or "column"
        # A column that was read from `x.npy` keeps that name.
        extension = base if suffix and f".{base}".endswith(suffix) else base + suffix
        while extension in found.values():
            tries += 1
            extension = f"{base}_{tries}{suffix}"
        found[name] = extension
    if not found:
        raise SchemaError(f"a sample in a tar has at least one member: expected a column beside {KEY!r}")
    return found


# ---- the schema member


def mark_of(schema: Schema) -> bytes:
    """Returns the content of the schema member, in which each column's key is its members' extension."""
    extensions = extensions_of(schema)
    content = schema_to_json(schema)
    for name, extension in extensions.items():
        content[name].pop("key", None)
        if extension != name:
            content[name]["key"] = extension
    return json.dumps({"holdfast_tar": _VERSION, "schema": content}).encode() + b"\n"


def marked_schema(read_at: Callable[[int, int], bytes]) -> dict[str, Column] | None:
    """Returns the schema that a tar was written with, or None if its first member does not have it."""
    block = read_at(0, BLOCK_BYTES)
    if len(block) < BLOCK_BYTES or name_in(block) != MARK:
        return None
    try:
        size = number_in(block[124:136])
        if size > _MARK_BYTES:
            return None
        content = json.loads(read_at(BLOCK_BYTES, size))
        return schema_from_json(content["schema"]) if content["holdfast_tar"] == _VERSION else None
    except (BadHeader, SchemaError, ValueError, KeyError, TypeError, RecursionError):
        return None


# ---- numbers: ASCII text (`3` · `0.5 1e3` · `1,2,3`), JSON lists (`[[1, 2], [3, 4]]`), or numpy's .npy

HEAD_BYTES = 1024  # of a .npy: nearly all headers have 128, those of structured dtypes more
_NPY_MAGIC = b"\x93NUMPY"
_CACHED_BYTES = 512
Array = npt.NDArray[Any]


class Unfit(ValueError):
    """A member does not have the expected numbers. `place` is its position in the list of members."""

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(place, reason)
        self.place = place
        self.reason = reason


def numbers_column(items: Sequence[bytes], column: Value | Ragged) -> ColumnData:
    """Parses members, one per row."""
    value = column.value if isinstance(column, Ragged) else column
    if not isinstance(column, Ragged):
        found = _same_npy(items, column)
        if found is None and not column.shape:
            found = _plain_numbers(items, column)
        if found is not None:
            return found
        rows = [_each(i, item, column) for i, item in enumerate(items)]
        return np.stack(rows) if rows else np.zeros((0, *value.shape), dtype_of(value))
    lists = [_each(i, item, column) for i, item in enumerate(items)]
    if column.depth == 1:
        return _ragged(lists, value)
    return RaggedColumn(_ragged([one for some in lists for one in some], value), _splits([len(some) for some in lists]))


def _same_npy(items: Sequence[bytes], value: Value) -> Array | None:
    """Parses .npy members of the column's type and shape all at once; returns None if one differs."""
    if not items or not items[0].startswith(_NPY_MAGIC):
        return None
    size, start = len(items[0]), len(items[0]) - value.count * dtype_of(value).itemsize
    head = items[0][: max(start, 0)]
    if start <= 0 or any(len(item) != size or not item.startswith(head) for item in items):
        return None
    try:
        shape, fortran, dtype, at = _npy_header(bytes(head))
    except ValueError:
        return None
    if (shape, fortran, dtype, at) != (value.shape, False, dtype_of(value), start):
        return None
    table = np.frombuffer(b"".join(items), np.uint8).reshape(len(items), size)
    return np.ascontiguousarray(table[:, start:]).view(dtype).reshape(len(items), *shape)


def _plain_numbers(items: Sequence[bytes], value: Value) -> Array | None:
    """Parses members that are one plain number each, as nearly always; returns None if one is not."""
    if any(b"_" in item for item in items):  # Python would accept 1_000
        return None
    try:
        if _is_float(value):
            return cast(np.array([float(item) for item in items], np.float64), dtype_of(value))
        return cast(np.array([int(item) for item in items]), dtype_of(value)) if items else None
    except (ValueError, OverflowError):
        return None


def _each(place: int, item: bytes, column: Value | Ragged) -> Any:
    value = column.value if isinstance(column, Ragged) else column
    try:
        found = _parse(item, value)
        exact = is_exact(value) and item.startswith(_NPY_MAGIC)  # text has no dtype to compare with
        if not isinstance(column, Ragged):
            return _shaped(_cast(found, value, exact), value)
        if column.depth == 1:
            return _listed(_cast(found, value, exact), value)
        return [_listed(_cast(one, value, exact), value) for one in _lists_in(found)]
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        text = str(error) if not isinstance(error, RecursionError) else "lists are nested too deeply"
        raise Unfit(place, f"{text}; it begins with {item[:40]!r}") from None


def _lists_in(found: Any) -> Any:
    if len(found) and not all(isinstance(one, (list, np.ndarray)) for one in found):
        raise ValueError("expected a list of lists")
    return found


def _parse(item: bytes, value: Value) -> Any:
    """Returns an array, or lists from JSON."""
    if item.startswith(_NPY_MAGIC):
        return read_npy(item)
    text = item.strip()
    if text.startswith(b"["):
        return json.loads(text)
    if b"_" in text:
        raise ValueError("expected numbers")
    parts = text.replace(b",", b" ").split()
    try:
        return np.array([*map(float, parts)] if _is_float(value) else [int(part) for part in parts])
    except ValueError:
        raise ValueError("expected numbers" if _is_float(value) else "expected integers") from None


def read_npy(item: bytes) -> Array:
    """Parses a .npy. np.load would allocate whatever the header claims."""
    length = int.from_bytes(item[8:10], "little") + 10 if item[6:7] == b"\1" else len(item)
    shape, fortran, dtype, at = _npy_header(bytes(item[:length]))
    data = item[at:]
    if dtype.kind not in "biuf":
        raise ValueError(f"expected numbers, got .npy of {dtype}")
    if min(shape, default=0) < 0 or len(data) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f".npy of {dtype} and shape {shape} has {len(data):,} bytes of data")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


def npy_column(heads: Sequence[bytes]) -> Column:
    """Returns the column for .npy members with these headers: Bytes() if their dtypes differ or are not supported.

    Arrays that differ only in their first size are lists.
    """
    dtypes, shapes = set[str](), set[tuple[int, ...]]()
    try:
        for head in heads:
            length = int.from_bytes(head[8:10], "little") + 10 if head[6:7] == b"\1" else len(head)
            shape, _, dtype, _ = _npy_header(head[:length])
            dtypes.add(dtype.newbyteorder("=").name)
            shapes.add(shape)
        inner = {shape[1:] for shape in shapes if shape}
        if len(dtypes) == 1 and dtypes < {*DTYPES} and len(shapes) == 1 and 0 not in min(shapes):
            return ArrayColumn(min(dtypes), min(shapes))
        if len(dtypes) == 1 and dtypes < {*DTYPES} and len(inner) == 1 and () not in shapes:
            return Ragged(ArrayColumn(min(dtypes), min(inner)))
    except (ValueError, SchemaError):
        pass  # a corrupt header, or an inner size of 0
    return Bytes()


def _npy_header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Parses a header. Those of one column are mostly equal, and numpy's parser is slow, so they are cached."""
    return _cached_header(head) if len(head) <= _CACHED_BYTES else _parse_header(head)


def _parse_header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    file = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except (ValueError, TypeError, SyntaxError, TokenError, MemoryError) as error:
        raise ValueError(f"its .npy header is corrupt: {error}") from None
    return shape, fortran, dtype, file.tell()


_cached_header = lru_cache(1024)(_parse_header)


def _cast(found: Any, value: Value, exact: bool) -> Any:
    array = found if isinstance(found, np.ndarray) else np.array(found)  # a ValueError if lists differ in length
    if not array.size:
        return array.astype(dtype_of(value))
    is_truth = array.dtype.kind == "b" and not isinstance(found, np.ndarray) and dtype_of(value).kind != "b"
    if array.dtype.kind not in ("iuf" if _is_float(value) else "biu") or is_truth:  # JSON's true is not a number
        raise ValueError("expected numbers" if _is_float(value) else "expected integers")
    return cast_column(array, dtype_of(value), exact=exact)


def _is_float(value: Value) -> bool:
    return dtype_of(value).kind == "f"


def _shaped(array: Array, value: Value) -> Array:
    if array.shape == value.shape or (array.ndim <= 1 and array.size == value.count):
        return array.reshape(value.shape)
    if array.ndim <= 1:
        raise ValueError(f"expected {value.count:,} number{'s' * (value.count != 1)}, got {array.size:,}")
    raise ValueError(f"expected numbers of shape {value.shape}, got {array.shape}")


def _listed(array: Array, value: Value) -> Array:
    """Returns a list of items, from nested or flat numbers."""
    if array.ndim > 1 and array.shape[1:] == value.shape:
        return array
    if array.ndim > 1 or array.size % value.count:
        raise ValueError(f"expected a list of items of shape {value.shape}, got numbers of shape {array.shape}")
    return array.reshape(-1, *value.shape)


def _ragged(lists: Sequence[Array], value: Value) -> RaggedColumn:
    joined = np.concatenate(lists) if lists else np.zeros((0, *value.shape), dtype_of(value))
    return RaggedColumn(joined, _splits([len(one) for one in lists]))


def _splits(sizes: list[int]) -> npt.NDArray[np.int64]:
    splits = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=splits[1:])
    return splits


# ---- several arrays per sample: .npz files of `values`, `offsets` and `row_splits`


def pack(arrays: dict[str, Array]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            data = io.BytesIO()
            np.lib.format.write_array(data, np.ascontiguousarray(array), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), data.getvalue())  # without a time
    return file.getvalue()


# ---- reading


def nested_column(items: Sequence[bytes], column: Value | Ragged) -> ColumnData:
    """Parses members, one per row. An empty item is a missing member, and an empty list."""
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
    """Returns a row's values, where its strings end, and where its inner lists end."""
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
            if info.compress_type != zipfile.ZIP_STORED:  # few bytes could decompress to more than the memory
                raise ValueError(f"expected an .npz without compression, got {info.filename!r} compressed")
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
