"""Defines the column types of a schema, its JSON form and its digest.

    {"image": Array("uint8", 224, 224, 3), "label": Int64(), "emb": Float32(128), "boxes": Ragged(Float32(4)),
     "name": Bytes(), "weight": Float32(default=1.0)}

Standard library only: `import holdfast` exports these names without importing numpy, so a dtype is stored by its name.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import json
import math
from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any, Self

from ._util.compression import Codec, check_codec
from .errors import SchemaError

__all__ = [
    "DTYPES",
    "Array",
    "Bytes",
    "Column",
    "Float32",
    "Int64",
    "Ragged",
    "Schema",
    "Value",
    "as_code",
    "check_schema",
    "chunk_rows_of",
    "found_in_file",
]

# The dtypes that HDF5, .npy, torch and TensorFlow have in common, by numpy's names.
DTYPES = (
    *("bool", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
_SHORT = {"int64": "Int64", "float32": "Float32"}


class _Stored:
    """Storage options of a column, which do not count for equality."""

    __slots__ = ("chunk_rows", "codec")

    chunk_rows: int | None
    codec: Codec

    def _store(self, chunk_rows: Any, codec: Any) -> None:
        if chunk_rows is not None:
            check_chunk_rows(chunk_rows)
        try:
            check_codec(codec)
        except ValueError as error:
            raise SchemaError(str(error)) from None
        self.chunk_rows, self.codec = chunk_rows, tuple(codec) if isinstance(codec, list) else codec

    def _storage_args(self) -> list[str]:
        rows = [f"chunk_rows={self.chunk_rows}"] if self.chunk_rows is not None else []
        return rows + ([f"codec={self.codec!r}"] if self.codec is not None else [])


def check_chunk_rows(rows: Any) -> int:
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise SchemaError(f"chunk_rows must be a positive integer, got {rows!r}")
    return rows


class Value(_Stored):
    """A value of fixed shape: the base of Array and Bytes.

    Args:
        default: The value for a record without this feature: one for all elements, or as many as the shape has. Without
            a default such a record is an error. Arrays are stored as lists of Python's numbers.
        key: The feature's name in the file, if it is not the column's.
        codec: Compression in HDF5 parts: "none", "gzip", "lzf", "zstd" (with the package hdf5plugin), or with a level,
            as ("gzip", 1). Only for writing: columns that differ in this are equal.
        chunk_rows: Rows per chunk in HDF5 parts, the same for all columns. Only for writing, too.
    """

    __slots__ = ("default", "key", "shape")

    shape: tuple[int, ...]
    default: Any
    key: str | None

    def __init__(
        self,
        *shape: int | Iterable[int],
        default: Any = None,
        key: str | None = None,
        codec: Codec = None,
        chunk_rows: int | None = None,
    ) -> None:
        if type(self) is Value:
            raise SchemaError("Value is the base of Array and Bytes: use one of those")
        sizes: Any = shape[0] if len(shape) == 1 and not isinstance(shape[0], Integral) else shape
        try:
            self.shape = tuple(_size(n) for n in sizes)
        except TypeError:
            raise SchemaError(f"{self.type_name}: expected sizes of a shape, got {shape!r}") from None
        self.default = _plain_default(default)
        self.key = key
        self._store(chunk_rows, codec)

    @property
    def type_name(self) -> str:
        """The shortest name of the column's type, as `repr` and the JSON form have it."""
        return type(self).__name__

    @property
    def count(self) -> int:
        """The number of values of an item: the product of its shape."""
        return math.prod(self.shape)

    def alike(self, *, default: Any = None, codec: Codec = None, chunk_rows: int | None = None) -> Self:
        """Returns a column of the same type and shape, with these options and without a key."""
        made = copy.copy(self)
        made.default, made.key = _plain_default(default), None
        made._store(chunk_rows, codec)
        return made

    def holds_same(self, other: Column) -> bool:
        """Returns whether values of both have the same type and shape, whatever the key and the default are."""
        return isinstance(other, Value) and self._parts()[:2] == other._parts()[:2]

    def _parts(self) -> tuple[Any, ...]:
        return (Bytes, self.shape, _comparable(self.default), self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._parts()[:2])

    def _shown(self) -> list[str]:
        return [str(n) for n in self.shape]

    def __repr__(self) -> str:
        parts = self._shown()
        parts += [f"default={self.default!r}"] if self.default is not None else []
        parts += [f"key={self.key!r}"] if self.key is not None else []
        return f"{self.type_name}({', '.join(parts + self._storage_args())})"


