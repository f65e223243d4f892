"""How an attempt commits in a store.

The file is built on this machine, and brought to the store under a name that nobody else has. Then the record is
created as the task's one claim, which a store lets only one do: that is the commit. Then it gets the name that readers
look for. Whoever finds a claim that is not visible yet, because its writer died between the two, finishes that.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import DataError, InputError, MissingFileError, TargetExistsError, WriteError
from ..failpoints import failpoint
from ..files import PartFile
from ..names import claim_name, data_name, record_name
from ..place import Attempt
from ..record import PartRecord, data_gone, parse_record
from ..workspace import Workspace, dead_workspace, sweep, workspaces
from .store import InDoubtError, Store


class RemotePlace:
    def __init__(self, store: Store) -> None:
        self._store = store

    def find(self, task: str) -> PartRecord | None:
        name = claim_name(task)
        data = self._store.get(f"parts/{name}")
        if data is None:
            return None
        record = parse_record(data, self.shown(name))
        if self._store.size_bytes(f"parts/{record.file}") is None:
            names = f"{name} and {record_name(task, record.attempt)} there"
            raise data_gone(self.shown(record.file), record, names)
        self.show(record, data)
        return record

    def show(self, record: PartRecord, data: bytes) -> None:
        """Gives a claimed record the name that readers look for, if it has it not yet."""
        visible = f"parts/{record_name(record.task, record.attempt)}"
        if self._store.get(visible) is None:
            self._store.create(visible, data)

    # ---- one attempt

    def workspace(self, task: str) -> Workspace:
        folder = scratch_folder()
        for one in workspaces(folder):
            with dead_workspace(one) as note:
                if note is not None:
                    sweep(one, note)
        return Workspace(folder, task)

    def commit(self, made: Attempt, file: PartFile) -> PartRecord:
        settled = file.settle()
        failpoint("settled")
        attempt = secrets.randbits(53)
        record = PartRecord(
            task=made.task,
            attempt=attempt,
            format=made.format,
            file=data_name(made.task, attempt, made.format),
            schema=made.schema,
            rows=settled.rows,
            bytes=settled.bytes,
            crc32c=settled.crc32c,
            chunks=settled.chunks,
        )
        self._bring(file.path, record)
        failpoint("data-linked")
        try:
            self._claim(record)
        except InDoubtError as error:
            text = f"it cannot be told whether task {made.task!r} is committed: {error}"
            raise WriteError(f"{text}; try it again, and .done will tell") from error
        except _SeenError as error:
            text = f"task {made.task!r} is committed, but readers do not see it before the next hold.write: {error}"
            raise WriteError(text) from error.__cause__
        except WriteError:
            self._store.remove(f"parts/{record.file}")
            raise
        # Whatever else comes, a Ctrl-C too, leaves the data: the claim may be there already, or get there yet.
        return record

    def _bring(self, path: Path, record: PartRecord) -> None:
        try:
            self._store.upload(path, f"parts/{record.file}")
        except BaseException:
            self._store.remove(f"parts/{record.file}")
            raise

    def _claim(self, record: PartRecord) -> None:
        data = record.to_json()
        failpoint("record-written")
        if not self._store.create(f"parts/{claim_name(record.task)}", data):
            raise self._lost(record.task)
        failpoint("claimed")
        try:
            self._store.create(f"parts/{record_name(record.task, record.attempt)}", data)
        except Exception as error:
            raise _SeenError(str(error)) from error
        failpoint("committed")

    def _lost(self, task: str) -> TargetExistsError:
        try:
            winner = str(self.find(task))
        except (DataError, InputError, WriteError):
            winner = "another attempt"
        return TargetExistsError(f"task {task!r} was committed meanwhile by {winner}; this attempt was dropped")

    # ---- what verify looks at

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
        """One file at a time is brought here, and taken away again."""
        workspace = self.workspace(name)
        try:
            local = workspace.path(f"data{Path(name).suffix}")  # not by its name: a record may say "../"
            self._store.download(f"parts/{name}", local)
            yield local
        finally:
            workspace.close()


class _SeenError(Exception):
    """What failed after the commit."""


def scratch_folder() -> Path:
    """Where parts are built before they are brought to a store: below TMPDIR, for this user alone."""
    folder = Path(tempfile.gettempdir()) / f"holdfast-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        info = os.lstat(folder)
    except OSError as error:
        raise WriteError(f"cannot work in {folder}: {error.strerror}; set TMPDIR to where there is room") from error
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        raise WriteError(f"cannot work in {folder}: somebody else has made it; set TMPDIR to a folder of yours")
    return folder
