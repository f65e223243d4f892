"""The thread that reads without the interpreter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import readahead_threads
from holdfast._native.c_modules import readahead

pytestmark = pytest.mark.skipif(not readahead, reason="the compiled module was not built, or not expected")


@pytest.fixture
def data(tmp_path: Path) -> Iterator[tuple[int, bytes]]:
    content = os.urandom(3 << 20)
    (tmp_path / "data").write_bytes(content)
    fd = os.open(tmp_path / "data", os.O_RDONLY)
    yield fd, content
    os.close(fd)


def test_reads_into_place(data: tuple[int, bytes]) -> None:
    fd, content = data
    reader = readahead.Reader()
    memories = [bytearray(200_000) for _ in range(40)]
    numbers = [reader.begin(fd, n * 50_000, memory, 1000, 100_000) for n, memory in enumerate(memories)]
    for n in reversed(range(40)):  # in any order
        assert reader.take(numbers[n]) == 100_000
        assert memories[n][1000:101_000] == content[n * 50_000 : n * 50_000 + 100_000]
        assert not any(memories[n][:1000])
        assert not any(memories[n][101_000:])
    reader.close()


def test_the_end_of_the_file(data: tuple[int, bytes]) -> None:
    fd, content = data
    reader = readahead.Reader()
    memory = bytearray(100)
    assert reader.take(reader.begin(fd, len(content) - 30, memory, 0, 100)) == 30
    assert reader.take(reader.begin(fd, len(content), memory, 0, 100)) == 0
    assert reader.take(reader.begin(fd, 0, memory, 100, 0)) == 0
    reader.close()


def test_errors_are_those_of_the_file(data: tuple[int, bytes]) -> None:
    reader = readahead.Reader()
    with pytest.raises(OSError, match="Bad file descriptor"):
        reader.take(reader.begin(10_000, 0, bytearray(10), 0, 10))
    folder = os.open("/", os.O_RDONLY)
    with pytest.raises(IsADirectoryError):
        reader.take(reader.begin(folder, 0, bytearray(10), 0, 10))
    os.close(folder)
    reader.close()


def test_wrong_places_are_refused(data: tuple[int, bytes]) -> None:
    fd, _ = data
    reader = readahead.Reader()
    for start, size in ((0, 11), (-1, 5), (5, -1), (11, 0), (1 << 62, 1 << 62)):
        with pytest.raises(ValueError, match="expected a place in 10 bytes"):
            reader.begin(fd, 0, bytearray(10), start, size)
    with pytest.raises(TypeError, match="read-write"):
        reader.begin(fd, 0, b"not to be written", 0, 5)
    with pytest.raises(KeyError, match="7 is not being read"):
        reader.take(7)
    reader.close()
    reader.close()
    with pytest.raises(ValueError, match="it was closed"):
        reader.begin(fd, 0, bytearray(10), 0, 10)


def test_memory_is_let_go_of(data: tuple[int, bytes]) -> None:
    fd, _ = data
    reader = readahead.Reader()
    memory = bytearray(1 << 20)
    number = reader.begin(fd, 0, memory, 0, 1 << 20)
    with pytest.raises(BufferError):
        memory.append(0)  # somebody is writing into it
    reader.take(number)
    memory.append(0)
    reader.begin(fd, 0, memory, 0, 1 << 20)
    reader.close()
    memory.append(0)


def test_no_thread_is_left(data: tuple[int, bytes]) -> None:
    fd, _ = data
    for n in range(200):
        reader = readahead.Reader()
        for _ in range(n % 5):
            reader.begin(fd, 0, bytearray(100_000), 0, 100_000)
        if n % 2:
            reader.close()
        del reader
    assert readahead_threads.have_ended()


def test_a_forked_child_has_none(data: tuple[int, bytes]) -> None:
    fd, _ = data
    reader = readahead.Reader()
    for _ in range(50):
        reader.begin(fd, 0, bytearray(1 << 20), 0, 1 << 20)
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        try:
            reader.begin(fd, 0, bytearray(10), 0, 10)
        except ValueError:
            reader.close()
            del reader
            os._exit(0)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    reader.close()


def test_signals_go_to_the_interpreter(data: tuple[int, bytes]) -> None:
    reader = readahead.Reader()
    blocked = []
    for task in os.listdir("/proc/self/task"):
        status = Path(f"/proc/self/task/{task}/status").read_text()
        if "hold-ahead" in status:
            blocked.append(int(status.partition("SigBlk:")[2].split()[0], 16))
    assert blocked
    assert all(mask & (1 << (signal.SIGINT - 1)) for mask in blocked)
    reader.close()


def test_beside_other_threads(data: tuple[int, bytes]) -> None:
    fd, content = data
    wrong: list[int] = []

    def work(seed: int) -> None:
        reader = readahead.Reader()
        for n in range(100):
            at = (seed * 7919 + n * 104_729) % (len(content) - 5000)
            memory = bytearray(5000)
            if reader.take(reader.begin(fd, at, memory, 0, 5000)) != 5000 or memory != content[at : at + 5000]:
                wrong.append(at)
        reader.close()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_the_interpreter_may_end_with_one_open(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(8 << 20))
    code = """
import os, sys
from holdfast._native.c_modules import readahead
fd = os.open(sys.argv[1], os.O_RDONLY)
reader = readahead.Reader()
for _ in range(20):
    reader.begin(fd, 0, bytearray(8 << 20), 0, 8 << 20)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "data")], timeout=60, check=True)
