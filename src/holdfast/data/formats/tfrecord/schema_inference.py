"""Infers a schema from the records of a file, for those who have the file but not the code that wrote it.

`counted` reads only the types and numbers of values, for records as nearly all writers encode them, and returns None
for others; `_features` decodes any record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...._native import codec
from ...._native.fallback.protobuf import FIXED32, LEN, VARINT, Malformed, each_part, unpack_varints
from ....schema import Bytes, Column, Float32, Int64, Ragged, Value

_MESSAGE = 1 << 3 | 2  # field 1, of a length
_VALUE = 2 << 3 | 2
_LISTS = {kind << 3 | 2: kind for kind in (codec.BYTES, codec.FLOAT32, codec.INT64)}
_CONTINUATION = bytes(range(128, 256))  # all bytes of a varint but its last


Counted = tuple[int, int]  # the type and the number of values

_names: dict[bytes, str] = {}


def counted(data: bytes) -> dict[str, Counted] | None:
    """Returns the type and count of every feature of a tf.train.Example, by name."""
    try:
        return _counted_features(data)
    except (IndexError, UnicodeDecodeError):
        return None


def _counted_features(data: bytes) -> dict[str, Counted] | None:
    found: dict[str, Counted] = {}
    size, at = _length(data, 1)
    if data[0] != _MESSAGE or at + size != len(data):
        return None
    while at < len(data):
        if data[at] != _MESSAGE:
            return None
        size, start = _length(data, at + 1)
        end = start + size
        if data[start] != _MESSAGE or end > len(data):
            return None
        size, at = _length(data, start + 1)
        key = data[at : at + size]
        at += size
        if at >= end or data[at] != _VALUE:
            return None
        size, at = _length(data, at + 1)
        one = _counted_feature(data, at, end) if at + size == end else None
        name = _names.get(key) or _name(key)
        if one is None or name in found:
            return None
        found[name] = one
        at = end
    return found


def _name(key: bytes) -> str:
    if len(_names) > 10_000:
        _names.clear()
    name = _names[key] = key.decode()
    return name


def _counted_feature(data: bytes, at: int, end: int) -> Counted | None:
    if at == end:
        return codec.NONE, 0
    kind = _LISTS.get(data[at], 0)
    size, at = _length(data, at + 1)
    if not kind or at + size != end:
        return None
    if at == end:
        return kind, 0
    if kind == codec.BYTES:
        return _strings(data, at, end)
    tag = data[at]
    size, at = _length(data, at + 1)
    if tag != _MESSAGE or at + size != end:
        return None  # not packed, or in several fields
    if kind == codec.FLOAT32:
        return (kind, size // 4) if size % 4 == 0 else None
    values = data[at:end]
    return (kind, len(values.translate(None, _CONTINUATION))) if values and values[-1] < 128 else None


def _strings(data: bytes, at: int, end: int) -> Counted | None:
    count = 0
    while at < end:
        tag = data[at]
        size, at = _length(data, at + 1)
        at += size
        count += 1
        if tag != _MESSAGE:
            return None
    return (codec.BYTES, count) if at == end else None


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Decodes a varint; returns it and where it ends."""
    byte = data[at]
    if byte < 128:
        return byte, at + 1
    value, shift = byte & 127, 7
    while byte > 127:
        at += 1
        byte = data[at]
        value |= (byte & 127) << shift
        shift += 7
    return value, at + 1


_TYPES: dict[int, type[Value]] = {codec.BYTES: Bytes, codec.FLOAT32: Float32, codec.INT64: Int64}

# Tags of fields 1 and 2 with a message or bytes, as nearly everywhere in an Example.
_FIRST = 1 << 3 | LEN
_SECOND = 2 << 3 | LEN


@dataclass
class _Found:
    """One feature of one record, or one step of a feature list."""

    kind: int = codec.NONE
    runs: list[Any] = field(default_factory=list)  # arrays of numbers, or lists of bytes

    @property
    def count(self) -> int:
        return sum(len(run) for run in self.runs)

    def tolist(self) -> list[Any]:
        return [value for run in self.runs for value in (run.tolist() if isinstance(run, np.ndarray) else run)]


@dataclass
class _Seen:
    """What the records so far have in one feature."""

    kinds: set[int] = field(default_factory=set)
    counts: set[int] = field(default_factory=set)  # of values in a feature, or in a step of a feature list
    records: int = 0
    is_list: bool = False
    is_plain: bool = False


@dataclass(frozen=True)
class Inferred:
    schema: dict[str, Column]
    examples: dict[str, Any]  # the first record's values: a list, or for a feature list a list per step
    notes: dict[str, str]  # what could not be decided, by column
    records: int  # how many were read
    sequence: bool  # SequenceExample


class NotAnExample(ValueError):
    """The records are not tf.train.Example messages."""


