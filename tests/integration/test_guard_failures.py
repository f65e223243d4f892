"""What fail(), failing jobs and missing progress do to a worker with a Guard."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

from guard_child import guarded, run_guarded, wait_for

pytestmark = pytest.mark.usefixtures("guard_runtime")


# ---- failures ----------------------------------------------------------------------------------------------


FAILS = """
class Silent(Exception):
    def __str__(self): raise ZeroDivisionError
def wrapped():
    import ssl
    from urllib.error import URLError
    try:
        raise OSError(errno.EMFILE, "Too many open files")
    except OSError as error:
        return URLError(ssl.SSLError(error))
def handled():
    try:
        try:
            raise OSError(errno.EMFILE, "Too many open files")
        except OSError:
            raise ValueError("while it was handled")
    except ValueError as error:
        return error
guard = hold.Guard(every=EVERY, fds=None, eta=None)
with guard:
    guard.fail(eval(sys.argv[1]))
    say(guard.draining, guard.reason)
    guard.ok()
sys.exit(guard.exit_code)
"""


# The same in a process that has hardly a descriptor left.
SHORT = FAILS.replace("    guard.fail(", "    kept = fill(5)\n    guard.fail(")


@pytest.mark.parametrize(
    "error",
    [
        "OSError(errno.EMFILE, 'no')",
        "wrapped()",
        "handled()",
        "ExceptionGroup('all', [OSError(24, 'x')])",
        "RuntimeError('x: Too many open files')",
    ],
)
def test_emfile_however_wrapped_ends_a_process_that_is_short_of_descriptors(error: str) -> None:
    done = run_guarded(SHORT, error, nofile=256)
    assert (done.code, done.out) == (70, []), done
    assert re.match(r"ends at once with exit code 70: it has no free descriptor: EMFILE \(", done.logged[0])


FOREIGN = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
def raises(what):
    raise MemoryError if what == "memory" else OSError(errno.EMFILE, "Too many open files")
def of_pool(what):
    with multiprocessing.get_context("fork").Pool(1) as pool:
        try:
            pool.apply(raises, (what,))
        except (OSError, MemoryError) as error:
            return error
def of_executor(what):
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(raises, what).exception()
other_is_done = threading.Event()
def other():
    with guard.job("other"):
        other_started.set()
        until(lambda: guard._run.page.get("fails"))
    other_is_done.set()
other_started = threading.Event()
guard = hold.Guard(every=EVERY)
with guard:
    errors = [eval(text) for text in sys.argv[1:]]
    threading.Thread(target=other).start()
    other_started.wait()
    for error in errors:
        try:
            with guard.job("this"):
                raise error
        except type(error):
            pass
    other_is_done.wait(50)
    say(guard.draining, guard._run.page.get("jobs_done"), guard._run.page.get("jobs_failed"))
sys.exit(guard.exit_code)
"""


def test_an_emfile_of_others_is_a_failure_and_costs_no_job() -> None:
    """Of a worker process, of inotify's limit for the user, of another machine."""
    errors = [f"of_{where}('{what}')" for where in ("pool", "executor") for what in ("fds", "memory")]
    texts = ["Too many open files", "Caught MemoryError in DataLoader worker process 0.\\nCannot allocate memory"]
    done = run_guarded(
        FOREIGN,
        *errors,
        *["OSError(24, 'inotify instance limit reached')"] * 2,
        *(f'RuntimeError("{one}")' for one in texts),
    )
    assert (done.code, done.out) == (0, ["False 1 8"]), done
    said = "EMFILE (OSError: [Errno 24] Too many open files) is a failure like others: this process uses "
    assert done.logged[0].startswith(said)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("OSError(errno.ENFILE, 'full')", "ENFILE (OSError: [Errno 23] full)"),
        ("OSError(errno.ENOMEM, 'full')", "ENOMEM (OSError: [Errno 12] full)"),
        ("MemoryError()", "ENOMEM (MemoryError)"),
        ("RuntimeError('fork: Cannot allocate memory')", "ENOMEM (RuntimeError: fork: Cannot allocate memory)"),
    ],
)
def test_other_shortages_drain(error: str, reason: str) -> None:
    done = run_guarded(FAILS, error)
    assert (done.code, done.out) == (75, [f"True {reason}"]), done


