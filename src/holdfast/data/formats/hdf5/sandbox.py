"""Runs libhdf5 in a child process, so that a segfault or an infinite loop becomes a report instead of killing the
caller.

The child gets its job as a message on stdin and answers with messages on stdout. It writes into shared memory which
object and chunk it is working on, so that the parent knows where the library crashed. The child dies with its parent;
Ctrl-C does not reach it.
"""

from __future__ import annotations

import mmap
import os
import select
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple, Self

from ...._util.framing import Message, MessageError
from ...._util.helper_process import HelperProcess, child_environment, module_command
from ...._util.process import exit_cause
from ....procfs.processes import read_cpu_and_faults
from ....procfs.procfs import REAL

PROGRAM = module_command("data.formats.hdf5.sandbox_main")
HANG_S = 120.0  # without any progress; a remote disk may be slow
SPIN_S = 20.0  # of CPU time without progress: no chunk takes that long
_BASE_SPIN_S = 3.0  # in any file, and a second more for each _BYTES_PER_SPIN_S
_BYTES_PER_SPIN_S = 1_000_000
_LEAST_SPIN_PART = 1 / 8
_LOOP_PART = 1 / 4  # of that time, if the child touches no new memory either: what decodes or lists does
_LEAST_LOOP_S = 0.4
CRASHED = "the HDF5 library crashed here"
HANGS = "the HDF5 library hangs here"
_MAX_HANGS = 10
_MAX_HANGS_OF_OBJECT = 2  # each takes long: then the rest of that object is skipped
_TICK_S = 0.1

MAX_ADDRESS_BYTES = 64 << 30  # of the child: a corrupt size must not use up the machine's memory
_PAGE_BYTES = 512
_FIXED = struct.Struct("<QqqqI")  # done_bytes, piece, offset, pieces, number of axes
_MAX_AXES = 32


def find_spin_s(file_bytes: int, hangs: int = 0) -> float:
    """Returns the CPU time without progress after which a child that reads a file of this size hangs.

    A library that has hung in a file is likely to hang there again, so each hang halves the time, to an eighth at the
    least: ten hangs take three times as long as one.
    """
    return min(SPIN_S, _BASE_SPIN_S + file_bytes / _BYTES_PER_SPIN_S) * max(_LEAST_SPIN_PART, 0.5**hangs)


class WorkPosition(NamedTuple):
    """Where the child is in its work. `piece` is -1 between the pieces of a dataset."""

    done_bytes: int = 0
    piece: int = -1
    offset: int = -1
    pieces: int = 0
    start: tuple[int, ...] = ()


