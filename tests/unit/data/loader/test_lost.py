"""Iterations that nobody closes: what they had open goes, in whatever thread the collector finds them."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import holdfast as hold
import leftovers

SCHEMA = {"id": hold.Int64()}
KEPT: list[BaseException] = []


class Ring:
    """A reference cycle, which only the collector frees."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing
        self.itself = self


@pytest.fixture
def data(tmp_path: Path) -> hold.Dataset:
    with hold.TFRecordWriter(tmp_path / "a.tfrecord", SCHEMA) as writer:
        writer.extend({"id": np.arange(1000)})
    return hold.read(tmp_path, SCHEMA)


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def slowly(sample: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.001)
    return {"id": [sample["id"]] * 2}


def is_collector_alive() -> bool:
    ring = weakref.ref(Ring(None))
    gc.collect()
    return ring() is None


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("where", ["threads", "processes"])
def test_collected_in_a_thread_of_its_own(data: hold.Dataset, where: Any) -> None:
    """Where closing would wait for the thread that closes, and no collection would ever come again."""
    opened = data.map(slowly, 2, where).batch(10).prefetch("1MB").iterate()
    next(opened)
    way = weakref.ref(opened)
    ring = Ring(opened)
    found_in: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and way() is None:
            found_in.append(threading.current_thread().name)

    before = gc.get_threshold()
    gc.callbacks.append(note)
    gc.set_threshold(1, 1, 1)
    try:
        del opened, ring
        gc.enable()
        for _ in range(100):
            time.sleep(0.1)  # this thread makes nothing meanwhile, so that another one collects
            if found_in:
                break
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(note)
    assert found_in[0].startswith("holdfast-")
    assert is_collector_alive()


def test_in_cycles_they_do_not_pile_up(data: hold.Dataset) -> None:
    ds = data.map(slowly, 2, "threads").batch(10).prefetch("1MB")

    def lose() -> int:
        opened = ds.iterate()
        next(opened)
        Ring(opened)
        return len(os.listdir("/proc/self/fd"))

    counts = [lose() for _ in range(50)]
    assert max(counts) <= counts[0] + 4 * 3, counts


def test_one_that_an_error_keeps_goes_on(data: hold.Dataset) -> None:
    """Somebody may look at it: to close it would look like the end of the data."""
    ds = data.batch(10)

    def fail() -> None:
        opened = ds.iterate()
        next(opened)
        raise LookupError("of the user's")

    try:
        fail()
    except LookupError as error:
        KEPT.append(error)
    try:
        for _ in range(3):
            with ds.iterate() as other:
                next(other)
        trace = KEPT[0].__traceback__
        assert trace is not None
        assert trace.tb_next is not None
        with trace.tb_next.tb_frame.f_locals["opened"] as opened:
            assert len(list(opened)) == 99
    finally:
        KEPT.clear()


def test_threads_open_and_close_at_once(data: hold.Dataset) -> None:
    ds = data.batch(100)
    wrong: list[BaseException] = []

    def use() -> None:
        try:
            for _ in range(30):
                several = [ds.iterate() for _ in range(3)]
                for opened in several:
                    next(opened)
                for opened in several:
                    opened.close()
        except BaseException as error:  # noqa: BLE001 - the test fails with it
            wrong.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=use) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert wrong == []


def test_one_in_use_is_left_alone(data: hold.Dataset) -> None:
    ds = data.batch(10)
    with ds.iterate() as first, ds.iterate() as second:
        got = [(next(first)["id"].tolist(), next(second)["id"].tolist()) for _ in range(5)]
        for _ in range(3):
            with ds.iterate() as third:
                next(third)
        rest = len(list(first)), len(list(second))
    assert all(left == right for left, right in got)
    assert rest == (95, 95)


def test_a_dropped_one_is_closed_at_once(data: hold.Dataset) -> None:
    before = leftovers.take()
    opened = data.map(slowly, 2, "processes").batch(10).prefetch("1MB").iterate()
    next(opened)
    del opened
    after = leftovers.take()
    assert set(after.fd) <= set(before.fd)
    assert set(after.thread) <= set(before.thread)
    assert set(after.process) <= set(before.process)


AT_THE_END = """
import sys, threading, time
import holdfast as hold

def slowly(sample):
    time.sleep(0.01)
    return sample

def read(opened):
    for _ in opened:
        begun.set()

begun = threading.Event()
opened = hold.read(sys.argv[1], {"id": hold.Int64()}).map(slowly, 2, "threads").batch(10).iterate()
threading.Thread(target=read, args=(opened,), daemon=True).start()
begun.wait()
"""


def test_a_program_ends_while_a_daemon_thread_reads(data: hold.Dataset, tmp_path: Path) -> None:
    command = [sys.executable, "-c", AT_THE_END, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
