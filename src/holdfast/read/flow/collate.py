"""Samples into batches: columns out of what map functions returned.

A sample is a dict. Its values may be numbers, numpy arrays and scalars, anything that turns into an array (tensors,
images), bytes, str, lists of these, and whatever `split_samples` makes of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, Literal

import numpy as np

from ...errors import SchemaError
from ...formats.columns import BytesColumn, ColumnData, RaggedColumn
from ...formats.dtypes import dtype_of
from ...formats.gather import join_bytes
from ...schema import Bytes, Column, Float32, Ragged
from .pad import pad_arrays, pad_column, pad_columns
from .samples import nbytes_of, rows_of, split_samples, tuple_like

__all__ = ["How", "collate", "nbytes_of", "pad_columns", "rows_of", "split_samples"]

How = Literal["stack", "pad", "ragged"]

_STRINGS = (bytes, str, bytearray, memoryview)
_EXACT_STRINGS = frozenset(_STRINGS)
_PYTHON_NUMBERS = frozenset((int, float, bool))
_SAY_HOW = 'say collate="pad" or collate="ragged"'


def collate(
    samples: Sequence[Any],
    how: How | None = None,
    schema: Mapping[str, Column] | None = None,
    pad_value: Any = 0,
) -> Any:
    """One batch of these samples, in this order. Where they are nested, it has their structure.

    None, "stack": all values of a column have one shape. With None, a column that is Ragged in `schema` is so here.
    "pad":         arrays are filled up with `pad_value` to the largest of the batch.
    "ragged":      every value of one dimension or more is a row of a RaggedColumn.

    Python's int becomes int64 and its float float32, as in a schema; arrays keep their type.
    """
    if how not in (None, "stack", "pad", "ragged"):
        raise ValueError(f'expected collate to be one of "stack", "pad", "ragged", got {how!r}')
    if not samples:
        raise ValueError("wanted at least one sample")
    if not isinstance(samples[0], (Mapping, tuple)):
        raise SchemaError(f"sample 0 of the batch: expected a dict of columns or a tuple, got {_short(samples[0])}")
    return _node("", list(samples), how, schema or {}, pad_value)


def _node(path: str, values: list[Any], how: How | None, schema: Mapping[str, Column], pad_value: Any) -> Any:
    """One column, or a dict or tuple of them. `path`: where in the samples these values are."""
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
    wanted = "ragged" if how is None and isinstance(hint, Ragged) else how or "stack"
    return _column(path, values, wanted, hint, pad_value)


def _below(path: str, name: Any) -> str:
    return f"{path}.{name}" if path else str(name)


def _check_all(path: str, values: Sequence[Any], kind: type, word: str) -> None:
    if not all(issubclass(one, kind) for one in set(map(type, values))):
        place = next(place for place, value in enumerate(values) if not isinstance(value, kind))
        where = f"column {path!r}, sample" if path else "sample"
        raise SchemaError(f"{where} {place} of the batch: expected {word}, got {_short(values[place])}")


def _check_lengths(path: str, values: Sequence[tuple[Any, ...]]) -> None:
    place = next((place for place, value in enumerate(values) if len(value) != len(values[0])), None)
    if place is not None:
        where = f"column {path!r}: sample" if path else "sample"
        raise SchemaError(
            f"{where} 0 of the batch is a tuple of {len(values[0])}, sample {place} one of {len(values[place])}: the "
            "values of one column go into a list or an array"
        )


def _other_keys(path: str, samples: Sequence[Mapping[str, Any]]) -> SchemaError:
    """Looked into only when it is known that they differ: it takes as long as all the rest."""
    wanted = samples[0].keys()
    place, keys = next((place, sample.keys()) for place, sample in enumerate(samples) if sample.keys() != wanted)
    name = _below(path, min(wanted - keys or keys - wanted, key=str))
    there, missing = (0, place) if wanted - keys else (place, 0)
    return SchemaError(f"column {name!r} is in sample {there} of the batch, but not in sample {missing}")


def _column(name: str, values: list[Any], how: str, hint: Column | None, pad_value: Any) -> ColumnData:
    kinds = set(map(type, values))
    if kinds <= _EXACT_STRINGS:
        return join_bytes(values if kinds == {bytes} else [_string(value) for value in values])
    if all(map(_is_numpy, kinds)):
        return _arrays(name, values, how, pad_value)
    if kinds <= _PYTHON_NUMBERS:
        return _python_numbers(name, values, kinds)
    items = _fill_empty([_item(name, place, value) for place, value in enumerate(values)], hint)
    _check_alike(name, items)
    if isinstance(items[0], np.ndarray):
        return _arrays(name, _whole_as_floats(values, items), how, pad_value)
    if isinstance(items[0], (BytesColumn, RaggedColumn)):
        return _lists(name, items, how, pad_value)
    return join_bytes(items)


def _is_numpy(kind: type) -> bool:
    return kind is np.ndarray or (issubclass(kind, np.generic) and not issubclass(kind, (bytes, str)))


# ---- one value


def _item(name: str, place: int, value: Any) -> Any:
    """An array, a byte string, a column for a list of strings or of lists; None for an empty list."""
    try:
        item = _plain(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise SchemaError(f"column {name!r}, sample {place} of the batch: {_short(value)}: {error}") from error
    if isinstance(item, np.ndarray) and item.dtype.hasobject:
        raise SchemaError(
            f"column {name!r}, sample {place} of the batch: wanted numbers, an array, bytes or a list of these, "
            f"got {_short(value)}"
        )
    return item


def _plain(value: Any) -> Any:
    if isinstance(value, _STRINGS):
        return _string(value)
    if isinstance(value, (BytesColumn, RaggedColumn)):
        return value
    if type(value) in _PYTHON_NUMBERS:
        return np.asarray(value, _python_dtype({type(value)}))
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
    array = np.asarray(value)
    if array.dtype.kind in "US" and not isinstance(value[0], np.ndarray):
        raise TypeError("strings and numbers in one list, or lists of strings in lists")
    return array.astype(np.float32) if array.dtype == np.float64 and _is_python(value) else array


def _is_python(value: Any) -> bool:
    """Numbers without a type of their own, by the first of them."""
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return type(value) in _PYTHON_NUMBERS


def _short(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '…'}"


def _fill_empty(items: list[Any], hint: Column | None) -> list[Any]:
    """An empty list is one of whatever the others hold."""
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


def _python_dtype(kinds: set[Any] | frozenset[Any]) -> Any:
    return np.float32 if float in kinds else np.int64 if int in kinds else np.bool_


def _whole_as_floats(values: list[Any], items: list[Any]) -> list[Any]:
    """Python's whole numbers do not make float64 of the floats beside them."""
    if not any(item.dtype.kind == "f" for item in items):
        return items
    return [
        item.astype(np.float32) if item.dtype.kind == "i" and _is_python(value) else item
        for value, item in zip(values, items, strict=True)
    ]


