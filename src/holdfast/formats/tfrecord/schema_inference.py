"""What types a record's features have and how many values, without looking at the values: of every record of a file.

Only of records as writers nearly always make them. For what is otherwise in any way the answer is None, and somebody
has to look closer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..._native import codec
from ..._native.fallback.protobuf import FIXED32, LEN, VARINT, Malformed, each_part, unpack_varints
from ...schema import Bytes, Column, Float32, Int64, Ragged, Value

_MESSAGE = 1 << 3 | 2  # field 1, of a length
_VALUE = 2 << 3 | 2
_LISTS = {kind << 3 | 2: kind for kind in (codec.BYTES, codec.FLOAT32, codec.INT64)}
_GO_ON = bytes(range(128, 256))  # bytes of a varint that are not its last


Counted = tuple[int, int]  # the type, and how many values

_names: dict[bytes, str] = {}


def counted(data: bytes) -> dict[str, Counted] | None:
    """The features of a tf.train.Example by name."""
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
        return None  # not packed, or in pieces
    if kind == codec.FLOAT32:
        return (kind, size // 4) if size % 4 == 0 else None
    values = data[at:end]
    return (kind, len(values.translate(None, _GO_ON))) if values and values[-1] < 128 else None


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
    """A varint, and where it ends."""
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


# A schema from the first records of a file, for people who have the file but not the code that wrote it.

_TYPES: dict[int, type[Value]] = {codec.BYTES: Bytes, codec.FLOAT32: Float32, codec.INT64: Int64}

# Tags of fields 1 and 2 where they hold a message or bytes, as nearly everywhere in an Example.
_FIRST = 1 << 3 | LEN
_SECOND = 2 << 3 | LEN


@dataclass
class _Found:
    """One feature of one record; a feature list has one for each step."""

    kind: int = codec.NONE
    runs: list[Any] = field(default_factory=list)  # arrays of numbers, or lists of bytes

    @property
    def count(self) -> int:
        return sum(len(run) for run in self.runs)

    def tolist(self) -> list[Any]:
        return [value for run in self.runs for value in (run.tolist() if isinstance(run, np.ndarray) else run)]


@dataclass
class _Seen:
    """What the records showed of one feature."""

    kinds: set[int] = field(default_factory=set)
    counts: set[int] = field(default_factory=set)  # values in a feature, or in a step of a list
    records: int = 0
    is_list: bool = False
    is_plain: bool = False


@dataclass(frozen=True)
class Inferred:
    schema: dict[str, Column]
    examples: dict[str, Any]  # the first record's values: lists, for a feature list a list for each step
    notes: dict[str, str]  # what could not be settled, by column
    records: int  # how many were looked at
    sequence: bool  # SequenceExample


class NotAnExample(ValueError):
    """The records are not tf.train.Example messages."""


def infer_schema(records: Iterable[bytes], *, with_examples: bool = True) -> Inferred:
    """The schema all these records fit. Sizes that differ become Ragged, what some lack gets a default.

    `with_examples` False: the first record's values, which take many times its size as Python objects, are left out.
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
    """Returns the names of a record's features in order. ValueError: it is not a tf.train.Example."""
    try:
        return sorted(_features(record))
    except Malformed as error:
        raise ValueError(str(error)) from None


def _example(found: _Found | list[_Found]) -> list[Any]:
    return [step.tolist() for step in found] if isinstance(found, list) else found.tolist()


def _note(entry: _Seen, found: _Found | Counted | list[_Found]) -> None:
    if not isinstance(found, list):
        kind, count = found if isinstance(found, tuple) else (found.kind, found.count)
        if one_is_there := kind != codec.NONE:  # an empty Feature is the same as none
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


# ---- the messages: a handful of records, so clear beats fast


def _features(data: bytes) -> dict[str, _Found | list[_Found]]:
    """One record's features by name. Of a name that is there twice the last counts; lists go first."""
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
    """A map's names and messages. A message in pieces is joined, as protobuf does."""
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
    """Another member of the oneof replaces what came before it, the same one adds to it."""
    found = _Found()
    for tag, content in _messages(data, 3):
        kind = tag >> 3
        if tag & 7 == LEN and kind in _TYPES:
            found = found if found.kind == kind else _Found(kind)
            runs = [_run(kind, value_tag, value) for value_tag, value in _messages(content, 4)]
            found.runs += [run for run in runs if run is not None]
    return found


def _run(kind: int, tag: int, value: bytes) -> Any:
    """Values packed into one field, or a single one; None where protobuf would call the field unknown."""
    wire = tag & 7
    if tag >> 3 != 1:
        return None
    if kind == codec.BYTES:
        return [value] if wire == LEN else None
    if kind == codec.FLOAT32:
        return np.frombuffer(value, "<f4") if wire in (LEN, FIXED32) else None
    return np.frombuffer(unpack_varints(value), "<i8") if wire in (LEN, VARINT) else None
