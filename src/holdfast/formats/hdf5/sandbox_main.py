"""The process that works with the HDF5 library for another one. Started by apart.py, not by people."""

from __future__ import annotations

import os
import resource
import sys
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

from ..._util.fds import take_stdout
from ..._util.process import die_with_forker
from .sandbox import SharedPosition, WorkPosition, read_frame, send_frame

_MOST_MEMORY_BYTES = 64 << 30  # of addresses: a damaged size must not take the machine's memory


class Reporter:
    """What the child's work talks through."""

    def __init__(self, fd: int, shared: SharedPosition, stdin: BinaryIO) -> None:
        self._fd, self._shared, self.stdin = fd, shared, stdin
        self.place = WorkPosition()

    def say(self, head: dict[str, Any], body: bytes = b"") -> None:
        send_frame(self._fd, head, body)

    def at_object(self, path: str) -> None:
        """Before anything is done with an object."""
        self.place = self.place._replace(piece=-1, offset=-1, start=())
        self._shared.set(self.place)
        self.say({"at": path})

    def at_piece(self, number: int, start: tuple[int, ...], offset: int) -> None:
        self.place = self.place._replace(piece=number, offset=offset, start=start)
        self._shared.set(self.place)

    def done_piece(self, size: int) -> None:
        done, pieces = self.place.done_bytes + size, self.place.pieces + 1
        self.place = self.place._replace(piece=-1, offset=-1, start=(), done_bytes=done, pieces=pieces)
        self._shared.set(self.place)

    def wrong(self, path: str | None, reason: str, *, start: tuple[int, ...] | None = None, offset: int = -1) -> None:
        """One thing that is not as it should be."""
        chunk = None if start is None else list(start)
        self.say({"wrong": [path, chunk, offset if offset >= 0 else None, reason]})

    def note(self, path: str, text: str) -> None:
        """What is no damage, but should be known."""
        self.say({"note": f"{path}: {text}"})


def main() -> int:
    out = take_stdout()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit_memory()
    first = read_frame(sys.stdin.buffer)
    if first is None:
        return 1
    job = first.head
    die_with_forker(job["parent"])
    voice = Reporter(out, SharedPosition(int(sys.argv[1])), sys.stdin.buffer)
    try:
        _work(job["work"])(job, voice)
    except BrokenPipeError:
        return 1
    except Exception:  # noqa: BLE001 - a mistake of ours must be told from the library's
        voice.say({"bug": traceback.format_exc()})
    return 0


def _limit_memory() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = _MOST_MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(hard, _MOST_MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def _work(name: str) -> Callable[[dict[str, Any], Reporter], None]:
    if name == "check":
        from .verify_child import check_file

        return check_file
    if name == "rescue":
        from .salvage_child import read_file

        return read_file
    if name == "rebuild":
        from .salvage_rebuild import build_file

        return build_file
    if name == "merge":
        from .merge.child import merge

        return merge
    from .inspect_child import survey_file

    return survey_file


if __name__ == "__main__":
    os._exit(main())  # all is said: taking the libraries apart takes longer than some jobs
