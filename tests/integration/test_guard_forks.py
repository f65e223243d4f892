"""A Guard and the children of its process: they have no guard, no handlers of it, and cannot touch its page."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from guard_child import guarded, run_guarded

pytestmark = pytest.mark.usefixtures("guard_runtime")

# `in_child(work)` forks, and returns how the child ended: 0, or what `work` exits with, or the negative signal.
FORKS = """
def in_child(work, tell=None):
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.close(ours)
            code = work(theirs) or 0
        except SystemExit as error:
            code = error.code or 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    os.close(theirs)
    if tell:
        assert os.read(ours, 1) == b"x"  # it is ready
        tell(pid)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(ours)
    return code
def wait_in_child(theirs):
    os.write(theirs, b"x")
    threading.Event().wait(30)
def numbers(guard):
    names = ("pid", "state", "ok_calls", "fails", "jobs_started", "jobs_done", "step_ns", "drain_ns", "exit_code")
    return {name: guard._run.page.get(name) for name in names}
"""


def test_a_forked_child_has_no_guard(guard_runtime: Path) -> None:
    done = run_guarded(
        FORKS
        + """
guard = hold.Guard("worker", every=EVERY)
before_fds = set(os.listdir("/proc/self/fd"))
with guard:
    guard.ok()
    job = guard.job("before")
    job.__enter__()
    before = numbers(guard)
    def work(theirs):
        assert len(set(os.listdir("/proc/self/fd")) - before_fds) == 1, os.listdir("/proc/self/fd")  # `theirs`
        assert threading.active_count() == 1
        assert not guard.draining and not guard.wants_restart and guard.exit_code == 0
        guard.ok(); guard.step(); guard.drain(); guard.fail(OSError(errno.EMFILE, "not ours"))
        with guard.job("in the child"):
            pass
        job.__exit__(None, None, None)
        assert guard.wait() is False and not guard.draining
        assert repr(guard) == "<Guard worker: not active, 0 jobs done>"
        guard.__exit__(None, None, None)
        sys.exit(7)
    assert in_child(work) == 7
    assert numbers(guard) == before
    assert guard._run.page.path.exists()
    alive = guard._run.page.get("alive_ns")
    until(lambda: guard._run.page.get("alive_ns") > alive)
    job.__exit__(None, None, None)
    assert guard._run.page.get("jobs_done") == 1
    guard.drain()
sys.exit(guard.exit_code)
"""
    )
    assert done.code == 75, done
    assert not list(guard_runtime.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_signals_kill_a_forked_child_and_spare_its_parent(number: signal.Signals) -> None:
    done = run_guarded(
        FORKS
        + """
number = int(sys.argv[1])
with hold.Guard(every=EVERY) as guard:
    def from_thread():
        codes.append(in_child(wait_in_child, lambda pid: os.kill(pid, number)))
    codes = []
    from_thread()
    thread = threading.Thread(target=from_thread)
    thread.start()
    thread.join()
    def child_of_child(theirs):
        return -in_child(wait_in_child, lambda pid: os.kill(pid, number))
    codes.append(-in_child(child_of_child))
    assert not guard.draining
say(codes)
""",
        int(number),
    )
    assert (done.code, done.out) == (0, [f"[-{number}, -{number}, -{number}]"]), done


# `dies_of(number)` sends the signal right after a fork, and returns how the child ended: by SIGALRM if it was lost.
AT_ONCE = """
def dies_of(number):
    pid = os.fork()
    if not pid:
        signal.alarm(5)
        while True:
            signal.pause()
    os.kill(pid, number)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def many(number, expected):
    for _ in range(50):
        if (code := dies_of(number)) != expected:
            return code
    return "all"
def in_thread(*arguments):
    found = []
    thread = threading.Thread(target=lambda: found.append(many(*arguments)))
    thread.start()
    thread.join()
    return found.pop()
