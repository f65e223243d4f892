"""What processes send each other over a pipe: a small JSON head, and bytes. A torn frame at the end is no frame."""

from __future__ import annotations

import json
import mmap
import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

from ...procfs.processes import read_cpu_s
from ...procfs.procfs import REAL

_SIZES = struct.Struct("<IQ")


class SandboxMessage(NamedTuple):
    head: dict[str, Any]
    body: bytes


def pack_frame(head: dict[str, Any], body: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    return b"".join((_SIZES.pack(len(text), len(body)), text, body))


def send_frame(fd: int, head: dict[str, Any], body: bytes = b"") -> None:
    view = memoryview(pack_frame(head, body))
    while view:
        view = view[os.write(fd, view) :]


def read_frame(stream: BinaryIO) -> SandboxMessage | None:
    """None: the other side ended, or was torn away."""
    sizes = stream.read(_SIZES.size)
    if len(sizes) < _SIZES.size:
        return None
    head_bytes, body_bytes = _SIZES.unpack(sizes)
    text, body = stream.read(head_bytes), stream.read(body_bytes)
    if len(text) < head_bytes or len(body) < body_bytes:
        return None
    return SandboxMessage(json.loads(text), body)


class SandboxMessageDecoder:
    """Frames out of bytes that come in any pieces."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> None:
        self._held += data

    def next(self) -> SandboxMessage | None:
        if len(self._held) < _SIZES.size:
            return None
        head_bytes, body_bytes = _SIZES.unpack_from(self._held)
        middle = _SIZES.size + head_bytes
        end = middle + body_bytes
        if len(self._held) < end:
            return None
        frame = SandboxMessage(json.loads(self._held[_SIZES.size : middle]), bytes(self._held[middle:end]))
        del self._held[:end]
        return frame


# Where a process is in its work, in memory that outlives it: what it was at when it died is known to the byte.

_BYTES = 512
_FIXED = struct.Struct("<QqqqI")  # bytes done, number of the piece, its offset, pieces done in all, how many axes
_MOST_AXES = 32


class WorkPosition(NamedTuple):
    """`piece` -1: not in a piece of a dataset, but at its head."""

    done_bytes: int = 0
    piece: int = -1
    offset: int = -1
    pieces: int = 0
    start: tuple[int, ...] = ()


class SharedPosition:
    """One page of shared memory, behind a descriptor that a child is given."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("holdfast-place") if fd is None else fd
        try:
            if fd is None:
                os.ftruncate(self.fd, _BYTES)
            self._memory = mmap.mmap(self.fd, _BYTES)
        except BaseException:
            os.close(self.fd)
            raise
        if fd is None:
            self.set(WorkPosition())

    def set(self, place: WorkPosition) -> None:
        start = place.start[:_MOST_AXES]
        _FIXED.pack_into(self._memory, 0, place.done_bytes, place.piece, place.offset, place.pieces, len(start))
        struct.pack_into(f"<{len(start)}q", self._memory, _FIXED.size, *start)

    def get(self) -> WorkPosition:
        done_bytes, piece, offset, pieces, axes = _FIXED.unpack_from(self._memory, 0)
        start = struct.unpack_from(f"<{min(axes, _MOST_AXES)}q", self._memory, _FIXED.size)
        return WorkPosition(done_bytes, piece, offset, pieces, start)

    def close(self) -> None:
        self._memory.close()
        os.close(self.fd)


# Work with the HDF5 library in a process of its own: its crash, or its endless loop, is a finding and not our end.
#
# The child gets its job as a frame on stdin and answers with frames on stdout. It dies with this process, however that
# ends; Ctrl-C is not for it.

PROGRAM = [sys.executable, "-P", "-m", "holdfast.formats.hdf5.sandbox_main"]
HANG_S = 120.0  # without a sign of life: a disk far away may be slow
SPIN_S = 20.0  # of work of the processor: no chunk takes that long
CRASHED = "the HDF5 library crashed here"
HANGS = "the HDF5 library hangs here"
_TICK_S = 0.1
_READ_BYTES = 1 << 20

Tick = Callable[[WorkPosition], None]


class SandboxedProcess:
    """One child with one job. `fate` says how it ended: "" when its work was done."""

    def __init__(self, job: dict[str, Any], *, spin_s: float | None = None) -> None:
        self.fate = ""
        self.hung = False
        self._spin_s = SPIN_S if spin_s is None else spin_s
        self._shared = SharedPosition()
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
    def place(self) -> WorkPosition:
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

    def frames(self, tick: Tick | None = None) -> Iterator[SandboxMessage]:
        """All that it says until it ends; `tick` is called many times a second meanwhile, and may raise."""
        assert self._child.stdout is not None
        fd, unpacker = self._child.stdout.fileno(), SandboxMessageDecoder()
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
        """The CPU time that the child has used."""
        return read_cpu_s(REAL, self._child.pid)

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
