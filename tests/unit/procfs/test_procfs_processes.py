from __future__ import annotations

import os
import subprocess
import sys
import threading

from fake_proc import FakeProc

from holdfast.procfs.processes import (
    Identity,
    Process,
    descendants,
    is_same,
    parse_stat,
    read_parents,
    read_process,
    read_stat,
)
from holdfast.procfs.procfs import REAL

STAT = (
    "4711 (data (w) 1) S 4700 4711 4700 0 -1 4194304 90 0 0 0 1 2 0 0 20 0 3 0 88321 12345344 1520 18446744073709551615"
)


def test_a_name_with_parentheses() -> None:
    seen = parse_stat(STAT)
    assert seen is not None
    assert (seen.comm, seen.state, seen.ppid, seen.threads, seen.start_ticks) == ("data (w) 1", "S", 4700, 3, 88321)
    assert seen.rss_bytes == 1520 * os.sysconf("SC_PAGE_SIZE")


def test_torn_text_is_nothing() -> None:
    assert parse_stat("") is None
    assert parse_stat("4711 (x) S 1") is None
    assert parse_stat(STAT.replace("88321", "?")) is None


def test_this_process_and_its_child() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        seen = read_process(REAL, child.pid)
        assert seen is not None
        assert seen.ppid == os.getpid()
        assert seen.uid == os.getuid()
        assert seen.rss_bytes
        assert seen.threads == 1
        assert seen.uptime_s is not None
        assert "input()" in seen.cmdline
        assert is_same(REAL, seen.identity)
        assert child.pid in descendants(read_parents(REAL), os.getpid())
        child.communicate(b"\n")
    assert read_process(REAL, child.pid) is None
    assert is_same(REAL, seen.identity) is False


def test_threads_are_counted() -> None:
    stop = threading.Event()
    before = read_stat(REAL, os.getpid())
    thread = threading.Thread(target=stop.wait)
    thread.start()
    after = read_stat(REAL, os.getpid())
    stop.set()
    thread.join()
    assert before is not None
    assert after is not None
    assert after.threads == before.threads + 1


def test_a_pid_given_out_again_is_another_process() -> None:
    fake = FakeProc()
    fake.add_process(7, start=500)
    seen = read_process(fake, 7)
    assert seen is not None
    assert seen.identity == Identity(7, 500)
    assert is_same(fake, seen.identity) is True
    fake.add_process(7, start=900)
    assert is_same(fake, seen.identity) is False


def test_what_cannot_be_read_is_unknown() -> None:
    fake = FakeProc(full=True)
    fake.add_process(7)
    assert read_process(fake, 7) == Process(pid=7, uid=1000)
    assert is_same(fake, Identity(7, 500)) is None
    assert read_process(fake, 8) is None


def test_the_clock_is_the_kernels() -> None:
    fake = FakeProc(files={"/proc/uptime": "105.00 99.00\n"})
    fake.add_process(7, start=5 * os.sysconf("SC_CLK_TCK"))
    seen = read_process(fake, 7)
    assert seen is not None
    assert seen.uptime_s == 100.0


def test_a_tree_in_order() -> None:
    assert descendants({2: 1, 3: 1, 4: 2, 5: 4, 9: 8}, 1) == [2, 4, 5, 3]
    assert descendants({2: 1}, 2) == []
    assert descendants({2: 3, 3: 2}, 2) == [3]  # a ring
