"""Which rows of which part come where in one file of all."""

from __future__ import annotations

import re
from typing import NamedTuple

from ..errors import CorruptError
from .record import PartRecord

Key = list[tuple[int, str]]


class Stretch(NamedTuple):
    """Rows [start, stop) of a part, by its number among those given."""

    part: int
    start: int
    stop: int


def natural(name: str) -> Key:
    """`rank9` before `rank10`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def in_order(records: list[PartRecord]) -> list[PartRecord]:
    """By task, naturally: `rank9` before `rank10`."""
    return sorted(records, key=lambda record: (natural(record.task), record.task, record.attempt))


def exact_order(records: list[PartRecord]) -> list[Stretch]:
    """By task and row; of parts that the central writer made, by producer and the number it gave each row."""
    keyed: list[tuple[Key, str, int, Stretch]] = []
    for number, record in enumerate(records):
        at = 0
        for whose, first, rows in record.runs or [(record.task, 0, record.rows)]:
            keyed.append((natural(whose), whose, first, Stretch(number, at, at + rows)))
            at += rows
        if at != record.rows:
            raise CorruptError(record.file, None, None, f"its record has runs of {at:,} rows, and {record.rows:,} rows")
    return [stretch for *_, stretch in sorted(keyed)]
