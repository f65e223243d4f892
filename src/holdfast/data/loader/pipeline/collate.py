"""Collates samples into a batch: columns out of what the map functions returned.

The values of a sample may be numbers, numpy arrays and scalars, anything that converts to an array (tensors, images),
bytes, str, lists of these, and whatever `split_samples` makes of a batch.

Arrays and numpy scalars keep their dtype. Different dtypes make a column only if numpy's common dtype holds every value
of each: uint8 and float32 do, uint64 and int64 do not. Python numbers have no dtype: they take that of the values
beside them, or else int64 or float32. An int is never rounded, and a float never becomes infinite.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ....errors import SchemaError
from ....schema import Array, Bytes, Column, Float32, Ragged
from ...formats.columns import Batch, BytesColumn, ColumnData, RaggedColumn, dtype_of, join_offsets, tuple_like
from ...formats.gather import join_bytes
from ..options import Collate

AnyArray = npt.NDArray[Any]

_STRINGS = (bytes, str, bytearray, memoryview)
_EXACT_STRINGS = frozenset(_STRINGS)
_PYTHON_NUMBERS = frozenset((int, float, bool))
_HOLDS = {"f": "fc", "i": "iufc", "b": "biufc"}  # kinds of dtypes that hold Python numbers without promotion
_dtype = attrgetter("dtype")
_USE_COLLATE = 'use collate="pad" or collate="ragged"'


class Slots(np.ndarray[Any, Any]):
    """An array with a row for every sample of a batch, which functions write into: collating rows copies nothing."""

    def row(self, index: int) -> AnyArray:
        """Returns a row as a plain array, of which this array is the base."""
        return np.ndarray(self.shape[1:], self.dtype, self.data, index * self.strides[0])


class SlotPool:
    """Makes Slots, and uses them again once nothing refers to them: fresh memory from the system takes an eighth of the
    time of decoding images into it. There are never more than were in use at once."""

    def __init__(self) -> None:
        self._made: list[Slots] = []
        self._lock = threading.Lock()

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Slots:
        with self._lock:
            for slots in self._made:
                # Referred to by the list, this variable and the call alone: every row, batch and tensor of it counts.
                if slots.shape == shape and slots.dtype == dtype and sys.getrefcount(slots) == 3:
                    return slots
            made = Slots(shape, dtype)
            self._made.append(made)
            return made

    def __reduce__(self) -> tuple[Any, ...]:
        return SlotPool, ()


def collate(
    samples: Sequence[Any],
    how: Collate | None = None,
    schema: Mapping[str, Column] | None = None,
    pad_value: Any = 0,
) -> Any:
    """Makes one batch of these samples, in this order and with their structure.

    None, "stack": all values of a column have one shape. With None, a column that is Ragged in `schema` stays ragged.
    "pad":         arrays are padded with `pad_value` to the largest of the batch.
    "ragged":      every value of one dimension or more is a row of a RaggedColumn.

    A Python int becomes int64 and a float float32, unless values with a dtype are beside them; lists in a column that
    is Ragged in `schema` take its dtype. Arrays keep theirs.
    """
    if how not in (None, "stack", "pad", "ragged"):
        raise ValueError(f'expected collate to be one of "stack", "pad", "ragged", got {how!r}')
    if not samples:
        raise ValueError("expected at least one sample")
    if not isinstance(samples[0], (Mapping, tuple)):
        raise SchemaError(f"sample 0 of the batch: expected a dict of columns or a tuple, got {_short(samples[0])}")
    return _node("", list(samples), how, schema or {}, pad_value)


def _node(path: str, values: list[Any], how: Collate | None, schema: Mapping[str, Column], pad_value: Any) -> Any:
    """Collates one column, or a dict or tuple of them. `path`: where in the samples these values are."""
    first = values[0]
    if isinstance(first, Mapping):
        _check_all(path, values, Mapping, "a dict of columns")
        if set(map(len, values)) != {len(first)}:
            raise _other_keys(path, values)
        batch = {}
        for name in first:
            try:
                inner = list(map(itemgetter(name), values))
            except KeyError:
                raise _other_keys(path, values) from None
            batch[name] = _node(_below(path, name), inner, how, schema, pad_value)
        return batch
    if isinstance(first, tuple):
        _check_all(path, values, tuple, "a tuple")
        _check_lengths(path, values)
        parts = [[value[at] for value in values] for at in range(len(first))]
        return tuple_like(
            first, [_node(f"{path}[{at}]", part, how, schema, pad_value) for at, part in enumerate(parts)]
        )
    hint = schema.get(path)
    column_how = "ragged" if how is None and isinstance(hint, Ragged) else how or "stack"
    return _column(path, values, column_how, hint, pad_value)


def _below(path: str, name: Any) -> str:
    return f"{path}.{name}" if path else str(name)


def _check_all(path: str, values: Sequence[Any], kind: type, word: str) -> None:
    if not all(issubclass(one, kind) for one in set(map(type, values))):
        index = next(index for index, value in enumerate(values) if not isinstance(value, kind))
        where = f"column {path!r}, sample" if path else "sample"
        raise SchemaError(f"{where} {index} of the batch: expected {word}, got {_short(values[index])}")


def _check_lengths(path: str, values: Sequence[tuple[Any, ...]]) -> None:
    index = next((index for index, value in enumerate(values) if len(value) != len(values[0])), None)
    if index is not None:
        where = f"column {path!r}: sample" if path else "sample"
        raise SchemaError(
            f"{where} 0 of the batch is a tuple of {len(values[0])}, sample {index} one of {len(values[index])}: the "
            "values of one column go into a list or an array"
        )


def _other_keys(path: str, samples: Sequence[Mapping[str, Any]]) -> SchemaError:
    """Describes how the keys differ. Called only when they do: it takes as long as all the rest."""
    expected = samples[0].keys()
    index, keys = next((index, sample.keys()) for index, sample in enumerate(samples) if sample.keys() != expected)
    name = _below(path, min(expected - keys or keys - expected, key=str))
    there, missing = (0, index) if expected - keys else (index, 0)
    return SchemaError(f"column {name!r} is in sample {there} of the batch, but not in sample {missing}")


def _column(name: str, values: list[Any], how: str, hint: Column | None, pad_value: Any) -> ColumnData:
    kinds = set(map(type, values))
    if kinds <= _EXACT_STRINGS:
        return join_bytes(values if kinds == {bytes} else [_string(value) for value in values])
    try:
        if kinds <= _PYTHON_NUMBERS:
            return _convert(values, kinds, _python_dtype(kinds))
        if _is_one_scalar_type(kinds):
            return np.array(values, values[0].dtype)
        if all(map(_is_numpy, kinds)):
            return _arrays(name, values, how, pad_value)
        lists = _flat_lists(values, hint) if kinds == {list} else None
        if lists is not None:
            return _arrays(name, lists, how, pad_value)
    except _MisfitError:
        pass  # reported below, with the sample that it is in
    items = [_item(name, index, value) for index, value in enumerate(values)]
    items = _fill_empty(_give_dtype(name, items, hint), hint)
    _check_alike(name, items)
    if isinstance(items[0], np.ndarray):
        return _arrays(name, items, how, pad_value)
    if isinstance(items[0], (BytesColumn, RaggedColumn)):
        return _lists(name, items, how, pad_value)
    return join_bytes(items)


def _flat_lists(values: list[list[Any]], hint: Column | None) -> list[Any] | None:
    """Converts lists, or lists of lists, of Python numbers or of one dtype to arrays: all at once, which is quicker.

    Returns None for everything else, and if there is no number.
    """
    inner: list[int] = []
    numbers = list(chain.from_iterable(values))
    count = len(numbers)
    kinds = set(map(type, numbers))
    while kinds == {list}:
        inner.append(len(numbers[0]))
        if set(map(len, numbers)) != {inner[-1]}:
            return None
        numbers = list(chain.from_iterable(numbers))
        kinds = set(map(type, numbers))
    if not kinds:
        return None
    if kinds <= _PYTHON_NUMBERS:
        array = _convert(numbers, kinds, _dtype_in(hint, kinds) or _python_dtype(kinds))
    elif _is_one_scalar_type(kinds):
        array = np.array(numbers, numbers[0].dtype)
    elif kinds == {np.ndarray} and len({(one.shape, one.dtype) for one in numbers}) == 1 and numbers[0].ndim:
        array = np.concatenate(numbers)
        inner += numbers[0].shape
    else:
        return None
    array = array.reshape(count, *inner) if inner else array
    return [array[start:stop] for start, stop in pairwise(_splits(values).tolist())]


def _is_numpy(kind: type) -> bool:
    return kind is np.ndarray or (issubclass(kind, np.generic) and not issubclass(kind, (bytes, str)))


# ---- one value


class _Untyped(NamedTuple):
    """Python numbers, or lists of lists of them and of what has a dtype."""

    value: Any
    kinds: set[Any]  # of Python numbers
    dtypes: set[np.dtype[Any]]


class _MisfitError(ValueError):
    """A Python number that a dtype cannot hold."""


def _item(name: str, index: int, value: Any) -> Any:
    """Converts a value to an array, a byte string, or a column for a list of strings or lists; None for an empty list.

    Python numbers, and lists, stay untyped.
    """
    try:
        item = _plain(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise _wrong(name, index, value, error) from error
    if any(dtype.hasobject for dtype in _dtypes(item)):
        raise SchemaError(
            f"column {name!r}, sample {index} of the batch: expected numbers, an array, bytes or a list of these, "
            f"got {_short(value)}"
        )
    return item


def _plain(value: Any) -> Any:
    if isinstance(value, _STRINGS):
        return _string(value)
    if isinstance(value, (BytesColumn, RaggedColumn)):
        return value
    if type(value) in _PYTHON_NUMBERS:
        return _Untyped(value, {type(value)}, set())
    if isinstance(value, (list, tuple)):
        return _list(value)
    if callable(getattr(value, "numpy", None)):  # a tensor of torch or TensorFlow
        return _plain(value.numpy())
    return np.asarray(value)


def _string(value: Any) -> Any:
    if type(value) is memoryview:
        return value if value.ndim == 1 and value.itemsize == 1 and value.c_contiguous else bytes(value)
    return value.encode() if isinstance(value, str) else value


def _list(value: Sequence[Any]) -> Any:
    if not value:
        return None
    if all(isinstance(item, _STRINGS) for item in value):
        return join_bytes([_string(item) for item in value])
    numbers = _flat(value)
    kinds = set(map(type, numbers))
    dtypes = {np.asarray(one).dtype for one in numbers if type(one) not in _PYTHON_NUMBERS}
    if any(issubclass(kind, _STRINGS) for kind in kinds):
        raise TypeError("strings and numbers in one list, or lists of strings in lists")
    return _Untyped(value, kinds & _PYTHON_NUMBERS, dtypes)


def _flat(value: Sequence[Any]) -> Sequence[Any]:
    """Flattens lists of lists."""
    kinds = set(map(type, value))
    if kinds <= {list, tuple}:
        return _flat(list(chain.from_iterable(value))) if value else value
    if not any(issubclass(kind, (list, tuple)) for kind in kinds):
        return value
    return list(chain.from_iterable(_flat(item) if isinstance(item, (list, tuple)) else (item,) for item in value))


def _is_one_scalar_type(kinds: set[Any]) -> bool:
    """Whether all are numpy scalars of one dtype."""
    return len(kinds) == 1 and issubclass(next(iter(kinds)), (np.number, np.bool_))


def _wrong(name: str, index: int, value: Any, error: object) -> SchemaError:
    return SchemaError(f"column {name!r}, sample {index} of the batch: {_short(value)}: {error}")


def _short(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '…'}"


def _fill_empty(items: list[Any], hint: Column | None) -> list[Any]:
    """Replaces an empty list by no rows of what the others hold."""
    if not any(item is None for item in items):
        return items
    model = next((item for item in items if item is not None), None)
    if model is None:
        model = _no_rows(hint.inner if isinstance(hint, Ragged) else Float32())
    elif isinstance(model, np.ndarray) and model.ndim == 0:
        model = np.empty(0, model.dtype)
    nothing = model[:0]
    return [nothing if item is None else item for item in items]


def _no_rows(column: Column) -> ColumnData:
    if isinstance(column, Ragged):
        return RaggedColumn(_no_rows(column.inner), np.zeros(1, np.int64))
    if isinstance(column, Bytes):
        return join_bytes([], column.count if column.shape else 0)
    return np.empty((0, *column.shape), dtype_of(column))


# ---- all values of a column


def _python_dtype(kinds: set[Any]) -> np.dtype[Any]:
    """Returns the dtype of Python numbers where nothing else gives them one; of none, that of an empty list."""
    return np.dtype(np.float32 if float in kinds or not kinds else np.int64 if int in kinds else np.bool_)


def _dtype_beside(dtype: np.dtype[Any], kinds: set[Any]) -> np.dtype[Any] | None:
    """Returns the dtype of Python numbers beside an array's; None if no dtype holds both."""
    own = _python_dtype(kinds)
    return dtype if not kinds or dtype.kind in _HOLDS[own.kind] else _common({dtype, own})


