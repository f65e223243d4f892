"""Which processes hold a file open for writing."""

from __future__ import annotations

import os
from typing import NamedTuple


class Holder(NamedTuple):
    pid: int
    fd: int
    command: str


def writers_of(path: str | os.PathLike[str]) -> list[Holder]:
    """Every process (that this user may look at) with a descriptor of this file open for writing. Linux; else none."""
    try:
        want = os.stat(path)
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
    found = []
    for pid in pids:
        for fd in _descriptors(pid):
            try:
                got = os.stat(f"/proc/{pid}/fd/{fd}")
                if (got.st_dev, got.st_ino) == (want.st_dev, want.st_ino) and _writes(
                    _read(f"/proc/{pid}/fdinfo/{fd}")
                ):
                    found.append(Holder(pid, fd, _command(_read(f"/proc/{pid}/cmdline"))))
            except OSError:
                continue  # closed, or its process ended, since it was listed
    return found


def _descriptors(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return []


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _writes(fdinfo: str) -> bool:
    """`pos:\\t0\\nflags:\\t0100001\\n…` -> True: the lowest two octal bits are the access mode."""
    for line in fdinfo.splitlines():
        if line.startswith("flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False


def _command(cmdline: str) -> str:
    """`python3\\0train.py\\0` -> `python3 train.py`, short."""
    text = " ".join(cmdline.split("\0")).strip()
    return text if len(text) <= 60 else text[:59] + "…"
