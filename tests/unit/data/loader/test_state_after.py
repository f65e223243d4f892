"""A state from a count of batches is the state an iteration has after them."""

from __future__ import annotations

from typing import Any

import pytest
from factories_files import SCHEMA, make_shards

import holdfast as hold
from holdfast.data.loader.dataset import state_after, steps_left
from holdfast.errors import StateError


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> hold.Dataset:
    folder = tmp_path_factory.mktemp("shards")
    make_shards(folder, [30, 0, 20])
    return hold.read(folder, SCHEMA).shuffle(seed=3)


@pytest.mark.parametrize("remainder", ["keep", "pad", "drop"])
@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize(("done", "skip"), [(0, 0), (8, 0), (0, 5)])
def test_as_an_iteration_has_it(base: hold.Dataset, remainder: Any, world: int, done: int, skip: int) -> None:
    ds = base.skip(skip).shard((world - 1, world), remainder=remainder).batch(4).repeat(2)
    with ds.iterate(epoch=5) as it:
        since = it.state_dict() | {"done": done}
        it.load_state_dict(since)
        assert state_after(ds, 0, epoch=5, since=since) == it.state_dict()
        for taken, _ in enumerate(it, start=1):
            assert state_after(ds, taken, epoch=5, since=since) == it.state_dict()
    with pytest.raises(ValueError, match=f"at most the {taken} batches that are left, got {taken + 1}"):
        state_after(ds, taken + 1, epoch=5, since=since)
    end = state_after(ds, taken + 9, epoch=5, since=since, at_most=True)
    assert steps_left(ds, end["epoch"], end["done"]) == 0


def test_the_state_says_the_epoch(base: hold.Dataset) -> None:
    ds = base.batch(10)
    since = state_after(ds, 2, epoch=7)
    assert (since["epoch"], since["done"]) == (7, 20)
    assert state_after(ds, 1, since=since)["done"] == 30


def test_for_ever(base: hold.Dataset) -> None:
    state = state_after(base.batch(10).repeat(), 52)
    assert (state["epoch"], state["done"]) == (10, 20)


def test_what_cannot_be_counted(base: hold.Dataset) -> None:
    with pytest.raises(StateError, match="expected a dataset of batches"):
        state_after(base, 3)
    with pytest.raises(ValueError, match="batches must be a non-negative integer, got -1"):
        state_after(base.batch(3), -1)
    with pytest.raises(StateError, match="the seed was 3, and is 4"):
        state_after(base.shuffle(seed=4).batch(3), 1, since=state_after(base.batch(3), 1))


def test_nothing_for_ever(base: hold.Dataset) -> None:
    with pytest.raises(ValueError, match="at most the 0 batches"):
        state_after(base.take(0).batch(3).repeat(), 1)