"""


def test_a_signal_right_after_the_fork_is_not_lost() -> None:
    """Python forgets in a child which signals its handlers have seen since the fork: the parent's must see none."""
    done = run_guarded(
        FORKS
        + AT_ONCE
        + """
with hold.Guard(every=EVERY) as guard:
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        say(many(number, -number), in_thread(number, -number))
    def child(theirs):
        with hold.Guard(every=EVERY):
            return many(signal.SIGTERM, -15) != "all"
    say(in_child(child))  # also under a guard of its own
    assert not guard.draining
"""
    )
    assert (done.code, done.out) == (0, ["all all"] * 3 + ["0"]), done
    assert "Current thread" not in done.log  # SIGUSR2 wrote no stacks of a child


def test_a_signal_right_after_the_fork_meets_the_handler_of_before() -> None:
    done = run_guarded(
        AT_ONCE
        + """
def leave(number, frame): os._exit(33)
signal.signal(signal.SIGTERM, leave)
with hold.Guard(every=EVERY):
    say(many(signal.SIGTERM, 33))
"""
    )
    assert (done.code, done.out) == (0, ["all"]), done


def test_the_signal_mask_is_what_it_was() -> None:
    """Blocked are the guard's signals for the time of a fork only, and not those that the program blocks itself."""
    done = run_guarded(
        FORKS
        + """
import subprocess
def mask(): return signal.pthread_sigmask(signal.SIG_BLOCK, ())
for blocked in (set(), {signal.SIGUSR1, signal.SIGHUP}):
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    with hold.Guard(every=EVERY):
        assert in_child(lambda theirs: mask() != blocked) == 0
        assert in_child(lambda theirs: in_child(lambda theirs: mask() != blocked)) == 0
        for how in ({}, {"preexec_fn": lambda: None}):
            command = [sys.executable, "-c", "import signal; print([int(n) for n in signal.pthread_sigmask(0, ())])"]
            assert set(eval(subprocess.check_output(command, **how))) == blocked
        try:
            subprocess.Popen("/no/such/program", preexec_fn=lambda: None)
        except FileNotFoundError:
            pass
        assert mask() == blocked
    assert mask() == blocked
"""
    )
    assert done.code == 0, done


def test_handlers_of_before_are_back_in_the_child() -> None:
    done = run_guarded(
        FORKS
        + """
def before(number, frame): os._exit(33)
signal.signal(signal.SIGTERM, before)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
with hold.Guard(every=EVERY) as guard:
    def work(theirs):
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
        wait_in_child(theirs)
    say(in_child(work, lambda pid: os.kill(pid, signal.SIGTERM)))
"""
    )
    assert (done.code, done.out) == (0, ["33"]), done


def test_a_child_may_have_a_guard_of_its_own(guard_runtime: Path) -> None:
    done = run_guarded(
        FORKS
        + """
from holdfast.process.guard.heartbeat import read_heartbeat
guard = hold.Guard("parent", every=EVERY)
parent = os.getpid()
with guard:
    guard.ok()
    def work(theirs):
        own = hold.Guard("child", every=EVERY, max_jobs=1)
        with own:
            assert read_heartbeat(os.getpid()).name == "child"
            assert read_heartbeat(parent).name == "parent"
            with own.job("one"):
                pass
            own.wait()
            def grandchild(theirs):
                with hold.Guard("grandchild") as third:
                    assert read_heartbeat(os.getpid()).name == "grandchild"
            assert in_child(grandchild) == 0
            assert read_heartbeat(os.getpid()).name == "child"
        assert read_heartbeat(os.getpid()) is None
        return own.exit_code
    assert in_child(work) == 75
    page = read_heartbeat(os.getpid())
    assert (page.name, page.jobs_done, page.state.name) == ("parent", 0, "RUNNING")
    assert in_child(lambda theirs: in_child(work)) == 75  # also where its own parent has none
"""
    )
    assert done.code == 0, done
    assert not list(guard_runtime.iterdir())


