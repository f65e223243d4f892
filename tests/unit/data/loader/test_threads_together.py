"""Functions of samples on threads: all threads work at one batch, and nobody can tell but by the clock."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories_files import SCHEMA, ids_of, make_shards

import holdfast as hold
from holdfast.data.loader.pipeline import executors
from holdfast.errors import MapError

N = 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shards")
    make_shards(made, [N])
    return made


def taking(it: Any) -> tuple[threading.Thread, list[Any]]:
    """A thread that waits for a batch, and what it got: that, or None at an end."""
    got: list[Any] = []
    taker = threading.Thread(target=lambda: got.append(next(it, None)))
    taker.start()
    return taker, got


def test_a_single_batch_is_shared_by_all_threads(folder: Path) -> None:
    meeting = threading.Barrier(3, timeout=30)

    def meet(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["id"] < 3:
            meeting.wait()  # broken unless three are at this batch at the same time
        return {"id": sample["id"]}

    with hold.read(folder, SCHEMA).map(meet, 3).batch(N).iterate() as it:
        assert ids_of(it) == list(range(N))
        stage = it.stats().stages["meet"]
    assert (stage.calls, stage.workers) == (1, 3)


def test_the_first_sample_that_fails_is_named_whoever_is_quicker(folder: Path) -> None:
    last_failed = threading.Event()

    def fails(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["id"] == 10:
            last_failed.wait(30)
            raise ValueError("the earlier one")
        if sample["id"] == 11:
            last_failed.set()
            raise ValueError("the later one")
        return {"id": sample["id"]}

    with pytest.raises(MapError, match="the earlier one") as found:
        list(hold.read(folder, SCHEMA).map(fails, 2).batch(N))
    assert found.value.record == 10


def test_what_is_skipped_and_filtered_keeps_its_order(folder: Path) -> None:
    def odd_fail(sample: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.001 * (sample["id"] % 3))
        if sample["id"] % 10 == 3:
            raise ValueError("three")
        return {"id": sample["id"]}

    ds = hold.read(folder, SCHEMA).map(odd_fail, 4, on_error="skip", max_errors=N).filter(lambda s: s["id"] % 2 == 1, 4)
    with ds.batch(16).iterate() as it:
        assert ids_of(it) == [i for i in range(N) if i % 2 == 1 and i % 10 != 3]
        assert it.stats().lost == N // 10


def test_closed_amid_a_batch_no_other_sample_is_begun_and_no_half_batch_is_given(folder: Path) -> None:
    begun: list[int] = []
    go_on, at_it = threading.Event(), threading.Event()

    def slow(sample: dict[str, Any]) -> dict[str, Any]:
        begun.append(int(sample["id"]))
        if len(begun) == 2:
            at_it.set()
        go_on.wait(30)
        return {"id": sample["id"]}

    it: Any = hold.read(folder, SCHEMA).map(slow, 2).batch(N).iterate()
    taker, got = taking(it)
    assert at_it.wait(30)
    cancelled = threading.Event()
    it._run.context.cancel_token.on_cancel(cancelled.set)  # after what the stages have registered
    closer = threading.Thread(target=it.close)
    closer.start()
    assert cancelled.wait(30)
    go_on.set()
    taker.join(30)
    closer.join(30)
    assert sorted(begun) == [0, 1]
    assert got == [None]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_whatever_a_function_raises_no_sample_is_lost_for_it(
    folder: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one that is no Exception; and the thread that meets it may be slow to say so."""
    leave = executors._SharedRun._leave
    calls: list[int] = []

    def slowly(self: Any) -> bool:
        is_last = leave(self)
        if threading.current_thread() in raising:
            time.sleep(0.1)
        return is_last

    raising: set[threading.Thread] = set()

    def fails(sample: dict[str, Any]) -> dict[str, Any]:
        calls.append(1)
        if sample["id"] == 5:
            raising.add(threading.current_thread())
            raise asyncio.CancelledError
        time.sleep(0.002)
        return {"id": sample["id"]}

    monkeypatch.setattr(executors._SharedRun, "_leave", slowly)
    with pytest.raises(asyncio.CancelledError):
        list(hold.read(folder, SCHEMA).map(fails, workers).batch(N))
    assert len(calls) < N // 2


def test_closed_before_the_first_batch_is_there_nobody_waits_for_ever(folder: Path) -> None:
    begun = threading.Event()

    def slow(sample: dict[str, Any]) -> dict[str, Any]:
        begun.set()
        time.sleep(0.01)
        return {"id": sample["id"]}

    it = hold.read(folder, SCHEMA).map(slow).map(dict, 2).batch(N // 4).iterate()
    taker, got = taking(it)
    assert begun.wait(30)
    it.close()
    taker.join(30)
    assert not taker.is_alive()
    assert got == [None]


def test_chance_of_a_batch_is_the_same_wherever_the_filter_runs(folder: Path) -> None:
    found = set()
    for filters, maps in [(0, 0), (0, 2), (2, 0), (2, 2)]:
        ds = hold.read(folder, SCHEMA).filter(lambda sample: sample["id"] % 3 == 2, filters).batch(16)
        ds = ds.map(
            lambda batch, rng: {"id": batch["id"], "r": np.full(len(batch["id"]), rng.random())}, maps, random=True
        )
        with ds.iterate() as it:
            found.add(tuple(float(batch["r"][0]) for batch in it))
    assert len(found) == 1
