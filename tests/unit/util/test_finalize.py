"""What is dropped is closed at once by who drops it, and by a thread of its own when the collector finds it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast._util.finalize import THREADS, close_finalized, close_when_collected, finish_finalizers

Where = list[threading.Thread]


class Owner:
    ring: Any


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """Only when it is asked for."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def noting() -> tuple[Where, Callable[[], None]]:
    where: Where = []
    return where, lambda: where.append(threading.current_thread())


def lose(close: Callable[[], object]) -> None:
    """In a cycle, which only the collector frees."""
    owner = Owner()
    owner.ring = owner
    close_when_collected(owner, close)


def test_at_once_where_a_program_drops_it() -> None:
    where, close = noting()
    owner = Owner()
    finalizer = close_when_collected(owner, close)
    assert finalizer.alive
    del owner
    assert where == [threading.current_thread()]


def test_by_another_thread_where_the_collector_finds_it() -> None:
    where, close = noting()
    for _ in range(3):
        lose(close)
    assert where == []
    gc.collect()
    assert [thread.name for thread in where] == [f"{THREADS}dropped"] * 3


def test_never_by_a_thread_that_closing_may_wait_for() -> None:
    where, close = noting()
    thread = threading.Thread(target=lambda: close_finalized(close), name=f"{THREADS}map-0")
    thread.start()
    thread.join()
    finish_finalizers()
    assert [one.name for one in where] == [f"{THREADS}dropped"]


def test_a_collection_does_not_wait_for_a_lock_that_its_thread_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast._util.finalize._COLLECTOR_S", 0.1)
    lock = threading.Lock()
    closed = threading.Event()

    def close() -> None:
        with lock:
            closed.set()

    lose(close)
    with lock:
        gc.collect()
        assert not closed.is_set()
    assert closed.wait(10)
    finish_finalizers()


def test_a_collection_waits_once_however_many_it_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("holdfast._util.finalize.finish_finalizers", waits.append)  # None: in vain
    go_on = threading.Event()
    for _ in range(20):
        lose(go_on.wait)
    gc.collect()
    assert len(waits) == 1
    go_on.set()
    assert finish_finalizers()


@pytest.mark.parametrize("error", [LookupError, SystemExit])
def test_one_that_fails_does_not_keep_the_others(monkeypatch: pytest.MonkeyPatch, error: type[BaseException]) -> None:
    said: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", said.append)
    where, close = noting()

    def fail() -> None:
        raise error("while it was closed")

    for one in (fail, close):
        lose(one)
    gc.collect()
    finish_finalizers()
    assert len(where) == 1
    assert [str(args.exc_value) for args in said] == ["while it was closed"]


def test_where_no_thread_can_start_the_next_one_closes_both(monkeypatch: pytest.MonkeyPatch) -> None:
    where, close = noting()

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    for may_start in (False, True):
        with monkeypatch.context() as patch:
            if not may_start:
                patch.setattr(threading.Thread, "start", refuse)
            lose(close)
            gc.collect()
        finish_finalizers()
        assert len(where) == 2 * may_start


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork beside threads
def test_a_child_that_was_forked_meanwhile_has_a_thread_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast._util.finalize._COLLECTOR_S", 0.1)
    go_on = threading.Event()
    lose(go_on.wait)
    gc.collect()
    pid = os.fork()
    if not pid:
        closed = threading.Event()
        lose(closed.set)
        gc.collect()
        os._exit(0 if closed.wait(10) else 1)
    go_on.set()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finish_finalizers()


AT_THE_END = """
import holdfast._util.finalize as dropped

class Shard:
    def __del__(self):
        dropped.close_finalized(lambda: print("closed", flush=True))

shard = Shard()
shard.itself = shard
"""


def test_python_ends_with_one_in_a_cycle() -> None:
    """The last collection comes when no other thread runs any more."""
    done = subprocess.run([sys.executable, "-c", AT_THE_END], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "closed\n", "")


WHILE_CLOSING = """
import gc, time
import holdfast._util.finalize as dropped

class Owner: pass

def close():
    time.sleep(0.5)
    print("closed", flush=True)

dropped._COLLECTOR_S = 0.1
owner = Owner()
owner.itself = owner
dropped.close_when_collected(owner, close)
del owner
gc.collect()
print("ends", flush=True)
"""


def test_python_ends_when_what_is_being_closed_is() -> None:
    command = [sys.executable, "-c", WHILE_CLOSING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\nclosed\n", "")
