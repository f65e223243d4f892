"""Where passes begin, as the processes that share it see it."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from typing import Any

import pytest

from holdfast.data.torch_loader.shared_epoch import PassStart, SharedEpoch


def as_worker(place: SharedEpoch, loader: int, passes: int, epochs: int, own: PassStart | None, told: Any) -> None:
    told.send([tuple(place.begin_in_worker(epochs, loader, own)) for _ in range(passes)])


def as_trainer(place: SharedEpoch, told: Any) -> None:
    told.send([tuple(place.begin(1)), tuple(place.begin(1))])


class Workers:
    """Processes of their own, one after the other, which begin passes in the order that a test says."""

    def __init__(self, place: SharedEpoch, start: str = "fork") -> None:
        self.place, self._context = place, multiprocessing.get_context(start)

    def begin(self, loader: int, passes: int = 1, *, epochs: int = 1, own: PassStart | None = None) -> list[Any]:
        return self.run(as_worker, loader, passes, epochs, own)

    def run(self, target: Any, *arguments: Any) -> list[Any]:
        reading, writing = self._context.Pipe(duplex=False)
        child: Any = self._context.Process(  # type: ignore[attr-defined]
            target=target, args=(self.place, *arguments, writing)
        )
        child.start()
        assert reading.poll(60)
        found: list[Any] = reading.recv()
        child.join()
        child.close()
        reading.close()
        writing.close()
        return found


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_the_workers_of_a_loader_begin_together(start: str) -> None:
    place = SharedEpoch(PassStart(2, 2, 40))
    assert not place.in_workers
    workers = Workers(place, start)
    assert [workers.begin(7), workers.begin(7)] == [[(2, 2, 40)]] * 2
    assert place.in_workers
    assert place.last == PassStart(2, 2, 40)
    assert [workers.begin(8), workers.begin(8)] == [[(3, 3, 0)]] * 2
    assert place.last == PassStart(3, 3, 0)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_trainers_that_were_given_it_count_for_themselves(start: str) -> None:
    """As the ranks do that a program starts: one after the other, they are in the same epochs."""
    place = SharedEpoch(PassStart(2, 2, 40))
    trainers = Workers(place, start)
    assert [trainers.run(as_trainer), trainers.run(as_trainer)] == [[(2, 2, 40), (3, 3, 0)]] * 2
    assert place.begin(1) == PassStart(2, 2, 40)


def test_workers_that_stay_begin_the_same_passes() -> None:
    workers = Workers(SharedEpoch(PassStart(0, 0, 5)))
    assert workers.begin(7, 3) == workers.begin(7, 3) == [(0, 0, 5), (1, 1, 0), (2, 2, 0)]
    assert workers.begin(8) == [(3, 3, 0)]


def test_a_worker_that_never_began_leaves_no_pass_open() -> None:
    workers = Workers(SharedEpoch(PassStart(0, 0, 0)))
    workers.begin(7)  # the other worker was killed before
    assert [workers.begin(8), workers.begin(8)] == [[(1, 1, 0)]] * 2


def test_two_loaders_at_once_have_an_epoch_each() -> None:
    workers = Workers(SharedEpoch(PassStart(0, 0, 0)))
    assert [workers.begin(loader) for loader in (7, 8, 8, 7)] == [[(0, 0, 0)], [(1, 1, 0)], [(1, 1, 0)], [(0, 0, 0)]]


def test_an_epoch_set_between_two_workers_is_of_the_next_pass() -> None:
    workers = Workers(SharedEpoch(PassStart(0, 0, 0)))
    workers.begin(7)
    workers.place.set_epoch(5)
    assert workers.begin(7) == [(0, 0, 0)]
    assert workers.begin(8) == [(5, 5, 0)]


def test_many_passes_do_not_grow_it() -> None:
    place = SharedEpoch(PassStart(0, 0, 0))
    for number in range(200):
        assert place.begin_in_worker(1, 1000 + number).epoch == number
    assert os.fstat(place._fd).st_size < 5000
    assert place.begin(1).epoch == 200


def test_a_worker_that_was_told_moves_the_next_pass() -> None:
    """As a stateful loader tells its workers one by one."""
    workers = Workers(SharedEpoch(PassStart(0, 0, 0)))
    for done in (32, 48):
        assert workers.begin(7, own=PassStart(4, 4, done)) == [(4, 4, done)]
    assert [workers.begin(8), workers.begin(8)] == [[(5, 5, 0)]] * 2


def test_a_loaded_place_is_used_up_by_one_pass() -> None:
    place = SharedEpoch(PassStart(0, 1, 7))
    assert place.last == place.begin(2) == place.last == PassStart(0, 1, 7)
    assert place.begin(2) == place.last == PassStart(2, 2, 0)
    place.load(PassStart(0, 1, 7))
    assert place.begin(2) == PassStart(0, 1, 7)


def test_an_epoch_keeps_its_own_state() -> None:
    place = SharedEpoch(PassStart(3, 3, 7))
    place.set_epoch(3)
    assert place.begin(1) == PassStart(3, 3, 7)
    place.set_epoch(4)
    assert place.begin(1) == PassStart(4, 4, 0)
    place.set_epoch(3)
    assert place.begin(1) == PassStart(3, 3, 0)


def test_a_copy_is_its_own() -> None:
    place = SharedEpoch(PassStart(1, 1, 5))
    copy = pickle.loads(pickle.dumps(place))
    copy.set_epoch(9)
    assert place.last == PassStart(1, 1, 5)
    assert copy.last == PassStart(9, 9, 0)


def test_its_descriptor_goes_with_it() -> None:
    place = SharedEpoch(PassStart(0, 0, 0))
    fd = place._fd
    os.fstat(fd)
    del place
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
