"""Where the parts of a dataset are: the interface of a local directory and of an object store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from ..errors import InputError
from ..formats.part_record import PartRecord, missing_data
from .commit import Commit
from .consolidate import read_manifests
from .directory import claim_name, find_committed, list_names, record_name
from .part_file import PartFile
from .workspace import Workspace


class Location(Protocol):
    def find(self, task: str) -> PartRecord | None:
        """Returns the record of the attempt that committed this task. CorruptError: its data are missing."""

    def workspace(self, task: str) -> Workspace: ...

    def commit(self, made: Attempt, file: PartFile) -> PartRecord:
        """Commits durably, and returns the record of the part."""

    # ---- for verify

    def names(self) -> list[str]:
        """Returns the names of all files of parts. InputError: they cannot be listed."""

    def shown(self, name: str) -> str:
        """Returns a file's full name for messages."""

    def read(self, name: str) -> bytes:
        """Reads a small file. InputError: it cannot be read."""

    def data(self, name: str) -> AbstractContextManager[Path]:
        """Yields the path of a part's file on this machine, while the block runs; it may not exist."""


class Attempt(NamedTuple):
    """An attempt that is about to commit. `attempt` None: the next free number."""

    workspace: Workspace
    task: str
    attempt: int | None
    format: str
    schema: str  # its digest


class LocalLocation(NamedTuple):
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
