"""Sources before they are opened: is each a whole HDF5 file that nobody writes, and is it still the same afterwards?"""

from __future__ import annotations

import os
from collections.abc import Iterator

from ....errors import CorruptError, InputError, UnfinishedError, cannot_open
from ....proc.holders import writers_of
from ....proc.locks import locks_of
from ..state import State, troubles
from ..superblock import find_superblock

Stamp = list[int]  # size, time of the last change, device, inode


def take_stamps(paths: list[str]) -> list[Stamp]:
    try:
        infos = [os.stat(path) for path in paths]
    except OSError as error:
        raise cannot_open(error.filename, error) from error
    return [[info.st_size, info.st_mtime_ns, info.st_dev, info.st_ino] for info in infos]


def check_sources(paths: list[str], stamps: list[Stamp]) -> None:
    seen: set[tuple[int, ...]] = set()
    for path, stamp in zip(paths, stamps, strict=True):
        if os.path.isdir(path) or not os.path.isfile(path):
            raise InputError(f"{path}: expected a file to read, got {'a folder' if os.path.isdir(path) else 'nothing'}")
        if tuple(stamp[2:]) in seen:
            raise InputError(f"{path}: expected every file once, got it twice")
        seen.add(tuple(stamp[2:]))
    opened = _open_anywhere(seen)
    for path, stamp in zip(paths, stamps, strict=True):
        _refuse_written(path, stamp, opened)
        _refuse_damaged(path, stamp[0])


def _refuse_written(path: str, stamp: Stamp, opened: set[tuple[int, ...]]) -> None:
    state = State(path, stamp[0], None, None)
    if tuple(stamp[2:]) in opened:
        state = state._replace(writer=next(iter(writers_of(path)), None))
    if state.writer is None and any(lock.exclusive and not lock.waiting for lock in locks_of(path) or []):
        raise UnfinishedError(path, None, None, "somebody holds a lock on it", "Wait for its writer to close it")
    if state.writer is not None:
        raise UnfinishedError(path, None, None, f"it is still being written {state.written_by}", "Wait for that to end")


def _refuse_damaged(path: str, size: int) -> None:
    try:
        state = State(path, size, find_superblock(path), None)
    except OSError as error:
        raise cannot_open(path, error) from error
    for offset, reason in troubles(state):
        raise CorruptError(path, None, offset, reason, "`holdfast salvage FILE OUT` gets back what can be read")


def _open_anywhere(wanted: set[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Those of the files that some process has open: one look at all processes, however many files they are."""
    return {identity for identity in _all_open() if identity in wanted}


def _all_open() -> Iterator[tuple[int, int]]:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue  # another user's, or gone
        for name in names:
            try:
                info = os.stat(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
            yield info.st_dev, info.st_ino