def infer_schema(records: Iterable[bytes], *, with_examples: bool = True) -> Inferred:
    """Returns a schema that all these records fit. Varying sizes become Ragged; a feature that some lack gets a
    default.

    `with_examples` False: without the first record's values, which take many times its size as Python objects.
    """
    seen: dict[str, _Seen] = {}
    examples: dict[str, Any] = {}
    total = 0
    for record in records:
        data = bytes(record)
        try:
            features: Mapping[str, _Found | Counted | list[_Found]] | None = None
            if total or not with_examples:
                features = counted(data)
            if features is None:
                features = found = _features(data)
        except (Malformed, ValueError) as error:
            why = f": {error}" if str(error) else ""
            raise NotAnExample(f"record {total} is not a tf.train.Example{why}") from None
        if total == 0 and with_examples:
            examples = {key: _example(one) for key, one in found.items()}
        for key, one in features.items():
            _note(seen.setdefault(key, _Seen()), one)
        total += 1
    schema, notes = {}, {}
    for key in sorted(seen):
        column, note = _column(seen[key], total)
        if column is not None:
            schema[key] = column
        if note:
            notes[key] = note
    return Inferred(schema, examples, notes, total, any(entry.is_list for entry in seen.values()))


def feature_names(record: bytes) -> list[str]:
    """Returns the sorted names of a record's features. Raises a ValueError if it is not a tf.train.Example."""
    try:
        return sorted(_features(record))
    except Malformed as error:
        raise ValueError(str(error)) from None


def _example(found: _Found | list[_Found]) -> list[Any]:
    return [step.tolist() for step in found] if isinstance(found, list) else found.tolist()


def _note(entry: _Seen, found: _Found | Counted | list[_Found]) -> None:
    if not isinstance(found, list):
        kind, count = found if isinstance(found, tuple) else (found.kind, found.count)
        if one_is_there := kind != codec.NONE:  # an empty Feature counts as missing
            entry.kinds.add(kind)
            entry.counts.add(count)
        entry.records += one_is_there
        entry.is_plain |= one_is_there
        return
    entry.records += 1
    entry.is_list = True
    for step in found:
        entry.kinds |= {step.kind} - {codec.NONE}
        entry.counts.add(step.count if step.kind != codec.NONE else 0)


def _column(entry: _Seen, total: int) -> tuple[Column | None, str]:
    if len(entry.kinds) != 1:
        return None, "always empty" if not entry.kinds else "its type differs from record to record"
    if entry.is_list and entry.is_plain:
        return None, "a feature in some records, a feature list in others"
    kind = _TYPES[next(iter(entry.kinds))]
    counts = entry.counts
    note = f"missing in {total - entry.records} of {total} records" if entry.records < total else ""
    if entry.is_list:
        same = len(counts) == 1 and counts != {0}
        inner = (kind() if counts == {1} else kind(*counts)) if same else Ragged(kind())
        return Ragged(inner), note
    if len(counts) > 1 or counts == {0}:
        return Ragged(kind()), note
    shape = () if counts == {1} else tuple(counts)
    if entry.records < total:
        return kind(*shape, default=b"" if kind is Bytes else 0), note
    return kind(*shape), note


# ---- decoding any message: rare, so simple rather than fast


def _features(data: bytes) -> dict[str, _Found | list[_Found]]:
    """Returns one record's features by name. The last of two equal names counts, and a feature list before a
    feature."""
    features: dict[str, _Found | list[_Found]] = {}
    lists: dict[str, _Found | list[_Found]] = {}
    is_example = not data
    for tag, start, stop in each_part(data, 0, len(data), 0):
        if tag not in (_FIRST, _SECOND):
            continue
        is_example |= start == stop
        for key, value in _entries(data[start:stop]):
            is_example = True
            if tag == _FIRST:
                features[key] = _feature(value)
            else:
                lists[key] = [_feature(step) for n, step in _messages(value, 1) if n == _FIRST]
    if not is_example:
        raise ValueError("it has no features")
    return features | lists


def _entries(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields the names and messages of a map. A message in several fields is joined, as protobuf does."""
    for tag, entry in _messages(data, 1):
        if tag == _FIRST:
            parts = list(_messages(entry, 2))
            keys = [part for n, part in parts if n == _FIRST]
            pieces = [part for n, part in parts if n == _SECOND]
            if parts and not keys and not pieces:
                raise ValueError("an entry without name and value")
            yield (keys[-1] if keys else b"").decode(), b"".join(pieces)


def _messages(data: bytes, depth: int) -> Iterator[tuple[int, bytes]]:
    return ((tag, data[start:stop]) for tag, start, stop in each_part(data, 0, len(data), depth))


def _feature(data: bytes) -> _Found:
    """Decodes a Feature. Another member of the oneof replaces the one before, the same one adds to it."""
    found = _Found()
    for tag, content in _messages(data, 3):
        kind = tag >> 3
        if tag & 7 == LEN and kind in _TYPES:
            found = found if found.kind == kind else _Found(kind)
            runs = [_run(kind, value_tag, value) for value_tag, value in _messages(content, 4)]
            found.runs += [run for run in runs if run is not None]
    return found


def _run(kind: int, tag: int, value: bytes) -> Any:
    """Returns the values of one field, packed or single; None for a field that protobuf would call unknown."""
    wire = tag & 7
    if tag >> 3 != 1:
        return None
    if kind == codec.BYTES:
        return [value] if wire == LEN else None
    if kind == codec.FLOAT32:
        return np.frombuffer(value, "<f4") if wire in (LEN, FIXED32) else None
    return np.frombuffer(unpack_varints(value), "<i8") if wire in (LEN, VARINT) else None
