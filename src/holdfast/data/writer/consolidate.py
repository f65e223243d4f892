"""Consolidates all committed parts to one file, or to one virtual view.

The file is verified against the parts' records before it gets its name, and a manifest lists its parts.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..._native.checksum import crc32c_of_file
from ..._util.atomic import check_absent, sync_folder
from ..._util.failpoints import failpoint
from ..._util.text import natural_key
from ...errors import (
    CorruptError,
    DataError,
    HoldfastError,
    SchemaError,
    WriteError,
    cannot_open,
)
from ...schema import Column, first_difference, schema_digest
from ..formats.base import Merged
from ..formats.part_record import PartRecord, order_of_part
from ..formats.parts_manifest import (
    ManifestPart,
    PartsManifest,
    check_not_only_copy,
    check_parts,
    manifest_numbers,
    no_parts,
    read_manifests,
)
from ..formats.registry import FORMATS, open_shard
from .directory import check_format, list_names, part_suffixes, read_schemas, record_name
from .workspace import Workspace

if TYPE_CHECKING:
    from ..formats.hdf5.merging.merge_files import MergedDataset

Key = list[tuple[int, str]]


class PartRows(NamedTuple):
    """Rows [start, stop) of a part, by its index in the list of parts."""

    part: int
    start: int
    stop: int


def exact_order(records: list[PartRecord]) -> list[PartRows]:
    """Orders rows by task and row; in parts of the central writer, by producer and row number."""
    keyed: list[tuple[Key, str, int, PartRows]] = []
    for number, record in enumerate(records):
        at = 0
        for whose, first, rows in record.runs or [(record.task, 0, record.rows)]:
            keyed.append((natural_key(whose), whose, first, PartRows(number, at, at + rows)))
            at += rows
        if at != record.rows:
            raise CorruptError(record.file, None, None, f"its record has runs of {at:,} rows, and {record.rows:,} rows")
    return [rows_of_part for *_, rows_of_part in sorted(keyed)]


def write_manifest(folder: Path, facts: dict[str, Any]) -> PartsManifest:
    """Writes a manifest under the first free number. Other processes may do so at the same time."""
    there = folder / "manifest"
    workspace = Workspace(folder / "tmp", "manifest")
    try:
        while True:
            manifest = PartsManifest(number=max(manifest_numbers(there), default=0) + 1, **facts)
            draft = workspace.path(f"{manifest.number:06d}.json")
            with open(draft, "xb") as file:
                file.write(manifest.to_json())
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(draft, there / draft.name)
            except FileExistsError:
                os.unlink(draft)
                continue
            sync_folder(there)
            return manifest
    except OSError as error:
        raise WriteError(f"cannot write into {there}: {error.strerror}") from error
    finally:
        workspace.close()


def make_view(sources: Sources, target: Path, *, overwrite: bool) -> Merged:
    kind = FORMATS[sources.format]
    if kind.merge is None or "virtual" not in kind.merge_options:
        able = " or ".join(one.title for one in FORMATS.values() if "virtual" in one.merge_options)
        raise SchemaError(f"{sources.folder}: expected {able} parts for a view, these are {kind.title}")
    if sources.older_schema:
        path = sources.paths[sources.older_schema[0]]
        text = "it was written before columns were added, and a view cannot fill in defaults"
        raise SchemaError(f"{path}: {text}; make one file with consolidate or `holdfast merge`")
    options = {"runs": sources.runs, "virtual": True, "overwrite": overwrite}
    return kind.merge(sources.paths, str(target), dry_run=False, progress=None, **options)


Order = Literal["exact", "any"]
Progress = Callable[[int], None]

_COPIED_ROWS = 1000


@dataclass(frozen=True, slots=True)
class Consolidated:
    """Describes the file that was made, or that a plan would make. `datasets`: how each HDF5 dataset was merged."""

    path: str
    format: str
    order: str
    parts: int
    rows: int
    bytes: int
    crc32c: int = 0
    manifest: int | None = None
    datasets: list[MergedDataset] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{one.dataset}: {one.rows:,} rows, {one.method}" for one in self.datasets]
        return "\n  ".join([f"{self.rows:,} rows of {self.parts:,} parts, {self.bytes:,} bytes", *lines])


class Sources:
    """The committed parts, checked and in order. `older_schema` has the indices of parts that lack added columns."""

    def __init__(self, folder: Path, schema: dict[str, Column], records: list[PartRecord], order: Order) -> None:
        if order not in ("exact", "any"):
            raise ValueError(f'expected order to be "exact" or "any", got {order!r}')
        if not records:
            raise no_parts(str(folder))
        self.folder, self.order = folder, order
        self.records = sorted(records, key=lambda record: order_of_part(record.task, record.attempt))
        self.paths = [folder / "parts" / record.file for record in self.records]
        self.rows = sum(record.rows for record in self.records)
        self.format = self._one_format()
        self.schema = schema
        self.older_schema = self._one_schema()
        self._check_sizes()
        check_parts(str(folder), list_names(folder / "parts"))
        self.part_rows = exact_order(self.records) if order == "exact" else None

    def _one_format(self) -> str:
        first = self.records[0]
        for record in self.records:
            if record.format != first.format:
                text = f"{record.file} is {record.format}, {first.file} is {first.format}"
                raise SchemaError(f"{self.folder}: expected parts of one format: {text}; use `holdfast convert` first")
        return first.format

    def _one_schema(self) -> list[int]:
        """Returns the indices of parts that have an earlier version of the schema."""
        digest = schema_digest(self.schema)
        odd = [number for number, record in enumerate(self.records) if record.schema != digest]
        earlier = {schema_digest(one) for one in read_schemas(self.folder)} if odd else set()
        for number in odd:
            if self.records[number].schema not in earlier:
                path = self.paths[number]
                raise SchemaError(f"{path}: {_difference(path, self.schema)}; the dataset's schema is {digest}")
        return odd

    def _check_sizes(self) -> None:
        for record, path in zip(self.records, self.paths, strict=True):
            try:
                size = os.path.getsize(path)
            except OSError as error:
                raise cannot_open(str(path), error, f"; it has {record.rows:,} rows") from error
            if size != record.bytes:
                raise CorruptError(str(path), None, None, f"expected {record.bytes:,} bytes, got {size:,}")

    @property
    def runs(self) -> list[PartRows] | None:
        """Returns the row ranges in order. None: the parts one after the other."""
        whole = [PartRows(number, 0, record.rows) for number, record in enumerate(self.records)]
        return None if self.part_rows is None or self.part_rows == whole else self.part_rows

    @property
    def to_convert(self) -> list[int]:
        """Returns the parts that must be converted before they are merged: their files store an earlier schema."""
        return self.older_schema if FORMATS[self.format].conversion().stores_schema else []

    def merge(self, paths: list[Path], target: Path, **options: Any) -> Merged:
        kind = FORMATS[self.format]
        assert kind.merge is not None
        ordered = {"order": self.order} if "order" in kind.merge_options else {}
        return kind.merge(list(map(str, paths)), str(target), **ordered, runs=self.runs, **options)


def _difference(path: Path, schema: dict[str, Column]) -> str:
    try:
        shard: Any = open_shard(path)
        with shard:
            found = first_difference(schema, shard.schema)
    except HoldfastError:
        found = None
    if found is None:
        return "it was written with another schema"
    name, ours, theirs = found
    return f"column {name!r} is {theirs} there, expected {ours}"


def plan(sources: Sources) -> Consolidated:
    """Returns what consolidate would do, and writes nothing."""
    size = sum(record.bytes for record in sources.records)
    facts = ("", sources.format, sources.order, len(sources.records), sources.rows, size)
    if sources.to_convert:
        return Consolidated(*facts, notes=[_older_schema_note(sources)])
    made = sources.merge(sources.paths, Path(), dry_run=True, overwrite=False, progress=None)
    return Consolidated(*facts, datasets=made.datasets, notes=made.notes)


def _older_schema_note(sources: Sources) -> str:
    n = len(sources.older_schema)
    return f"{n:,} of {len(sources.records):,} parts were written before columns were added; their rows get defaults"


def consolidate(
    sources: Sources, target: Path, *, overwrite: bool, delete_parts: bool, progress: Progress | None
) -> Consolidated:
    _check_name(target, sources.format)
    return _Consolidation(sources, target, overwrite, delete_parts, progress).run()


def _check_name(target: Path, kind: str) -> None:
    suffixes = part_suffixes()
    for other, suffix in suffixes.items():
        if other != kind and target.name.endswith(suffix):
            text = f"because the parts are {kind}: name it {target.stem}{suffixes[kind]}, or convert it afterwards"
            raise WriteError(f"{target}: expected a name that ends with {suffixes[kind]}, {text}")


class _Consolidation:
    def __init__(
        self, sources: Sources, target: Path, overwrite: bool, delete_parts: bool, progress: Progress | None
    ) -> None:
        self._sources, self._target, self._overwrite = sources, target, overwrite
        self._delete, self._progress = delete_parts, progress
        self._number: int | None = None

    def run(self) -> Consolidated:
        sources = self._sources
        if self._overwrite:
            check_not_only_copy(sources.paths, [self._target])
        else:
            check_absent(self._target.parent, [self._target.name])  # before the parts are read
        for record, path in zip(sources.records, sources.paths, strict=True):
            if not record.chunks:  # which are compared as they are merged
                _check_file(path, record)
        made = self._merge()
        if self._delete:
            self._delete_parts(made)
        return made

    def _merge(self) -> Consolidated:
        sources, progress = self._sources, self._progress
        with self._paths_with_one_schema() as paths:
            merged = sources.merge(
                paths,
                self._target,
                dry_run=False,
                overwrite=self._overwrite,
                progress=None if progress is None else lambda n: progress(int(n)),
                verified=self._write_manifest,
            )
        if sources.to_convert:
            merged.notes.append(_older_schema_note(sources))
        facts = (str(self._target), sources.format, sources.order, len(sources.records), sources.rows)
        return Consolidated(*facts, merged.bytes, merged.crc32c, self._number, merged.datasets, merged.notes)

    def _write_manifest(self, rows: int | None, size: int, crc: int) -> None:
        """Checks the number of rows, and writes the manifest."""
        sources = self._sources
        if rows != sources.rows:
            raise DataError(str(self._target), None, None, f"expected {sources.rows:,} rows, got {rows}")
        facts = {
            "output": str(self._target),
            "format": sources.format,
            "order": sources.order,
            "rows": sources.rows,
            "bytes": size,
            "crc32c": crc,
            "delete_parts": self._delete,
            "parts": [ManifestPart(r.task, r.attempt, r.rows, r.bytes, r.crc32c) for r in sources.records],
        }
        self._number = write_manifest(sources.folder, facts).number

    @contextmanager
    def _paths_with_one_schema(self) -> Iterator[list[Path]]:
        """Yields the paths of the parts, with converted copies of those that have an earlier schema."""
        sources = self._sources
        if not sources.to_convert:
            yield sources.paths
            return
        from .dataset_writer import write

        with tempfile.TemporaryDirectory(prefix=f".{self._target.name}.", dir=self._target.parent) as scratch:
            out = write(scratch, sources.schema)
            paths = list(sources.paths)
            for number in sources.to_convert:
                record = sources.records[number]
                _check_file(paths[number], record)
                shard: Any = open_shard(paths[number], sources.schema)
                part: Any = out.part(record.task, check_format(record.format))
                with shard, part:
                    for start in range(0, record.rows, _COPIED_ROWS):
                        stop = min(start + _COPIED_ROWS, record.rows)
                        part.extend(shard.read(start, stop, sources.schema))
                paths[number] = out.path_of(part.record)
            yield paths

    def _delete_parts(self, made: Consolidated) -> None:
        """Deletes the parts after reading the file again."""
        if _file_crc(self._target) != (made.crc32c, made.bytes):
            raise DataError(made.path, None, None, "its checksum is wrong after writing; the parts were kept")
        _delete(self._sources.folder, self._sources.records)


def finish_deletion(folder: Path, records: list[PartRecord], target: Path, order: Order) -> Consolidated | None:
    """Returns the file, if a call with delete_parts=True has made it, after deleting what is left of its parts."""
    for one in reversed(read_manifests(folder)):
        if one.delete_parts and one.order == order and one.describes(target):
            parts = {(part.task, part.attempt, part.crc32c) for part in one.parts}
            _delete(folder, [record for record in records if (record.task, record.attempt, record.crc32c) in parts])
            facts = (one.format, one.order, len(one.parts), one.rows, one.bytes, one.crc32c, one.number)
            return Consolidated(str(target), *facts)
    return None


def _delete(folder: Path, records: list[PartRecord]) -> None:
    """Deletes parts. Their commit markers stay: the tasks are done."""
    parts = folder / "parts"
    for record in records:
        # The record first: data without a record are ignored, a record without data looks like a loss.
        (parts / record_name(record.task, record.attempt)).unlink(missing_ok=True)
        (parts / record.file).unlink(missing_ok=True)
        failpoint("part-deleted")
    sync_folder(parts)


def _check_file(path: Path, record: PartRecord) -> None:
    crc, size = _file_crc(path)
    if (size, crc) != (record.bytes, record.crc32c):
        text = f"expected {record.bytes:,} bytes with the crc32c {record.crc32c:08x}, got {size:,} with {crc:08x}"
        raise CorruptError(str(path), None, None, text)


def _file_crc(path: Path) -> tuple[int, int]:
    with open(path, "rb", buffering=0) as file:
        return crc32c_of_file(file.fileno())