def _dtype_in(hint: Column | None, kinds: set[Any]) -> np.dtype[Any] | None:
    """Returns the dtype that lists of Python numbers have in the schema, if that is for numbers like them."""
    if not isinstance(hint, Ragged):
        return None
    inner: Column = hint
    while isinstance(inner, Ragged):
        inner = inner.inner
    dtype, own = dtype_of(inner), _python_dtype(kinds)
    alike = isinstance(inner, Array) and (not kinds or dtype.kind == own.kind or dtype.kind + own.kind == "ui")
    return dtype if alike else None


def _common(dtypes: set[np.dtype[Any]]) -> np.dtype[Any] | None:
    """Returns what numpy promotes these to; None unless that holds every value of each exactly."""
    try:
        common = np.result_type(*dtypes)
    except TypeError:
        return None
    return common if common.hasobject or all(_holds(common, dtype) for dtype in dtypes) else None


def _holds(common: np.dtype[Any], dtype: np.dtype[Any]) -> bool:
    """Whether numpy's promotion is exact: it also makes strings of numbers, and floats of 64-bit ints."""
    if common.kind == dtype.kind:
        return common.kind != "V" or common == dtype
    rounds = common.kind in "fc" and dtype.kind in "iu" and dtype.itemsize == 8
    return dtype.kind in "biuf" and common.kind in "iufc" and not rounds


