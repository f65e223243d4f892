"""What is said of the files an error speaks of: who locks them, and what they really are."""

from __future__ import annotations

from collections.abc import Iterator

from ..._base.units import format_bytes
from ...proc.locks import Lock, LockKind
from .here import Here, NamedFile

_MOST_LOCKS = 4
_HDF5 = b"\x89HDF\r\n\x1a\n"
_BEGINNINGS = (
    (_HDF5, "begins as an HDF5 file does"),
    (b"\x1f\x8b", "is compressed with gzip"),
    (b"version https://git-lfs", "is a pointer of git-lfs: `git lfs pull` fetches the data"),
    (b"PK\x03\x04", "is a zip file"),
    (b"CDF\x01", "is NetCDF-3"),
    (b"CDF\x02", "is NetCDF-3"),
    (b"<!doctype html", "is a web page"),
    (b"<html", "is a web page"),
    (b"<?xml", "is XML, perhaps a download's error"),
    (b'{"', "is JSON, perhaps a download's error"),
)
_ZLIB = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
_KINDS = {
    LockKind.FLOCK: "flock",
    LockKind.POSIX: "lockf lock",
    LockKind.OFD: "open-file lock",
    LockKind.LEASE: "lease",
}


def file_locks(here: Here) -> Iterator[str]:
    if not here.files:
        yield "Name the file (--path FILE, or path=…) to see who holds its lock."
    for file in here.files:
        if file.locks is None:
            yield f"Who locks {file.path} cannot be seen from here."
            continue
        holding = [lock for lock in file.locks if not lock.waiting]
        if not holding:
            yield f"Nobody holds a lock on {file.path} now."
        for lock in holding[:_MOST_LOCKS]:
            yield _held(file.path, lock, here.pid)
        if len(holding) > _MOST_LOCKS:
            yield f"So do {len(holding) - _MOST_LOCKS:,} more."
        waiting = [str(lock.pid) for lock in file.locks if lock.waiting and lock.pid is not None]
        if waiting:
            yield f"Waiting for it: process {', '.join(waiting[:_MOST_LOCKS])}."


def _held(path: str, lock: Lock, own: int) -> str:
    what = f"{'an exclusive' if lock.exclusive else 'a shared'} {_KINDS[lock.kind]} on {path}"
    if lock.pid is None:
        return f"A process that cannot be seen from here (another machine's, user's or container's) holds {what}."
    who = "This process itself" if lock.pid == own else f"Process {lock.pid}"
    who += f" ({lock.command})" if lock.command else ""
    how = ", by a descriptor that it inherited" if lock.inherited else ""
    return f"{who} holds {what}{how}."


def file_heads(here: Here) -> Iterator[str]:
    for file in here.files:
        if file.size_bytes is not None:
            yield _head(file)


def _head(file: NamedFile) -> str:
    if file.size_bytes == 0:
        return f"{file.path} is empty."
    text = f"{file.path} has {format_bytes(file.size_bytes or 0)}"
    if file.head is None:
        return f"{text}."
    start = file.head.lstrip(b"\xef\xbb\xbf \r\n\t").lower()
    for beginning, said in _BEGINNINGS:
        if file.head.startswith(beginning) or start.startswith(beginning):
            return f"{text} and {said}."
    if file.head.startswith(_ZLIB):
        return f"{text} and seems to be compressed with zlib."
    if not file.head.strip(b"\0"):
        return f"{text} and begins with zeros only."
    return f"{text}, and its beginning is neither HDF5 nor gzip."
