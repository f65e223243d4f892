"""Runs a program with the tracing library, in a folder for the logs of its processes."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from ...errors import InputError, TraceUnavailableError
from ...procfs.processes import read_status
from ...procfs.procfs import REAL
from .collector import Collector, assemble, is_static
from .log_format import EBADF, NATIVE, NO_REUSE
from .partial import MISSES
from .trace_file import Trace

LIBRARY = Path(__file__).parents[2] / "_native" / "_fdtrace.abi3.so"
_BOOTSTRAP = Path(__file__).with_name("bootstrap")
_LEAST_FREE = 64 << 20
_PREFIX = "holdfast-trace-"


@dataclass(frozen=True)
class TraceOptions:
    """What is recorded.

    Args:
        native: Also the C frames of each stack. Makes a descriptor cost about three times as much.
        ebadf: Also reads, writes and other calls that fail with EBADF.
        no_reuse: Give a number again as late as possible, after about 960 others, so that a stale descriptor fails
            with EBADF instead of reaching another file.
        arm_above: Take stacks only while more descriptors than this are open.
        owners: Look at the end of a Python program for what keeps the descriptors of the largest sites open.
    """

    native: bool = False
    ebadf: bool = True
    no_reuse: bool = False
    arm_above: int = 0
    owners: bool = True

    def bits(self) -> int:
        return NATIVE * self.native | EBADF * self.ebadf | NO_REUSE * self.no_reuse


def has_library() -> bool:
    """Returns whether the tracing library was built. HOLDFAST_NATIVE=0 leaves it unused, as it does all C code."""
    return LIBRARY.exists() and os.environ.get("HOLDFAST_NATIVE") != "0"


def _why_no_library() -> str:
    if LIBRARY.exists():
        return "HOLDFAST_NATIVE=0 leaves the tracing library unused"
    return "holdfast was installed without a C compiler"


# ---- the folder of the logs


@contextmanager
def log_folder(warnings: list[str]) -> Iterator[Path]:
    """Makes the private folder that the traced processes write to, on tmpfs if there is room, and removes it."""
    base = Path("/dev/shm")
    _remove_abandoned(base)
    if not os.access(base, os.W_OK) or shutil.disk_usage(base).free < _LEAST_FREE:
        warnings.append(
            "the logs are on disk because /dev/shm is full or not writable: tracing costs several percent more"
        )
        base = Path(tempfile.gettempdir())
        _remove_abandoned(base)
    try:
        folder, lock = _make_folder(base)
    except OSError as error:
        raise TraceUnavailableError(
            f"cannot make a folder for the logs in {base}: {error.strerror}; set TMPDIR to one with free space"
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _make_folder(base: Path) -> tuple[Path, int]:
    """Returns a new folder of mode 0700 and a descriptor that holds its lock as long as this process lives."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        lock = lock_folder(folder)
        if lock is not None:
            return folder, lock
        # Another process took it for an abandoned one, in the moment before it was locked.


def lock_folder(folder: Path) -> int | None:
    """Locks a folder of this user. Returns None if it is locked, gone, or somebody else's."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mine, here = os.fstat(fd), os.stat(folder, follow_symlinks=False)
        if mine.st_uid == os.geteuid() and os.path.samestat(mine, here):
            return fd
    except OSError:
        pass  # another process has the lock, or has removed the folder
    os.close(fd)
    return None


def _remove_abandoned(base: Path) -> None:
    """Removes the folders of recordings whose process was killed: its lock ended with it."""
    for folder in base.glob(f"{_PREFIX}*"):
        lock = lock_folder(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def environment(folder: Path, options: TraceOptions, base: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment that makes a program and its children record."""
    env = dict(base)
    env["HOLDFAST_FDTRACE_DIR"] = str(folder)
    env["HOLDFAST_FDTRACE_OPTIONS"] = str(options.bits())
    env["HOLDFAST_FDTRACE_ARM_ABOVE"] = str(options.arm_above)
    env["HOLDFAST_FDTRACE_OWNERS"] = str(int(options.owners))
    if has_library():
        env["LD_PRELOAD"] = ":".join([str(LIBRARY), *filter(None, [env.get("LD_PRELOAD", "")])])
    else:
        env["HOLDFAST_FDTRACE_PARTIAL"] = "1"
    if options.owners or not has_library():
        env["PYTHONPATH"] = os.pathsep.join([str(_BOOTSTRAP), *filter(None, [env.get("PYTHONPATH", "")])])
    return env


# ---- running a program


@dataclass(frozen=True)
class Outcome:
    """How the traced program ended: `returncode` as in subprocess, negative for a signal."""

    trace: Trace
    returncode: int


