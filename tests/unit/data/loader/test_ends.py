"""How a pass ends: whoever ends it, and however, nothing is left, and the next one works.

Every test is checked for descriptors, threads and processes that it left; `now_clean` looks earlier, while things are
still held that could keep them.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from factories_files import SCHEMA, ids_of, make_shards

import holdfast as hold
import leftovers
from holdfast.data.loader.dataset import Dataset
from holdfast.errors import HoldfastError, StateError

ALL = list(range(1000))


def only_id(sample: dict[str, Any]) -> dict[str, Any]:
    return {"id": sample["id"]}


def fails_on_500(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["id"] == 500:
        raise ValueError("no 500")
    return {"id": sample["id"]}


WAYS: dict[str, Callable[[Dataset, Any], Dataset]] = {
    "inline": lambda ds, f: ds.map(f).batch(16),
    "threads": lambda ds, f: ds.map(f, 2).batch(16),
    "ahead": lambda ds, f: ds.map(f, 2).batch(16).map(dict, 1).prefetch("1MB"),
    "cache": lambda ds, f: ds.cache().map(f, 2).batch(16),
    "processes": lambda ds, f: ds.map(only_id, 1, "processes").map(f, 2).batch(16),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shards")
    make_shards(made, [300, 0, 1, 477, 222])
    return made


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, folder: Path) -> Callable[..., Dataset]:
    return lambda f=only_id: WAYS[request.param](hold.read(folder, SCHEMA).shuffle(seed=1), f)


@pytest.fixture
def now_clean() -> Iterator[Callable[[], bool]]:
    """Without the collector: what is only let go of with a cycle is not let go of in time."""
    gc.collect()
    gc.disable()
    before = leftovers.take()
    yield lambda: not leftovers.wait_until_clean(before)
    gc.enable()


def test_an_error_that_is_kept_keeps_nothing(way: Any, now_clean: Any) -> None:
    with pytest.raises(HoldfastError, match="no 500") as kept:
        list(way(fails_on_500))
    assert now_clean()
    assert kept.value.__traceback__ is not None


def test_an_iterator_that_is_kept_or_dropped_keeps_nothing(way: Any, now_clean: Any) -> None:
    ds = way()
    whole, dropped = ds.iterate(), ds.iterate()
    assert sorted(ids_of(whole)) == ALL
    next(dropped)
    del dropped
    assert now_clean()
    assert list(whole) == []


def test_threads_share_the_batches(way: Any) -> None:
    got: list[int] = []
    with way().iterate() as it:
        threads = [threading.Thread(target=lambda: got.extend(ids_of(it))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert sorted(got) == ALL


@pytest.mark.parametrize("prefetch", [0, "1MB"])
def test_another_thread_may_close_it_while_one_waits(folder: Path, now_clean: Any, prefetch: Any) -> None:
    waits, go_on = threading.Event(), threading.Event()

    def waiting(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["id"] == 999:
            waits.set()
            go_on.wait(60)
        return {"id": sample["id"]}

    it = hold.read(folder, SCHEMA).map(waiting, 2).batch(10).prefetch(prefetch).iterate()
    got: list[int] = []
    reader = threading.Thread(target=lambda: got.extend(ids_of(it)))
    reader.start()
    assert waits.wait(60)
    closer = threading.Thread(target=it.close)
    closer.start()
    while not it._ended:
        pass
    go_on.set()
    for thread in (reader, closer):
        thread.join(60)
        assert not thread.is_alive()
    assert got == ALL[: len(got)]
    assert now_clean()


def test_a_signal_that_closes_it_in_the_middle(folder: Path) -> None:
    def signals(sample: dict[str, Any]) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGUSR1)
        return sample

    it = hold.read(folder, SCHEMA).map(signals).batch(10).iterate()
    before = signal.signal(signal.SIGUSR1, lambda *_: it.close())
    try:
        assert list(it) == []
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_forked_child_has_its_own_pass_and_takes_nothing_away(way: Any, now_clean: Any) -> None:
    ds = way()
    with ds.iterate() as it:
        seen = ids_of([next(it)])
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with pytest.raises(StateError, match="belongs to the process that began it"):
                    next(it)
                code = 0 if sorted(ids_of(ds)) == ALL else 2
                del it
                gc.collect()
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert sorted(seen + ids_of(it)) == ALL
    assert now_clean()


STORM = """
import gc, os, random, signal, sys, threading, time
import holdfast as hold
def only_id(sample):
    return {"id": sample["id"]}
