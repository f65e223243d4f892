"""What a sample is made of: column types, written the way a person would say them.

    {"image": Array("uint8", 224, 224, 3), "label": Int64(), "emb": Float32(128), "boxes": Ragged(Float32(4)),
     "name": Bytes(), "weight": Float32(default=1.0)}

Standard library only: `import holdfast` shows these names without loading numpy, so a dtype is kept by its name.
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

# What numbers can be, by numpy's names: all that HDF5, .npy, torch and TensorFlow have in common.
DTYPES = (
    *("bool", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
_SHORT = {"int64": "Int64", "float32": "Float32"}


class _Stored:
    """How a column is to be written. It is no part of what the column is: two that differ in this alone are equal."""

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

    def _said(self) -> list[str]:
        rows = [f"chunk_rows={self.chunk_rows}"] if self.chunk_rows is not None else []
        return rows + ([f"codec={self.codec!r}"] if self.codec is not None else [])


def check_chunk_rows(rows: Any) -> int:
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise SchemaError(f"expected chunk_rows to be a number from 1 up, got {rows!r}")
    return rows


class Value(_Stored):
    """A value of fixed shape: the base of Array and Bytes.

    default:    what a record without this feature gets, one value for all places or as many as the shape has.
                Without a default such a record is an error. Arrays are kept as lists of Python's numbers.
    key:        the feature's name in the file, where it is not the column's.
    codec:      how it is packed in HDF5 parts: "none", "gzip", "lzf", "zstd" (with the package hdf5plugin), or with a
                level, as ("gzip", 1). For writing alone: columns that differ in this are equal.
    chunk_rows: how many rows a chunk has in HDF5 parts, in all columns alike; for writing alone, too.
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
        """The shortest name of the column's type: the one that `repr` and a schema's JSON begin with."""
        return type(self).__name__

    @property
    def count(self) -> int:
        """How many values an item has: the product of its shape."""
        return math.prod(self.shape)

    def alike(self, *, default: Any = None, codec: Codec = None, chunk_rows: int | None = None) -> Self:
        """Returns a column of the same type and shape, with these options and without a key."""
        made = copy.copy(self)
        made.default, made.key = _plain_default(default), None
        made._store(chunk_rows, codec)
        return made

    def holds_same(self, other: Column) -> bool:
        """Whether values of both have one type and shape: whatever the key and the default are."""
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
        return f"{self.type_name}({', '.join(parts + self._said())})"


def _plain_default(default: Any) -> Any:
    """The default in Python's own values: an array has no truth of `==`, and no repr that could be pasted."""
    if isinstance(default, (bytearray, memoryview)):
        return bytes(default)
    if hasattr(default, "__array__") and not hasattr(default, "tolist"):  # a tensor of TensorFlow
        default = default.__array__()
    if hasattr(default, "tolist"):
        default = default.tolist()
    return [_plain_default(one) for one in default] if isinstance(default, (list, tuple)) else default


def _comparable(default: Any) -> Any:
    """With NaN as its name: one NaN is not equal to another."""
    if isinstance(default, list):
        return [_comparable(one) for one in default]
    return "nan" if isinstance(default, float) and math.isnan(default) else default


def _size(n: object) -> int:
    size = 0 if isinstance(n, bool) or not isinstance(n, Integral) else int(n)  # numpy's are Integral, too
    if size < 1:
        lists = "; lists of any length are Ragged(…)" if n is None or n == -1 else ""
        raise SchemaError(f"a shape is made of whole numbers from 1 up, got {n!r}{lists}")
    return size


class Bytes(Value):
    """Byte strings: a batch holds all of them joined, and where each ends; an item is a memoryview."""

    __slots__ = ()