def _plain_default(default: Any) -> Any:
    """Converts a default to Python's own values, which compare with `==` and have a repr that can be pasted."""
    if isinstance(default, (bytearray, memoryview)):
        return bytes(default)
    if hasattr(default, "__array__") and not hasattr(default, "tolist"):  # a TensorFlow tensor
        default = default.__array__()
    if hasattr(default, "tolist"):
        default = default.tolist()
    return [_plain_default(one) for one in default] if isinstance(default, (list, tuple)) else default


def _comparable(default: Any) -> Any:
    """Replaces NaN by its name, because NaN is not equal to itself."""
    if isinstance(default, list):
        return [_comparable(one) for one in default]
    return "nan" if isinstance(default, float) and math.isnan(default) else default


def _size(n: object) -> int:
    size = 0 if isinstance(n, bool) or not isinstance(n, Integral) else int(n)  # numpy's integers are Integral, too
    if size < 1:
        lists = "; lists of any length are Ragged(…)" if n is None or n == -1 else ""
        raise SchemaError(f"a shape must consist of positive integers, got {n!r}{lists}")
    return size


class Bytes(Value):
    """Byte strings. A batch has all of them joined with their offsets; an item is a memoryview."""

    __module__ = "holdfast"

    __slots__ = ()


class Array(Value):
    """Numbers of one dtype: `Array("uint8", 224, 224, 3)`, `Array("uint8", (224, 224, 3))` or `Array("float64")`.

    Values have the machine's byte order, whatever order the file has. `Int64(…)` and `Float32(…)` are short for
    `Array("int64", …)` and `Array("float32", …)`, and equal to them.

    A file with another dtype is read as this one: an integer that does not fit is an error, a float is rounded.

    Args:
        dtype: One of bool, int8 to int64, uint8 to uint64, float16, float32, float64: by its name, as a dtype of numpy,
            torch or TensorFlow, or as Python's bool, int (int64) or float (float64). `column.dtype` is its name.
    """

    __module__ = "holdfast"

    __slots__ = ("dtype", "exact")

    dtype: str
    exact: bool  # floats must not be rounded: the column was inferred from a file, and others may differ

    def __init__(
        self,
        dtype: Any = None,
        *sizes: int | Iterable[int],
        shape: int | Iterable[int] | None = None,
        default: Any = None,
        key: str | None = None,
        codec: Codec = None,
        chunk_rows: int | None = None,
    ) -> None:
        self.dtype, self.exact = _dtype_name(dtype), False
        if shape is not None:
            if sizes:
                raise SchemaError(f"Array: expected the shape once, got {sizes!r} and shape={shape!r}")
            sizes = (shape,)
        super().__init__(*sizes, default=default, key=key, codec=codec, chunk_rows=chunk_rows)

    @property
    def type_name(self) -> str:
        return _SHORT.get(self.dtype, "Array")

    def _parts(self) -> tuple[Any, ...]:
        return (self.dtype, self.shape, _comparable(self.default), self.key)

    def _shown(self) -> list[str]:
        if self.dtype in _SHORT:
            return super()._shown()
        return [f'"{self.dtype}"', *([repr(self.shape)] if self.shape else [])]


def found_in_file(schema: Schema) -> dict[str, Column]:
    """Returns columns that were inferred from a file, marked so that floats of other files are not rounded to fit."""
    columns = copy.deepcopy(dict(schema))
    for column in columns.values():
        value = column.value if isinstance(column, Ragged) else column
        if isinstance(value, Array):
            value.exact = True
    return columns