def _python_numbers(name: str, values: list[Any], kinds: set[Any]) -> ColumnData:
    try:
        return np.array(values, _python_dtype(kinds))
    except OverflowError:
        place = next(place for place, value in enumerate(values) if not -(1 << 63) <= value < 1 << 63)
        raise SchemaError(
            f"column {name!r}, sample {place} of the batch: {values[place]} does not fit 64 bits"
        ) from None


def _check_alike(name: str, items: list[Any]) -> None:
    words = [_word(item) for item in items]
    for place, word in enumerate(words):
        if word != words[0]:
            raise SchemaError(f"column {name!r}: sample 0 of the batch is {words[0]}, sample {place} is {word}")


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
        elif len(set(shapes)) == 1:
            joined = np.concatenate(items).reshape(len(items), *shapes[0]) if shapes[0] else np.array(items)
        elif how == "pad":
            joined = pad_arrays(name, items, pad_value)
        else:
            raise _unequal(name, shapes, shapes)
    except TypeError as error:
        raise SchemaError(f"column {name!r}: the samples' types do not go together: {error}") from None
    values: Any = joined._values if isinstance(joined, RaggedColumn) else joined
    if values.dtype.hasobject:
        raise SchemaError(f"column {name!r}: wanted numbers, got arrays of Python objects")
    return joined


def _ragged(name: str, items: list[Any], shapes: list[tuple[int, ...]]) -> RaggedColumn:
    inner = [shape[1:] for shape in shapes]
    if len(set(inner)) > 1:
        raise _unequal(name, shapes, inner, 'only the first size may differ: say collate="pad"')
    return RaggedColumn(_join(items), _splits(items))


def _unequal(
    name: str, shapes: list[tuple[int, ...]], compared: list[tuple[int, ...]], advice: str = _SAY_HOW
) -> SchemaError:
    place = next(place for place, shape in enumerate(compared) if shape != compared[0])
    return SchemaError(
        f"column {name!r}: sample 0 of the batch has the shape {shapes[0]}, sample {place} the shape {shapes[place]}: "
        + advice
    )


def _lists(name: str, items: list[Any], how: str, pad_value: Any) -> ColumnData:
    ragged = RaggedColumn(_join(items), _splits(items))
    if how == "ragged":
        return ragged
    if how == "pad":
        return pad_column(name, ragged, pad_value)
    counts: list[tuple[int, ...]] = [(len(item),) for item in items]
    if isinstance(items[0], RaggedColumn):
        raise SchemaError(f"column {name!r}: lists of lists cannot be stacked: {_SAY_HOW}")
    if len(set(counts)) > 1:
        raise _unequal(name, counts, counts)
    strings = ragged._values
    per_item = counts[0][0] * (strings.per_item or 1)
    return BytesColumn(strings._values, strings._offsets, per_item) if per_item else ragged  # 0: single strings


def _splits(items: list[Any]) -> Any:
    splits = np.zeros(len(items) + 1, np.int64)
    np.cumsum([len(item) for item in items], out=splits[1:])
    return splits


def _join(items: list[Any]) -> Any:
    """Arrays or columns, one behind the other. Nothing of them is kept."""
    if isinstance(items[0], RaggedColumn):
        inner = _join([item.values for item in items])
        return RaggedColumn(inner, _joined_ends([item.row_splits for item in items]))
    if isinstance(items[0], BytesColumn):
        values = np.concatenate([item.values for item in items])
        return BytesColumn(values, _joined_ends([item.offsets for item in items]), items[0].per_item)
    return np.concatenate(items)


def _joined_ends(ends: list[Any]) -> Any:
    sizes = np.concatenate([np.diff(each) for each in ends])
    joined = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=joined[1:])
    return joined