@pytest.mark.parametrize(
    "error",
    [
        "None",
        "'a text'",
        "ValueError('x')",
        "Silent()",
        "ConnectionRefusedError(111, 'x')",
        "KeyboardInterrupt()",
        # the process itself has enough: this is about another process or machine
        "RuntimeError('the server said: Too many open files')",
    ],
)
def test_other_failures_go_on(error: str) -> None:
    done = run_guarded(FAILS, error)
    assert (done.code, done.out) == (0, ["False "]), done


def test_failures_are_on_the_page() -> None:
    with guarded("""
guard = hold.Guard("worker", every=EVERY)
with guard:
    guard.fail(ConnectionRefusedError(111, "no\\nserver\\x1b[2J"))
    guard.fail("text")
    guard.fail()
    say("ready")
    sys.stdin.readline()
    guard.fail(OSError(113, "no route"))
    guard.ok()
    say("ok")
    sys.stdin.readline()
""") as child:
        child.line()
        page = child.page()
        assert (page.fails, page.fails_in_row, page.errno, page.error, page.state.name) == (3, 3, 0, "", "RUNNING")
        child.tell()
        child.line()
        page = child.page()
        assert (page.fails, page.fails_in_row, page.errno) == (4, 0, 113)
        assert page.error == "OSError: [Errno 113] no route"
        assert page.ok_ns >= page.fail_ns > 0
        child.tell()
        assert child.end().code == 0


def test_errors_in_jobs_are_raised_and_counted() -> None:
    done = run_guarded("""
import asyncio
guard = hold.Guard(every=EVERY)
with guard:
    for error in (ValueError("x"), KeyboardInterrupt(), SystemExit(3), GeneratorExit(), asyncio.CancelledError()):
        try:
            with guard.job("a\\nb"):
                raise error
        except BaseException as caught:
            assert caught is error
    with guard.job(object()):
        with guard.job():
            assert guard._run.page.get("jobs_active") == 2
    names = ("jobs_done", "jobs_failed", "jobs_started", "jobs_active", "fails")
    say({name: guard._run.page.get(name) for name in names})
""")
    assert (done.code, done.out) == (
        0,
        ["{'jobs_done': 2, 'jobs_failed': 5, 'jobs_started': 7, 'jobs_active': 0, 'fails': 1}"],
    )


def test_an_emfile_inside_a_job_ends_at_once() -> None:
    done = run_guarded(
        """
with hold.Guard(every=EVERY, fds=None) as guard:
    with guard.job("one"):
        kept = fill()
        os.pipe()
""",
        nofile=256,
    )
    assert done.code == 70


# ---- progress ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        (
            "guard.fail(ConnectionError('refused'))",
            r"it is failing: it runs, but nothing has succeeded for 1 s \(\d+ failures, last: ConnectionError: ref.*",
        ),
        ("first()", r"it is failing: it runs, but nothing has succeeded for 1 s"),
        (
            "guard.step() if not stepped.append(1) and len(stepped) < 3 else None",
            r"it is hung: its loop made no step for 1 s",
        ),
        ("with guard.job('7 of 9'): guard.wait()", r"it is hung: job 7 of 9 made no step for 1 s"),
    ],
    ids=["failing", "failing without failures", "hung loop", "hung job"],
)
def test_no_progress_drains(work: str, reason: str) -> None:
    done = run_guarded(f"""
guard = hold.Guard(every=EVERY, progress_timeout="1s")
stepped = []
def first():
    global first
    guard.ok()
    first = lambda: None
with guard:
    while not guard.wait(0.01):
        {work}
say(guard.reason)
sys.exit(guard.exit_code)
""")
    assert done.code == 75, done
    assert re.fullmatch(reason, done.out[0])


