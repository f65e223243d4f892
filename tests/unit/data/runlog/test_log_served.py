"""Logs through a central writer."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import log_contents
import pytest

import holdfast as hold
from holdfast.data.runlog.logger import log
from holdfast.data.writer.server.client import Producer
from holdfast.data.writer.server.server_process import Server
from holdfast.errors import ClosedWriterError, InputError, SchemaError, ServerLostError, WriteError

SCHEMA = {"loss": hold.Float32(), "tags": hold.Bytes()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    log(tmp_path, rank=0, schema=SCHEMA).close()
    return tmp_path / "run.hold"


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    with hold.write(folder).server() as server:
        yield server.address


def rows(folder: Path) -> list[tuple[int, int, float]]:
    return sorted(log_contents.rows(folder, "worker", "step", "loss"))


def kill(server: Server) -> None:
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(ServerLostError, match="was killed by SIGKILL"):
        server.stop()


def test_workers_log_through_one_writer_and_go_on(folder: Path) -> None:
    with hold.write(folder).server() as server:
        for rank, steps in ((0, None), (1, range(10, 1000, 10))):
            with log(server=server.address, rank=rank, steps=steps) as book:
                assert book.last_step is None
                for step in list(steps or range(1000))[:20]:
                    book(step, loss=step, tags="x")
        with log(server=str(folder), rank=1, steps=range(10, 1000, 10)) as book:
            assert book.last_step == 200
            for step in range(150, 260, 10):
                book(step, loss=step, tags=b"")
            assert (book.dropped, book.rows) == (6, 5)
    assert rows(folder) == [(0, s, s) for s in range(20)] + [(1, s, s) for s in range(10, 260, 10)]


def test_a_killed_worker_goes_on(folder: Path, address: str) -> None:
    program = """
import os, signal, sys
from holdfast.data.runlog.logger import log
book = log(server=sys.argv[1], rank=0, every_rows=10)
for step in range(25):
    book(step, loss=step, tags="")
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program, address], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    with log(server=address, rank=0) as book:
        assert book.last_step == 19
        for step in range(12, 40):
            book(step, loss=step, tags="")
    with log(server=address, rank=0) as book:
        assert book.last_step == 39


def test_what_a_central_writer_refuses(folder: Path, address: str) -> None:
    with log(server=address, rank=0) as book:
        with pytest.raises(SchemaError, match="column 'los': expected one of the columns"):
            book(0, los=1, tags="")
        with pytest.raises(SchemaError, match="expected step 0 next, got 1: a central writer counts a worker's rows"):
            book(1, loss=1, tags="")
        for step in range(3):
            book(step, loss=1, tags="")
        with pytest.raises(SchemaError, match="expected step 3 next, got 5"):
            book(5, loss=1, tags="")
    with pytest.raises(InputError, match="the writer has 3 rows of worker 0, steps= has 2"):
        log(server=address, rank=0, steps=range(2))
    with pytest.raises(SchemaError, match="column 'loss' is Float32\\(\\) there, got Int64\\(\\)"):
        log(server=address, rank=0, schema={**SCHEMA, "loss": hold.Int64()})
    with log(server=address, rank=0, schema=SCHEMA) as book:
        assert book.last_step == 2


def test_a_writer_of_other_data_is_no_log(tmp_path: Path) -> None:
    with hold.write(tmp_path / "x", {"x": hold.Int64()}).server() as server:
        with pytest.raises(SchemaError, match="expected a log, got a folder of other data, column 'step' is missing"):
            log(server=server.address, rank=0)