class Array(Value):
    """Numbers of one dtype: `Array("uint8", 224, 224, 3)`, `Array("uint8", (224, 224, 3))` or `Array("float64")`.

    dtype: one of bool, int8 to int64, uint8 to uint64, float16, float32, float64: by its name, as numpy, torch or
           TensorFlow has it, or as Python's bool, int (int64) and float (float64). `column.dtype` is its name.

    Values are in the byte order of the machine; files of the other order are read into it. `Int64(…)` and `Float32(…)`
    are short for `Array("int64", …)` and `Array("float32", …)`, and equal to them.

    A file that has another dtype is read as this one: an integer that does not fit is an error, a float is rounded.
    """

    __slots__ = ("dtype", "exact")

    dtype: str
    exact: bool  # no float may be rounded: the column was found in a file, and another file may have another dtype

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
    """Returns columns that a file showed, marked so that no float of another file is rounded to fit them."""
    columns = copy.deepcopy(dict(schema))
    for column in columns.values():
        value = column.value if isinstance(column, Ragged) else column
        if isinstance(value, Array):
            value.exact = True
    return columns


def _dtype_name(given: Any) -> str:
    """Returns the dtype's name as numpy spells it. Raises SchemaError with what to write instead."""
    if isinstance(given, str) and given in DTYPES:
        return given
    text = f'Array: expected a dtype such as "uint8", got {given!r}'
    if given is None or isinstance(given, (int, Value)):
        raise SchemaError(f"{text}; the dtype comes first, the shape behind it")
    try:
        dtype = importlib.import_module("numpy").dtype(given)
    except (TypeError, ValueError, SyntaxError):
        name = str(getattr(given, "name", given)).removeprefix("torch.")  # a dtype of TensorFlow or torch
        if name in DTYPES:
            return name
        raise SchemaError(f"{text}. Numbers can be {', '.join(DTYPES)}; strings are Bytes()") from None
    if dtype.name in DTYPES and dtype.isnative:
        return str(dtype.name)
    raise SchemaError(f"{text}: {_instead_of(dtype)}")


def _instead_of(dtype: Any) -> str:
    """What to write for a dtype of numpy's that a column cannot have."""
    if dtype.kind == "c":
        return f'a complex number is two floats, so say Array("float{4 * dtype.itemsize}", …, 2)'
    if dtype.kind in "SUT":
        return "strings have no fixed size, so say Bytes()"
    if dtype.kind in "Mm":
        return 'a time is a whole number of some unit, so say Array("int64") and store that number'
    if dtype.kind == "O":
        return "Python objects cannot be stored; say Bytes() and pickle them, or give their numbers a dtype"
    if dtype.name in DTYPES:
        return f'columns have the byte order of the machine, into which files of either are read; say "{dtype.name}"'
    if dtype.subdtype is not None:
        return f'say the shape behind the dtype: Array("{dtype.base.name}", {dtype.shape})'
    if dtype.names:
        return "a record of several fields is as many columns, so name one for each"
    return f"numbers can be {', '.join(DTYPES)}"


class Int64(Array):
    """64-bit integers: short for `Array("int64", …)`. `Int64(3)`, `Int64(4, 4)` and `Int64((4, 4))` have a shape."""

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

    A record without the feature has an empty list. In a tf.train.SequenceExample a Ragged column is a feature list if
    there is one of that name, one item a step; else it is a list of values in the context.

    `codec` and `chunk_rows` are as Value has them.
    """

    __slots__ = ("inner", "key")

    inner: Value | Ragged
    key: str | None

    def __init__(
        self,
        inner: Value | Ragged | type[Value],
        *,
        key: str | None = None,
        codec: Codec = None,
        chunk_rows: int | None = None,
    ) -> None:
        if isinstance(inner, type) and issubclass(inner, Value):
            inner = inner()
        if not isinstance(inner, (Value, Ragged)):
            raise SchemaError(f"Ragged: expected a column type such as Float32(4), got {inner!r}")
        if isinstance(inner, Ragged) and isinstance(inner.inner, Ragged):
            raise SchemaError("Ragged: two levels are the most a record can hold")
        if inner.key is not None or (isinstance(inner, Value) and inner.default is not None):
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
        """What the lists hold in the end."""
        return self.inner.value if isinstance(self.inner, Ragged) else self.inner

    def holds_same(self, other: Column) -> bool:
        """Whether the lists of both hold values of one type and shape: whatever the key is."""
        return isinstance(other, Ragged) and self.inner == other.inner

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ragged) and (self.inner, self.key) == (other.inner, other.key)

    def __hash__(self) -> int:
        return hash((Ragged, self.inner))

    def __repr__(self) -> str:
        key = [f"key={self.key!r}"] if self.key is not None else []
        return f"Ragged({', '.join([repr(self.inner), *key, *self._said()])})"


Column = Value | Ragged
Schema = Mapping[str, Column]


def check_schema(schema: Mapping[str, Column | type[Value]]) -> dict[str, Column]:
    """The schema as a dict of columns, or a SchemaError that says what is wrong. `Int64` stands for `Int64()`."""
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
            raise SchemaError(f"a column's name is a string, got {name!r}")
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
    """What to write for a dtype that stands where a column is due."""
    try:
        return f"; say {Array(given)!r}"
    except SchemaError:
        return ""


def chunk_rows_of(schema: Schema) -> int | None:
    """How many rows a chunk is to have, if a column says so. One number for all: rows are read together."""
    said = {column.chunk_rows: name for name, column in schema.items() if column.chunk_rows is not None}
    if len(said) > 1:
        (one, a), (other, b) = list(said.items())[:2]
        text = f"expected one chunk_rows for all columns, whose rows are read together, got {one:,} and {other:,}"
        raise SchemaError(f"columns {a!r} and {b!r}: {text}")
    return next(iter(said), None)


def as_code(schema: Schema, prefix: str = "hold.") -> str:
    """The schema as Python source a person can paste."""
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


# A schema as JSON: what a run's `schema.json` and an HDF5 part's own attribute hold.

_TYPES: dict[str, type[Value]] = {kind.__name__: kind for kind in (Array, Bytes, Float32, Int64)}


def schema_file_name(version: int = 0) -> str:
    """Returns the name of a run's schema: `schema.json`, and `schema.1.json` and so on where columns came later."""
    return f"schema.{version}.json" if version else "schema.json"