def _dtype_name(given: Any) -> str:
    """Returns the dtype's name as numpy spells it, or raises a SchemaError with what to write instead."""
    if isinstance(given, str) and given in DTYPES:
        return given
    text = f'Array: expected a dtype such as "uint8", got {given!r}'
    if given is None or isinstance(given, (int, Value)):
        raise SchemaError(f"{text}; the dtype comes first, then the shape")
    try:
        dtype = importlib.import_module("numpy").dtype(given)
    except (TypeError, ValueError, SyntaxError):
        name = str(getattr(given, "name", given)).removeprefix("torch.")  # of TensorFlow or torch
        if name in DTYPES:
            return name
        raise SchemaError(f"{text}. Numbers can be {', '.join(DTYPES)}; strings are Bytes()") from None
    if dtype.name in DTYPES and dtype.isnative:
        return str(dtype.name)
    raise SchemaError(f"{text}: {_instead_of(dtype)}")


def _instead_of(dtype: Any) -> str:
    """Says what to write for a numpy dtype that a column cannot have."""
    if dtype.kind == "c":
        return f'a complex number is two floats, so use Array("float{4 * dtype.itemsize}", …, 2)'
    if dtype.kind in "SUT":
        return "strings have no fixed size, so use Bytes()"
    if dtype.kind in "Mm":
        return 'a time is an integer number of some unit, so use Array("int64") and store that number'
    if dtype.kind == "O":
        return "Python objects cannot be stored; use Bytes() and pickle them, or give their numbers a dtype"
    if dtype.name in DTYPES:
        return f'columns have the byte order of the machine, whatever the file has; use "{dtype.name}"'
    if dtype.subdtype is not None:
        return f'put the shape after the dtype: Array("{dtype.base.name}", {dtype.shape})'
    if dtype.names:
        return "a structured dtype has several fields, so define a column for each"
    return f"numbers can be {', '.join(DTYPES)}"


class Int64(Array):
    """64-bit integers: short for `Array("int64", …)`. `Int64(3)`, `Int64(4, 4)` and `Int64((4, 4))` have a shape."""

    __module__ = "holdfast"

    __slots__ = ()

    def __init__(
        self,
        *shape: int | Iterable[int],
        default: Any = None,
        key: str | None = None,
        codec: Codec = None,
        chunk_rows: int | None = None,
    ) -> None:
        super().__init__("int64", *shape, default=default, key=key, codec=codec, chunk_rows=chunk_rows)


class Float32(Array):
    """32-bit floats: short for `Array("float32", …)`. `Float32(128)`, `Float32(4, 4)` and so on have a shape."""

    __module__ = "holdfast"

    __slots__ = ()

    def __init__(
        self,
        *shape: int | Iterable[int],
        default: Any = None,
        key: str | None = None,
        codec: Codec = None,
        chunk_rows: int | None = None,
    ) -> None:
        super().__init__("float32", *shape, default=default, key=key, codec=codec, chunk_rows=chunk_rows)