def test_a_writer_that_is_gone_loses_nothing_when_it_comes_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows wait for it, and are tried again at the next commit."""
    server = hold.write(folder).server().start()
    with log(server=str(folder), rank=0, every_rows=5, on_error="warn") as book:
        book._target._timeout_s = 0.2  # type: ignore[union-attr]
        for step in range(3):
            book(step, loss=step, tags="")
        kill(server)
        with pytest.warns(RuntimeWarning, match="what was logged cannot be written now"):
            for step in range(3, 5):
                book(step, loss=step, tags="")
        book(5, loss=5, tags="")
        book._target._timeout_s = 60  # type: ignore[union-attr]
        with hold.write(folder).server():
            for step in range(6, 10):
                book(step, loss=step, tags="")
            book.close()
        assert (book.lost, book.rows) == (0, 10)
    assert rows(folder) == [(0, step, step) for step in range(10)]


def test_rows_that_were_given_up_end_the_log(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer counts them: it could not tell what came later from what is missing."""
    monkeypatch.setattr(importlib.import_module("holdfast.data.runlog.logger"), "_MAX_BUFFER_BYTES", 1)
    with hold.write(folder).server() as server:
        book = log(server=server.address, rank=0, every_rows=2, on_error="warn")
        book(0, loss=0, tags="")
        book.commit()
        with monkeypatch.context() as patched:
            patched.setattr(Producer, "extend", lambda *_: refuse())
            book(1, loss=1, tags="")
            with pytest.warns(RuntimeWarning, match="no room"):
                book(2, loss=2, tags="")
        with pytest.warns(RuntimeWarning, match="rows that it did not take were dropped"):
            book(3, loss=3, tags="")
        assert (book.lost, book.rows) == (3, 3)
        book.close()
    assert rows(folder) == [(0, 0, 0)]


def refuse() -> NoReturn:
    raise WriteError("no room")


def test_a_writer_that_does_not_come_back_is_an_error(folder: Path) -> None:
    server = hold.write(folder).server().start()
    book = log(server=str(folder), rank=0, every_rows=2, timeout=0.2)
    kill(server)
    book(0, loss=0, tags="")
    with pytest.raises(ServerLostError):
        book(1, loss=1, tags="")
    with pytest.raises(ServerLostError):
        book.close()
    with pytest.raises(ClosedWriterError):
        book(2, loss=1, tags="")


def test_how_long_a_writer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With on_error="warn" rows can wait instead of the training; at the end they cannot."""
    asked: list[float] = []

    def gone(*_: object, timeout: float, **__: object) -> NoReturn:
        asked.append(timeout)
        raise ServerLostError("nobody there")

    monkeypatch.setattr(importlib.import_module("holdfast.data.runlog.server_sink"), "connect", gone)
    for given, want in (({}, [5, 5, 60]), ({"timeout": 2.5}, [2.5, 2.5, 2.5])):
        with pytest.warns(RuntimeWarning, match="nobody there"):
            book = log(server="unix:gone", rank=0, on_error="warn", **given)  # type: ignore[arg-type]
            book(0, loss=1)
            book.commit()
            book.close()
        assert (asked, book.lost) == (want, 1)
        asked.clear()
    with pytest.raises(ServerLostError):
        log(server="unix:gone", rank=0)
    assert asked == [60]


def test_a_writer_that_is_not_there_yet_and_rows_that_do_not_fit_it(folder: Path) -> None:
    """With on_error="warn" the rows wait for it, and what has no column there is left out of them."""
    with pytest.warns(RuntimeWarning, match="what was logged cannot be written now"):
        book = log(server=str(folder), rank=0, on_error="warn", every="1h", timeout="0.2s")
    book._target._timeout_s = 60  # type: ignore[union-attr]
    for step in range(3):
        book(step, loss=step, tags="")
    with hold.write(folder).server():
        book.commit()
        with pytest.warns(RuntimeWarning) as caught:
            for step in range(3, 6):
                book(step, loss="x", new=1)
        assert [str(one.message).partition("out: ")[2].partition(" (")[0] for one in caught] == [
            "column 'loss': expected Float32(), got 'x'",
            "column 'new': expected one of the columns step, worker, time_ns, loss, tags",
            "column 'tags': expected Bytes(), got nothing, and it cannot be left out without a default",
        ]
        book(6, loss=6, tags="")
        book.close()
    assert (book.lost, book.left_out, book.rows) == (0, 9, 7)
    assert repr(rows(folder)) == repr([(0, step, float("nan") if 3 <= step < 6 else float(step)) for step in range(7)])
