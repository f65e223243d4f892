"""Where the parts of a run are: what one attempt asks of it, and what a check of everything asks of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from ..errors import InputError
from .commit import Commit
from .files import PartFile
from .folder import find_committed, listed
from .record import PartRecord
from .workspace import Workspace


class Place(Protocol):
    def find(self, task: str) -> PartRecord | None:
        """The record of the attempt that committed this task."""

    def workspace(self, task: str) -> Workspace: ...

    def commit(self, made: Attempt, file: PartFile) -> PartRecord:
        """The record of the part, which is there for good when this returns."""

    # ---- what verify looks at

    def names(self) -> list[str]:
        """Of all files among the parts. InputError: they cannot be listed."""

    def shown(self, name: str) -> str:
        """A file's full name, for people."""

    def read(self, name: str) -> bytes:
        """A small file. InputError: it cannot be read."""

    def data(self, name: str) -> AbstractContextManager[Path]:
        """A part's file on this machine, if there is one; for as long as the block lasts."""


class Attempt(NamedTuple):
    """`attempt` None: the next number that is free."""

    workspace: Workspace
    task: str
    attempt: int | None
    format: str
    schema: str  # its digest


class LocalPlace(NamedTuple):
    folder: Path

    def find(self, task: str) -> PartRecord | None:
        return find_committed(self.folder / "parts", task)

    def workspace(self, task: str) -> Workspace:
        return Workspace(self.folder / "tmp", task)

    def commit(self, made: Attempt, file: PartFile) -> PartRecord:
        commit = Commit(self.folder / "parts", made.workspace, made.task, made.attempt)
        return commit.run(file, made.format, made.schema)

    def names(self) -> list[str]:
        return listed(self.folder / "parts")

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