class Ragged(_Stored):
    """A list of any length in every row: `Ragged(Float32(4))`. `Ragged(Ragged(Int64()))` is a list of lists.

    A record without the feature has an empty list; a feature that no record has is an error. `default=[]` accepts that,
    too: it is the only default. In a tf.train.SequenceExample a Ragged column is the feature list of
    that name, one item per step; without one it is a list of values in the context.

    `codec` and `chunk_rows` are those of Value.
    """

    __module__ = "holdfast"

    __slots__ = ("default", "inner", "key")

    inner: Value | Ragged
    default: list[Any] | None
    key: str | None

    def __init__(
        self,
        inner: Value | Ragged | type[Value],
        *,
        default: Any = None,
        key: str | None = None,
        codec: Codec = None,
        chunk_rows: int | None = None,
    ) -> None:
        if isinstance(inner, type) and issubclass(inner, Value):
            inner = inner()
        if not isinstance(inner, (Value, Ragged)):
            raise SchemaError(f"Ragged: expected a column type such as Float32(4), got {inner!r}")
        if isinstance(inner, Ragged) and isinstance(inner.inner, Ragged):
            raise SchemaError("Ragged: expected at most two levels, got three")
        self.default = _plain_default(default)
        if inner.key is not None or inner.default is not None or self.default not in (None, []):
            raise SchemaError("Ragged: the key goes to the outermost Ragged, and an empty list is the only default")
        if inner.codec is not None or inner.chunk_rows is not None:
            raise SchemaError("Ragged: codec and chunk_rows go to the outermost Ragged")
        self.inner = inner
        self.key = key
        self._store(chunk_rows, codec)

    @property
    def depth(self) -> int:
        return 1 + (self.inner.depth if isinstance(self.inner, Ragged) else 0)

    @property
    def value(self) -> Value:
        """The type of the innermost values."""
        return self.inner.value if isinstance(self.inner, Ragged) else self.inner

    def holds_same(self, other: Column) -> bool:
        """Returns whether the lists of both have values of the same type and shape, whatever the key is."""
        return isinstance(other, Ragged) and self.inner == other.inner

    def __eq__(self, other: object) -> bool:
        mine = self.inner, self.default, self.key
        return isinstance(other, Ragged) and mine == (other.inner, other.default, other.key)

    def __hash__(self) -> int:
        return hash((Ragged, self.inner))

    def __repr__(self) -> str:
        default = ["default=[]"] if self.default is not None else []
        key = [f"key={self.key!r}"] if self.key is not None else []
        return f"Ragged({', '.join([repr(self.inner), *default, *key, *self._storage_args()])})"


Column = Value | Ragged
Schema = Mapping[str, Column]


def check_schema(schema: Mapping[str, Column | type[Value]]) -> dict[str, Column]:
    """Returns the schema as a dict of columns, or raises a SchemaError. `Int64` stands for `Int64()`."""
    if not isinstance(schema, Mapping):
        raise SchemaError(f"expected a schema such as {{'label': Int64()}}, got {type(schema).__name__}")
    if not schema:
        raise SchemaError("the schema is empty: name at least one column")
    columns: dict[str, Column] = {}
    keys: dict[str, str] = {}
    for name, column in schema.items():
        if isinstance(column, type) and issubclass(column, Value):
            column = column()
        if not isinstance(name, str):
            raise SchemaError(f"expected a string as a column's name, got {name!r}")
        if not isinstance(column, (Value, Ragged)):
            raise SchemaError(
                f"column {name!r}: expected Array, Int64, Float32, Bytes or Ragged, got {column!r}{_meant(column)}"
            )
        key = name if column.key is None else column.key
        if not isinstance(key, str):
            raise SchemaError(f"column {name!r}: expected a feature's name as its key, got {key!r}")
        if key in keys:
            raise SchemaError(f"columns {keys[key]!r} and {name!r} both read the feature {key!r}")
        keys[key] = name
        columns[name] = column
    chunk_rows_of(columns)
    return columns


def _meant(given: Any) -> str:
    """Says what to write if a dtype was given instead of a column."""
    try:
        return f"; use {Array(given)!r}"
    except SchemaError:
        return ""


def chunk_rows_of(schema: Schema) -> int | None:
    """Returns the chunk_rows of the columns, if any has it. It must be the same for all, because rows are read
    together."""
    given = {column.chunk_rows: name for name, column in schema.items() if column.chunk_rows is not None}
    if len(given) > 1:
        (one, a), (other, b) = list(given.items())[:2]
        text = f"expected one chunk_rows for all columns, whose rows are read together, got {one:,} and {other:,}"
        raise SchemaError(f"columns {a!r} and {b!r}: {text}")
    return next(iter(given), None)


def as_code(schema: Schema, prefix: str = "hold.") -> str:
    """Returns the schema as Python source that can be pasted."""
    lines = [f"    {name!r}: {_code(column, prefix)}," for name, column in schema.items()]
    return "\n".join(["{", *lines, "}"])


