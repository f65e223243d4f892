"""The reaper: a small process between the supervisor and each worker, so that no process of it is left.

    supervisor ── reaper ── worker ── its children
                    └────── processes whose parent has ended, such as daemons

The reaper adopts every process of the worker whose parent ends (PR_SET_CHILD_SUBREAPER), also one that has a session
of its own. When the worker has ended, it ends all others: SIGTERM, a short time, SIGKILL, until the kernel finds
none. When the supervisor has ended, even by SIGKILL, it first ends the worker as the supervisor would: a Guard
finishes its job. When the reaper itself is killed, the kernel kills the worker, and the supervisor adopts and kills the
others.

It is forked from the supervisor, which has one thread, and runs no other program. It reports over a socket: the
worker's pid with a pidfd, then the worker's exact status.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import math
import mmap
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from ...._util.process import die_with_forker
from .process_tree import identities, kill_tree, read_tree, signal_all
from .worker_machine import EndStep, Escalation, EscalationPlan, StepTimes, plan_stop
from .worker_watch import ask_guards, drain_time_s, read_pages

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_IN_CLOSE = 0x18  # a descriptor of the file, or its last mapping, was closed
_F_SETSIG = 10
_NAME = b"holdfast-reaper"
_LIBC = ctypes.CDLL(None, use_errno=True)
_MESSAGE_BYTES = 4096
_PAUSE_S = 0.01

_STARTED, _NOT_RUN, _ENDED = b"S", b"N", b"E"


def adopt_orphans() -> None:
    """Makes this process the parent of all descendants whose own parent ends."""
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot adopt the children of workers (prctl)")


def wake_group_at_end() -> None:
    """Makes the kernel send SIGCONT to the process group of this process when it ends, even by SIGKILL.

    A child that is stopped before its first instruction cannot ask for a parent-death signal. It has inherited the
    inotify descriptor made here, but not the mapping: the end of this process closes the mapped file, and inotify
    signals that to the group. Where the kernel refuses any of it, only such a child is not woken.
    """
    held = os.memfd_create("holdfast-supervisor")
    try:
        os.ftruncate(held, mmap.PAGESIZE)
        watch = _LIBC.inotify_init1(os.O_CLOEXEC)
        if watch < 0 or _LIBC.inotify_add_watch(watch, b"/proc/self/fd/%d" % held, _IN_CLOSE) < 0:
            return
        map_file = _LIBC.mmap  # mmap.mmap would keep a descriptor, which the child inherits
        map_file.restype = ctypes.c_void_p
        map_file.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        at = map_file(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED, held, 0)
        if at == ctypes.c_void_p(-1).value:
            return
        _LIBC.madvise(ctypes.c_void_p(at), ctypes.c_size_t(mmap.PAGESIZE), mmap.MADV_DONTFORK)
        fcntl.fcntl(watch, _F_SETSIG, signal.SIGCONT)
        fcntl.fcntl(watch, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(watch, fcntl.F_SETFL, fcntl.fcntl(watch, fcntl.F_GETFL) | os.O_ASYNC)
    finally:
        os.close(held)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLaunch:
    """How a worker is started, and how long it and its children get to end."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    nofile: tuple[int, int]
    stop_s: float
    grace_s: float
    drain_s: float | None = None  # None: as in the worker's Guard


# ---- in the supervisor


class WorkerStarted(NamedTuple):
    pid: int
    pidfd: int


class WorkerNotRun(NamedTuple):
    errno: int


class WorkerEnded(NamedTuple):
    status: int  # as waitpid returns it


ReaperMessage = WorkerStarted | WorkerNotRun | WorkerEnded


class Reaper:
    """A running reaper, as the supervisor sees it."""

    def __init__(self, pid: int, pidfd: int, channel: socket.socket) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.channel = channel

    def receive(self) -> ReaperMessage | None:
        """Returns the next message, or None: there is none now, or the reaper has ended."""
        try:
            data, fds, _, _ = socket.recv_fds(self.channel, _MESSAGE_BYTES, 4)
        except OSError:
            return None
        kind, number = data[:1], data[1:]
        if kind == _STARTED and number:
            return WorkerStarted(int(number), fds[0] if fds else -1)
        if kind == _NOT_RUN and number:
            return WorkerNotRun(int(number))
        if kind == _ENDED and number:
            return WorkerEnded(int(number))
        return None

    def close(self) -> None:
        self.channel.close()
        os.close(self.pidfd)


def start_reaper(launch: WorkerLaunch) -> Reaper:
    """Forks a reaper, which starts the worker. OSError: no descriptor or no process is left."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    ours.setblocking(False)  # recv_fds ignores its flags
    parent = os.getpid()
    try:
        pid = fork_with(lambda: _Reaping(launch, theirs, parent).run(), keep=theirs.fileno())
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        ours.close()  # makes the reaper end
        os.kill(pid, signal.SIGKILL)
        raise
    return Reaper(pid, pidfd, ours)


def fork_with(work: Callable[[], None], keep: int) -> int:
    """Forks a child that only calls `work`, and returns its pid.

    No signal is lost between the fork and the child's own handlers: all are blocked meanwhile. The child closes what a
    program would not inherit, except `keep`: it must not hold the supervisor's ends of sockets and pipes open.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return pid
    status = 1
    try:
        # The end of its parent wakes a stopped child, which then finds that it has another parent. A child that is
        # stopped before this call is woken by `wake_group_at_end`.
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)
        gc.disable()
        signal.set_wakeup_fd(-1)
        _close_private(keep)
        work()
        status = 0
    finally:
        os._exit(status)


