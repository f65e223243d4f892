"""Functions of samples on threads: all threads work at one batch, and nobody can tell but by the clock."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from made_files import SCHEMA, ids_of, make_shards

import holdfast as hold
from holdfast.errors import MapError

N = 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shards")
    make_shards(made, [N])
    return made


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

    it = hold.read(folder, SCHEMA).map(slow, 2).batch(N).iterate()
    got: list[Any] = []

    def take() -> None:
        try:
            got.append(next(it))
        except Exception as error:  # noqa: BLE001 - which one is looked at below
            got.append(error)

    taker = threading.Thread(target=take)
    taker.start()
    assert at_it.wait(30)
    closer = threading.Thread(target=it.close)
    closer.start()
    time.sleep(0.1)
    go_on.set()
    taker.join(30)
    closer.join(30)
    assert sorted(begun) == [0, 1]
    assert isinstance(got[0], Exception), got