def _code(column: Column, prefix: str) -> str:
    if isinstance(column, Ragged):
        return prefix + repr(column).replace(repr(column.inner), _code(column.inner, prefix), 1)
    return prefix + repr(column).replace(f"default={column.default!r}", f"default={_default_code(column.default)}", 1)


def _default_code(default: Any) -> str:
    if isinstance(default, list):
        return f"[{', '.join(map(_default_code, default))}]"
    return f'float("{default}")' if isinstance(default, float) and not math.isfinite(default) else repr(default)


# ---- JSON: the content of a dataset's `schema.json` and of an attribute of HDF5 parts

_TYPES: dict[str, type[Value]] = {kind.__name__: kind for kind in (Array, Bytes, Float32, Int64)}


def schema_file_name(version: int = 0) -> str:
    """Returns the name of a dataset's schema file: `schema.json`, then `schema.1.json` and so on for added columns."""
    return f"schema.{version}.json" if version else "schema.json"


def schema_to_json(schema: Schema, *, stored: bool = False) -> dict[str, Any]:
    """Converts a schema to JSON; with `stored`, including storage options."""
    return {name: column_to_json(column) | (_stored(column) if stored else {}) for name, column in schema.items()}


def _stored(column: Column) -> dict[str, Any]:
    options = {"codec": column.codec, "chunk_rows": column.chunk_rows}
    return {name: value for name, value in options.items() if value is not None}


def column_to_json(column: Column) -> dict[str, Any]:
    key = {} if column.key is None else {"key": column.key}
    if isinstance(column, Ragged):
        empty: dict[str, Any] = {} if column.default is None else {"default": []}
        return {"type": "Ragged", "inner": column_to_json(column.inner)} | empty | key
    default = {} if column.default is None else {"default": _plain(column.default)}
    dtype = {"dtype": column.dtype} if isinstance(column, Array) and column.type_name == Array.__name__ else {}
    return {"type": column.type_name} | dtype | {"shape": list(column.shape)} | default | key


def _plain(default: Any) -> Any:
    """Converts a default to JSON: bytes to hexadecimal digits, inf and NaN to their names."""
    if isinstance(default, bytes):
        return {"hex": default.hex()}
    if isinstance(default, list):
        return [_plain(one) for one in default]
    if isinstance(default, float) and not math.isfinite(default):
        return {"float": str(default)}
    if not isinstance(default, (int, float, str)):
        raise SchemaError(f"expected a default of numbers or bytes, got {default!r}")
    return default


def schema_from_json(content: Any) -> dict[str, Column]:
    """Parses the result of schema_to_json, or raises a SchemaError."""
    if not isinstance(content, Mapping):
        raise SchemaError(f"expected columns as JSON, got {type(content).__name__}")
    return check_schema({str(name): column_from_json(one) for name, one in content.items()})


def column_from_json(content: Any) -> Column:
    try:
        more = {name: content.get(name) for name in ("key", "codec", "chunk_rows")}
        if content["type"] == "Ragged":
            return Ragged(column_from_json(content["inner"]), default=content.get("default"), **more)
        dtype = [content["dtype"]] if content["type"] == Array.__name__ else []
        return _TYPES[content["type"]](*dtype, *content["shape"], default=_rich(content.get("default")), **more)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise SchemaError(f"expected a column as JSON, got {str(content)[:80]} ({error!r})") from None


def _rich(default: Any) -> Any:
    if isinstance(default, dict):
        if "float" in default:
            return float(default["float"])
        return bytes.fromhex(default["hex"])
    return [_rich(one) for one in default] if isinstance(default, list) else default


def schema_digest(schema: Schema) -> str:
    """Returns a digest of the columns, independent of their order and storage options."""
    text = json.dumps(schema_to_json(schema), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def first_difference(ours: Schema, theirs: Schema) -> tuple[str, str, str] | None:
    """Returns the name of a column that differs and its two forms, or None."""
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        sides = [repr(schema[name]) if name in schema else "no such column" for schema in (ours, theirs)]
        if name not in ours or name not in theirs or column_to_json(ours[name]) != column_to_json(theirs[name]):
            return name, sides[0], sides[1]
    return None
