"""Traces a process that runs already: gdb, or Python itself from 3.14 on, loads the tracing library into it."""

from __future__ import annotations

import errno
import math
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ...errors import InputError, TraceUnavailableError
from ...procfs.descriptors import count
from ...procfs.limits import plan_limit, swap_nofile
from ...procfs.processes import read_status
from ...procfs.procfs import REAL, read_or_none
from . import attach_remote
from .collector import Collector, assemble, is_alive
from .image import open_in_folder
from .recording import LIBRARY, TraceOptions, has_library, lock_folder, log_folder
from .trace_file import Trace

_GDB_S = 30.0  # attach_gdb.py gives up before
_REMOTE_S, _REMOTE_BEFORE_GDB_S = 10.0, 1.0
_STEP_S = 0.05
_NEEDED, _HEADROOM = 16, 1024  # descriptors: what loading takes, and as other threads may take some meanwhile
_STOP_AT = 220  # offset of stop_requested in the header of a log


def record_attached(
    pid: int,
    options: TraceOptions | None = None,
    *,
    for_s: float | None = None,
    is_over: Callable[[], bool] = lambda: False,
    watch: Callable[[Trace], None] | None = None,
) -> Trace:
    """Traces a running process until it ends, `for_s` seconds have passed or `is_over()` says so.

    Descriptors that it has open already have no stack. The library stays in the process and does nothing afterwards.
    """
    options = options or TraceOptions(owners=False)
    interpreter = _check(pid)
    warnings: list[str] = []
    command = (read_or_none(REAL, f"/proc/{pid}/cmdline") or str(pid)).rstrip("\0").split("\0")
    with log_folder(warnings) as private, _folder_for(pid, private) as folder:
        collector = Collector(folder)
        with _free_descriptors(pid) as limits:
            _inject(pid, interpreter, private, folder, options, limits)
        end = None if for_s is None else time.monotonic() + for_s
        try:
            collector.tick()
            while _goes_on(pid, is_over, end):
                tick = time.monotonic() + collector.interval_s
                while time.monotonic() < tick and _goes_on(pid, is_over, end):
                    time.sleep(_STEP_S)
                collector.tick()
                if watch:
                    watch(assemble(folder, collector, command, warnings, exit_code=None, options=options))
            return assemble(folder, collector, command, warnings, exit_code=None, options=options)
        finally:
            _stop(folder)


@contextmanager
def _folder_for(pid: int, private: Path) -> Iterator[Path]:
    """Yields the folder that the process can write to: below the private one if it is another user's process.

    That user can put anything into it, but cannot put another folder in its place.
    """
    status = read_status(REAL, pid)
    try:
        uid, gid = (int(status[name].split()[3]) for name in ("Uid", "Gid"))  # what its new files belong to
    except (KeyError, IndexError):
        raise InputError(f"process {pid} has ended") from None
    if uid == os.geteuid():
        yield private
        return
    folder = private / "logs"
    folder.mkdir(0o700)
    lock = lock_folder(folder)
    try:
        try:
            os.chown(folder, uid, gid)
        except OSError as error:
            raise TraceUnavailableError(_why_denied(pid, error.strerror or str(error))) from error
        private.chmod(0o711)
        yield folder
    finally:
        if lock is not None:
            os.close(lock)


@contextmanager
def _free_descriptors(pid: int) -> Iterator[list[tuple[float, float]]]:
    """Yields the limits to try for a process that has used up its descriptors, and restores its own afterwards.

    Loading the library opens a few. Whoever loads it sets the limit: as late as possible, because a program that leaks
    takes what it gets.
    """
    used = count(REAL, pid)
    try:
        old = swap_nofile(pid)
    except OSError:
        used, old = None, (0, 0)  # the attempt to attach says what fails
    if used is None or used + _NEEDED <= old[0]:
        yield []
        return
    more = int(old[0]) + _HEADROOM
    wanted = [plan_limit(*old, None, more), plan_limit(*old, None, None)]  # only root may raise the hard limit
    try:
        yield wanted
    finally:
        with suppress(OSError):
            if swap_nofile(pid) in wanted:  # else the process has set its own
                swap_nofile(pid, old)


def _goes_on(pid: int, is_over: Callable[[], bool], end: float | None) -> bool:
    return is_alive(pid) and not is_over() and (end is None or time.monotonic() < end)


def _check(pid: int) -> str | None:
    """Returns the Python that can have the process run a script, if there is one."""
    if not is_alive(pid):
        raise InputError(f"expected the number of a running process, got {pid}")
    if pid == os.getpid():
        raise InputError("expected another process, got this one; use hold.Tracer")
    if not has_library():
        raise TraceUnavailableError(
            "attaching needs the tracing library, which is built when holdfast is installed with a C compiler"
        )
    try:
        maps = REAL.read_text(f"/proc/{pid}/maps")
        interpreter = attach_remote.find_interpreter(pid, maps)
    except OSError as error:
        raise TraceUnavailableError(_why_denied(pid, error.strerror or str(error))) from error
    if maps and "/libc.so" not in maps and "/libc-" not in maps:
        raise TraceUnavailableError(f"process {pid} is statically linked: no library can be loaded into it")
    if interpreter is None and shutil.which("gdb") is None:
        raise TraceUnavailableError("attaching needs gdb, which is not on PATH; install it (apt install gdb)")
    return interpreter