def test_an_outage_is_logged_and_does_not_drain_before_the_progress_timeout() -> None:
    """An API is down for nine and a half minutes. The clocks of the page say so: nobody waits."""
    done = run_guarded("""
def fails(number, since_s):
    for _ in range(number):
        guard.fail(ConnectionError("refused"))
    guard._run.page.set(ok_ns=time.monotonic_ns() - since_s * 10**9)
    guard._run.tick()
def up():
    guard.ok()
    guard._run.tick()
guard = hold.Guard(every="1h")
with guard:
    up()
    fails(19, 40)  # too few, and then too soon
    up()
    fails(100, 29)
    up()
    for minute in range(10):
        fails(500, 60 * minute + 30)
        assert not guard.draining, guard.reason
    up()
    up()
    fails(1, 601)
    assert guard.draining
sys.exit(guard.exit_code)
""")
    assert done.code == 75, done
    began, ended, drains, *_ = done.logged
    failed = "nothing has succeeded for 30 s (500 failures, last: ConnectionError: refused)"
    assert began.startswith(f"{failed}: this may be an outage"), done.log
    assert began.endswith("; it drains if nothing succeeds for 10 min")
    assert ended.startswith("succeeds again after 5,000 failures in "), done.log
    assert drains == (
        "draining: it is failing: it runs, but nothing has succeeded for 10 min "
        "(1 failure, last: ConnectionError: refused); will exit with 75"
    )


def test_progress_counts_from_the_first_report() -> None:
    done = run_guarded("""
guard = hold.Guard(every=EVERY, progress_timeout="20s")
with guard:
    guard._run.page.set(started_ns=1)  # long ago: a model was loaded
    guard.fail("the first poll")
    alive = guard._run.page.get("alive_ns")
    until(lambda: guard._run.page.get("alive_ns") > alive)
    assert not guard.draining
""")
    assert done.code == 0, done


def test_steps_keep_a_long_job_alive() -> None:
    done = run_guarded("""
guard = hold.Guard(every=EVERY, progress_timeout=0.5)
with guard:
    with guard.job("long"):
        end = time.monotonic() + 1
        while time.monotonic() < end:
            guard.step()
            time.sleep(0.001)
sys.exit(guard.exit_code)
""")
    assert done.code == 0, done


# `heard(start)` starts a job "stuck" in a thread of its own, calls `start`, and returns whether its clock goes on then.
STEPS = """
import asyncio, concurrent.futures, contextvars
guard = hold.Guard(every=EVERY)
over = threading.Event()
def within(work, name="other"):
    def run():
        with guard.job(name) as job:
            work(job)
    thread = threading.Thread(target=run)
    thread.start()
    threads.append(thread)
threads = []
def stepping(step):
    while not over.is_set():
        step()
        time.sleep(0.001)
def heard():
    until(lambda: guard._run.page.get("jobs_active") == jobs)
    first, alive = guard._run.page.get("job_step_ns"), guard._run.page.get("alive_ns")
    seen = set()
    while len(seen) < 8:
        if guard._run.page.get("job_step_ns") > first:
            return True
        seen.add(guard._run.page.get("alive_ns"))
        time.sleep(0.001)
    return False
def nested(job):
    with guard.job("inner"):
        stepping(guard.step)
def with_task(job):
    def stale():  # of a context that the job has left behind
        stepping(guard.step)
    with guard.job("short"):
        context = contextvars.copy_context()
    context.run(stale)
async def tasks():
    async def works():
        with guard.job("task"):
            while not over.is_set():
                await asyncio.sleep(0.001)
    async def steps():
        while not over.is_set():
            guard.step()
            await asyncio.sleep(0.001)
    work = asyncio.create_task(works())
    step = asyncio.create_task(steps())
    found.append(await asyncio.to_thread(heard))
    over.set()
    await asyncio.gather(work, step)
found = []
with guard:
    case, jobs = sys.argv[1], int(sys.argv[2])
    if case == "tasks":
        asyncio.run(tasks())
    else:
        exec(case)
        found.append(heard())
        over.set()
    for thread in threads:  # within the guard, which counts no jobs after its end
        thread.join()
say(*found, guard._run.page.get("jobs_active"))
"""


