"""The commit of a part into a dataset directory.

The data file gets its name, which nobody reads yet. Then the record is linked to the task's commit marker (the claim),
which only one attempt can do: that is the commit. Then it is linked to the name that readers look for. A process that
finds a marker without that name, because its writer died in between, adds it. Every name is created by `link`, which
fails when it exists.

The content of every name is on disk before the marker is created. The three names are in one directory and created in
this order, which a journaling filesystem keeps; one sync of the directory at the end makes all of them durable.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..._util.atomic import NO_HARD_LINKS, sync_file, sync_folder
from ..._util.failpoints import failpoint
from ...errors import InputError, TargetExistsError, WriteError
from ..formats.part_record import PartRecord, missing_data
from ..formats.parts_manifest import read_manifests
from .directory import claim_name, data_name, find_committed, list_names, next_attempt, record_name
from .workspace import Workspace

if TYPE_CHECKING:
    from ..formats.base import PartFile
    from ..formats.hdf5.writer import FinishedFile
    from .part import Attempt


class Commit:
    """The commit of one attempt into `parts`. `attempt` None: the next free number."""

    def __init__(self, parts: Path, workspace: Workspace, task: str, attempt: int | None) -> None:
        self._parts, self._workspace, self._task = parts, workspace, task
        self._attempt = attempt
        self._linked: tuple[Path, Path] | None = None  # the path of the data, and the name they get

    def run(self, file: PartFile, kind: str, digest: str) -> PartRecord:
        """Commits durably, and returns the record. After an error, nothing of the part is visible."""
        with self._rolling_back():
            finished = file.finalize()
            failpoint("settled")
            with _synced_beside(file.path):
                record = self._record(self._link(file.path, kind), finished, kind, digest)
                failpoint("data-linked")
                self._write(record)
            failpoint("file-synced")
            self._claim(record)
            return record

    def adopt(self, path: Path, record: PartRecord) -> None:
        """Commits data that were committed elsewhere, in the workspace now, with their record."""
        with self._rolling_back():
            with _synced_beside(path):
                self._link(path, record.format)
                self._write(record)
            self._claim(record)

    @contextmanager
    def _rolling_back(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self._is_claimed():
                text = f"task {self._task!r} is committed, but may not be durable: {error.strerror}"
                raise WriteError(text) from error
            self._roll_back()
            if error.errno in NO_HARD_LINKS:
                text = f"{self._parts}: expected a filesystem with hard links: {error.strerror}"
                raise WriteError(text) from error
            name = error.filename2 or error.filename
            where = "" if name is None else f": {name}"
            raise WriteError(f"cannot commit task {self._task!r}: {error.strerror}{where}") from error
        except BaseException:
            if not self._is_claimed():
                self._roll_back()
            raise

    def _link(self, path: Path, kind: str) -> tuple[int, str]:
        while True:
            attempt = next_attempt(self._parts, self._task) if self._attempt is None else self._attempt
            name = data_name(self._task, attempt, kind)
            self._workspace.note(name)  # before it exists: a cleanup must know where to look
            self._linked = path, self._parts / name
            try:
                os.link(path, self._parts / name)
            except FileExistsError:
                if self._attempt is None:
                    continue  # another attempt took the number meanwhile
                raise TargetExistsError(f"{self._parts / name} already exists; it was not touched") from None
            return attempt, name

    def _record(self, at: tuple[int, str], finished: FinishedFile, kind: str, digest: str) -> PartRecord:
        attempt, name = at
        return PartRecord(
            task=self._task,
            attempt=attempt,
            format=kind,
            file=name,
            schema=digest,
            rows=finished.rows,
            bytes=finished.bytes,
            crc32c=finished.crc32c,
            chunks=finished.chunks,
        )

    def _write(self, record: PartRecord) -> None:
        with open(self._draft, "xb") as file:
            file.write(record.to_json())
            file.flush()
            os.fsync(file.fileno())
        failpoint("record-written")

    def _claim(self, record: PartRecord) -> None:
        try:
            os.link(self._draft, self._parts / claim_name(self._task))
        except FileExistsError:
            if not self._is_claimed():  # NFS may repeat a link whose answer was lost
                raise self._lost_race_error() from None
        failpoint("claimed")
        try:
            os.link(self._draft, self._parts / record_name(self._task, record.attempt))
        except FileExistsError:
            pass  # a process that opened the directory meanwhile has added it
        failpoint("committed")
        sync_folder(self._parts)
        failpoint("parts-synced")

    @property
    def _draft(self) -> Path:
        return self._workspace.path("record.json")

    def _is_claimed(self) -> bool:
        """Returns whether the record has another name. A flag would miss a Ctrl-C right after the link."""
        try:
            return os.stat(self._draft).st_nlink > 1
        except OSError:
            return False

    def _lost_race_error(self) -> TargetExistsError:
        winner = find_committed(self._parts, self._task)
        return TargetExistsError(f"task {self._task!r} was committed meanwhile by {winner}; this attempt was discarded")

    def _roll_back(self) -> None:
        if self._linked is not None:
            path, name = self._linked
            try:
                if os.path.samefile(path, name):  # not another attempt's with the same number
                    os.unlink(name)
            except OSError:
                pass  # nobody reads it without a record; the next process to open the directory removes it


@contextmanager
def _synced_beside(path: Path) -> Iterator[None]:
    """Syncs a file while the block runs: syncs at the same time share the disk's work."""
    failed: list[OSError] = []

    def sync() -> None:
        try:
            sync_file(path)
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=sync, name="holdfast-sync")
    try:
        thread.start()
    except RuntimeError:  # no thread can be started: one sync after the other
        sync()
    try:
        yield
    finally:
        if thread.ident is not None:
            thread.join()
    if failed:
        raise failed[0]


class LocalLocation(NamedTuple):
    """A dataset directory as the location of its parts."""

    folder: Path

    def find(self, task: str) -> PartRecord | None:
        record = find_committed(self.folder / "parts", task)
        if record is None or os.path.lexists(self.folder / "parts" / record.file) or self._is_merged(task):
            return record
        names = f"{claim_name(task)} and {record_name(task, record.attempt)} there"
        raise missing_data(self.shown(record.file), record, names)

    def _is_merged(self, task: str) -> bool:
        """Returns whether its part was consolidated and deleted. The consolidated file may be elsewhere by now."""
        merged = (one for one in read_manifests(self.folder) if one.delete_parts)
        return any(part.task == task for one in merged for part in one.parts)

    def workspace(self, task: str) -> Workspace:
        return Workspace(self.folder / "tmp", task)

    def commit(self, made: Attempt, file: PartFile) -> PartRecord:
        commit = Commit(self.folder / "parts", made.workspace, made.task, made.attempt)
        return commit.run(file, made.format, made.schema)

    def names(self) -> list[str]:
        return list_names(self.folder / "parts")

    def shown(self, name: str) -> str:
        return str(self.folder / "parts" / name)

    def read(self, name: str) -> bytes:
        path = self.folder / "parts" / name
        try:
            return path.read_bytes()
        except OSError as error:
            raise InputError(f"{path}: cannot read: {error.strerror}") from error

    @contextmanager
    def data(self, name: str) -> Iterator[Path]:
        yield self.folder / "parts" / name