class SharedPosition:
    """A WorkPosition in a memfd that parent and child map."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("holdfast-place") if fd is None else fd
        try:
            if fd is None:
                os.ftruncate(self.fd, _PAGE_BYTES)
            self._memory = mmap.mmap(self.fd, _PAGE_BYTES)
        except BaseException:
            os.close(self.fd)
            raise
        if fd is None:
            self.set(WorkPosition())

    def set(self, position: WorkPosition) -> None:
        done_bytes, piece, offset, pieces, start = position
        start = start[:_MAX_AXES]
        _FIXED.pack_into(self._memory, 0, done_bytes, piece, offset, pieces, len(start))
        struct.pack_into(f"<{len(start)}q", self._memory, _FIXED.size, *start)

    def get(self) -> WorkPosition:
        done_bytes, piece, offset, pieces, axes = _FIXED.unpack_from(self._memory, 0)
        start = struct.unpack_from(f"<{min(axes, _MAX_AXES)}q", self._memory, _FIXED.size)
        return WorkPosition(done_bytes, piece, offset, pieces, start)

    def close(self) -> None:
        self._memory.close()
        os.close(self.fd)


class _Usage(NamedTuple):
    """What a child has used so far."""

    cpu_s: float
    faults: int


Progress = Callable[[int], None]  # bytes done since the last call


class SandboxedProcess(HelperProcess):
    """One child with one job. `exit_reason` says how it ended: "" if its work was done."""

    def __init__(self, job: dict[str, Any], *, spin_s: float | None = None, fds: Sequence[int] = ()) -> None:
        """`fds`: descriptors that the child inherits."""
        self.exit_reason = ""
        self.hung = False
        self._spin_s = SPIN_S if spin_s is None else spin_s
        self._shared = SharedPosition()
        try:
            super().__init__(
                [*PROGRAM, str(self._shared.fd)],
                max_bytes=MAX_ADDRESS_BYTES,
                # Without locks, so that reading a file never stops its next writer; without OpenBLAS's threads, which
                # take time to start.
                env=child_environment(HDF5_USE_FILE_LOCKING="FALSE", OPENBLAS_NUM_THREADS="1"),
                stderr=subprocess.DEVNULL,  # a library that crashes prints
                pass_fds=[self._shared.fd, *fds],
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
    def position(self) -> WorkPosition:
        return self._shared.get()

    def messages(self, progress: Progress | None = None) -> Iterator[Message]:
        """Yields the child's messages until it ends; `progress` is called several times a second meanwhile, and may
        raise.

        A child that makes no progress for HANG_S, or spends `spin_s` of CPU time on none, is killed; after a quarter of
        that CPU time if it touches no new memory. CPU time, because a busy machine makes any work slow.
        """
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        loop_s = max(_LEAST_LOOP_S, self._spin_s * _LOOP_PART)
        last: WorkPosition | None = self.position
        since = time.monotonic()
        spun, looped = self._usage(), self._usage()  # at the last progress, and at the last page fault
        reported = 0
        ended = loaded = False  # until its first message the child loads the library
        while not ended:
            if poll.poll(_TICK_S * 1000):
                ended, loaded = not self.read(), True
                try:
                    while (message := self.take()) is not None:
                        if "bug" in message.head:
                            raise RuntimeError(f"in the HDF5 process {self.pid}: {message.head['bug']}")
                        yield message
                except MessageError as error:  # the library has overwritten memory that is not its own
                    self.kill()
                    self.exit_reason = f"{CRASHED} ({error})"
                last = None  # after the yields: the consumer may have been slow
            position, usage = self.position, self._usage()
            looped = looped if usage.faults == looped.faults else usage
            if position != last:
                last, since, spun, looped = position, time.monotonic(), usage, usage
            elif time.monotonic() - since > HANG_S or (
                loaded and (usage.cpu_s - spun.cpu_s > self._spin_s or usage.cpu_s - looped.cpu_s > loop_s)
            ):
                self.kill()
                self.hung = True
                self.exit_reason = HANGS
            if progress is not None:
                progress(max(0, position.done_bytes - reported))
                reported = max(reported, position.done_bytes)
        code = self.wait()
        if code and not self.exit_reason:
            self.exit_reason = f"{CRASHED} ({exit_cause(code)})"

    def _usage(self) -> _Usage:
        return _Usage(*read_cpu_and_faults(REAL, self.pid))

    def close(self, within_s: float = 0.0) -> None:
        super().close(within_s)
        if self._shared.fd >= 0:
            self._shared.close()
            self._shared.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class RestartingSandbox:
    """Runs jobs that visit the objects of a file. After a crash or hang a job continues in a new child, which skips the
    object or piece where that happened.

    A job gets `avoid`: objects that are not to be opened; `done`: objects that a child reported as done; and `resume`:
    by object, the first piece to read. The next job gets them as well.

    file_bytes   of the file: how long its pieces may take
    """

    def __init__(self, max_crashes: int, file_bytes: int) -> None:
        self.done: list[str] = []
        self._avoid: list[str] = []
        self._resume: dict[str, int] = {}
        self._hangs: Counter[str] = Counter()
        self._crashes_left, self._file_bytes = max_crashes, file_bytes

    @property
    def used_up(self) -> bool:
        """Returns whether jobs ended because of too many crashes."""
        return not self._crashes_left

    def messages(
        self, job: dict[str, Any], progress: Progress | None = None, *, stop_at_root: bool = True
    ) -> Generator[Message, None, None]:
        """Yields the messages of all children. Close the generator, which ends its child.

        A crash is a `problem` message with the key `skipped`: whether the rest of the object is skipped.

        stop_at_root   do not continue after a crash in the root group
        """
        while self._crashes_left:
            at = "/"
            lists = {"avoid": self._avoid, "done": self.done, "resume": self._resume}
            spin_s = find_spin_s(self._file_bytes, self._hangs.total())
            with SandboxedProcess(job | lists, spin_s=spin_s) as child:
                child.close_stdin()
                for message in child.messages(progress):
                    if "at" in message.head:
                        at = message.head["at"]
                        continue
                    if "done" in message.head:
                        self.done.append(message.head["done"])
                    yield message
                if not child.exit_reason:
                    return
                self._hangs[at] += child.hung
                yield self._skip(at, child.exit_reason, child.position)
            if (at == "/" and stop_at_root) or self._hangs.total() >= _MAX_HANGS:
                return
            self._crashes_left -= 1

    def _skip(self, at: str, reason: str, position: WorkPosition) -> Message:
        in_piece = position.piece >= 0
        if in_piece:
            self._resume[at] = position.piece + 1
        skipped = not in_piece or self._hangs[at] >= _MAX_HANGS_OF_OBJECT
        if skipped:
            self._avoid.append(at)
        chunk = list(position.start) if in_piece else None
        offset = position.offset if in_piece and position.offset >= 0 else None
        return Message({"problem": [at, chunk, offset, reason], "skipped": skipped}, b"")