def _give_dtype(name: str, items: list[Any], hint: Column | None) -> list[Any]:
    """Converts Python numbers and lists to arrays."""
    untyped = [item for item in items if isinstance(item, _Untyped)]
    if not untyped:
        return items
    kinds: set[Any] = set().union(*[item.kinds for item in untyped])
    beside = [(index, dtype) for index, item in enumerate(items) for dtype in _dtypes(item)]
    in_schema = _dtype_in(hint, kinds) if isinstance(untyped[0].value, (list, tuple)) else None
    if beside:
        common = _common({dtype for _, dtype in beside})
        dtype = common and _dtype_beside(common, kinds)
        if dtype is None:
            raise _no_dtype(name, items)
        whose = next((f"sample {index}" for index, one in beside if one == dtype), "the batch")
    elif in_schema is not None:
        dtype, whose = in_schema, "the schema"
    else:
        dtype, whose = _python_dtype(kinds), f"Python {'floats' if float in kinds else 'ints'}"
    found = []
    for index, item in enumerate(items):
        try:
            found.append(_convert(item.value, item.kinds, dtype) if isinstance(item, _Untyped) else item)
        except _MisfitError as error:
            raise SchemaError(
                f"column {name!r}, sample {index} of the batch: {error}. This is the dtype of {whose}; where "
                "it is not enough, return numpy numbers or arrays of one dtype from the function"
            ) from None
        except (TypeError, ValueError) as error:
            raise _wrong(name, index, item.value, error) from error
    return found


