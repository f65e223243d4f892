"""What a Guard takes stays bounded, however long the worker lives."""

from __future__ import annotations

import pytest

from guard_child import run_guarded

pytestmark = pytest.mark.usefixtures("guard_runtime")

# Objects of the interpreter: a growth of one for each call would be a million.
MOST_BLOCKS = 3_000
MOST_BYTES = 8 << 20


def test_memory_after_a_million_reports_and_many_jobs() -> None:
    done = run_guarded("""
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
    return sys.getallocatedblocks(), rss, os.stat("/proc/self/fd").st_size, threading.active_count()
with guard:
    reports(1_000); jobs(5_000); fails(100)
    guard._job_sample_due_ns = 0
    first = used()
    reports(1_000_000); jobs(100_000); fails(2_000)
    last = used()
    say(*(after - before for before, after in zip(first, last)))
    assert guard._page.get("jobs_done") == 105_000 and guard._page.get("ok_calls") == 1_003_100
""")
    assert done.code == 0, done
    blocks, rss, fds, threads = map(int, done.out[0].split())
    assert blocks < MOST_BLOCKS
    assert rss < MOST_BYTES
    assert (fds, threads) == (0, 0)


def test_memory_after_many_samples() -> None:
    """Six days of samples, taken as fast as possible on a clock of their own."""
    done = run_guarded("""
import gc
import holdfast.guard.guard as module
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
            guard._tick()
        gc.collect()
        return sys.getallocatedblocks()
    days(3)
    first = days(1)
    last = days(3)
    module.time = real
    assert not guard.draining, guard.reason
    say(last - first, len(guard._series.samples))
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
    until(lambda: not guard._requests and guard._wake.empty())
assert guard.exit_code == 75
""")
    assert done.code == 0, done
    assert len(done.logged) == 2


def test_a_fault_of_the_samples_is_logged_once_and_the_worker_stays_guarded() -> None:
    done = run_guarded("""
import holdfast.guard.own_process
real = holdfast.guard.own_process.OwnProcess.rss_bytes
guard = hold.Guard(every=0.001, max_jobs=1)
with guard:
    calls = []
    def broken(self):
        calls.append(1)
        raise MemoryError if len(calls) > 50 else OSError(5, "broken")
    holdfast.guard.own_process.OwnProcess.rss_bytes = broken
    until(lambda: len(calls) > 100)
    with guard.job():
        pass
    guard.wait()
""")
    assert done.code == 0, done
    assert done.logged[:2] == ["a sample failed: OSError: [Errno 5] broken", "a sample failed: MemoryError"]
    assert len(done.logged) == 4
