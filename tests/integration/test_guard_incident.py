"""The incident, compressed: a worker leaks pipes until every poll fails and its supervisor still calls it running.

With a Guard it is replaced long before, and no job is lost or done twice. Without one, `holdfast supervise` notices
that nothing succeeds. What is told apart by name: failing, hung, frozen, stopped, no progress.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from supervised import Supervised, pids_in, runs, until

LIMIT = 512
SOFT = 448  # the Guard holds 64 in reserve
RESTARTS = 6
TIMEOUT_S = 2.0

# Takes jobs from a ledger in SQLite, and leaks a pipe with each. `deliveries` counts how often a job was handed out,
# `done` has a row for every time that it was completed. Nobody hands out a job again that a worker took and did not
# complete, so that it would be missing in the end.
WORKER = """
import os, sqlite3, sys, time
guarded, ledger = sys.argv[1] == "guarded", sys.argv[2]
if guarded:
    import holdfast as hold
    guard = hold.Guard("worker", every=0.02)
kept = []
def database():
    made = sqlite3.connect(ledger, timeout=60, isolation_level=None)
    return made
def poll():
    "The next job, None if there is none now, or '' if there will be none any more."
    api = os.open(ledger, os.O_RDONLY)  # as a connection to a server takes one
    try:
        found = db.execute(
            "UPDATE jobs SET deliveries = deliveries + 1, taken = 1 WHERE id = "
            "(SELECT id FROM jobs WHERE NOT taken ORDER BY id LIMIT 1) RETURNING id").fetchone()
        if found:
            return found[0]
        return "" if db.execute("SELECT closed FROM queue").fetchone()[0] else None
    finally:
        os.close(api)
def run(job):
    kept.append(os.pipe())  # the leak
    time.sleep(0.006)
    db.execute("INSERT INTO done VALUES (?, ?)", (job, os.getpid()))
db = database()
state = open(f"state-{os.getpid()}", "w", buffering=1)
with open("pids", "a") as file:
    file.write(f"{os.getpid()}\\n")
def work(draining, ok, fail, job_block):
    while not draining():
        try:
            job = poll()
            ok()
        except Exception as error:
            fail(error)
            continue
        if job == "":
            return
        if job is None:
            time.sleep(0.01)
        else:
            try:
                with job_block(job):
                    run(job)
            except OSError as error:
                fail(error)  # and the job silently does nothing
if guarded:
    with guard:
        work(lambda: guard.draining, guard.ok, guard.fail, guard.job)
        with open("fds", "a") as file:  # when the last job is done
            file.write(f"{len(os.listdir('/proc/self/fd'))}\\n")
    sys.exit(guard.exit_code)
import contextlib
def failed(error):
    print(error, file=state)
    time.sleep(0.01)  # it logs the error, and polls again
@contextlib.contextmanager
def job_block(job):
    yield
    os.utime("progress")  # a result
work(lambda: False, lambda: None, failed, job_block)
"""


@contextmanager
def ledger(folder: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(folder / "ledger", timeout=60, isolation_level=None)) as made:
        made.execute("PRAGMA journal_mode = WAL")
        made.execute("PRAGMA synchronous = OFF")
        made.execute(
            "CREATE TABLE jobs (id INTEGER PRIMARY KEY, taken INTEGER DEFAULT 0, deliveries INTEGER DEFAULT 0)"
        )
        made.execute("CREATE INDEX free ON jobs (taken, id)")
        made.execute("CREATE TABLE done (id INTEGER, pid INTEGER)")
        made.execute("CREATE TABLE queue (closed INTEGER)")
        made.execute("INSERT INTO queue VALUES (0)")
        yield made


def add_jobs(db: sqlite3.Connection, number: int) -> None:
    db.execute("BEGIN IMMEDIATE")
    db.executemany("INSERT INTO jobs DEFAULT VALUES", [()] * number)
    db.execute("COMMIT")


def worker(how: str) -> list[str]:
    return ["--", sys.executable, "-c", WORKER, how, "ledger"]


def supervised(folder: Path, *arguments: object) -> Supervised:
    return Supervised(folder, *arguments, prefix=("prlimit", f"--nofile={LIMIT}:{LIMIT}"))


def recycled(log: Supervised) -> list[str]:
    return [line["text"] for line in log.seen if line["kind"] == "ended" and line["reason"] == "recycle"]


@pytest.mark.needs("prlimit")
def test_a_leak_is_recycled_again_and_again_and_no_job_is_lost_or_done_twice(tmp_path: Path) -> None:
    with ledger(tmp_path) as db, supervised(tmp_path, "--workers", 2, *worker("guarded")) as log:
        handed = 0
        while len(recycled(log)) < RESTARTS:
            (free,) = db.execute("SELECT count(*) FROM jobs WHERE NOT taken").fetchone()
            if free < 400:  # more than two workers do before they drain
                add_jobs(db, 600)
                handed += 600
            assert log.process.poll() is None, log.log()
            log.wait_for("ended", after=len(log.seen))
        db.execute("UPDATE queue SET closed = 1")
        assert log.wait() == 0, log.log()
        found = db.execute("SELECT id, count(*) FROM done GROUP BY id").fetchall()
        assert len(found) == handed
        assert {times for _, times in found} == {1}
        assert db.execute("SELECT max(deliveries), min(deliveries) FROM jobs").fetchone() == (1, 1)
        workers = {pid for (pid,) in db.execute("SELECT DISTINCT pid FROM done")}
    assert len(pids_in(tmp_path / "pids")) >= RESTARTS + 2
    assert workers <= set(pids_in(tmp_path / "pids"))
    said = recycled(log)
    assert len(said) >= RESTARTS
    leaks = [text for text in log.other if "draining: LEAK: every job leaves 2 descriptors" in text]
    assert len(leaks) == len(said), log.log()
    assert not any(line["kind"] == "ended" and line["reason"] not in (None, "", "recycle") for line in log.seen)
    used = sorted(pids_in(tmp_path / "fds"))[-len(said) :]
    assert all(0.8 * SOFT <= fds < 0.95 * SOFT for fds in used), used


CACHE = """
import collections, os, sys, time
import holdfast as hold
cache = collections.OrderedDict()
with hold.Guard("worker", every=0.02) as guard:
    for number in range(200):
        guard.ok()
        with guard.job(number):
            cache[number] = os.open("/dev/null", os.O_RDONLY)
            if len(cache) > 64:
                os.close(cache.popitem(last=False)[1])
            time.sleep(0.006)
        if guard.draining:
            break