def interrupt(*_):
    raise KeyboardInterrupt
def left():
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
def is_clean():  # a thread that had just ended may have been counted before
    return all(now <= before for now, before in zip(left(), clean, strict=True))
base = hold.read(sys.argv[1], {"id": hold.Int64()}).shuffle(seed=1)
signal.signal(signal.SIGALRM, interrupt)
chance, hits = random.Random(1), 0
list(base.batch(16))  # starts no thread of ours
clean = left()
for ds in (base.map(only_id).batch(16), base.map(only_id, 2).batch(16), base.map(only_id, 2).batch(16).prefetch("1MB")):
    for n in range(50):
        try:
            with ds.iterate() as it:
                next(it)  # all files are open: a descriptor can be lost between open() and the variable for it
                signal.setitimer(signal.ITIMER_REAL, chance.random() * 0.02)
                for batch in it:
                    pass
        except KeyboardInterrupt:
            hits += 1
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            pass
        it = None
        gc.collect()
        deadline = time.monotonic() + 20  # threads are told to end, and not waited for if the wait was interrupted
        while not is_clean() and time.monotonic() < deadline:
            threading.Event().wait(0.001)
        assert is_clean(), (n, left(), clean, threading.enumerate())
    assert sorted(i for batch in ds for i in batch["id"].tolist()) == list(range(1000))
print("hit" if hits else "never hit")
"""


def test_ctrl_c_at_any_moment(folder: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", STORM, str(folder)], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.stdout == "hit\n", ran.stderr


# ---- a cache


def test_a_cache_of_all_columns_gives_them_as_they_are(folder: Path, tmp_path: Path) -> None:
    for kept in (None, tmp_path):
        plain = hold.read(folder, SCHEMA)
        ds = plain.cache(folder=kept)
        want = [(bytes(one["name"]), one["tags"].tolist(), type(one["name"])) for one in plain]
        for _ in range(2):
            assert [(bytes(one["name"]), one["tags"].tolist(), type(one["name"])) for one in ds] == want


def test_what_is_done_to_a_sample_is_not_done_to_the_kept_one(folder: Path) -> None:
    def spoil(sample: dict[str, Any]) -> dict[str, Any]:
        sample["emb"][:] = -1
        sample["name"][:1] = b"X"
        return sample

    for base in (hold.read(folder, SCHEMA), hold.read(folder, SCHEMA).cache()):
        for workers in (0, 2):
            assert all((batch["emb"] == -1).all() for batch in base.map(spoil, workers).batch(10))
        assert base[0]["emb"].tolist() == [0, 1, 2]
        assert [bytes(sample["name"]) for sample in base.take(2)] == [b"sample 0", b"sample 1"]


def test_what_failed_is_tried_and_listed_in_every_epoch(folder: Path) -> None:
    ds = hold.read(folder, SCHEMA).map(fails_on_500, on_error="skip").cache().batch(100)
    for epoch in range(3):
        with ds.iterate(epoch=epoch) as it:
            assert sorted(ids_of(it)) == [i for i in ALL if i != 500]
            assert [(Path(loss.path).name, loss.record) for loss in it.skipped()] == [("shard-0003.tfrecord", 199)]


def test_a_forked_child_keeps_in_a_file_of_its_own(folder: Path, tmp_path: Path) -> None:
    ds = hold.read(folder, SCHEMA).cache(folder=tmp_path).batch(100)
    with ds.iterate() as it:
        seen = ids_of([next(it)])
        child = os.fork()
        if child == 0:
            os._exit(0 if ids_of(ds) == ids_of(ds) == ALL else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert seen + ids_of(it) == ids_of(ds) == ALL
    assert list(tmp_path.iterdir()) == []