@pytest.mark.parametrize(
    ("case", "jobs", "is_heard"),
    [
        # of another thread's job, or of the training loop: not of the job that is stuck
        ("within(lambda job: over.wait()); within(lambda job: stepping(guard.step))", 2, False),
        ("within(lambda job: over.wait()); within(lambda job: stepping(job.step))", 2, False),
        ("within(lambda job: over.wait()); within(nested)", 3, False),
        ("within(lambda job: over.wait()); [(guard.step(), time.sleep(0.001)) for _ in range(20)]", 1, False),
        # of the job itself, however it makes them
        ("within(lambda job: stepping(guard.step))", 1, True),
        ("within(lambda job: stepping(job.step))", 1, True),
        ("within(nested)", 2, True),
        ("within(with_task)", 1, True),
        ("within(lambda job: threading.Thread(target=stepping, args=(guard.step,)).start() or over.wait())", 1, True),
        ("within(lambda job: threading.Thread(target=stepping, args=(job.step,)).start() or over.wait())", 1, True),
        ("tasks", 1, True),
    ],
)
def test_whose_job_makes_a_step(case: str, jobs: int, is_heard: bool) -> None:
    done = run_guarded(STEPS, case, jobs)
    assert (done.code, done.out) == (0, [f"{is_heard} 0"]), done


def test_a_job_that_is_stuck_beside_others_drains() -> None:
    done = run_guarded("""
guard = hold.Guard(every=EVERY, progress_timeout="1s")
def busy():
    while not guard.draining:
        with guard.job("busy") as job:
            guard.step()
            job.step()
            time.sleep(0.001)
with guard:
    threading.Thread(target=busy).start()
    with guard.job("stuck"):
        guard.wait()
say(guard.reason)
sys.exit(guard.exit_code)
""")
    assert (done.code, done.out) == (75, ["it is hung: job stuck made no step for 1 s"]), done


def test_a_worker_that_was_stopped_gets_its_time_again() -> None:
    """Nothing could succeed while a container was paused; a debugger and SIGSTOP do the same."""
    done = run_guarded("""
guard = hold.Guard(every="1h", progress_timeout="5s", drain_timeout="5s")
with guard:
    guard.ok()
    guard._run.page.set(ok_ns=guard._run.page.get("ok_ns") - 10 * 10**9)
    guard._run.ticked_s -= 7200 * 6
    guard._run.tick()
    assert not guard.draining
    guard._run.ignored_until_s = 0  # five seconds later
    guard._run.tick()
    assert guard.draining and "nothing has succeeded for 10 s" in guard.reason, guard.reason
    guard._run.answer_requests()
    guard._run.drain_at_s -= 7200 * 6
    guard._run.ticked_s -= 7200 * 6
    guard._run.tick()
    say("goes on")
    guard._run.drain_at_s -= 6
    guard._run.tick()
""")
    assert (done.code, done.out) == (70, ["goes on"]), done


def test_a_stopped_process_that_goes_on_does_not_drain() -> None:
    with guarded("""
guard = hold.Guard(every=EVERY, progress_timeout=0.5)
with guard:
    say("ready")
    while not guard.wait(0.02):
        guard.ok()
sys.exit(guard.exit_code)
""") as child:
        child.line()
        child.wait_for(lambda: child.page().ok_calls)
        os.kill(child.pid, signal.SIGSTOP)
        wait_for(lambda: time.monotonic_ns() - child.page().ok_ns > 10**9)
        calls = child.page().ok_calls
        os.kill(child.pid, signal.SIGCONT)
        child.wait_for(lambda: child.page().ok_calls > calls + 20)
        assert not child.page().drain_ns
        child.process.terminate()
        assert child.end().code == 0
