"""From a finished file to a committed part.

The data get their name, which nobody reads yet; then the record is linked to the task's one claim, which only one
attempt can do: that is the commit. Then it is linked to the name that readers look for. Whoever finds a claim that is
not visible yet, because its writer died between the two, finishes that. Each name is made by `link`, which fails when
it is there.

What a name leads to is on disk before the claim is made. The three names are in one folder and made in this order,
which a journaling filesystem keeps; one sync of the folder, before anybody is told, makes all of them last.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .._util.atomic import NO_HARD_LINKS, sync_folder
from .._util.failpoints import failpoint
from ..errors import TargetExistsError, WriteError
from ..formats.hdf5.writer import FinishedFile
from ..formats.part_record import PartRecord
from .directory import claim_name, data_name, find_committed, next_attempt, record_name
from .part_file import PartFile, synced_beside
from .workspace import Workspace


class Commit:
    """One attempt's way into `parts`. `attempt` None: the next number that is free."""

    def __init__(self, parts: Path, workspace: Workspace, task: str, attempt: int | None) -> None:
        self._parts, self._workspace, self._task = parts, workspace, task
        self._attempt = attempt
        self._linked: tuple[Path, Path] | None = None  # where the data are, and the name they get

    def run(self, file: PartFile, kind: str, digest: str) -> PartRecord:
        """The record of the part, which is there for good when this returns. An error: nothing of it is visible."""
        with self._nothing_half():
            finished = file.finalize()
            failpoint("settled")
            with synced_beside(file.path):
                record = self._record(self._link(file.path, kind), finished, kind, digest)
                failpoint("data-linked")
                self._write(record)
            failpoint("file-synced")
            self._claim(record)
            return record

    def adopt(self, path: Path, record: PartRecord) -> None:
        """The same for data that were committed elsewhere, in the workspace now: with the record that they have."""
        with self._nothing_half():
            with synced_beside(path):
                self._link(path, record.format)
                self._write(record)
            self._claim(record)

    @contextmanager
    def _nothing_half(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self._is_claimed():
                text = f"task {self._task!r} is committed, but may not be on disk for good: {error.strerror}"
                raise WriteError(text) from error
            self._take_back()
            if error.errno in NO_HARD_LINKS:
                text = f"{self._parts}: expected a filesystem with hard links: {error.strerror}"
                raise WriteError(text) from error
            name = error.filename2 or error.filename
            where = "" if name is None else f": {name}"
            raise WriteError(f"cannot commit task {self._task!r}: {error.strerror}{where}") from error
        except BaseException:
            if not self._is_claimed():
                self._take_back()
            raise

    def _link(self, path: Path, kind: str) -> tuple[int, str]:
        while True:
            attempt = next_attempt(self._parts, self._task) if self._attempt is None else self._attempt
            name = data_name(self._task, attempt, kind)
            self._workspace.note(name)  # before it is there: whoever sweeps must know where to look
            self._linked = path, self._parts / name
            try:
                os.link(path, self._parts / name)
            except FileExistsError:
                if self._attempt is None:
                    continue  # another attempt took the number since we looked
                raise TargetExistsError(f"{self._parts / name} is there already; it was not touched") from None
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
            if not self._is_claimed():  # over a network it may be done, and its answer be lost and asked for again
                raise self._lost() from None
        failpoint("claimed")
        try:
            os.link(self._draft, self._parts / record_name(self._task, record.attempt))
        except FileExistsError:
            pass  # somebody who opened the folder meanwhile has finished it for us
        failpoint("committed")
        sync_folder(self._parts)
        failpoint("parts-synced")

    @property
    def _draft(self) -> Path:
        return self._workspace.path("record.json")

    def _is_claimed(self) -> bool:
        """Whether the record has another name: no flag can say so if a Ctrl-C comes right after the link."""
        try:
            return os.stat(self._draft).st_nlink > 1
        except OSError:
            return False

    def _lost(self) -> TargetExistsError:
        winner = find_committed(self._parts, self._task)
        return TargetExistsError(f"task {self._task!r} was committed meanwhile by {winner}; this attempt was dropped")

    def _take_back(self) -> None:
        if self._linked is not None:
            path, name = self._linked
            try:
                if os.path.samefile(path, name):  # and not another attempt's of the same number
                    os.unlink(name)
            except OSError:
                pass  # without a record nobody reads it; the next to open the folder sweeps it
