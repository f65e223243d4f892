"""Writes a dataset in an object store: hold.write returns its writer for a URL.

A part is built on this machine and uploaded under a unique name. Then the record is created as the task's commit marker
(the claim), which the store allows only once: that is the commit. Then it gets the name that readers look for. A
process that finds a marker without that name, because its writer died in between, adds it.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...._native.checksum import crc32c_of_file
from ...._util.failpoints import failpoint
from ...._util.text import time_argument
from ....errors import CorruptError, DataError, InputError, MissingFileError, TargetExistsError, WriteError
from ....schema import Column, schema_digest, schema_file_name
from ...formats.base import PartFile
from ...formats.part_record import PartRecord, missing_data, parse_record
from ..commit import Commit
from ..dataset_writer import DatasetWriter, write
from ..directory import (
    SCHEMA_NAME,
    check_only_ours,
    check_same_schema,
    claim_name,
    claims_in,
    data_name,
    find_committed,
    parse_name,
    parse_schema,
    read_schemas,
    record_name,
    records_in,
    schema_file,
    unrecorded_in,
)
from ..part import Attempt, Location
from ..verify import Report, verify
from ..workspace import Workspace, dead_workspace, remove_dead_workspace, workspaces
from .object_store import InDoubtError, ObjectStore, check_scheme, is_draft


class RemoteLocation:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def find(self, task: str) -> PartRecord | None:
        name = claim_name(task)
        data = self._store.get(f"parts/{name}")
        if data is None:
            return None
        record = parse_record(data, self.shown(name))
        if self._store.size_bytes(f"parts/{record.file}") is None:
            names = f"{name} and {record_name(task, record.attempt)} there"
            raise missing_data(self.shown(record.file), record, names)
        self.make_visible(record, data)
        return record

    def make_visible(self, record: PartRecord, data: bytes) -> None:
        """Gives a committed record the name that readers look for, unless it has that name already."""
        visible = f"parts/{record_name(record.task, record.attempt)}"
        if self._store.get(visible) is None:
            self._store.create(visible, data)

    # ---- one attempt

    def workspace(self, task: str) -> Workspace:
        folder = scratch_folder()
        for one in workspaces(folder):
            with dead_workspace(one) as note:
                if note is not None:
                    remove_dead_workspace(one, note)
        return Workspace(folder, task)

    def commit(self, made: Attempt, file: PartFile) -> PartRecord:
        finished = file.finalize()
        failpoint("settled")
        attempt = secrets.randbits(53)
        record = PartRecord(
            task=made.task,
            attempt=attempt,
            format=made.format,
            file=data_name(made.task, attempt, made.format),
            schema=made.schema,
            rows=finished.rows,
            bytes=finished.bytes,
            crc32c=finished.crc32c,
            chunks=finished.chunks,
        )
        self._upload(file.path, record)
        failpoint("data-linked")
        try:
            self._claim(record)
        except InDoubtError as error:
            text = f"it is unknown whether task {made.task!r} is committed: {error}"
            raise WriteError(f"{text}; open the task again and check .done") from error
        except _NotVisibleError as error:
            text = f"task {made.task!r} is committed, but invisible to readers until the next hold.write: {error}"
            raise WriteError(text) from error.__cause__
        except WriteError:
            self._store.remove(f"parts/{record.file}")
            raise
        # Any other error, also a Ctrl-C, leaves the data: the marker may exist already, or appear later.
        return record

    def _upload(self, path: Path, record: PartRecord) -> None:
        try:
            self._store.upload(path, f"parts/{record.file}")
        except BaseException:
            self._store.remove(f"parts/{record.file}")
            raise

    def _claim(self, record: PartRecord) -> None:
        data = record.to_json()
        failpoint("record-written")
        if not self._store.create(f"parts/{claim_name(record.task)}", data):
            raise self._lost_race_error(record.task)
        failpoint("claimed")
        try:
            self._store.create(f"parts/{record_name(record.task, record.attempt)}", data)
        except Exception as error:
            raise _NotVisibleError(str(error)) from error
        failpoint("committed")

    def _lost_race_error(self, task: str) -> TargetExistsError:
        try:
            winner = str(self.find(task))
        except (DataError, InputError, WriteError):
            winner = "another attempt"
        return TargetExistsError(f"task {task!r} was committed meanwhile by {winner}; this attempt was discarded")

    # ---- for verify

    def names(self) -> list[str]:
        return self._store.names("parts")

    def shown(self, name: str) -> str:
        return self._store.shown(f"parts/{name}")

    def read(self, name: str) -> bytes:
        data = self._store.get(f"parts/{name}")
        if data is None:
            raise MissingFileError(f"{self.shown(name)}: the store has no such file", self.shown(name))
        return data

    @contextmanager
    def data(self, name: str) -> Iterator[Path]:
        """Downloads a file to a workspace, and removes it afterwards."""
        workspace = self.workspace(name)
        try:
            local = workspace.path(f"data{Path(name).suffix}")  # not by its name: a record may say "../"
            self._store.download(f"parts/{name}", local)
            yield local
        finally:
            workspace.close()


class _NotVisibleError(Exception):
    """An error after the commit."""


def scratch_folder() -> Path:
    """Returns the directory where parts are built before the upload: below TMPDIR, private to this user."""
    folder = Path(tempfile.gettempdir()) / f"holdfast-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        info = os.lstat(folder)
    except OSError as error:
        raise WriteError(f"cannot work in {folder}: {error.strerror}; set TMPDIR to another folder") from error
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        raise WriteError(f"cannot work in {folder}: another user owns it; set TMPDIR to a folder of your own")
    return folder


def open_remote(
    url: str, schema: dict[str, Column] | None, storage_options: Mapping[str, Any] | None
) -> RemoteDatasetWriter:
    """Creates a dataset in its store, or opens it, and finishes interrupted commits."""
    check_scheme(url)
    store = ObjectStore(url, storage_options)
    if store.get(SCHEMA_NAME) is None:
        _make_directory(store, schema)
    columns = _schemas(store)[-1]
    check_same_schema(store.url, schema, columns)
    out = RemoteDatasetWriter(store, columns)
    _make_all_visible(store)
    return out


def _schemas(store: ObjectStore) -> list[dict[str, Column]]:
    """Returns all versions of the schema, the oldest first."""
    found: list[dict[str, Column]] = []
    while (data := store.get(name := schema_file_name(len(found)))) is not None:
        found.append(parse_schema(data, store.shown(name)))
    if not found:
        raise WriteError(f"{store.shown(SCHEMA_NAME)}: it was removed right after it was created")
    return found


def _make_directory(store: ObjectStore, schema: dict[str, Column] | None) -> None:
    if schema is None:
        text = f"{store.url}: expected a dataset made by hold.write, there is none; pass a schema to create it"
        raise MissingFileError(text, store.url)
    check_only_ours(store.url, sorted({name.partition("/")[0] for name in store.names() if not is_draft(name)}))
    store.create(SCHEMA_NAME, schema_file(schema))


def _make_all_visible(store: ObjectStore) -> None:
    location = RemoteLocation(store)
    for task in _invisible(location.names()):
        try:
            location.find(task)
        except (DataError, WriteError):
            pass  # verify reports a corrupt record: it must not keep others from working


def _invisible(names: list[str]) -> list[str]:
    """Returns the tasks that have a commit marker, but no record under the name that readers look for."""
    shown = {name.rsplit(".", 2)[0] for name in records_in(names)}
    return [task for task in claims_in(names) if task not in shown]


class RemoteDatasetWriter(DatasetWriter):
    """A dataset in an object store. `fetch` makes a local copy, for what needs local files."""

    def __init__(self, store: ObjectStore, schema: dict[str, Column]) -> None:
        self._store = store
        self.url = store.url
        self.schema = schema
        self._is_checked = False

    @property
    def folder(self) -> Path:  # type: ignore[override]
        raise InputError(f"{self.url}: expected a local folder; copy the dataset there with out.fetch(FOLDER)")

    def _location(self) -> Location:
        return RemoteLocation(self._store)

    def _check_can_write(self, attempt: int | None) -> None:
        if attempt is not None:
            raise ValueError("attempt is only for local folders: in a store, attempts get unique numbers by themselves")
        if not self._is_checked:
            data = self._store.get(SCHEMA_NAME)
            if data is None:
                raise WriteError(f"{self.url}: the folder was removed while the dataset was being written")
            self._store.check_exclusive(SCHEMA_NAME, data)
            self._is_checked = True

    def grow(self, schema: dict[str, Column]) -> DatasetWriter:
        versions = _schemas(self._store)
        if schema_digest(versions[-1]) == schema_digest(self.schema):
            self._store.create(schema_file_name(len(versions)), schema_file(schema))
            versions = _schemas(self._store)
        return RemoteDatasetWriter(self._store, versions[-1])

    def parts(self) -> list[PartRecord]:
        names = records_in(self._location().names())
        found = self._store.get_all([f"parts/{name}" for name in names])
        return [parse_record(data, self._location().shown(name)) for name, data in zip(names, found, strict=True)]

    def url_of(self, record: PartRecord) -> str:
        """Returns the URL of a committed part."""
        return self._store.shown(f"parts/{record.file}")

    def verify(self, progress: Callable[[int, int], None] | None = None) -> Report:
        """Downloads every committed part, one at a time, and reads every byte; changes nothing."""
        digests = {schema_digest(one) for one in _schemas(self._store)} | {schema_digest(self.schema)}
        report = verify(self._location(), self.schema, digests, progress)
        why = "it has no record: its attempt is still writing, or died"
        report.leftovers += [f"parts/{name}: {why}" for name in self._unrecorded()]
        return report

    def _unrecorded(self) -> list[str]:
        """Returns data without a record or commit marker, and drafts of records."""
        names = self._location().names()
        kept = {name for task in _invisible(names) for name in self._claimed(task, names)}
        return [name for name in unrecorded_in(names) if name not in kept] + list(filter(is_draft, names))

    def _claimed(self, task: str, names: list[str]) -> list[str]:
        """Returns the data file that a commit marker names; for a corrupt one, all candidates."""
        try:
            return [parse_record(self._location().read(claim_name(task)), task).file]
        except DataError:
            return [name for name in names if (found := parse_name(name)) and found[0] == task]

    def sweep(self, older_than: float | str = 24 * 3600) -> list[str]:
        """Removes old data without a record: those of dead attempts. Returns the names of the removed files.

        A store does not show which attempts are alive, so nothing is removed automatically: no upload and commit may
        take as long as `older_than`, by the store's own clock.
        """
        age_s = time_argument(older_than, "older_than")
        found = self._unrecorded()
        if not found:
            return []
        mark = f"tmp/{uuid.uuid4().hex}"
        self._store.put(mark, b"what time is it\n")
        try:
            now_s = self._store.modified_s(mark)
        finally:
            self._store.remove(mark)
        old = [name for name in found if now_s - self._store.modified_s(f"parts/{name}") >= age_s]
        for name in old:
            self._store.remove(f"parts/{name}")
        return old

    def fetch(self, folder: str | Path, progress: Callable[[int, int], None] | None = None) -> DatasetWriter:
        """Makes a local copy of the dataset, with each part checked against its record. Parts that exist already are
        not downloaded again: after a kill, repeat the call."""
        records = self.parts()  # before the schemas are read: these then include all of the records' columns
        versions = _schemas(self._store)
        here = Path(os.path.abspath(os.fsdecode(folder)))
        out = write(here, None if (here / SCHEMA_NAME).exists() else versions[0])
        known = read_schemas(here)
        for ours, theirs in zip(known, versions, strict=False):
            check_same_schema(str(here), theirs, ours)
        for version in versions[len(known) :]:
            out = out.grow(version)
        for number, record in enumerate(records):
            there = find_committed(out.folder / "parts", record.task)
            if there is not None and there != record:
                raise WriteError(f"{out.folder}: expected {record}, got {there}")
            if there is None:
                self._fetch(record, out.folder)
            if progress:
                progress(number + 1, len(records))
        return out

    def _fetch(self, record: PartRecord, folder: Path) -> None:
        if parse_name(record.file) is None:
            raise CorruptError(self.url_of(record), None, None, "its name is not that of a part")
        workspace = Workspace(folder / "tmp", record.task)
        try:
            local = workspace.path("data")
            if not self._store.download(f"parts/{record.file}", local):
                url = self.url_of(record)
                raise MissingFileError(f"{url}: it is missing, with {record.rows:,} rows", url)
            with open(local, "rb") as file:
                found = crc32c_of_file(file.fileno())
            if found != (record.crc32c, record.bytes):
                raise CorruptError(self.url_of(record), None, None, "it is not what was committed", "See out.verify()")
            Commit(folder / "parts", workspace, record.task, record.attempt).adopt(local, record)
        finally:
            workspace.close()

    def __repr__(self) -> str:
        return f"<RemoteDatasetWriter {self.url}, {len(self.schema):,} columns>"