def record(
    command: Sequence[str],
    options: TraceOptions | None = None,
    *,
    env: Mapping[str, str] | None = None,
    watch: Callable[[Trace], None] | None = None,
    started: Callable[[int], None] = lambda pid: None,
    output: IO[bytes] | None = None,
) -> Outcome:
    """Runs a command to its end and returns what it recorded. Its streams are those of this process.

    Args:
        watch: Called about once a second with what was recorded so far, for a live view.
        started: Called with the number of the process.
        output: Gets what the program prints, on stdout and stderr. Its stdin is then empty.
    """
    check_command(command)
    options = options or TraceOptions()
    warnings: list[str] = []
    if not has_library():
        warnings.append(f"partial: {_why_no_library()}; only Python is traced, {MISSES}")
    with log_folder(warnings) as folder:
        collector = Collector(folder)
        with PassedSignals() as signals:
            try:
                process = subprocess.Popen(
                    command,
                    env=environment(folder, options, os.environ if env is None else env),
                    stdin=subprocess.DEVNULL if output else None,
                    stdout=output,
                    stderr=output,
                )
            except OSError as error:
                raise InputError(f"cannot run {command[0]}: {error.strerror}") from error
            signals.pass_early(process)
            started(process.pid)
            while (returncode := signals.wait(process, collector.interval_s)) is None:
                collector.tick()
                if watch:
                    watch(assemble(folder, collector, command, warnings, exit_code=None, options=options))
        trace = assemble(folder, collector, command, warnings, exit_code=returncode, options=options)
    return Outcome(trace, returncode)


def check_command(command: Sequence[str]) -> None:
    """Raises an error if the dynamic loader would not load the tracing library into this program."""
    found = shutil.which(command[0])
    if found is None and os.path.isfile(command[0]):
        raise InputError(f"expected a program, got {command[0]!r}, which may not be executed (chmod +x allows it)")
    if found is None:
        raise InputError(f"expected a program, got {command[0]!r}, which is not on PATH")
    path = os.path.realpath(found)
    mode = os.stat(path).st_mode
    if mode & 0o6000 and os.geteuid() != os.stat(path).st_uid:
        raise TraceUnavailableError(
            f"{found} is setuid: the system does not load other libraries into it. Trace the program that it starts"
        )
    if has_library() and is_static(path):
        raise TraceUnavailableError(
            f"{found} is statically linked: no library can be loaded into it. Trace a dynamically linked build"
        )


_PASSED = (
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGWINCH,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_STEP_S = 0.05


class PassedSignals:
    """Lets the program decide what a signal means that was sent to this process.

    One that was sent to the whole process group, as the terminal and `timeout` do, has reached the program already. A
    witness tells: a process of the group that blocks all signals, so that what the group got stays pending there. In a
    thread other than the main one nothing is passed: a live view has its own keys.
    """

    def __init__(self) -> None:
        self._got: deque[int] = deque()
        self._before: dict[int, signal._HANDLER] = {}
        self._witness: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _PASSED:
                if signal.getsignal(number) != signal.SIG_IGN:  # nohup: the program ignores it too
                    self._before[number] = signal.signal(number, lambda number, _: self._got.append(number))
            self._start_witness()
        return self

    def wait(self, program: subprocess.Popen[bytes], seconds: float) -> int | None:
        """Passes signals for so many seconds, or until the program ends; then it returns its exit code."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                return program.wait(min(left, _STEP_S))
            except subprocess.TimeoutExpired:
                self._pass_to(program)
        return None

    def pass_early(self, program: subprocess.Popen[bytes]) -> None:
        """Passes what came before the program started, also what the group got."""
        while self._got:
            program.send_signal(self._got.popleft())

    def _pass_to(self, program: subprocess.Popen[bytes]) -> None:
        if not self._got:
            return
        time.sleep(_STEP_S)  # the kernel may be about to send it to the rest of the group
        status = read_status(REAL, self._witness.pid) if self._witness else {}
        pending = int(status.get("ShdPnd", "0"), 16)
        while self._got:
            number = self._got.popleft()
            if status and not pending >> number - 1 & 1:
                program.send_signal(number)
            elif not status and number not in (signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH):
                program.send_signal(number)  # no witness: these three are the terminal's
        if pending:
            self._end_witness()
            self._start_witness()

    def _start_witness(self) -> None:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            # It ends when its input does, and so with this process, however that ends.
            self._witness = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        except OSError:
            self._witness = None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _end_witness(self) -> None:
        if self._witness is not None:
            self._witness.communicate()

    def __exit__(self, *_: object) -> None:
        self._end_witness()
        for number, old in self._before.items():
            signal.signal(number, old)