def _close_private(keep: int) -> None:
    try:
        fds = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        fds = list(range(3, 1024))
    for fd in fds:
        if fd > 2 and fd != keep:
            with contextlib.suppress(OSError):
                if fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC:
                    os.close(fd)


def reset_signals() -> None:
    """Gives all signals their default action and blocks none. It must follow a fork with all signals blocked."""
    for number in signal.valid_signals():
        with contextlib.suppress(OSError, ValueError):  # SIGKILL, SIGSTOP and those of the C library
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


# ---- in the reaper


class _Reaping:
    def __init__(self, launch: WorkerLaunch, channel: socket.socket, supervisor: int) -> None:
        self._launch = launch
        self._channel = channel
        self._supervisor = supervisor
        self._worker = 0
        self._must_stop = False
        self._escalation: Escalation | None = None  # of the worker, or of what it left
        self._wake_r, self._wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self) -> None:
        os.setsid()
        adopt_orphans()
        _LIBC.prctl(_PR_SET_NAME, _NAME, 0, 0, 0)
        if os.getppid() != self._supervisor:
            return
        self._handle_signals()
        if self._start():
            try:
                self._keep()
            finally:
                _end_all()

    def _handle_signals(self) -> None:
        """SIGTERM, and SIGCONT from the kernel when the supervisor has ended, end the worker. All others that could end
        the reaper are ignored: they are not meant for it."""

        def stop(number: int, *_: object) -> None:
            self._must_stop |= number == signal.SIGTERM or os.getppid() != self._supervisor

        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS}:
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGCONT, stop)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _start(self) -> bool:
        """Starts the worker. Returns False if its program cannot be run, which it reports to the supervisor."""
        reaper = os.getpid()
        error_r, error_w = os.pipe2(os.O_CLOEXEC)
        try:
            self._worker = fork_with(lambda: _exec(self._launch, error_w, reaper), keep=error_w)
        except OSError as error:
            self._report(_NOT_RUN, error.errno or 1)
            return False
        os.close(error_w)
        failed = os.read(error_r, 16)  # empty: the program runs, and the descriptor was closed by that
        os.close(error_r)
        if failed:
            os.waitpid(self._worker, 0)
            self._report(_NOT_RUN, int(failed))
            return False
        # The worker is a child that is not reaped yet, so its pid is still its own.
        try:
            pidfd = os.pidfd_open(self._worker)
        except OSError:
            self._report(_STARTED, self._worker)
            return True
        self._report(_STARTED, self._worker, pidfd)
        os.close(pidfd)
        return True

    def _report(self, kind: bytes, number: int, *fds: int) -> None:
        with contextlib.suppress(OSError):  # the supervisor has ended
            socket.send_fds(self._channel, [b"%s%d" % (kind, number)], fds)

    def _keep(self) -> None:
        """Waits until no process is left."""
        poll = select.poll()
        poll.register(self._wake_r, select.POLLIN)
        poll.register(self._channel, select.POLLIN)
        while self._reap():
            due_s = self._end_rest(time.monotonic()) if self._must_stop or not self._worker else math.inf
            timeout_s = max(0.0, due_s - time.monotonic())
            for fd, _ in poll.poll(None if timeout_s == math.inf else math.ceil(timeout_s * 1000)):
                if fd == self._wake_r:
                    with contextlib.suppress(OSError):
                        os.read(self._wake_r, 4096)
                else:  # the supervisor sends nothing: it has ended
                    self._must_stop = True
                    poll.unregister(fd)

    def _reap(self) -> bool:
        """Reaps everything that has ended. Returns False if no child is left, dead or alive."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            if pid == self._worker:
                self._worker = 0
                self._escalation = None  # its children get SIGTERM, and their own time
                self._report(_ENDED, status)

    def _end_rest(self, now_s: float) -> float:
        """Takes the steps that are due, and returns when the next one is."""
        if self._escalation is None:
            self._escalation = Escalation(self._plan(), now_s)
        match self._escalation.next_step(now_s):
            case EndStep.ASK:
                if not ask_guards(read_pages(read_tree(os.getpid()))):
                    os.kill(self._worker, signal.SIGTERM)  # it is not reaped yet, so its pid is still its own
                    os.kill(self._worker, signal.SIGCONT)
            case EndStep.TERM:
                rest = identities(read_tree(os.getpid()))
                signal_all(rest, signal.SIGTERM)
                signal_all(rest, signal.SIGCONT)  # a stopped process gets SIGTERM only then
            case EndStep.KILL:
                kill_tree(os.getpid())
        return self._escalation.due_s

    def _plan(self) -> EscalationPlan:
        if not self._worker:
            steps = ((EndStep.TERM, self._launch.grace_s), (EndStep.KILL, math.inf))
            return EscalationPlan(reason=None, sentence="its worker has ended", steps=steps, is_planned=True)
        pages = read_pages(read_tree(os.getpid()))
        times = StepTimes(stop_s=self._launch.stop_s, drain_s=drain_time_s(pages, self._launch.drain_s))
        return plan_stop("the supervisor has ended", times)


def _end_all() -> None:
    """Kills what is left after an error in the reaper itself."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        kill_tree(os.getpid())
        time.sleep(_PAUSE_S)


def _exec(launch: WorkerLaunch, error_w: int, reaper: int) -> NoReturn:
    try:
        os.setpgid(0, 0)
        die_with_forker(reaper)
        environment = dict(launch.environment)
        if "LISTEN_PID" in environment:  # sockets that systemd passes on are for the process with this pid
            environment["LISTEN_PID"] = str(os.getpid())
        soft, hard = launch.nofile
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        reset_signals()
        os.execvpe(launch.command[0], launch.command, environment)
    except OSError as error:
        os.write(error_w, b"%d" % (error.errno or 1))
    finally:
        os._exit(127)
