"""Which processes can be rescued, what their limits become, and what a rescue says when the process ends on the way."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from unit.procfs.fake_proc import FakeProc

from holdfast.cli.rescue import as_dict, exit_code
from holdfast.errors import InputError
from holdfast.process.guard.rescue import Rescue, check_target
from holdfast.process.guard.signals import send_handled_signal
from holdfast.procfs.limits import plan_limit
from holdfast.procfs.processes import Identity, read_stat
from holdfast.procfs.procfs import REAL

INF = float("inf")
GONE = 2**22 + 1  # above the highest pid there can be


@contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as child:
        try:
            yield child
        finally:
            child.kill()


# ---- limits ------------------------------------------------------------------------------------------------

PLANS: list[tuple[tuple[float, float, int | None, int | None], tuple[float, float]]] = [
    ((1024, 4096, None, None), (4096, 4096)),  # to the hard limit
    ((1024, 4096, 2048, None), (2048, 4096)),
    ((1024, 4096, 512, None), (1024, 4096)),  # never lowered
    ((1024, 4096, 9999, None), (4096, 4096)),  # not beyond the hard limit
    ((4096, 4096, None, None), (4096, 4096)),
    ((1024, 1024, None, 8192), (8192, 8192)),
    ((1024, 1024, 2048, 8192), (2048, 8192)),
    ((1024, 4096, None, 2048), (4096, 4096)),  # neither is the hard limit
    ((1024, INF, None, None), (INF, INF)),
    ((INF, INF, 4096, 4096), (INF, INF)),
]


@pytest.mark.parametrize(("given", "expected"), PLANS)
def test_the_new_limits(given: tuple[float, float, int | None, int | None], expected: tuple[float, float]) -> None:
    assert plan_limit(*given) == expected


# ---- which processes ---------------------------------------------------------------------------------------


def proc(pid: int = 4711, *, uid: int = 1000, comm: str = "worker", state: str = "S", **status: str) -> FakeProc:
    made = FakeProc(own=os.getpid())
    made.add_process(pid, comm=comm)
    made.files[f"/proc/{pid}/stat"] = made.files[f"/proc/{pid}/stat"].replace(") S ", f") {state} ")
    rows = {"Tgid": str(pid), "Uid": "\t".join([str(uid)] * 4)} | status
    made.files[f"/proc/{pid}/status"] = "".join(f"{name}:\t{value}\n" for name, value in rows.items())
    return made


def why_not(pid: int, procfs: FakeProc, uid: int = 1000) -> str:
    with pytest.raises(InputError) as caught:
        check_target(pid, procfs, uid)
    return str(caught.value)


def test_its_user_and_root_may_rescue_it() -> None:
    assert check_target(4711, proc(), 1000).pid == 4711
    assert check_target(4711, proc(), 0).pid == 4711


def test_another_user_may_not_and_is_reported_who_may() -> None:
    assert why_not(4711, proc(uid=54321), 54322) == (
        "process 4711 belongs to user 54321, and this command runs as user 54322; "
        "run it as that user or as root: sudo holdfast rescue 4711"
    )
    # A program that changed its user keeps the old one in one of its three: prlimit refuses that, too.
    assert "belongs to root (0) and user 54321" in why_not(4711, proc(uid=54321, Uid="54321 0 0 0"), 54321)


def test_a_process_that_ended_a_thread_and_the_kernels_own_are_refused() -> None:
    assert why_not(4711, proc(state="Z")) == "process 4711 has ended; its parent 1 has not waited for it yet"
    assert why_not(4711, proc(Tgid="4700")) == "4711 is a thread of process 4700; rescue that process"
    kernel = proc(uid=0, comm="kworker/0:1")
    text = kernel.files["/proc/4711/stat"].split()
    text[8] = str(0x00200040)
    kernel.files["/proc/4711/stat"] = " ".join(text)
    assert why_not(4711, kernel, 0) == (
        "process 4711 (kworker/0:1) is a thread of the kernel, which has no descriptors"
    )


def test_the_init_process_is_left_alone_but_not_the_program_of_a_container() -> None:
    assert why_not(1, proc(1, uid=0, comm="systemd"), 0) == (
        "process 1 (systemd) starts all others here and is left alone"
    )
    assert check_target(1, proc(1, uid=0, comm="python3"), 0).pid == 1


def test_a_number_that_is_only_known_in_a_container_is_explained() -> None:
    other = proc(41231, NSpid="41231\t7")
    assert why_not(7, other) == "there is no process 7; process 41231 has that number inside of its container"
    assert why_not(8, other) == "there is no process 8"


def test_a_proc_of_another_pid_namespace_is_refused() -> None:
    foreign = proc()
    foreign.own = os.getpid() + 1
    assert "this /proc belongs to another pid namespace" in why_not(4711, foreign)
    foreign.own = None
    assert "this /proc belongs to another pid namespace" in why_not(4711, foreign)


def test_this_process_a_real_thread_and_a_real_zombie_are_refused() -> None:
    with pytest.raises(InputError, match="is this command itself"):
        check_target(os.getpid())
    with pytest.raises(InputError, match=f"there is no process {GONE}"):
        check_target(GONE)
    going = threading.Event()
    thread = threading.Thread(target=going.wait)
    thread.start()
    try:
        with pytest.raises(InputError, match=f"{thread.native_id} is a thread of process {os.getpid()}"):
            check_target(thread.native_id or 0)
    finally:
        going.set()
        thread.join()
    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(InputError, match=f"process {child.pid} has ended; its parent {os.getpid()}"):
            check_target(child.pid)


# ---- a process that ends on the way ------------------------------------------------------------------------


@pytest.mark.parametrize("ends_after", range(5))
def test_it_may_end_before_any_step(ends_after: int) -> None:
    with sleeper() as child:
        work = Rescue(child.pid)
        steps = [work.raise_limit, work.scan, work.dump_stacks, work.ask_owners, lambda: work.drain(5.0)]
        for at, step in enumerate(steps):
            if at == ends_after:
                child.kill()
                child.wait()
            step()
    work.conclude()
    assert work.gone
    assert exit_code(work) == 3
    assert any("it has ended" in problem for problem in work.problems)
    assert work.advice == ["read its log for the reason, and start it again if nothing else does"]
    assert as_dict(work)["rescued"] is False


def test_the_limit_of_the_next_process_with_that_number_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    with sleeper() as child:
        work = Rescue(child.pid)
        before = resource.prlimit(child.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (64, before[1]))
        # The number is reused: the same pid with another start time.
        object.__setattr__(work.process, "start_ticks", (work.process.start_ticks or 0) - 1)
        work.raise_limit()
        assert work.change.problem == "it has ended"
        assert resource.prlimit(child.pid, resource.RLIMIT_NOFILE)[0] == 64


# ---- signals -----------------------------------------------------------------------------------------------


def test_no_signal_reaches_a_process_without_a_handler_or_another_one() -> None:
    with sleeper() as child:
        seen = read_stat(REAL, child.pid)
        assert seen is not None
        identity = Identity(child.pid, seen.start_ticks)
        assert send_handled_signal(identity, 10) == "it has no handler for SIGUSR1, which would end it"
        assert send_handled_signal(Identity(child.pid, seen.start_ticks - 1), 10) == "it has ended"
        assert child.poll() is None
    assert send_handled_signal(identity, 10) == "it has ended"


def test_a_process_with_a_handler_gets_it() -> None:
    program = "import signal; signal.signal(signal.SIGUSR1, lambda *_: exit(7)); print(flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        seen = read_stat(REAL, child.pid)
        assert seen is not None
        assert send_handled_signal(Identity(child.pid, seen.start_ticks), 10) == ""
        assert child.wait(60) == 7


def test_two_rescues_at_once_do_no_harm() -> None:
    with sleeper() as child:
        hard = resource.prlimit(child.pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (64, hard))
        works = [Rescue(child.pid) for _ in range(4)]
        threads = [threading.Thread(target=work.raise_limit) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert resource.prlimit(child.pid, resource.RLIMIT_NOFILE) == (hard, hard)
        assert all(not work.change.problem for work in works)
