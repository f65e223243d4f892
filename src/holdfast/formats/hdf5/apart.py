"""Work with the HDF5 library in a process of its own: its crash, or its endless loop, is a finding and not our end.

The child gets its job as a frame on stdin and answers with frames on stdout. It dies with this process, however that
ends; Ctrl-C is not for it.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from .frames import Frame, Unpacker, send_frame
from .place import Place, SharedPlace

PROGRAM = [sys.executable, "-P", "-m", "holdfast.formats.hdf5.child"]
HANG_S = 120.0  # without a sign of life: a disk far away may be slow
SPIN_S = 20.0  # of work of the processor: no chunk takes that long
CRASHED = "the HDF5 library crashed here"
HANGS = "the HDF5 library hangs here"
_TICK_S = 0.1
_READ_BYTES = 1 << 20
_TICKS = os.sysconf("SC_CLK_TCK")

Tick = Callable[[Place], None]


class Apart:
    """One child with one job. `fate` says how it ended: "" when its work was done."""

    def __init__(self, job: dict[str, Any], *, spin_s: float | None = None) -> None:
        self.fate = ""
        self.hung = False
        self._spin_s = SPIN_S if spin_s is None else spin_s
        self._shared = SharedPlace()
        try:
            self._child = subprocess.Popen(
                [*PROGRAM, str(self._shared.fd)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # a library that dies talks
                pass_fds=[self._shared.fd],
                env=_environment(),
                process_group=0,
            )
        except BaseException:
            self._shared.close()
            raise
        try:
            self.send(job | {"parent": os.getpid()})
        except BaseException:
            self.close()
            raise

    @property
    def place(self) -> Place:
        return self._shared.get()

    def send(self, head: dict[str, Any], body: bytes = b"") -> bool:
        """False: it ended before it had read this."""
        assert self._child.stdin is not None
        try:
            send_frame(self._child.stdin.fileno(), head, body)
        except BrokenPipeError:
            return False
        return True

    def no_more(self) -> None:
        """Nothing more will be sent."""
        assert self._child.stdin is not None
        self._child.stdin.close()

    def frames(self, tick: Tick | None = None) -> Iterator[Frame]:
        """All that it says until it ends; `tick` is called many times a second meanwhile, and may raise."""
        assert self._child.stdout is not None
        fd, unpacker = self._child.stdout.fileno(), Unpacker()
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        last, since, spent_s = self.place, time.monotonic(), self._spent_s()
        ended = heard = False  # until it is heard of, it loads the library
        while not ended:
            if poll.poll(_TICK_S * 1000):
                data = os.read(fd, _READ_BYTES)
                ended, heard = not data, True
                unpacker.feed(data)
                since, spent_s = time.monotonic(), self._spent_s()
                while (frame := unpacker.next()) is not None:
                    if "bug" in frame.head:
                        raise RuntimeError(f"in the process for {self._what()}: {frame.head['bug']}")
                    yield frame
                since, spent_s = time.monotonic(), self._spent_s()  # whoever took it may have been slow
            place = self.place
            if place != last:
                last, since, spent_s = place, time.monotonic(), self._spent_s()
            elif time.monotonic() - since > HANG_S or (heard and self._spent_s() - spent_s > self._spin_s):
                self._child.kill()
                self.hung = True
                self.fate = HANGS
            if tick is not None:
                tick(place)
        self._settle()

    def _what(self) -> str:
        return f"HDF5 ({self._child.pid})"

    def _spent_s(self) -> float:
        """What it took of the processors: the 14th and 15th field of `/proc/PID/stat`, behind its name."""
        try:
            with open(f"/proc/{self._child.pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            return (int(fields[11]) + int(fields[12])) / _TICKS
        except (OSError, ValueError, IndexError):
            return 0.0

    def _settle(self) -> None:
        code = self._child.wait()
        if code and not self.fate:
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            self.fate = f"{CRASHED} ({how})"

    def close(self) -> None:
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                stream.close()
        if self._shared.fd >= 0:
            self._shared.close()
            self._shared.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _environment() -> dict[str, str]:
    """The same holdfast as this one; no locks: a look at a file must not stop its next writer; and none of the threads
    that numpy starts for products of matrices: they take time to start."""
    here = str(Path(__file__).parents[3])
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {
        "HDF5_USE_FILE_LOCKING": "FALSE",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(paths),
    }
