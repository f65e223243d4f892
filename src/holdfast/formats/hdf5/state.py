"""What can be said of a file without the HDF5 library: is it one, does somebody write it, was it closed, is it cut."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from ...errors import InputError, cannot_open
from ...proc.holders import Holder, writers_of
from ...proc.locks import locks_of
from .superblock import Superblock, find_superblock


class State(NamedTuple):
    path: str
    size: int
    block: Superblock | None
    writer: Holder | None  # pid 0: somebody holds a lock, who may not be seen

    @property
    def is_hdf5(self) -> bool:
        return self.block is not None

    @property
    def mend(self) -> bool:
        """Whether the library would refuse it as it is."""
        block = self.block
        return block is not None and (block.open_for_write or not block.whole or block.end != self.size)

    @property
    def written_by(self) -> str:
        if self.writer is None:
            return ""
        if not self.writer.pid:
            return "by a process that may not be seen: it holds a lock on it"
        if self.writer.pid == os.getpid():
            return "by this process itself"
        return f"by process {self.writer.pid} ({self.writer.command})"


def look_at(path: str) -> State:
    """InputError: it cannot be read."""
    try:
        info = os.stat(path)
        if not stat.S_ISREG(info.st_mode):
            kind = "a folder" if stat.S_ISDIR(info.st_mode) else "not a regular file"
            raise InputError(f"{path}: expected a file to read, this is {kind}")
        return State(path, info.st_size, find_superblock(path), _writer(path))
    except OSError as error:
        raise cannot_open(path, error) from error


def _writer(path: str) -> Holder | None:
    writers = writers_of(path)
    if writers:
        return writers[0]
    for lock in locks_of(path) or []:
        if lock.exclusive and not lock.waiting:
            return Holder(lock.pid or 0, -1, lock.command)
    return None


def troubles(state: State) -> list[tuple[int | None, str]]:
    """(offset, reason) of each thing that is not as in a file that was closed and left alone."""
    block, size = state.block, state.size
    if block is None:
        if not size:
            return [(None, "the file is empty: its writer has not finished, or died")]
        return [(0, "not an HDF5 file: it has no superblock that can be read")]
    found: list[tuple[int | None, str]] = []
    if state.writer is not None:
        found.append((None, f"not finished: still being written {state.written_by}"))
    if not block.whole:
        found.append((block.at, "the checksum of its superblock is wrong"))
    if state.writer is not None:
        return found
    if block.open_for_write:
        mode = " (SWMR)" if block.swmr else ""
        found.append((block.at + 11, f"not closed properly{mode}: its writer died, nobody has it open for writing"))
    if block.end > size:
        found.append((size, f"cut: it should have {block.end:,} bytes, it has {size:,}"))
    elif block.end < size and not block.swmr:
        behind = size - block.end
        found.append((block.end, f"{behind:,} bytes behind its end: its writer died before it told of them"))
    return found
