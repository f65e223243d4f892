"""Where passes begin, as the processes that share it see it."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from typing import Any

import pytest

from holdfast._torch.place import ALONE, Begin, Place


def begin_in_child(place: Place, worker: int, workers: int, told: Any) -> None:
    told.send(tuple(place.begin(worker, workers)))


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_see_what_the_trainer_says(start: str) -> None:
    context = multiprocessing.get_context(start)
    place = Place(Begin(2, 2, 40))
    assert not place.in_workers
    found = []
    for worker in (0, 1, 0):
        reading, writing = context.Pipe(duplex=False)
        child = context.Process(target=begin_in_child, args=(place, worker, 2, writing))
        child.start()
        assert reading.poll(60)
        found.append(reading.recv())
        child.join()
        child.close()
        reading.close()
        writing.close()
    assert found == [(2, 2, 40), (2, 2, 40), (2, 2, 0)]
    assert place.in_workers
    assert place.begun == Begin(2, 2, 0)


def test_a_loaded_place_is_used_up_by_one_pass() -> None:
    place = Place(Begin(0, 1, 7))
    assert place.begun == place.begin(0, ALONE) == place.begun == Begin(0, 1, 7)
    assert place.begin(0, ALONE) == place.begun == Begin(0, 0, 0)
    place.load(Begin(0, 1, 7))
    assert place.begin(0, ALONE) == Begin(0, 1, 7)


def test_more_workers_are_another_pass() -> None:
    place = Place(Begin(0, 0, 7))
    assert [place.begin(worker, 2).done for worker in range(2)] == [7, 7]
    assert [place.begin(worker, 4).done for worker in range(4)] == [0, 0, 0, 0]


def test_an_epoch_keeps_its_own_state() -> None:
    place = Place(Begin(3, 3, 7))
    place.set_epoch(3)
    assert place.begin(0, ALONE) == Begin(3, 3, 7)
    place.set_epoch(4)
    assert place.begin(0, ALONE) == Begin(4, 4, 0)
    place.set_epoch(3)
    assert place.begin(0, ALONE) == Begin(3, 3, 0)


def test_a_copy_is_its_own() -> None:
    place = Place(Begin(1, 1, 5))
    copy = pickle.loads(pickle.dumps(place))
    copy.set_epoch(9)
    assert place.begun == Begin(1, 1, 5)
    assert copy.begun == Begin(9, 9, 0)


def test_its_descriptor_goes_with_it() -> None:
    place = Place(Begin(0, 0, 0))
    fd = place._fd
    os.fstat(fd)
    del place
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
