"""Copies samples from input files to output files in blocks, and verifies the output by a checksum of its content."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..._native import codec
from ..._util.progress import Progress
from ...errors import DataError
from ...schema import Column, column_to_json, first_difference
from ..formats.base import FileEntry, OutputFile, Shard
from ..formats.columns import Batch, BytesColumn, Ints, RaggedColumn, ZeroCopyBytesColumn, nbytes_of
from ..formats.row_buffers import buffers_of
from ..formats.targets import ShardCut, TargetName
from .column_mapping import Columns, plain_schema
from .input_files import InputFile, open_plain


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """The names, format and size of the output files."""

    target: TargetName
    codec: Any
    compression: Any
    shards: int | None
    shard_bytes: int | None

    @property
    def many(self) -> bool:
        """Whether the output files are numbered shards."""
        return self.shards is not None or self.shard_bytes is not None

    def names(self, count: int) -> list[str]:
        return self.target.shards(count) if self.many else [self.target.name]


class ContentDigest:
    """Computes a checksum over all values of all samples in order, independent of the format and of the batches.

    For each column it combines the crc32c of the values (little-endian, joined) and of the lengths of strings and
    lists.
    """

    def __init__(self, schema: dict[str, Column]) -> None:
        self.rows = 0
        self._schema = schema
        self._crcs = {name: [0, 0, 0, 0] for name in schema}

    def add(self, batch: Mapping[str, Any]) -> int:
        """Adds a batch and returns its number of rows."""
        buffers, rows = buffers_of(self._schema, batch)
        for crcs, (values, *ends) in zip(self._crcs.values(), buffers, strict=True):
            crcs[0] = codec.crc32c(_raw(values), crcs[0])
            for i, some in enumerate(ends, 1):
                if some is not None:
                    crcs[i] = codec.crc32c(_raw(np.diff(some)), crcs[i])
        self.rows += rows
        return rows

    @property
    def value(self) -> str:
        columns = [[name, column_to_json(self._schema[name]), *crcs] for name, crcs in sorted(self._crcs.items())]
        return f"{codec.crc32c(json.dumps([self.rows, columns]).encode()):08x}"


def _raw(array: Any) -> memoryview:
    array = np.ascontiguousarray(array)
    return memoryview(array.reshape(-1).view(np.uint8))


BLOCK_BYTES = 1 << 24
_FIRST_ROWS = 64
_GROWTH = 8


def each_block(shard: Shard, schema: dict[str, Column]) -> Iterator[tuple[Batch, int]]:
    """Yields batches of about BLOCK_BYTES, and their numbers of rows.

    The size of a row is measured on the rows before, because a compressed chunk does not show it; and asked for where
    the file knows it.
    """
    at, rows, chunk = 0, _FIRST_ROWS, shard.rows_per_chunk
    while at < len(shard):
        if rows > chunk > 1:
            rows = (at + rows) // chunk * chunk - at or chunk  # to the end of a chunk
        stop = min(at + rows, len(shard))
        while stop > at + 1 and shard.bytes_of(at, stop) > BLOCK_BYTES:
            stop = (at + stop) // 2
        batch = shard.read(at, stop, schema)
        yield batch, stop - at
        width = max(1, nbytes_of(batch) // (stop - at))
        at, rows = stop, max(1, min(BLOCK_BYTES // width, rows * _GROWTH))


def row_sizes(batch: Batch, rows: int) -> Ints:
    """Returns the bytes of each row; the length of a string or list counts as eight bytes."""
    total = np.zeros(rows, np.int64)
    for column in batch.values():
        total += _row_sizes(column, rows)
    return total


def _row_sizes(column: Any, rows: int) -> Ints:
    if isinstance(column, RaggedColumn):
        splits = column.row_splits
        inner = np.concatenate([[0], np.cumsum(_row_sizes(column.values, int(splits[-1])))])
        return np.diff(inner[splits]) + 8
    if isinstance(column, BytesColumn):
        per_row = column.per_item or 1
        sizes: Ints = string_sizes(column).reshape(rows, per_row).sum(axis=1) + 8 * per_row
        return sizes
    return np.full(rows, column.nbytes // rows if rows else 0, np.int64)


def string_sizes(column: BytesColumn) -> Ints:
    if isinstance(column, ZeroCopyBytesColumn):
        spans = column._spans
        return np.asarray(spans[:, 1] - spans[:, 0], np.int64)
    return np.diff(column.offsets)


def _row_bounds(batch: Batch, rows: int) -> Ints:
    return np.concatenate([[0], np.cumsum(row_sizes(batch, rows))])


_ALL = 1 << 62


def _shard_rows(sources: Sequence[InputFile], columns: Columns, options: OutputOptions, staging: Path) -> list[int]:
    """Returns the number of samples of each output file."""
    if options.shards is None:
        return [_ALL]
    rows = 0
    for source, read in zip(sources, columns.reads, strict=True):
        with open_plain(source.path, source.kind, read, staging, cache=True) as shard:
            rows += len(shard)
    return [rows * (i + 1) // options.shards - rows * i // options.shards for i in range(options.shards)]


def write_targets(
    sources: Sequence[InputFile], columns: Columns, options: OutputOptions, staging: Path, progress: Progress
) -> tuple[list[FileEntry], str]:
    """Writes the output files to `staging`. Returns their entries in order, and the checksum of their content."""
    cut = ShardCut(_shard_rows(sources, columns, options, staging), shard_bytes=options.shard_bytes)
    digest = ContentDigest(columns.schema)
    with _OutputSeries(options, columns.schema, staging) as outputs:
        for source, read in zip(sources, columns.reads, strict=True):
            with open_plain(source.path, source.kind, read, staging, cache=True) as shard:
                for batch, count in each_block(shard, read):
                    digest.add(batch)
                    bounds = None if options.shard_bytes is None else _row_bounds(batch, count)
                    for number, start, stop in cut.spans(count, bounds):
                        is_all = stop - start == count
                        outputs.put(number, batch if is_all else {name: c[start:stop] for name, c in batch.items()})
                    progress(source.size_bytes * count / len(shard))
                if not len(shard):
                    progress(source.size_bytes)
        return outputs.finish(options.shards or len(cut.counts)), digest.value


class _OutputSeries:
    """Output files one after the other, one open at a time. A shard without rows gets a file, too."""

    def __init__(self, options: OutputOptions, schema: dict[str, Column], staging: Path) -> None:
        self._options, self._schema, self._staging = options, schema, staging
        self._entries: list[FileEntry] = []
        self._open: OutputFile | None = None

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
            target, kind = self._options.target, self._options.target.kind
            assert kind.write is not None
            self._open = kind.write(
                self._staging / f"{len(self._entries):05d}{target.suffix}",
                self._schema,
                first=sum(entry.records for entry in self._entries),
                **{name: getattr(self._options, name) for name in kind.write_options},
            )

    def _end(self) -> None:
        if self._open is not None:
            self._entries.append(self._open.close())
            self._open = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open is not None:
            self._open.discard()


def verify_targets(
    entries: Sequence[FileEntry],
    columns: Columns,
    options: OutputOptions,
    expected: str,
    staging: Path,
    progress: Progress,
) -> None:
    """Reads the output back: it must have the same columns, as many rows, and the same values in the same order."""
    digest = ContentDigest(columns.schema)
    for entry in entries:
        kind = options.target.kind
        read = None if kind.conversion().stores_schema else columns.schema
        with open_plain(entry.path, kind, read, staging, cache=False) as shard:
            read = read or shard.schema
            difference = first_difference(columns.schema, plain_schema(read))
            if difference is not None or len(shard) != entry.records:
                text = f"expected {entry.records:,} rows of {columns.schema}, got {len(shard):,} of {read}"
                raise _mismatch(entry.path, text)
            for batch, count in each_block(shard, read):
                digest.add(batch)
                progress(count)
    if digest.value != expected:
        raise _mismatch(entries[0].path, f"expected values with the checksum {expected}, got {digest.value}")


def _mismatch(path: str, text: str) -> DataError:
    return DataError(path, None, None, f"{text} when reading it back. Is the disk, or the memory, failing?")
