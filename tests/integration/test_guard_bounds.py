"""What a Guard takes stays bounded, however long the worker lives."""

from __future__ import annotations

import pytest

from guard_child import TAKEN, run_guarded

pytestmark = pytest.mark.usefixtures("guard_runtime")

# Objects of the interpreter: a growth of one for each call would be a million.
MAX_BLOCKS = 3_000
MAX_BYTES = 8 << 20


def test_memory_after_a_million_reports_and_many_jobs() -> None:
    done = run_guarded(
        """
import gc, random
guard = hold.Guard(every=EVERY, progress_timeout="1h")
error = ConnectionError(111, "refused")
def reports(times):
    for _ in range(times):
        guard.ok(); guard.step(); guard.draining
def jobs(times):
    for number in range(times):
        with guard.job(number):
            guard.step()
def fails(times):
    for _ in range(times):
        guard.fail(error)
        guard.ok()
def used():
    gc.collect()
    rss = int(open("/proc/self/statm").read().split()[1]) * 4096
    return sys.getallocatedblocks(), rss, threading.active_count()
fds = len(os.listdir("/proc/self/fd"))
with guard:
    reports(1_000); jobs(5_000); fails(100)
    guard._run.jobs.sample_due_ns = 0
    first = used()
    reports(1_000_000); jobs(100_000); fails(2_000)
    last = used()
    until(lambda: len(os.listdir("/proc/self/fd")) == fds + int(sys.argv[1]))  # a look in progress changes it
    say(*(after - before for before, after in zip(first, last)))
    assert guard._run.page.get("jobs_done") == 105_000 and guard._run.page.get("ok_calls") == 1_003_100
""",
        TAKEN,
    )
    assert done.code == 0, done
    blocks, rss, threads = map(int, done.out[0].split())
    assert blocks < MAX_BLOCKS
    assert rss < MAX_BYTES
    assert threads == 0


def test_memory_after_many_samples() -> None:
    """Six days of samples, taken as fast as possible on a clock of their own."""
    done = run_guarded("""
import gc
import holdfast.process.guard.run as module
class Clock:
    now = time.monotonic()
    def monotonic(self):
        Clock.now += 0.05
        return Clock.now
    def __getattr__(self, name):
        return getattr(time, name)
guard = hold.Guard(every="1h")
with guard:
    guard.ok()
    real, module.time = module.time, Clock()
    def days(number):
        for _ in range(number * 1440):
            Clock.now += 60
            guard._run.tick()
        gc.collect()
        return sys.getallocatedblocks()
    days(3)
    first = days(1)
    last = days(3)
    module.time = real
    assert not guard.draining, guard.reason
    say(last - first, len(guard._run.leak_watch.series.samples))
""")
    assert done.code == 0, done
    blocks, samples = map(int, done.out[0].split())
    assert samples < 6_000
    assert blocks < 30_000  # of the coarsest of three tiers


def test_requests_to_drain_do_not_pile_up() -> None:
    done = run_guarded("""
guard = hold.Guard(every=EVERY)
with guard:
    for _ in range(100_000):
        guard.drain("again")
    until(lambda: not guard._run.drain.waiting and guard._run.drain.wake.empty())
assert guard.exit_code == 75
""")
    assert done.code == 0, done
    assert len(done.logged) == 2


def test_a_fault_of_the_samples_is_logged_once_and_the_worker_stays_guarded() -> None:
    done = run_guarded("""
import holdfast.process.guard.own_process
real = holdfast.process.guard.own_process.OwnProcess.rss_bytes
guard = hold.Guard(every=0.001, max_jobs=1)
with guard:
    calls = []
    def broken(self):
        calls.append(1)
        raise MemoryError if len(calls) > 50 else OSError(5, "broken")
    holdfast.process.guard.own_process.OwnProcess.rss_bytes = broken
    until(lambda: len(calls) > 100)
    with guard.job():
        pass
    guard.wait()
""")
    assert done.code == 0, done
    assert done.logged[:2] == ["a sample failed: OSError: [Errno 5] broken", "a sample failed: MemoryError"]
    assert len(done.logged) == 5, done.logged  # the drain, the end, and a reminder of the exit code


def test_a_broken_sample_does_not_stop_the_clocks() -> None:
    """Without /proc, as after a chroot, the drain timeout still holds and the worker is not called frozen."""
    done = run_guarded("""
import holdfast.process.guard.own_process
guard = hold.Guard(every=EVERY, drain_timeout=0.2)
with guard:
    def broken(self):
        raise FileNotFoundError(2, "No such file", "/proc/self/fd")
    holdfast.process.guard.own_process.OwnProcess.count_fds = broken
    alive = guard._run.page.get("alive_ns")
    until(lambda: guard._run.page.get("alive_ns") > alive)
    guard.drain("the reason")
    until(lambda: False)
""")
    assert done.code == 70, done
    assert any("its drain (the reason) has taken" in line for line in done.logged)


def test_an_old_kernel_without_the_count_in_stat() -> None:
    done = run_guarded(
        """
import holdfast.process.guard.own_process as own
class Old(own.OwnProcess):
    def __init__(self):
        super().__init__()
        self._counts_in_stat = False
import holdfast.process.guard.run
holdfast.process.guard.run.OwnProcess = Old
guard = hold.Guard(every=EVERY, fds=hold.Cap(soft=100), eta=None)
with guard:
    with guard.job("one"):
        pass
    assert not guard._run.jobs.samples and guard._run.page.get("jobs_done") == 1
    kept = [os.dup(0) for _ in range(100)]
    guard.wait()
sys.exit(guard.exit_code)
""",
        nofile=512,
    )
    assert done.code == 75, done


def test_without_a_thread_for_the_callbacks() -> None:
    """No further thread is allowed: they are called by the guard's own."""
    done = run_guarded("""
guard = hold.Guard(every=EVERY)
called = []
guard.on_drain(lambda: called.append(threading.current_thread().name))
with guard:
    def start(self):
        raise RuntimeError("can't start new thread")
    threading.Thread.start = start
    guard.drain()
    guard.wait()
say(called, guard.exit_code)
""")
    assert (done.code, done.out) == (0, ["['holdfast-guard'] 75"]), done
