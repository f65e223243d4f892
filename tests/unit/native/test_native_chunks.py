"""The threads that read chunks without the interpreter, and their memory."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import readahead_threads
from holdfast._native.c_modules import chunks

pytestmark = pytest.mark.skipif(not chunks, reason="the compiled module was not built, or not expected")

ROWS, CHUNK_ROWS = 4000, 50
LAYOUT = np.array([8, 2, ROWS, 100, CHUNK_ROWS, 100])  # chunks of 40,000 bytes without a filter
SIZE = CHUNK_ROWS * 800
TABLE = np.array([(n * SIZE, SIZE, 0) for n in range(ROWS // CHUNK_ROWS)])


@pytest.fixture
def data(tmp_path: Path) -> Iterator[tuple[int, Any]]:
    content = np.arange(ROWS * 100).reshape(ROWS, 100)
    (tmp_path / "data").write_bytes(content.tobytes())
    fd = os.open(tmp_path / "data", os.O_RDONLY)
    yield fd, content
    os.close(fd)


def begin(pool: Any, fd: int, start: int, stop: int) -> int:
    low, high = start // CHUNK_ROWS, -(-stop // CHUNK_ROWS)
    return int(pool.begin(fd, LAYOUT, TABLE[low:high], low, start, stop))


def rows_of(memory: Any) -> Any:
    return np.frombuffer(memory, np.int64).reshape(-1, 100)


def test_rows_in_any_order(data: tuple[int, Any]) -> None:
    fd, content = data
    for threads in (1, 3):
        pool = chunks.Pool(threads)
        runs = [(n * 97, min(n * 97 + 210, ROWS)) for n in range(40)]
        numbers = [begin(pool, fd, *run) for run in runs]
        for (start, stop), number in reversed(list(zip(runs, numbers, strict=True))):
            assert (rows_of(pool.take(number)) == content[start:stop]).all()
        with pytest.raises(KeyError, match="is not being read"):
            pool.take(numbers[0])
        pool.close()
    assert readahead_threads.have_ended()


def test_a_chunk_that_cannot_be_read(data: tuple[int, Any]) -> None:
    fd, content = data
    pool = chunks.Pool()
    os.truncate(f"/proc/self/fd/{fd}", content.nbytes - 1)
    assert pool.take(begin(pool, fd, ROWS - 70, ROWS)) is None
    assert (rows_of(pool.take(begin(pool, fd, 0, 70))) == content[:70]).all()
    assert pool.take(begin(pool, 10_000, 0, 70)) is None
    with pytest.raises(ValueError, match="expected a layout"):
        pool.begin(fd, LAYOUT, TABLE[:1], 0, 0, 51)
    pool.close()
    pool.close()
    with pytest.raises(ValueError, match="it was closed"):
        begin(pool, fd, 0, 10)


def test_memory_is_used_again_and_outlives_the_pool(data: tuple[int, Any]) -> None:
    fd, content = data
    pool = chunks.Pool()
    kept = rows_of(pool.take(begin(pool, fd, 0, 500)))
    places = set()
    for start in range(500, 3500, 500):
        rows = rows_of(pool.take(begin(pool, fd, start, start + 500)))
        assert (rows == content[start : start + 500]).all()
        places.add(rows.ctypes.data)
        del rows
    assert len(places) == 1
    pool.trim()
    assert (rows_of(pool.take(begin(pool, fd, 0, 500))) == kept).all()
    assert (kept == content[:500]).all()
    pool.close()
    pool = chunks.Pool()
    rows = rows_of(pool.take(begin(pool, fd, 5, 10)))
    pool.close()
    del pool
    assert (rows == content[5:10]).all()
    assert (kept == content[:500]).all()
    rows[:] = 0  # torch takes no read-only array


def test_no_thread_is_left(data: tuple[int, Any]) -> None:
    fd, _ = data
    for n in range(60):
        pool = chunks.Pool(1 + n % 3)
        for _ in range(n % 5):
            begin(pool, fd, 0, 1000)
        if n % 2:
            pool.close()
        del pool
    assert readahead_threads.have_ended()


def test_a_forked_child_has_none_and_signals_go_to_the_interpreter(data: tuple[int, Any]) -> None:
    fd, content = data
    pool = chunks.Pool(2)
    kept = rows_of(pool.take(begin(pool, fd, 0, 500)))
    for _ in range(20):
        begin(pool, fd, 0, ROWS)
    statuses = [Path(f"/proc/self/task/{task}/status").read_text() for task in os.listdir("/proc/self/task")]
    blocked = [int(one.partition("SigBlk:")[2].split()[0], 16) for one in statuses if "hold-ahead" in one]
    assert len(blocked) == 2
    assert all(mask & (1 << (signal.SIGINT - 1)) for mask in blocked)
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        good = (kept == content[:500]).all()
        del kept
        try:
            begin(pool, fd, 0, 10)
        except ValueError:
            pool.close()
            os._exit(not good)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    pool.close()


def test_beside_other_threads(data: tuple[int, Any]) -> None:
    fd, content = data
    wrong: list[int] = []

    def work(seed: int) -> None:
        pool = chunks.Pool(2)
        for start in np.random.default_rng(seed).integers(0, ROWS - 300, 60).tolist():
            if not (rows_of(pool.take(begin(pool, fd, start, start + 300))) == content[start : start + 300]).all():
                wrong.append(start)
        pool.close()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
