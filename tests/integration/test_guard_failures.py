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
guard = hold.Guard(every=EVERY)
with guard:
    guard.fail(eval(sys.argv[1]))
    say(guard.draining, guard.reason)
    guard.ok()
sys.exit(guard.exit_code)
"""


@pytest.mark.parametrize(
    "error",
    ["OSError(errno.EMFILE, 'no')", "wrapped()", "handled()", "ExceptionGroup('all', [OSError(24, 'x')])"],
)
def test_emfile_however_wrapped_ends_at_once(error: str) -> None:
    done = run_guarded(FAILS, error)
    assert (done.code, done.out) == (70, []), done
    assert re.match(r"ends at once with exit code 70: it has no free descriptor: EMFILE \(", done.logged[0])


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


def test_a_text_about_descriptors_counts_where_they_are_short() -> None:
    done = run_guarded(
        FAILS.replace("    guard.fail(", "    kept = fill(5)\n    guard.fail("),
        "RuntimeError('x: Too many open files')",
        nofile=256,
    )
    assert done.code == 70, done


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
            assert guard._page.get("jobs_active") == 2
    names = ("jobs_done", "jobs_failed", "jobs_started", "jobs_active", "fails")
    say({name: guard._page.get(name) for name in names})
""")
    assert (done.code, done.out) == (
        0,
        ["{'jobs_done': 2, 'jobs_failed': 5, 'jobs_started': 7, 'jobs_active': 0, 'fails': 1}"],
    )


def test_an_emfile_inside_a_job_ends_at_once() -> None:
    done = run_guarded("""
with hold.Guard(every=EVERY) as guard:
    with guard.job("one"):
        raise OSError(errno.EMFILE, "Too many open files")
""")
    assert done.code == 70


# ---- progress ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        (
            "guard.fail(ConnectionError('refused'))",
            r"it is dark: it runs, but \d+ failures in a row \(ConnectionError: refused\)",
        ),
        ("first()", r"it is dark: it runs, but nothing succeeded for 1 s"),
        (
            "guard.step() if not stepped.append(1) and len(stepped) < 3 else None",
            r"it is hung: its loop made no step for 1 s",
        ),
        ("with guard.job('7 of 9'): guard.wait()", r"it is hung: job 7 of 9 made no step for 1 s"),
    ],
    ids=["dark", "dark without failures", "hung loop", "hung job"],
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


def test_progress_counts_from_the_first_report() -> None:
    done = run_guarded("""
guard = hold.Guard(every=EVERY, progress_timeout="20s")
with guard:
    guard._page.set(started_ns=1)  # long ago: a model was loaded
    guard.fail("the first poll")
    alive = guard._page.get("alive_ns")
    until(lambda: guard._page.get("alive_ns") > alive)
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


def test_a_worker_that_was_stopped_gets_its_time_again() -> None:
    """Nothing could succeed while a container was paused; a debugger and SIGSTOP do the same."""
    done = run_guarded("""
guard = hold.Guard(every="1h", progress_timeout="5s", drain_timeout="5s")
with guard:
    guard.ok()
    guard._page.set(ok_ns=guard._page.get("ok_ns") - 10 * 10**9)
    guard._ticked_s -= 7200 * 6
    guard._tick()
    assert not guard.draining
    guard._ignored_until_s = 0  # five seconds later
    guard._tick()
    assert guard.draining and "nothing succeeded for 10 s" in guard.reason, guard.reason
    guard._answer_requests()
    guard._drain_at_s -= 7200 * 6
    guard._ticked_s -= 7200 * 6
    guard._tick()
    say("goes on")
    guard._drain_at_s -= 6
    guard._tick()
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