def test_forks_while_other_threads_report() -> None:
    """A lock that another thread held at the fork would stay locked in the child."""
    done = run_guarded(
        FORKS
        + """
guard = hold.Guard(every=0.001, progress_timeout="1h")
over = False
def report():
    while not over:
        guard.ok(); guard.fail("x"); guard.step()
        with guard.job("x"):
            pass
def work(theirs):
    signal.alarm(20)  # kills it if it is stuck
    guard.ok(); guard.fail("x"); guard.drain()
    with guard.job("y"):
        pass
    with hold.Guard(every=EVERY) as own:
        own.ok()
        with own.job("z"):
            pass
with guard:
    threads = [threading.Thread(target=report) for _ in range(3)]
    for thread in threads:
        thread.start()
    codes = {in_child(work) for _ in range(30)}
    over = True
    for thread in threads:
        thread.join()
say(codes)
"""
    )
    assert (done.code, done.out) == (0, ["{0}"]), done


def test_a_fork_after_the_end_of_a_guard_closes_nothing_of_others() -> None:
    done = run_guarded(
        FORKS
        + """
guard = hold.Guard(every=EVERY)
with guard:
    pass
files = [open(os.devnull) for _ in range(40)]  # they have the numbers that the guard had
def work(theirs):
    for file in files:
        file.fileno(), os.fstat(file.fileno())
    with hold.Guard() as own:
        pass
say(in_child(work))
"""
    )
    assert (done.code, done.out, done.log.count("Exception ignored")) == (0, ["0"], 0), done


# ---- subprocesses and multiprocessing ----------------------------------------------------------------------


def test_a_subprocess_inherits_neither_descriptors_nor_handlers() -> None:
    done = run_guarded("""
import subprocess
look = ["python3", "-S", "-c", "import os, signal; print(len(os.listdir('/proc/self/fd')), "
        "[signal.getsignal(n).name for n in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)])"]
look[0] = sys.executable
def run(**how):
    return subprocess.run(look, capture_output=True, text=True, check=True, **how).stdout
before = run(close_fds=False)
assert "SIG_DFL" in before
with hold.Guard(every=EVERY) as guard:
    assert run(close_fds=False) == before
    assert run(close_fds=False, preexec_fn=lambda: None) == before
    child = subprocess.Popen(["sleep", "60"])
    child.terminate()
    assert child.wait() == -15
    assert not guard.draining and guard._run.page.path.exists()
""")
    assert done.code == 0, done


