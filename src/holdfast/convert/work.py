"""The whole way: sources that are whole, their columns, targets from them, and the proof that they hold the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ..errors import DataError
from ..formats.columns import Batch
from ..formats.schema_json import first_difference
from ..formats.tfrecord.manifest import FileEntry
from ..schema import Column
from .blocks import each_block
from .columns import Columns, plain_schema
from .digest import Digest
from .names import Kind
from .plain import open_plain
from .shards import Cut
from .sources import Progress, Source
from .targets import Target, make_target


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the targets are to be."""

    kind: Kind
    suffix: str
    codec: Any
    compression: Any
    shards: int | None
    shard_bytes: int | None

    @property
    def many(self) -> bool:
        """Whether the targets are numbered."""
        return self.shards is not None or self.shard_bytes is not None


def count_rows(sources: Sequence[Source], columns: Columns, staging: Path) -> int:
    """Of those that say so without being read through."""
    rows = 0
    for source, read in zip(sources, columns.reads, strict=True):
        with open_plain(source.path, source.kind, read, staging, cache=True) as shard:
            rows += len(shard)
    return rows


def write_targets(
    sources: Sequence[Source], columns: Columns, wanted: Wanted, staging: Path, progress: Progress
) -> tuple[list[FileEntry], str]:
    """The staged files in their order, and the digest of what went into them."""
    rows = count_rows(sources, columns, staging) if wanted.shards is not None else 0
    cut = Cut(rows, wanted.shards, wanted.shard_bytes)
    digest = Digest(columns.schema)
    with _Row(wanted, columns.schema, staging) as row:
        for source, read in zip(sources, columns.reads, strict=True):
            with open_plain(source.path, source.kind, read, staging, cache=True) as shard:
                for batch, count in each_block(shard, read):
                    digest.add(batch)
                    for number, piece in cut.pieces(batch, count):
                        row.put(number, piece)
                    progress(source.size_bytes * count / len(shard))
                if not len(shard):
                    progress(source.size_bytes)
        return row.finish(cut.count), digest.value


class _Row:
    """Targets one after the other; one is open at a time. Those without rows are made, too."""

    def __init__(self, wanted: Wanted, schema: dict[str, Column], staging: Path) -> None:
        self._wanted, self._schema, self._staging = wanted, schema, staging
        self._entries: list[FileEntry] = []
        self._open: Target | None = None

    def put(self, number: int, batch: Batch) -> None:
        self._go_to(number)
        assert self._open is not None
        self._open.extend(batch)

    def finish(self, count: int) -> list[FileEntry]:
        self._go_to(count - 1)
        self._end()
        return self._entries

    def _go_to(self, number: int) -> None:
        while self._open is None or len(self._entries) < number:
            self._end()
            self._open = make_target(
                self._wanted.kind,
                self._staging / f"{len(self._entries):05d}{self._wanted.suffix}",
                self._schema,
                first=sum(entry.records for entry in self._entries),
                codec=self._wanted.codec,
                compression=self._wanted.compression,
            )

    def _end(self) -> None:
        if self._open is not None:
            self._entries.append(self._open.finish())
            self._open = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open is not None:
            self._open.discard()


def prove(
    entries: Sequence[FileEntry], columns: Columns, wanted: Wanted, went_in: str, staging: Path, progress: Progress
) -> None:
    """What was written is read again: the same columns, as many rows, the same values in the same order."""
    digest = Digest(columns.schema)
    for entry in entries:
        read = columns.schema if wanted.kind == "tfrecord" else None
        with open_plain(entry.path, wanted.kind, read, staging, cache=False) as shard:
            read = read or shard.schema
            difference = first_difference(columns.schema, plain_schema(read))
            if difference is not None or len(shard) != entry.records:
                said = f"{entry.records:,} rows of {columns.schema} went in, {len(shard):,} of {read} came out"
                raise _unproven(entry.path, said)
            for batch, count in each_block(shard, read):
                digest.add(batch)
                progress(count)
    if digest.value != went_in:
        said = f"values with the checksum {went_in} went in, {digest.value} came out"
        raise _unproven(entries[0].path, said)


def _unproven(path: str, said: str) -> DataError:
    return DataError(path, None, None, f"{said} when it was read again. Is the disk, or the memory, failing?")
