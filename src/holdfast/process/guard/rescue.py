"""Rescues a process that has run out of descriptors: raises its limit first, then finds out what happened.

The process may be about to end, so the steps are ordered by how much they help, and none depends on the one before: a
step that fails leaves a sentence in `problems`.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import pwd
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..._util.text import span_words
from ...errors import InputError
from ...procfs.descriptors import count
from ...procfs.limits import plan_limit, swap_nofile
from ...procfs.processes import Process, is_same, read_process, read_stat, read_status
from ...procfs.procfs import REAL, ProcFS, list_pids, number_or_none, read_or_none
from ..doctor.diagnose import SEVERITY, Diagnosed, Observation
from ..doctor.fd_profile import suspect_fds
from ..doctor.model import JobSample, Verdict
from ..doctor.verdict import is_exhausted
from ..fd_owners.agent import ask_owners, socket_paths
from .health import HealthFinding, classify_health
from .heartbeat import GuardState, Heartbeat, read_heartbeat
from .service_manager import ServiceManager, find_service_manager
from .signals import send_handled_signal
from .stacks import StackDump, dump_stacks

DRAIN_SIGNAL = signal.SIGUSR1
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD
_ENDED = frozenset("ZXx")
# A process 1 with another name is the program of a container.
_INITS = frozenset(
    {"systemd", "init", "launchd", "runit", "s6-svscan", "tini", "dumb-init", "docker-init", "catatonit"}
)
_SELECT = 1024  # select() cannot wait for a descriptor with this number or a higher one
_SHOWN_OWNERS = 5
_STEP_S = 0.05


# ---- which processes can be rescued


def check_target(pid: int, procfs: ProcFS = REAL, uid: int | None = None) -> Process:
    """Returns the process, or raises an InputError with the reason why not. `uid` is the user who asks."""
    uid = os.geteuid() if uid is None else uid
    own = procfs.own_pid()
    if own is not None and pid == own:
        raise InputError(f"expected another process, got {pid}, which is this command itself")
    if own is None or own != os.getpid():
        raise InputError(
            "this /proc belongs to another pid namespace, so that its numbers mean other processes here; "
            "run the command where the process runs (nsenter --target PID --pid --mount)"
        )
    process = read_process(procfs, pid)
    if process is None:
        raise InputError(f"there is no process {pid}{_inside_container(procfs, pid)}")
    status = read_status(procfs, pid)
    if status.get("Tgid", str(pid)) != str(pid):
        raise InputError(f"{pid} is a thread of process {status['Tgid']}; rescue that process")
    if process.state in _ENDED:
        raise InputError(f"process {pid} has ended; its parent {process.ppid} has not waited for it yet")
    if _is_kernel_thread(procfs, pid):
        raise InputError(f"process {pid} ({process.comm}) is a thread of the kernel, which has no descriptors")
    if pid == 1 and process.comm in _INITS:
        raise InputError(f"process 1 ({process.comm}) starts all others here and is left alone")
    owners = _owners(status, process)
    if uid and owners != {uid}:
        names = " and ".join(sorted(map(user_name, owners))) or "another user"
        raise InputError(
            f"process {pid} belongs to {names}, and this command runs as {user_name(uid)}; "
            f"run it as that user or as root: sudo holdfast rescue {pid}"
        )
    return process


def _inside_container(procfs: ProcFS, pid: int) -> str:
    """Names the process that has this number in its container: `NSpid:\\t41231\\t7` is 41231 here and 7 there."""
    for other in list_pids(procfs):
        if read_status(procfs, other).get("NSpid", "").split()[1:][-1:] == [str(pid)]:
            return f"; process {other} has that number inside of its container"
    return ""


def _is_kernel_thread(procfs: ProcFS, pid: int) -> bool:
    words = (read_or_none(procfs, f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    return len(words) > 6 and bool(int(words[6]) & _KERNEL_THREAD)


def _owners(status: dict[str, str], process: Process) -> set[int]:
    """Returns the real, effective and saved user: prlimit(2) asks for all of them."""
    known = {int(word) for word in status.get("Uid", "").split()[:3] if word.isdigit()}
    return known or ({process.uid} if process.uid is not None else set())


def user_name(uid: int) -> str:
    """`ami (1000)`, `user 4711` if it has no name."""
    try:
        return f"{pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return f"user {uid}"


# ---- the limit


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitChange:
    """The limits of open descriptors before and after; `math.inf` is unlimited, None unknown. `problem`: what failed.

    With `planned` nothing was changed: `soft` and `hard` are what they would be.
    """

    old_soft: float | None = None
    old_hard: float | None = None
    soft: float | None = None
    hard: float | None = None
    planned: bool = False
    problem: str = ""

    @property
    def raised(self) -> bool:
        return (self.soft, self.hard) != (self.old_soft, self.old_hard)


# ---- draining


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainResult:
    """How the process reacted to the request to drain. `exited` is None where nobody waited for it."""

    asked: bool = True
    draining: bool = False
    exited: bool | None = None
    waited_s: float = 0.0
    problem: str = ""

    @property
    def done(self) -> bool:
        return not self.problem and (self.exited if self.exited is not None else self.draining)


# ---- the steps


class Rescue:
    """The steps of a rescue, to be called in the order of the methods. Nothing is changed with `dry_run`."""

    def __init__(self, pid: int, *, dry_run: bool = False) -> None:
        self.process = check_target(pid)
        self.pid = pid
        self.user = read_user(REAL, pid)
        self.dry_run = dry_run
        self.change = LimitChange()
        self.fds: int | None = None
        self.found: Diagnosed | None = None
        self.page: Heartbeat | None = None
        self.health: HealthFinding | None = None
        self.stacks = StackDump()
        self.held_by: tuple[str, ...] = ()
        self.service_manager: ServiceManager | None = None
        self.drained: DrainResult | None = None
        self.problems: list[str] = []
        self.gone = False  # it had ended at the end of the rescue
        self.advice: list[str] = []

    @property
    def ended(self) -> bool:
        seen = read_stat(REAL, self.pid)
        return seen is None or seen.state in _ENDED or is_same(REAL, self.process.identity) is False

    @property
    def exhausted(self) -> bool:
        """Whether it still has next to no free descriptor, with the limit as it is now."""
        if self.drained is not None and self.drained.exited:
            return False
        soft = self.change.old_soft if self.change.planned else self.change.soft
        return is_exhausted(self.fds, soft)

    def raise_limit(self, want: int | None = None, want_hard: int | None = None) -> None:
        """Raises the soft limit to `want`, by default to the hard limit; root may raise that one to `want_hard`."""
        self.fds = count(REAL, self.pid)
        try:
            old_soft, old_hard = self._swap()
            soft, hard = plan_limit(old_soft, old_hard, want, want_hard)
            if want is not None and want > hard:
                self.problems.append(
                    f"a soft limit of {want:,} is above the hard one, {hard:,}: raise that, too, with --hard"
                )
            self.change = LimitChange(old_soft=old_soft, old_hard=old_hard, soft=soft, hard=hard, planned=self.dry_run)
            if not self.change.raised or self.dry_run:
                return
            self._must_be_same()
            try:
                self._swap((soft, hard))
            except PermissionError:
                if hard == old_hard:
                    raise
                self._problem(f"its hard limit was not raised to {hard:,.0f}: that needs root with CAP_SYS_RESOURCE")
                soft, hard = plan_limit(old_soft, old_hard, want, None)
                self._swap((soft, hard))
        except (OSError, ValueError) as error:
            self._limit_failed(error)
            return
        self.change = LimitChange(old_soft=old_soft, old_hard=old_hard, soft=soft, hard=hard)

    def _swap(self, new: tuple[float, float] | None = None) -> tuple[float, float]:
        """Returns the limits, and sets them if given."""
        call = functools.partial(swap_nofile, self.pid, new)
        try:
            return call()
        except PermissionError:
            now = call_as(self.user, call)
            return now[0], now[1]

    def _must_be_same(self) -> None:
        if self.ended:
            raise ProcessLookupError

    def _limit_failed(self, error: Exception) -> None:
        known = self.change
        if isinstance(error, ProcessLookupError):
            why = "it has ended"
        elif isinstance(error, PermissionError):
            why = "permission denied; run as its user, or as root with CAP_SYS_RESOURCE"
        else:
            why = str(error)
        self.change = LimitChange(
            old_soft=known.old_soft, old_hard=known.old_hard, soft=known.old_soft, hard=known.old_hard, problem=why
        )
        self._problem(f"its limit was not raised: {why}")

    def scan(self) -> None:
        """Inspects its descriptors, its heartbeat and what runs it."""
        with self._step("its heartbeat"):
            self.page = read_heartbeat(self.pid)
        if self.page is not None:
            seen = read_stat(REAL, self.pid)
            self.health = classify_health(self.page, time.monotonic_ns(), process_state=seen.state if seen else "S")
        with self._step("its descriptors"):
            jobs = [JobSample(job=number, fds=fds) for number, fds in (self.page.jobs if self.page else ())]
            cap = self.page.fd_soft_cap if self.page else 0
            self.found = Observation(self.pid).conclude(jobs=jobs, cap=cap or None)[0]
            self.fds = self.found.diagnosis.fds if self.found.diagnosis.fds is not None else self.fds
            if self.found.snapshot.descriptors is None:
                self._problem("its descriptors were not listed: permission denied (run as root)")
        inside = read_status(REAL, self.pid).get("NSpid", "").split()[1:]
        if inside and self.page is None:
            self._problem(f"it is {inside[-1]} inside of a container: a Guard and owners are found only from there")
        with self._step("what restarts it"):
            self.service_manager = find_service_manager(REAL, self.pid)

    def dump_stacks(self) -> None:
        with self._step("its stacks"):
            self.stacks = dump_stacks(self.pid, self.page, may_touch=not self.dry_run)
            if not self.stacks.source:
                self._problem(f"no stacks: {self.stacks.problem}")

    def ask_owners(self) -> None:
        """Asks the process which of its objects hold the descriptors, if it listens (a Guard, or hold.listen)."""
        with self._step("its owners"):
            fds = suspect_fds(self.found.snapshot) if self.found else []
            asked = call_as(self.user, lambda: _ask_owners(self.pid, fds))
            if asked is None:
                self._problem("no owners: the process does not listen, which hold.listen() and a hold.Guard do")
            elif not asked and self.fds:
                self._problem("no owners: the process listens, but did not answer")
            self.held_by = tuple(asked or ())

    def drain(
        self, wait_s: float, *, until_exit: bool = False, progress: Callable[[float], None] = lambda passed_s: None
    ) -> None:
        """Asks its Guard to drain, and waits until it does, or until it has ended; `wait_s` at most."""
        self.drained = self._drain(wait_s, until_exit, progress)
        if self.drained.problem:
            self._problem(f"not drained: {self.drained.problem}")

    def _drain(self, wait_s: float, until_exit: bool, progress: Callable[[float], None]) -> DrainResult:
        page = self.page
        if self.ended:
            return DrainResult(asked=False, problem="it has ended")
        if page is None or page.state is GuardState.ENDED:
            return DrainResult(
                asked=False, problem="it has no hold.Guard, so that it cannot be asked to finish its job"
            )
        if self.dry_run:
            return DrainResult(asked=False, problem=f"{DRAIN_SIGNAL.name} is not sent, because nothing may be changed")
        if page.state is not GuardState.DRAINING and (problem := send_handled_signal(page.identity, DRAIN_SIGNAL)):
            return DrainResult(asked=False, problem=problem)
        begin = time.monotonic()
        while True:
            passed_s = time.monotonic() - begin
            ended, now = self.ended, read_heartbeat(self.pid)
            # The page is removed at the very end, shortly before the process is gone.
            draining = ended or now is None or now.state in (GuardState.DRAINING, GuardState.ENDED)
            page = now or page
            if ended or (draining and not until_exit) or passed_s >= wait_s:
                break
            progress(passed_s)
            time.sleep(_STEP_S)
        late = "" if ended or (draining and not until_exit) else _late(wait_s, page, draining=draining)
        return DrainResult(
            draining=draining,
            exited=ended if until_exit or ended else None,
            waited_s=passed_s,
            problem=late,
        )

    # ---- what to do next

    def conclude(self) -> None:
        """Finds what to do next: how to keep it alive, restart it, find the cause, prevent it."""
        self.gone = self.ended
        self.advice = self._advise()

    def _advise(self) -> list[str]:
        if self.drained is not None and self.drained.exited:
            return [_again(self.service_manager)]
        if self.gone:
            return ["read its log for the reason, and start it again if nothing else does"]
        return [*self._keep_alive(), *self._restart(), *self._find_cause(), *self._prevent()]

    @property
    def was_exhausted(self) -> bool:
        """Whether it had next to no free descriptor, with the limit as it was."""
        return is_exhausted(self.fds, self.change.old_soft)

    @property
    def _is_suspect(self) -> bool:
        """Whether it will run out again, or does no work."""
        bad = self.found is not None and SEVERITY[self.found.diagnosis.verdict] >= SEVERITY[Verdict.GROWING]
        return bad or self.was_exhausted or (self.health is not None and self.health.health.is_bad)

    def _keep_alive(self) -> Iterator[str]:
        seen = read_stat(REAL, self.pid)
        if seen is not None and seen.state in "Tt":
            yield f"resume it, for it is stopped: kill -CONT {self.pid}"
        if self.change.planned and self.change.raised:
            yield f"raise its limit: holdfast rescue {self.pid}"
        elif self.exhausted:
            maximum = number_or_none(REAL, "/proc/sys/fs/nr_open") or 1 << 20
            goal = min(maximum, max(4096, 4 * int(self.change.hard or 0)))
            yield f"raise its hard limit as root: sudo holdfast rescue {self.pid} --hard {goal}"

    def _restart(self) -> Iterator[str]:
        if self.page is not None and self.page.state is GuardState.DRAINING:
            job = f" job {self.page.job}" if self.page.job else " its job"
            yield f"wait: it drains already, and exits after{job}"
            return
        if not self._is_suspect:
            return
        by = self.service_manager
        if self.page is not None:
            again = _again(by)
            if self.drained is None:
                yield f"let it finish its job and restart: holdfast rescue {self.pid} --drain; {again}"
            else:
                yield f"once it has ended: {again}"
        elif by is None:
            yield "restart it once its work is saved: no supervisor was found that would"
        elif by.restart:
            yield f"restart it once its work is saved: {by.restart}"
        elif by.kind == "torchrun":
            yield "restart it once a checkpoint is saved: torchrun (--max-restarts) restarts all ranks together"
        elif by.kind == "container":
            yield "restart its container once its work is saved"
        else:
            yield f"restart it once its work is saved: kill {self.pid}; {_again(by)}"

    def _find_cause(self) -> Iterator[str]:
        diagnosis = self.found.diagnosis if self.found is not None else None
        if diagnosis is None or not self._is_suspect:
            return
        match = diagnosis.match
        if match is None:
            yield f"watch it under load to see which kind grows: holdfast doctor {self.pid} --for 10m"
            return
        yield from match.advice
        if match.remedy is not None and SEVERITY[diagnosis.verdict] >= SEVERITY[Verdict.GROWING]:
            yield str(match.remedy)

    def _prevent(self) -> Iterator[str]:
        change = self.change
        if change.old_soft is None or not self._is_suspect:
            return
        if change.old_soft <= _SELECT < (change.soft or 0):
            yield f"replace select() by poll or epoll: it fails for descriptors of {_SELECT:,} and above"
        if self.was_exhausted and change.old_soft < (change.old_hard or 0):
            yield "call hold.raise_nofile() when the program starts: the raised limit ends with this process"
        elif self.was_exhausted:
            yield "raise the hard limit where it is started (LimitNOFILE= of systemd, --ulimit nofile= of docker)"
        if self.page is None:
            yield "give it a hold.Guard, which drains and restarts it before it runs out (docs/guard.md)"

    @contextlib.contextmanager
    def _step(self, what: str) -> Iterator[None]:
        """Turns an error into a sentence: the next step may still help."""
        try:
            yield
        except (OSError, ValueError, InputError) as error:
            self._problem("it has ended" if self.ended else f"cannot read {what}: {error}")

    def _problem(self, sentence: str) -> None:
        if sentence not in self.problems:
            self.problems.append(sentence)


def _again(by: ServiceManager | None) -> str:
    if by is None:
        return "start it again: no supervisor was found that would"
    return f"{by} starts it again" + (", if its restart policy demands it" if by.kind == "container" else "")


def _late(wait_s: float, page: Heartbeat, *, draining: bool) -> str:
    if not draining:
        return f"its Guard did not react within {span_words(wait_s)}; its stacks show what it waits for"
    at = f" with job {page.job}" if page.job else ""
    return f"it drains, but was not done{at} within {span_words(wait_s)}"


# ---- as its user


@dataclass(frozen=True, slots=True)
class UserIds:
    uid: int
    gid: int


def read_user(procfs: ProcFS, pid: int) -> UserIds | None:
    """Returns the real user and group of a process. Its folder in /proc may belong to root all the same."""
    status = read_status(procfs, pid)
    try:
        return UserIds(int(status["Uid"].split()[0]), int(status["Gid"].split()[0]))
    except (KeyError, IndexError, ValueError):
        return None


def call_as(user: UserIds | None, function: Callable[[], Any]) -> Any:
    """Returns what the function returns if it is called by that user, in a child if this process is root's.

    Root may lack the right that the user has: in most containers it cannot set the limits of another user's process,
    and no process reports to root what holds its descriptors. The result passes through JSON; of errors, OSError does.
    """
    if user is None or os.geteuid() or user.uid == 0:
        return function()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setresgid(user.gid, user.gid, user.gid)
            os.setresuid(user.uid, user.uid, user.uid)
            try:
                answered = {"result": function()}
            except OSError as error:
                answered = {"errno": error.errno}
            with open(write, "w") as answer:
                json.dump(answered, answer)
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    found = json.loads(text) if text else {"errno": errno.EPERM}
    if "errno" in found:
        raise OSError(found["errno"], os.strerror(found["errno"]))  # of the subclass of its number
    return found["result"]


def _ask_owners(pid: int, fds: Sequence[int]) -> list[str] | None:
    """Returns the most common owners; empty if the process does not answer, None if it does not listen."""
    if not socket_paths(pid):
        return None
    return [str(group) for group in (ask_owners(pid, fds or None) or ())[:_SHOWN_OWNERS]]