def _dtypes(item: Any) -> set[np.dtype[Any]]:
    if isinstance(item, _Untyped):
        return item.dtypes
    return {item.dtype} if isinstance(item, (np.ndarray, np.generic)) else set()


def _convert(value: Any, kinds: set[Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Converts Python numbers, or lists with some of these kinds, to an array; _MisfitError if one does not fit."""
    try:
        if dtype.kind in "fc":
            with np.errstate(over="raise", under="ignore", invalid="ignore"):
                array = np.array(value, dtype)
        else:
            array = np.array(value, dtype)
    except (OverflowError, FloatingPointError) as error:
        raise _MisfitError(f"{dtype} cannot hold {_misfits(value, dtype) or error}") from None
    if int in kinds and dtype != np.int64:  # to int64 numpy is exact, or raises OverflowError
        wrong = _misfits(value, dtype)
        if wrong:
            raise _MisfitError(f"{dtype} cannot hold {wrong} exactly")
    return array


def _misfits(value: Any, dtype: np.dtype[Any]) -> str:
    """Returns the first Python number that does not fit, or nothing."""
    numbers = _flat(value) if isinstance(value, (list, tuple)) else (value,)
    return next((str(one) for one in numbers if type(one) in _PYTHON_NUMBERS and not _fits(one, dtype)), "")


def _fits(number: Any, dtype: np.dtype[Any]) -> bool:
    """Whether an int keeps its value, and a float stays finite."""
    try:
        with np.errstate(over="raise", under="ignore", invalid="ignore"):
            found = np.array(number, dtype)
    except (OverflowError, FloatingPointError):
        return False
    return type(number) is not int or bool(found.item() == number)  # Python compares int and float exactly


def _check_dtypes(name: str, items: list[Any]) -> None:
    """Raises if numpy would promote the values of different samples to a dtype that cannot hold them exactly."""
    dtypes = set(map(_dtype, items))
    if len(dtypes) > 1 and _common(dtypes) is None:
        raise _no_dtype(name, items)


def _no_dtype(name: str, items: list[Any]) -> SchemaError:
    """Names the first sample of each type."""
    first: dict[str, int] = {}
    for index, item in enumerate(items):
        for word in [*map(str, _dtypes(item)), *(f"Python {kind.__name__}" for kind in getattr(item, "kinds", ()))]:
            first.setdefault(word, index)
    found = ", ".join(f"sample {index} is {word}" for word, index in first.items())
    return SchemaError(
        f"column {name!r}: the samples' types are incompatible: in the batch, {found}, and no dtype holds all of "
        "their numbers exactly: cast them in the function"
    )


def _check_alike(name: str, items: list[Any]) -> None:
    words = [_word(item) for item in items]
    for index, word in enumerate(words):
        if word != words[0]:
            raise SchemaError(f"column {name!r}: sample 0 of the batch is {words[0]}, sample {index} is {word}")


def _word(item: Any) -> str:
    if isinstance(item, np.ndarray):
        return "numbers"
    if isinstance(item, BytesColumn):
        return "a list of strings"
    return "a list of lists" if isinstance(item, RaggedColumn) else "a string"


def _arrays(name: str, items: list[Any], how: str, pad_value: Any) -> ColumnData:
    shapes = [item.shape for item in items]
    try:
        joined: ColumnData
        if how == "ragged" and all(shapes):
            joined = _ragged(name, items, shapes)
        elif (slots := _all_slots(items)) is not None:
            joined = slots
        elif len(set(shapes)) == 1:
            joined = _concatenate(name, items).reshape(len(items), *shapes[0]) if shapes[0] else _scalars(name, items)
        elif how == "pad":
            _check_dtypes(name, items)
            joined = pad_arrays(name, items, pad_value)
        else:
            raise _unequal(name, shapes, shapes)
    except TypeError as error:
        raise SchemaError(f"column {name!r}: the samples' types are incompatible: {error}") from None
    values: Any = joined._values if isinstance(joined, RaggedColumn) else joined
    if values.dtype.hasobject:
        raise SchemaError(f"column {name!r}: expected numbers, got arrays of Python objects")
    return joined


def _all_slots(items: list[Any]) -> AnyArray | None:
    """Returns the array whose rows the items are, all of them and in order; None for other items."""
    slots = items[0].base
    if type(slots) is not Slots or len(slots) != len(items) or any(item.base is not slots for item in items):
        return None
    starts = [item.__array_interface__["data"][0] for item in items]
    row_bytes, first = slots.strides[0], slots.__array_interface__["data"][0]
    is_all = starts == [first + row * row_bytes for row in range(len(items))]
    is_whole = all(item.shape == slots.shape[1:] and item.strides == slots.strides[1:] for item in items)
    return slots.view(np.ndarray) if is_all and is_whole and items[0].dtype == slots.dtype else None


def _ragged(name: str, items: list[Any], shapes: list[tuple[int, ...]]) -> RaggedColumn:
    inner = [shape[1:] for shape in shapes]
    if len(set(inner)) > 1:
        raise _unequal(name, shapes, inner, 'only the first size may differ: use collate="pad"')
    return RaggedColumn(_join(name, items), _splits(items))


def _unequal(
    name: str, shapes: list[tuple[int, ...]], compared: list[tuple[int, ...]], advice: str = _USE_COLLATE
) -> SchemaError:
    index = next(index for index, shape in enumerate(compared) if shape != compared[0])
    return SchemaError(
        f"column {name!r}: sample 0 of the batch has the shape {shapes[0]}, sample {index} the shape {shapes[index]}: "
        + advice
    )


def _lists(name: str, items: list[Any], how: str, pad_value: Any) -> ColumnData:
    ragged = RaggedColumn(_join(name, items), _splits(items))
    if how == "ragged":
        return ragged
    if how == "pad":
        return pad_column(name, ragged, pad_value)
    counts: list[tuple[int, ...]] = [(len(item),) for item in items]
    if isinstance(items[0], RaggedColumn):
        raise SchemaError(f"column {name!r}: lists of lists cannot be stacked: {_USE_COLLATE}")
    if len(set(counts)) > 1:
        raise _unequal(name, counts, counts)
    strings = ragged._values
    per_item = counts[0][0] * (strings.per_item or 1)
    return BytesColumn(strings._values, strings._offsets, per_item) if per_item else ragged  # 0: single strings


def _splits(items: list[Any]) -> Any:
    splits = np.zeros(len(items) + 1, np.int64)
    np.cumsum([len(item) for item in items], out=splits[1:])
    return splits


def _join(name: str, items: list[Any]) -> Any:
    """Concatenates arrays or columns into new ones."""
    if isinstance(items[0], RaggedColumn):
        inner = _join(name, [item.values for item in items])
        return RaggedColumn(inner, join_offsets([item.row_splits for item in items]))
    if isinstance(items[0], BytesColumn):
        values = np.concatenate([item.values for item in items])
        return BytesColumn(values, join_offsets([item.offsets for item in items]), items[0].per_item)
    return _concatenate(name, items)


def _concatenate(name: str, arrays: list[Any]) -> Any:
    dtype = arrays[0].dtype
    if dtype.isnative:
        try:
            return np.concatenate(arrays, dtype=dtype, casting="no")  # numpy compares dtypes faster than Python
        except TypeError:
            pass
    _check_dtypes(name, arrays)
    return np.concatenate(arrays)


def _scalars(name: str, items: list[Any]) -> Any:
    _check_dtypes(name, items)
    return np.array(items)


# ---- padding


def pad_columns(batch: Batch, pad_value: Any = 0) -> Batch:
    """Pads every RaggedColumn to its longest row: with `pad_value`, strings with empty ones."""
    return {
        name: pad_column(name, column, pad_value) if isinstance(column, RaggedColumn) else column
        for name, column in batch.items()
    }


def pad_column(name: str, column: RaggedColumn, pad_value: Any = 0) -> ColumnData:
    values, sizes = column.values, np.diff(column.row_splits)
    longest = int(sizes.max(initial=0))
    if isinstance(values, RaggedColumn):
        values = pad_column(name, values, pad_value)
        if isinstance(values, BytesColumn):
            raise SchemaError(f"column {name!r}: strings in lists of lists cannot be padded")
    exists = np.arange(longest) < sizes[:, None]
    if isinstance(values, BytesColumn):
        return _pad_strings(values, exists)
    padded = _filled(name, (len(sizes), longest, *values.shape[1:]), values.dtype, pad_value)
    padded[exists] = values
    return padded


def _pad_strings(values: BytesColumn, exists: npt.NDArray[np.bool_]) -> BytesColumn:
    """A row has at least one string: a column with none a row would be one of single strings."""
    per_string = values.per_item or 1
    per_item = max(exists.shape[1], 1) * per_string
    sizes = np.zeros((exists.shape[0], per_item), np.int64)
    sizes[:, : exists.shape[1] * per_string][np.repeat(exists, per_string, axis=1)] = np.diff(values.offsets)
    offsets = np.zeros(sizes.size + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return BytesColumn(values.values, offsets, per_item)


def pad_arrays(name: str, arrays: list[AnyArray], pad_value: Any = 0) -> AnyArray:
    """Pads arrays of any shape, but of one number of dimensions, to the largest."""
    dimensions = [array.ndim for array in arrays]
    if len(set(dimensions)) > 1:
        index = next(index for index, n in enumerate(dimensions) if n != dimensions[0])
        raise SchemaError(
            f"column {name!r}: sample 0 of the batch has the shape {arrays[0].shape}, sample {index} the shape "
            f"{arrays[index].shape}: only arrays of one number of dimensions can be padded"
        )
    largest = tuple(max(sizes) for sizes in zip(*[array.shape for array in arrays], strict=True))
    padded = _filled(name, (len(arrays), *largest), np.result_type(*arrays), pad_value)
    for index, array in enumerate(arrays):
        padded[index][tuple(slice(n) for n in array.shape)] = array
    return padded


def _filled(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], pad_value: Any) -> AnyArray:
    try:
        with np.errstate(over="raise"):
            value = np.array(pad_value, dtype)
        if dtype.kind in "iub" and value != pad_value:  # a float may be rounded
            raise ValueError(f"it would become {value}")
    except (TypeError, ValueError, OverflowError, FloatingPointError) as error:
        raise SchemaError(f"column {name!r}: the pad value {pad_value!r} does not fit {dtype}: {error}") from None
    return np.full(shape, value, dtype)