MULTI = """
import multiprocessing, os, signal, sys, threading
import holdfast as hold
from holdfast.process.guard.heartbeat import read_heartbeat
def inside(connection):
    import holdfast.process.guard.guard as module
    assert module._active is None
    with hold.Guard("child", every=0.02) as own:
        own.ok()
        connection.send((read_heartbeat(os.getpid()).name, os.getpid()))
        connection.recv()
def waits(connection):
    connection.send(os.getpid())
    threading.Event().wait(30)
def square(number):
    return number * number
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    guard = hold.Guard("parent", every=0.02)
    with guard:
        ours, theirs = context.Pipe()
        process = context.Process(target=inside, args=(theirs,))
        process.start()
        name, pid = ours.recv()
        assert (name, pid) == ("child", process.pid)
        assert read_heartbeat(pid).name == "child" and read_heartbeat(os.getpid()).name == "parent"
        ours.send("end")
        process.join()
        assert process.exitcode == 0 and read_heartbeat(os.getpid()).name == "parent"
        process = context.Process(target=waits, args=(theirs,))
        process.start()
        ours.recv()
        process.terminate()  # SIGTERM
        process.join()
        assert process.exitcode == -signal.SIGTERM, process.exitcode
        with context.Pool(2) as pool:
            assert pool.map(square, range(20)) == [number * number for number in range(20)]
        pool.join()  # the end of the block terminated its workers
        assert not guard.draining
        guard.drain()
    sys.exit(guard.exit_code)
"""


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_multiprocessing(how: str, tmp_path: Path, guard_runtime: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(MULTI)
    done = run_guarded(f"sys.argv[0] = 'x'\nos.execv(sys.executable, [sys.executable, {str(program)!r}, {how!r}])")
    assert done.code == 75, done
    assert not list(guard_runtime.iterdir())


TORCH = """
import torch
from torch.utils.data import DataLoader, Dataset
class Numbers(Dataset):
    def __len__(self): return 10_000
    def __getitem__(self, at): return torch.tensor([float(at)])
guard = hold.Guard("trainer", every=EVERY, progress_timeout="1min")
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
def train(after_steps):
    steps = 0
    loader = DataLoader(Numbers(), batch_size=8, num_workers=2)
    batches = iter(loader)
    for batch in batches:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        guard.step()
        steps += 1
        after_steps(steps, batches._workers)
        if guard.draining:
            break
    return steps
killed = []
def kill_a_worker(steps, workers):
    if steps == 3:
        killed.append(workers[0])
        workers[0].terminate()
def drain(steps, workers):
    if steps == 3:
        os.kill(os.getpid(), signal.SIGUSR1)
if __name__ == "__main__":
    with guard:
        try:
            train(kill_a_worker)
        except (RuntimeError, OSError, EOFError):
            pass  # of the lost worker
        killed[0].join(30)
        say(killed[0].exitcode)
        assert not guard.draining
        say(train(drain) < 1000)
    sys.exit(guard.exit_code)
"""


def test_a_torch_training_loop_with_workers() -> None:
    done = run_guarded(TORCH)
    assert done.code == 75, done
    killed, drained = done.out
    assert killed in ("0", "-15")  # torch has a handler of its own in workers, for signals of their parent
    assert drained == "True"


# ---- the first process of a container ----------------------------------------------------------------------

CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes a pid namespace")


@AS_ROOT
@pytest.mark.needs("unshare")
def test_pid_1_drains_on_sigterm_and_its_children_die_of_it() -> None:
    done = run_guarded(
        FORKS
        + """
import subprocess
from holdfast.process.guard.heartbeat import read_heartbeat
guard = hold.Guard("first", every=EVERY)
with guard:
    assert os.getpid() == 1 and read_heartbeat(1).name == "first"
    assert in_child(wait_in_child, lambda pid: os.kill(pid, signal.SIGTERM)) == -15
    with guard.job("one"):
        subprocess.run(["kill", "-TERM", "1"], check=True)
        guard.wait()
say(guard.reason)
sys.exit(guard.exit_code)
""",
        before=CONTAINER,
    )
    assert (done.code, done.out) == (0, ["SIGTERM"]), done
    assert done.logged[-1] == "ended after 1 job; SIGTERM"


@AS_ROOT
@pytest.mark.needs("unshare")
def test_pid_1_ends_at_once_even_if_its_dump_is_stuck() -> None:
    """The kernel ignores SIGALRM and SIGABRT for it."""
    done = run_guarded(
        """
import holdfast.process.guard.emergency
holdfast.process.guard.emergency._MAX_DUMP_S = 0.5
holdfast.process.guard.emergency.dump = lambda *_, **__: threading.Event().wait(50)
with hold.Guard(every=EVERY, threads=hold.Cap(hard=50)) as guard:
    assert os.getpid() == 1
    for _ in range(50):
        threading.Thread(target=threading.Event().wait, args=(50,), daemon=True).start()
    threading.Event().wait(50)
""",
        before=CONTAINER,
    )
    assert done.code == 1, done
    assert done.logged[0].startswith("ends at once with exit code 70: it uses ")


@AS_ROOT
@pytest.mark.needs("unshare")
def test_a_page_of_a_container_is_not_removed_from_outside(guard_runtime: Path) -> None:
    """Its pid does not exist here, or is another process's."""
    with guarded(
        'with hold.Guard("inside", every=EVERY):\n    say("ready")\n    sys.stdin.readline()', before=CONTAINER
    ) as inside:
        inside.line()
        [page] = guard_runtime.glob("*.heartbeat")
        assert page.name.startswith("1-")
        assert run_guarded('with hold.Guard("outside"): pass').code == 0
        assert page.exists()
        inside.tell()
        assert inside.end().code == 0
        assert not page.exists()