sys.exit(guard.exit_code)
"""


@pytest.mark.needs("prlimit")
def test_a_cache_of_64_handles_is_not_recycled(tmp_path: Path) -> None:
    with supervised(tmp_path, "--", sys.executable, "-c", CACHE) as log:
        assert log.wait() == 0, log.log()
    assert [line["kind"] for line in log.seen].count("start") == 1, log.log()
    assert any("ended after 200 jobs" in line for line in log.other), log.log()


@pytest.mark.needs("prlimit")
def test_without_a_guard_it_fails_and_the_supervisor_alone_notices(tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    progress.touch()
    watched = ("--progress-file", "progress", "--progress-timeout", f"{TIMEOUT_S}s")
    with ledger(tmp_path) as db, supervised(tmp_path, *watched, *worker("alone")) as log:
        add_jobs(db, 2_000)
        first, at = 0, 0
        while not first:  # where the machine is busy for 2 s, a worker that only waits for it is replaced, too
            overdue = log.wait_for("stacks", "did not change", "progress", after=at)
            at = log.seen.index(overdue) + 1
            if "Too many open files" in (tmp_path / f"state-{overdue['pid']}").read_text():
                first = overdue["pid"]
        last_success = progress.stat().st_mtime
        (done,) = db.execute("SELECT count(*) FROM done WHERE pid = ?", (first,)).fetchone()
        ended = log.wait_for("ended", f"(pid {first})", reason="progress")
        again = log.wait_for("start", after=log.seen.index(ended))
        until(lambda: db.execute("SELECT count(*) FROM done WHERE pid = ?", (again["pid"],)).fetchone()[0])
        log.stop()
    assert 200 < done < LIMIT / 2  # two descriptors a job, until none was left
    assert overdue["t"] - last_success > TIMEOUT_S - 0.1
    assert not runs(first)


# ---- failing, hung, frozen and stopped are told apart ---------------------------------------------------------

STUCK = """
import ctypes, os, signal, subprocess, sys, threading, time
import holdfast as hold
with open("pids", "a") as file:
    file.write(f"{os.getpid()}\\n")
guard = hold.Guard("worker", every=0.05, progress_timeout="1h", drain_timeout="1h")
CHILD = "import threading; lock = threading.Lock(); lock.acquire(); print('x', flush=True); lock.acquire()"
def failing():
    while not guard.draining:
        guard.step()  # the loop goes on
        guard.fail(ConnectionError("every poll fails"))
        time.sleep(0.01)
def frozen():
    ctypes.PyDLL(None).sleep(600)  # C code that keeps the GIL
def hung():
    with guard.job("the 7th"):
        child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE)
        child.stdout.read()  # waits for a child that is deadlocked
def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)
with guard:
    guard.ok()
    if len(open("pids").readlines()) == 1:
        globals()[sys.argv[1]]()
    while not guard.wait(0.01):
        guard.ok()
sys.exit(guard.exit_code)
"""


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            "failing",
            r"it is failing: it runs, but nothing has succeeded .*, last: ConnectionError: every poll fails\)",
        ),
        ("hung", r"it is hung: job the 7th made no step for \d+ s"),
        ("frozen", r"it is frozen: no Python thread ran for .* s; C code holds the GIL"),
        ("stopped", r"it is stopped by a signal \(SIGCONT resumes it\)"),
    ],
)
def test_what_is_wrong_is_reported_by_name(tmp_path: Path, how: str, said: str) -> None:
    limits = ("--progress-timeout", "1s", "--frozen-timeout", "1s", "--stop-timeout", "0.2s", "--backoff", "0.1s")
    command = ["--", sys.executable, "-c", STUCK, how]
    with Supervised(tmp_path, *limits, *command) as log:
        ended = log.wait_for("ended", reason=how)
        first = ended["pid"]
        assert any(re.search(said, line["text"]) for line in log.seen), log.log()
        assert {line["reason"] for line in log.seen if line["reason"]} == {how}
        again = log.wait_for("start", after=len(log.seen) - 1)
        assert again["pid"] != first
        until(lambda: len(pids_in(tmp_path / "pids")) == 2)
        assert log.stop() == 0
    assert not runs(first)
    assert not runs(again["pid"])


def test_a_guard_that_is_failing_asks_for_its_own_restart(tmp_path: Path) -> None:
    program = STUCK.replace('progress_timeout="1h"', 'progress_timeout="0.5s"')
    with Supervised(tmp_path, "--", sys.executable, "-c", program, "failing") as log:
        log.wait_for("ended", "exit code 75", reason="failing")
        log.wait_for("start", after=len(log.seen) - 1)
        assert log.stop() == 0
    assert any("draining: it is failing: it runs, but " in line for line in log.other)
