"""A schema from the first records of a file, for people who have the file but not the code that wrote it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..._native import codec
from ...schema import Bytes, Column, Float32, Int64, Ragged, Value

_TYPES: dict[int, type[Value]] = {codec.BYTES: Bytes, codec.FLOAT32: Float32, codec.INT64: Int64}
Wire = Iterator[tuple[int, int, Any]]


@dataclass
class _Seen:
    """What the records showed of one feature."""

    kinds: set[int] = field(default_factory=set)
    counts: set[int] = field(default_factory=set)  # values in a feature, or in a step of a list
    records: int = 0
    is_list: bool = False
    example: Any = None


@dataclass(frozen=True)
class Inferred:
    schema: dict[str, Column]
    examples: dict[str, Any]  # the first record's values
    notes: dict[str, str]  # what could not be settled, by column
    records: int  # how many were looked at
    sequence: bool  # SequenceExample


class NotAnExample(ValueError):
    """The records are not tf.train.Example messages."""


def infer_schema(records: Iterable[bytes]) -> Inferred:
    """The schema that all these records fit. Sizes that differ become Ragged, features that some lack get a default."""
    seen: dict[str, _Seen] = {}
    total = 0
    for record in records:
        total += 1
        try:
            for in_lists, key, kind, values in _features(memoryview(record)):
                entry = seen.setdefault(key, _Seen())
                entry.is_list |= in_lists
                entry.records += 1
                entry.example = values if entry.example is None else entry.example
                for one_kind, one in zip(kind, values, strict=True) if in_lists else [(kind, values)]:
                    if one_kind != codec.NONE:
                        entry.kinds.add(one_kind)
                        entry.counts.add(len(one))
        except (ValueError, IndexError, UnicodeDecodeError) as error:
            raise NotAnExample(f"record {total - 1} is not a tf.train.Example: {error}") from None
    schema, notes = {}, {}
    for key in sorted(seen):
        column, note = _column(seen[key], total)
        if column is not None:
            schema[key] = column
        if note:
            notes[key] = note
    examples = {key: entry.example for key, entry in seen.items()}
    return Inferred(schema, examples, notes, total, any(entry.is_list for entry in seen.values()))


def _column(entry: _Seen, total: int) -> tuple[Column | None, str]:
    if len(entry.kinds) != 1:
        return None, "always empty" if not entry.kinds else "its type differs from record to record"
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


# ---- a plain reader of the wire: a handful of records, so clear beats fast


def _features(record: memoryview) -> Iterator[tuple[bool, str, Any, Any]]:
    """(in feature lists, name, kind, values); for lists kind and values are lists, one entry a step."""
    for number, wire, content in _fields(record):
        if wire == 2 and number in (1, 2):
            for entry_number, entry_wire, entry in _fields(content):
                if (entry_number, entry_wire) != (1, 2):
                    continue
                parts = dict[int, memoryview]()
                for part_number, part_wire, part in _fields(entry):
                    if part_wire == 2:
                        parts[part_number] = part
                key = bytes(parts.get(1, b"")).decode()
                value = parts.get(2, memoryview(b""))
                if number == 1:
                    kind, values = _feature(value)
                    yield False, key, kind, values
                else:
                    steps = [_feature(step) for n, w, step in _fields(value) if (n, w) == (1, 2)]
                    yield True, key, [kind for kind, _ in steps], [values for _, values in steps]


def _feature(content: memoryview) -> tuple[int, list[Any]]:
    kind, values = codec.NONE, list[Any]()
    for number, wire, part in _fields(content):
        if wire == 2 and number in _TYPES:
            values = [] if number != kind else values
            kind = number
            for value_number, value_wire, value in _fields(part):
                if value_number == 1:
                    values += _values(kind, value_wire, value)
    return kind, values


def _values(kind: int, wire: int, value: Any) -> list[Any]:
    if kind == codec.BYTES:
        return [bytes(value)]
    if kind == codec.FLOAT32:
        return list(np.frombuffer(value, "<f4").tolist())
    if wire == 0:
        return [_signed(value)]
    numbers, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        numbers.append(_signed(number))
    return numbers


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def _fields(content: memoryview) -> Wire:
    """(field number, wire type, value) of a message; a varint's value is an int, every other's its bytes."""
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        wire, size = tag & 7, 0
        if tag >> 3 == 0:
            raise ValueError("field number 0")
        if wire == 0:
            value, at = _varint(content, at)
            yield tag >> 3, wire, value
            continue
        if wire == 2:
            size, at = _varint(content, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if size > len(content) - at:
            raise ValueError("a length goes past the end")
        yield tag >> 3, wire, content[at : at + size]
        at += size


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        byte = content[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number & (1 << 64) - 1, at
    raise ValueError("a number longer than ten bytes")