def schema_to_json(schema: Schema, *, stored: bool = False) -> dict[str, Any]:
    """`stored`: with how the columns are to be written, which is no part of what they are."""
    return {name: column_to_json(column) | (_stored(column) if stored else {}) for name, column in schema.items()}


def _stored(column: Column) -> dict[str, Any]:
    said = {"codec": column.codec, "chunk_rows": column.chunk_rows}
    return {name: value for name, value in said.items() if value is not None}


def column_to_json(column: Column) -> dict[str, Any]:
    key = {} if column.key is None else {"key": column.key}
    if isinstance(column, Ragged):
        return {"type": "Ragged", "inner": column_to_json(column.inner)} | key
    default = {} if column.default is None else {"default": _plain(column.default)}
    dtype = {"dtype": column.dtype} if isinstance(column, Array) and column.type_name == Array.__name__ else {}
    return {"type": column.type_name} | dtype | {"shape": list(column.shape)} | default | key


def _plain(default: Any) -> Any:
    """Of a default what JSON can hold; bytes as their hexadecimal digits, inf and NaN by name."""
    if isinstance(default, bytes):
        return {"hex": default.hex()}
    if isinstance(default, list):
        return [_plain(one) for one in default]
    if isinstance(default, float) and not math.isfinite(default):
        return {"float": str(default)}  # JSON has no such numbers
    if not isinstance(default, (int, float, str)):
        raise SchemaError(f"expected a default of numbers or bytes, got {default!r}")
    return default


def schema_from_json(content: Any) -> dict[str, Column]:
    """SchemaError: it is not what schema_to_json gives."""
    if not isinstance(content, Mapping):
        raise SchemaError(f"expected columns as JSON, got {type(content).__name__}")
    return check_schema({str(name): column_from_json(one) for name, one in content.items()})


def column_from_json(content: Any) -> Column:
    try:
        more = {name: content.get(name) for name in ("key", "codec", "chunk_rows")}
        if content["type"] == "Ragged":
            return Ragged(column_from_json(content["inner"]), **more)
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
    """The same for the same columns, in whatever order they were named and however they are to be written."""
    text = json.dumps(schema_to_json(schema), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def first_difference(ours: Schema, theirs: Schema) -> tuple[str, str, str] | None:
    """A column that is not the same in both, as it is in the one and in the other; None: there is none."""
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        sides = [repr(schema[name]) if name in schema else "no such column" for schema in (ours, theirs)]
        if name not in ours or name not in theirs or column_to_json(ours[name]) != column_to_json(theirs[name]):
            return name, sides[0], sides[1]
    return None
