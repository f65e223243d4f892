"""The child of sandbox.py: runs one job with the HDF5 library and reports over stdout."""

from __future__ import annotations

import os
import resource
import sys
import traceback
from collections.abc import Callable
from typing import Any

from ...._util.fds import take_stdout
from ...._util.framing import MessageReceiver, send_message
from ...._util.process import die_with_forker
from .sandbox import MAX_ADDRESS_BYTES, SharedPosition, WorkPosition


class Reporter:
    """Sends messages to the parent, and tells it in shared memory what the child is working on."""

    def __init__(self, fd: int, shared: SharedPosition, incoming: MessageReceiver) -> None:
        self._fd, self._shared, self.incoming = fd, shared, incoming
        self.position = WorkPosition()

    def send(self, head: dict[str, Any], body: bytes = b"") -> None:
        send_message(self._fd, head, body)

    def at_object(self, path: str) -> None:
        """To be called before anything is done with an object."""
        self._set(piece=-1, offset=-1, start=())
        self.send({"at": path})

    def at_piece(self, number: int, start: tuple[int, ...], offset: int) -> None:
        self._set(piece=number, offset=offset, start=start)

    def done_piece(self, size: int) -> None:
        done, pieces = self.position.done_bytes + size, self.position.pieces + 1
        self._set(piece=-1, offset=-1, start=(), done_bytes=done, pieces=pieces)

    def _set(self, **changed: Any) -> None:
        self.position = self.position._replace(**changed)
        self._shared.set(self.position)

    def problem(self, path: str | None, reason: str, *, start: tuple[int, ...] | None = None, offset: int = -1) -> None:
        chunk = None if start is None else list(start)
        self.send({"problem": [path, chunk, offset if offset >= 0 else None, reason]})

    def note(self, path: str, text: str) -> None:
        """Reports what is no corruption but should be known."""
        self.send({"note": f"{path}: {text}"})


def main() -> int:
    out = take_stdout()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit_memory()
    incoming = MessageReceiver(0, MAX_ADDRESS_BYTES)
    first = incoming.receive()
    if first is None:
        return 1
    job = first.head
    die_with_forker(job["parent"])
    reporter = Reporter(out, SharedPosition(int(sys.argv[1])), incoming)
    try:
        _job_function(job["work"])(job, reporter)
    except BrokenPipeError:
        return 1
    except Exception:  # noqa: BLE001 - a bug of ours must not look like a crash of the library
        reporter.send({"bug": traceback.format_exc()})
    return 0


def _limit_memory() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MAX_ADDRESS_BYTES if hard == resource.RLIM_INFINITY else min(hard, MAX_ADDRESS_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _job_function(name: str) -> Callable[[dict[str, Any], Reporter], None]:
    if name == "verify":
        from .verify_child import verify_file

        return verify_file
    if name == "salvage":
        from .salvage_child import salvage_file

        return salvage_file
    if name == "rebuild":
        from .salvage_rebuild import rebuild_file

        return rebuild_file
    if name == "merge":
        from .merging.merge_child import merge

        return merge
    from .inspect_child import inspect_file

    return inspect_file


if __name__ == "__main__":
    os._exit(main())  # unloading the libraries takes longer than some jobs
