"""From a finished file to a committed part.

The data get their name, which nobody reads yet; then the record is linked to the task's one claim, which only one
attempt can do: that is the commit. Then it is linked to the name that readers look for. Whoever finds a claim that is
not visible yet, because its writer died between the two, finishes that. Each name is made by `link`, which fails when
it is there, and is made durable before the next depends on it.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from .._base.atomic import sync_folder
from ..errors import TargetExistsError, WriteError
from ..formats.hdf5.writer import Settled
from .failpoints import failpoint
from .files import PartFile, sync_file
from .folder import find_committed, next_attempt
from .names import claim_name, data_name, record_name
from .record import PartRecord
from .workspace import Workspace

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class Commit:
    """One attempt's way into `parts`. `attempt` None: the next number that is free."""

    def __init__(self, parts: Path, workspace: Workspace, task: str, attempt: int | None) -> None:
        self._parts, self._workspace, self._task = parts, workspace, task
        self._attempt = attempt
        self._linked: Path | None = None
        self._claimed = False

    def run(self, file: PartFile, kind: str, digest: str) -> PartRecord:
        """The record of the part, which is there for good when this returns. An error: nothing of it is visible."""
        try:
            settled = file.settle()
            failpoint("settled")
            sync_file(file.path)
            failpoint("file-synced")
            record = self._record(self._link(file.path, kind), settled, kind, digest)
            failpoint("data-linked")
            self._claim(record)
            return record
        except OSError as error:
            if self._claimed:
                text = f"task {self._task!r} is committed, but may not be on disk for good: {error.strerror}"
                raise WriteError(text) from error
            self._take_back()
            if error.errno in _NO_LINKS:
                text = f"{self._parts}: wanted a filesystem with hard links: {error.strerror}"
                raise WriteError(text) from error
            raise WriteError(f"cannot commit task {self._task!r}: {error.strerror}: {error.filename}") from error
        except BaseException:
            if not self._claimed:
                self._take_back()
            raise

    def _link(self, path: Path, kind: str) -> tuple[int, str]:
        while True:
            attempt = next_attempt(self._parts, self._task) if self._attempt is None else self._attempt
            name = data_name(self._task, attempt, kind)
            self._workspace.note(name)  # before it is there: whoever sweeps must know where to look
            try:
                os.link(path, self._parts / name)
            except FileExistsError:
                if self._attempt is None:
                    continue  # another attempt took the number since we looked
                raise TargetExistsError(f"{self._parts / name} is there already; it was not touched") from None
            self._linked = self._parts / name
            return attempt, name

    def _record(self, at: tuple[int, str], settled: Settled, kind: str, digest: str) -> PartRecord:
        attempt, name = at
        return PartRecord(
            task=self._task,
            attempt=attempt,
            format=kind,
            file=name,
            schema=digest,
            rows=settled.rows,
            bytes=settled.bytes,
            crc32c=settled.crc32c,
            chunks=settled.chunks,
        )

    def _claim(self, record: PartRecord) -> None:
        draft = self._workspace.path("record.json")
        with open(draft, "xb") as file:
            file.write(record.to_json())
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self._parts)
        failpoint("record-written")
        try:
            os.link(draft, self._parts / claim_name(self._task))
        except FileExistsError:
            raise self._lost() from None
        self._claimed = True
        failpoint("claimed")
        try:
            os.link(draft, self._parts / record_name(self._task, record.attempt))
        except FileExistsError:
            pass  # somebody who opened the folder meanwhile has finished it for us
        failpoint("committed")
        sync_folder(self._parts)
        failpoint("parts-synced")

    def _lost(self) -> TargetExistsError:
        winner = find_committed(self._parts, self._task)
        return TargetExistsError(f"task {self._task!r} was committed meanwhile by {winner}; this attempt was dropped")

    def _take_back(self) -> None:
        if self._linked is not None:
            try:
                os.unlink(self._linked)
            except OSError:
                pass  # without a record nobody reads it; the next to open the folder sweeps it
