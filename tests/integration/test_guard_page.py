"""What other processes see of a worker with a Guard, and how it works with threads and asyncio."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from guard_child import LOOP, guarded, run_guarded, wait_for

pytestmark = pytest.mark.usefixtures("guard_runtime")


def test_the_page_shows_the_life_of_a_worker(guard_runtime: Path) -> None:
    with guarded("""
guard = hold.Guard("worker", every=EVERY, fds=hold.Cap(soft=100, hard=200), progress_timeout="5min", drain_timeout="1h")
def next(): say("ready"); sys.stdin.readline()
with guard:
    next()
    guard.step()
    next()
    with guard.job("job one"):
        next()
    next()
    guard.drain("enough")
    next()
say("over")
sys.stdin.readline()
""") as child:
        child.line()
        page = child.page()
        assert (page.name, page.state.name, page.begun_ns, page.fd_soft_cap) == ("worker", "STARTING", 0, 100)
        assert (page.progress_timeout_ns, page.drain_timeout_ns) == (300 * 10**9, 3600 * 10**9)
        child.wait_for(lambda: child.page().fds and child.page().rss_bytes > 1 << 20 and child.page().threads >= 2)
        child.tell()
        child.line()
        page = child.page()
        assert page.state.name == "RUNNING"
        assert page.step_ns >= page.started_ns
        assert page.begun_ns
        child.tell()
        child.line()
        page = child.page()
        assert (page.jobs_started, page.jobs_active, page.job, page.jobs_done) == (1, 1, "job one", 0)
        assert page.job_started_ns
        child.tell()
        child.line()
        page = child.page()
        assert (page.jobs_started, page.jobs_active, page.jobs_done, page.job_started_ns) == (1, 0, 1, 0)
        assert page.ok_ns
        assert abs(page.ok_wall_ns - os.stat(guard_runtime).st_mtime_ns) < 3600 * 10**9
        assert [number for number, _ in page.jobs] == [1]
        child.tell()
        child.line()
        child.wait_for(lambda: child.page().state.name == "DRAINING")
        page = child.page()
        assert (page.reason, page.exit_code) == ("enough", 75)
        assert page.drain_ns
        child.tell()
        assert child.line() == "over"
        assert list(guard_runtime.iterdir()) == []
        child.tell()
        child.end()


def test_a_killed_worker_leaves_a_page_that_the_next_one_ignores(guard_runtime: Path) -> None:
    with guarded(LOOP, "dict()") as child:
        child.line()
        child.process.kill()
        child.end()
    assert [path.suffix for path in sorted(guard_runtime.iterdir())] == [".heartbeat", ".sock"]
    with guarded(LOOP, "dict(max_age=0.05)") as child:
        child.line()
        assert child.end().code == 75


def test_without_a_folder_for_the_page_the_worker_is_still_guarded(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run_guarded(
        """
from holdfast.process.fd_owners import agent
from holdfast.process.guard import heartbeat
agent.socket_dirs = heartbeat.socket_dirs = lambda: [heartbeat.Path(sys.argv[1])]
guard = hold.Guard(every=EVERY, max_age=0.05)
with guard:
    guard.wait()
sys.exit(guard.exit_code)
""",
        tmp_path / "file" / "holdfast",
    )
    assert done.code == 75, done
    assert done.logged[0].startswith("its heartbeat is not visible to other processes: [Errno 20] Not a directory")
    assert done.logged[1].startswith("other processes cannot ask for its owners: no folder to listen in")


def test_its_owners_can_be_asked_for() -> None:
    from holdfast.process.fd_owners.agent import ask_owners

    with guarded("""
keep = [os.fdopen(os.pipe()[0]) for _ in range(5)]
with hold.Guard("worker"):
    say("ready")
    sys.stdin.readline()
""") as child:
        child.line()
        groups = ask_owners(child.pid)
        assert any("'keep'" in group.shape for group in groups or ())
        child.tell()
        child.end()


def test_a_responder_that_the_program_has_started_goes_on() -> None:
    done = run_guarded("""
from holdfast.process.fd_owners.agent import ask
with hold.listen("mine") as listener:
    with hold.Guard("worker"):
        assert ask(os.getpid(), {"ask": "hello"})["name"] == "worker"
    assert listener.path.exists() and ask(os.getpid(), {"ask": "hello"})
assert ask(os.getpid(), {"ask": "hello"}) is None
""")
    assert done.code == 0, done


def test_several_threads_run_jobs() -> None:
    done = run_guarded("""
guard = hold.Guard(every=EVERY, max_jobs=400, jitter=0, progress_timeout="20s")
def work():
    while not guard.draining:
        try:
            with guard.job(threading.current_thread().name):
                guard.step(); guard.ok()
                if time.monotonic_ns() % 7 == 0:
                    raise ValueError
        except ValueError:
            guard.fail("again")
with guard:
    threads = [threading.Thread(target=work) for _ in range(8)]
    for one in threads: one.start()
    for one in threads: one.join()
    page = {name: guard._run.page.get(name) for name in ("jobs_done", "jobs_failed", "jobs_active", "jobs_started")}
    assert page["jobs_done"] + page["jobs_failed"] == page["jobs_started"] >= 400, page
    assert page["jobs_active"] == 0
sys.exit(guard.exit_code)
""")
    assert done.code == 75, done


def test_the_oldest_of_several_jobs_is_shown() -> None:
    done = run_guarded("""
with hold.Guard(every=EVERY) as guard:
    def page(): return hold.process.guard.heartbeat.parse_heartbeat(guard._run.page.copy())
    jobs = [guard.job(name) for name in "abc"]
    for job in jobs: job.__enter__()
    for job, shown in zip(jobs, "bca"):
        assert page().job == job.name
        job.__exit__(None, None, None)
    assert (page().jobs_active, page().job_started_ns) == (0, 0)
""")
    assert done.code == 0, done


def test_asyncio() -> None:
    with guarded("""
import asyncio
guard = hold.Guard(every=EVERY)
async def main():
    loop, drain = asyncio.get_running_loop(), asyncio.Event()
    guard.on_drain(lambda: loop.call_soon_threadsafe(drain.set))
    async def job(number):
        with guard.job(number):
            await asyncio.sleep(0.01)
    await asyncio.gather(*(job(number) for number in range(20)))
    assert guard._run.page.get("jobs_done") == 20 and guard._run.page.get("jobs_active") == 0
    say("ready")
    await drain.wait()
with guard:
    asyncio.run(main())
sys.exit(guard.exit_code)
""") as child:
        child.line()
        os.kill(child.pid, signal.SIGUSR1)
        assert child.end().code == 75


def test_an_asyncio_loop_with_its_own_handler_is_reported_too() -> None:
    with guarded("""
import asyncio
async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with guard:
        say("ready")
        await stop.wait()
        until(lambda: guard.draining)
guard = hold.Guard(every=EVERY)
asyncio.run(main())
sys.exit(guard.exit_code)
""") as child:
        child.line()
        os.kill(child.pid, signal.SIGTERM)
        done = child.end()
    assert (done.code, done.logged[-1]) == (0, "ended after 0 jobs; SIGTERM"), done


def test_a_guard_that_is_left_by_an_error_ends_as_well(guard_runtime: Path) -> None:
    done = run_guarded("""
with hold.Guard():
    raise LookupError("out of here")
""")
    assert done.code == 1
    assert "LookupError" in done.log
    wait_for(lambda: not list(guard_runtime.iterdir()))
