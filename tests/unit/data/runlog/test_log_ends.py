"""Every way a log can end: exceptions, exits, kills, forks, threads."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from log_growing_child import values_of

import holdfast as hold
from holdfast.data.runlog.logger import log
from holdfast.data.runlog.part_sink import PartSink
from holdfast.errors import ClosedWriterError, WriteError

CHILD = Path(__file__).with_name("log_growing_child.py")
PROGRAM = """
import os, signal, sys
from holdfast.data.runlog.logger import log
from holdfast.errors import ForkedWriterError

book = log(sys.argv[1], rank=0, every_rows=10)
for step in range(25):
    book(step, x=step)
"""


def ran(program: str, logdir: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM + program, str(logdir)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


def steps(logdir: Path) -> list[int]:
    out = hold.write(logdir / "run.hold")
    assert out.verify().ok
    with hold.read(str(out.folder)).shard(None).batch(100).iterate() as batches:
        return [step for batch in batches for step in batch["step"].tolist()]


def test_an_exception_commits_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        with log(tmp_path) as book:
            book(0, x=1)
            raise ZeroDivisionError
    assert steps(tmp_path) == [0]
    assert not hasattr(raised.value, "__notes__")
    with pytest.raises(ClosedWriterError, match="this log is closed"):
        book(1, x=1)
    with pytest.raises(ClosedWriterError):
        book.__enter__()
    book.close()


def test_an_exception_is_not_hidden_by_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise WriteError("no space")

    monkeypatch.setattr(PartSink, "commit", fails)
    with pytest.raises(ZeroDivisionError) as raised:
        with log(tmp_path) as book:
            book(0, x=1)
            raise ZeroDivisionError
    assert raised.value.__notes__ == ["and the last rows of the log could not be written: no space"]


@pytest.mark.parametrize(
    ("program", "code", "count"),
    [
        ("", 0, 25),
        ("raise SystemExit(3)", 3, 25),
        ("raise RuntimeError('boom')", 1, 25),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, 20),
        ("os._exit(4)", 4, 20),
    ],
)
def test_the_end_of_a_program(tmp_path: Path, program: str, code: int, count: int) -> None:
    """Nobody closed it. A kill loses what was not committed; all else loses nothing."""
    got, said = ran(program, tmp_path)
    assert got == code, said
    assert ("boom" in said) == ("boom" in program)
    assert steps(tmp_path) == list(range(count))


def write_some(logdir: Path) -> None:
    book = log(logdir, rank=0)
    book(0, x=0)


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_the_end_of_a_worker_of_multiprocessing(tmp_path: Path, way: str) -> None:
    worker = multiprocessing.get_context(way).Process(target=write_some, args=(tmp_path,))  # type: ignore[attr-defined]
    worker.start()
    worker.join(60)
    assert worker.exitcode == 0
    worker.close()
    assert steps(tmp_path) == [0]


def test_a_killed_worker_goes_on(tmp_path: Path) -> None:
    """From its checkpoint, or from its beginning: each step is there once."""
    assert ran("os.kill(os.getpid(), signal.SIGKILL)", tmp_path)[0] == -signal.SIGKILL
    with log(tmp_path, rank=0) as book:
        assert book.last_step == 19
        for step in range(16, 30):
            book(step, x=step)
        assert (book.dropped, book.rows) == (4, 10)
    assert steps(tmp_path) == list(range(30))


@pytest.mark.parametrize("failpoint", ["file-made", "settled", "data-linked", "record-written", "claimed", "committed"])
def test_killed_within_a_commit(tmp_path: Path, failpoint: str) -> None:
    program = f"book(25, x=25); os.environ['HOLDFAST_FAILPOINT'] = '{failpoint}'; book.commit()"
    code, said = ran(program, tmp_path)
    assert code == -signal.SIGKILL, said
    with log(tmp_path, rank=0) as book:
        assert book.last_step == (25 if failpoint in ("claimed", "committed") else 19)
        for step in range(30):
            book(step, x=step)
    assert steps(tmp_path) == list(range(30))
    assert not os.listdir(tmp_path / "run.hold" / "tmp")


def test_a_forked_child_has_no_part_in_it(tmp_path: Path) -> None:
    code, said = ran(
        """
pid = os.fork()
if not pid:
    try:
        book(25, x=25)
    except ForkedWriterError:
        sys.exit(5)  # through all that is to be done at exit
    sys.exit(9)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
book(25, x=25)
""",
        tmp_path,
    )
    assert code == 0, said
    assert steps(tmp_path) == list(range(26))


def test_threads_may_share_one(tmp_path: Path) -> None:
    with log(tmp_path, every_rows=7, replay="keep") as book:
        threads = [threading.Thread(target=lambda: [book(step, x=step) for step in range(50)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(steps(tmp_path)) == sorted([*range(50)] * 4)


def test_it_holds_no_descriptor(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with log(tmp_path, every_rows=5) as book:
        for step in range(12):
            book(step, x=step)
        assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_committed_stays_while_columns_come_and_workers_are_killed(tmp_path: Path) -> None:
    """Every row that was acknowledged is there with its values, and it is known which of them were logged."""
    check_growing(tmp_path, seed=1, ranks=2, lives=1, steps=50)


def check_growing(logdir: Path, seed: int, ranks: int, lives: int, steps: int) -> None:
    chance = random.Random(seed)
    acknowledged = [-1] * ranks
    for life in range(lives + 1):
        workers = []
        for rank in range(ranks):
            command = [sys.executable, "-W", "error", str(CHILD), str(logdir), str(rank), str(chance.random())[2:9]]
            workers.append(subprocess.Popen([*command, str(steps)], stdout=subprocess.PIPE, text=True))
        for rank, worker in enumerate(workers):
            assert worker.stdout is not None
            assert int(worker.stdout.readline()) >= acknowledged[rank]
            for line in worker.stdout:
                if life < lives and chance.random() < 0.3:
                    worker.kill()
                acknowledged[rank] = int(line)
            worker.stdout.close()
            assert worker.wait() in (0, -signal.SIGKILL)
    out = hold.write(logdir / "run.hold")
    assert out.verify().ok
    out.consolidate(logdir / "all.h5")
    for source in (logdir / "run.hold", logdir / "all.h5"):
        found: dict[int, list[int]] = {rank: [] for rank in range(ranks)}
        with hold.read(str(source)).shard(None).batch(1000).iterate() as batches:
            for batch in batches:
                for row, (rank, step) in enumerate(zip(batch["worker"].tolist(), batch["step"].tolist(), strict=True)):
                    found[rank].append(step)
                    logged = values_of(rank, step)
                    for name in out.schema:
                        if name in ("step", "worker", "time_ns") or name.endswith("_present"):
                            continue
                        assert bool(batch[f"{name}_present"][row]) == (name in logged), (source, rank, step, name)
                        if name in logged:
                            got = bytes(batch[name][row]).decode() if name == "tag" else float(batch[name][row])
                            assert repr(got) == repr(logged[name] if name == "tag" else float(logged[name]))
        assert found == {rank: [*range(steps)] for rank in range(ranks)}
