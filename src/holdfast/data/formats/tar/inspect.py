"""Summarizes a tar for `holdfast inspect`: samples, keys, and the members by suffix with their sizes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ...._util.text import counted, format_bytes
from ....errors import DataError, HoldfastError
from ....schema import Column, as_code
from ..sections import COMPRESSION, Section
from ..tfrecord.inspect import without_path
from .shard import TarShard

_SHOWN_KEYS = 3
_SHOWN_SUFFIXES = 40


class Suffix(NamedTuple):
    """The members with one suffix, and the sizes of their data. Each sample has one of them at most."""

    suffix: str
    members: int
    bytes: int
    min: int
    median: int
    max: int


@dataclass(slots=True)
class TarSurvey:
    path: str
    bytes: int = 0
    compression: str | None = None  # None: not a tar, or unreadable
    samples: int = 0
    keys: list[str] = field(default_factory=list)  # of the first samples, and of the last
    suffixes: list[Suffix] = field(default_factory=list)
    schema: dict[str, Column] | None = None
    notes: list[str] = field(default_factory=list)
    problem: str | None = None
    hint: str = ""
    readable: bool = True

    @property
    def format(self) -> str | None:
        return None if self.compression is None else "tar"

    @property
    def rows(self) -> int:
        return self.samples

    @property
    def members(self) -> int:
        return sum(one.members for one in self.suffixes)

    @property
    def code(self) -> str:
        return as_code(self.schema) if self.schema else ""

    def sections(self) -> Iterator[Section]:
        facts = []
        if self.compression is not None:
            keys = ", ".join(self.keys[:3]) + (f", … {self.keys[3]}" if len(self.keys) > 3 else "")
            facts = [
                ("format", f"tar, {COMPRESSION[self.compression]}"),
                ("size", format_bytes(self.bytes)),
                ("samples", f"{self.samples:,} of {counted(self.members, 'member')}"),
                ("keys", keys),
            ]
        facts += [("note" if i == 0 else "", note) for i, note in enumerate(self.notes[:_SHOWN_SUFFIXES])]
        facts += [("problem", self.problem)] if self.problem is not None else []
        yield Section(facts=[*facts, ("", self.hint)] if self.hint else facts)
        if self.suffixes:
            rows = [
                (f".{name}", f"{members:,}", format_bytes(size), *map(format_bytes, sizes))
                for name, members, size, *sizes in self.suffixes[:_SHOWN_SUFFIXES]
            ]
            heads = ("suffix", ">members", ">size", ">smallest", ">median", ">largest")
            yield Section(heads=heads, rows=rows, left=len(self.suffixes) - len(rows))
        if self.code:
            yield Section(code=self.code)

    def as_dict(self) -> dict[str, object]:
        return {
            "path": self.path,
            "format": self.format,
            "compression": self.compression,
            "bytes": self.bytes,
            "samples": self.samples,
            "members": self.members,
            "keys": self.keys,
            "suffixes": [one._asdict() for one in self.suffixes],
            "schema": {name: repr(column) for name, column in self.schema.items()} if self.schema else None,
            "notes": self.notes,
            "problem": self.problem,
        }


def inspect_tar(
    path: str | os.PathLike[str], sample: int = 100, progress: Callable[[int], None] | None = None
) -> TarSurvey:
    """Never raises for a corrupt file: its problem is in the result. The schema is inferred from `sample` samples."""
    survey = TarSurvey(os.fsdecode(path))
    try:
        survey.bytes = os.path.getsize(survey.path)
        with TarShard(survey.path, cache=False) as shard:
            _describe(survey, shard, sample)
    except DataError as error:
        survey.problem, survey.hint = without_path(error), error.hint
    except (HoldfastError, OSError) as error:
        text = str(error) if isinstance(error, HoldfastError) else f"cannot open: {error.strerror}"
        survey.problem, survey.readable = text.removeprefix(f"{survey.path}: "), False
    if progress is not None:
        progress(survey.bytes)
    return survey


def _describe(survey: TarSurvey, shard: TarShard, sample: int) -> None:
    index = shard.index
    survey.compression, survey.samples = shard.compression, len(index)
    shown = [*range(min(len(index), _SHOWN_KEYS)), *range(max(len(index) - 1, _SHOWN_KEYS), len(index))]
    survey.keys = [index.key(row) for row in shown]
    for kind, suffix in sorted(enumerate(index.extensions), key=lambda one: one[1]):
        sizes = index.sizes[index.kinds == kind]
        low, middle, high = int(sizes.min()), int(np.median(sizes)), int(sizes.max())
        survey.suffixes.append(Suffix(suffix, len(sizes), int(sizes.sum()), low, middle, high))
        if lacking := len(index) - len(sizes):
            survey.notes.append(f"{counted(lacking, 'sample')} without .{suffix}")
    if index.strays:
        survey.notes.append(f"{counted(index.strays, 'member')} of no sample, such as {index.first_strays[0]}")
    if len(index):
        survey.schema = shard.schema if shard.marked else shard.infer_schema(sample)