def _why_denied(pid: int, reason: str) -> str:
    scope = (read_or_none(REAL, "/proc/sys/kernel/yama/ptrace_scope") or "0").strip()
    hint = "run as its user or as root, or give this container CAP_SYS_PTRACE"
    if scope != "0":
        hint = f"kernel.yama.ptrace_scope is {scope}: run as root, or set it to 0 (sysctl kernel.yama.ptrace_scope=0)"
    return f"cannot attach to process {pid}: {reason}; {hint}"


def _inject(
    pid: int,
    interpreter: str | None,
    private: Path,
    folder: Path,
    options: TraceOptions,
    limits: Sequence[tuple[float, float]],
) -> None:
    if interpreter is not None:
        has_gdb = shutil.which("gdb") is not None
        wait_s = _REMOTE_BEFORE_GDB_S if has_gdb else _REMOTE_S
        for limit in limits:
            with suppress(OSError):
                swap_nofile(pid, limit)
                break
        try:
            failure = attach_remote.load(pid, interpreter, private, folder, options, wait_s)
        except PermissionError:
            raise TraceUnavailableError(_why_denied(pid, "Operation not permitted")) from None
        if not failure:
            return
        if not has_gdb:
            raise _cannot_attach(pid, failure)
    _inject_with_gdb(pid, folder, options, limits)


def _inject_with_gdb(pid: int, folder: Path, options: TraceOptions, limits: Sequence[tuple[float, float]]) -> None:
    settings = {
        "HOLDFAST_ATTACH_LIBRARY": str(LIBRARY),
        "HOLDFAST_ATTACH_FOLDER": str(folder),
        "HOLDFAST_ATTACH_OPTIONS": str(options.bits()),
        "HOLDFAST_ATTACH_ARM_ABOVE": str(options.arm_above),
        "HOLDFAST_ATTACH_NOFILE": " ".join(
            f"{-1 if value == math.inf else value:.0f}" for pair in limits for value in pair
        ),
    }
    before = ["set debuginfod enabled off", "set auto-load off", "set auto-solib-add off", "set confirm off"]
    arguments = ["gdb", "-batch", "-nx", *(word for line in before for word in ("-iex", line)), "-p", str(pid)]
    script = ["-x", str(Path(__file__).with_name("attach_gdb.py")), "-ex", "detach"]
    done = _run_gdb([*arguments, *script], {**os.environ, **settings})
    if done is None:
        raise TraceUnavailableError(f"gdb could not load the library into process {pid} within {_GDB_S:.0f} s")
    result = next((line for line in done.stdout.splitlines() if line.startswith("holdfast: ")), "")
    if result == "holdfast: ok":
        return
    said = done.stderr.strip().splitlines()
    if any("ptrace" in line or "not permitted" in line for line in said):
        raise TraceUnavailableError(_why_denied(pid, "Operation not permitted"))
    reason = result.removeprefix("holdfast: ") or (said[-1] if said else f"gdb ended with {done.returncode}")
    raise _cannot_attach(pid, reason)


def _cannot_attach(pid: int, reason: str) -> TraceUnavailableError:
    if os.strerror(errno.EMFILE) in reason:
        reason += "; its hard limit leaves no room: run as root with CAP_SYS_RESOURCE, which may raise it"
    return TraceUnavailableError(f"cannot attach to process {pid}: {reason}")


def _run_gdb(command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str] | None:
    """Runs gdb out of reach of Ctrl-C. It is never killed while it can still detach: the process would be left with a
    breakpoint or in the middle of a call."""
    with subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as gdb:
        try:
            out, err = gdb.communicate(timeout=_GDB_S)
            return subprocess.CompletedProcess(command, gdb.returncode, out, err)
        except BaseException as error:
            gdb.terminate()  # it detaches
            try:
                gdb.wait(_GDB_S)
            except subprocess.TimeoutExpired:
                gdb.kill()
            if isinstance(error, subprocess.TimeoutExpired):
                return None
            raise


def _stop(folder: Path) -> None:
    """Asks every traced process to stop recording: the next descriptor that it makes notices."""
    for path in folder.glob("fd.*.log"):
        try:
            log = open_in_folder(path, os.O_RDWR)
        except OSError:
            continue
        try:
            os.pwrite(log, struct.pack("<I", 1), _STOP_AT)
        finally:
            os.close(log)
