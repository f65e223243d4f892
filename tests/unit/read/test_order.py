from __future__ import annotations

import hashlib
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_blocks import all_samples, blocks_of, counts, evens, seeds

from holdfast.read.blocks import Blocks
from holdfast.read.chance import key_of, shuffled
from holdfast.read.order import Even, Order, default_lanes
from holdfast.read.shards import Part, walk

batches = st.sampled_from([4, 8, 12, 16])


def everything(order: Order) -> list[tuple[int, int]]:
    return [pair for step in range(order.steps) for pair in order.step(step).pairs()]


def joined(order: Order, world: int, workers: int, first: int = 0) -> list[tuple[int, int]]:
    """What all ranks' loaders give, interleaved: each asks its workers in turn."""
    ranks = []
    for rank in range(world):
        parts = [Part(rank=rank, world=world, worker=worker, workers=workers) for worker in range(workers)]
        walks = [walk(order, part, first) for part in parts]
        ranks.append([next(walks[turn % workers]) for turn in range(order.steps - first)])
        assert all(next(one, None) is None for one in walks)
    for steps in zip(*ranks, strict=True):
        assert len({number for number, _ in steps}) == 1
    return [pair for steps in zip(*ranks, strict=True) for _, samples in steps for pair in samples.pairs()]


@given(counts, batches, seeds, evens, st.integers(0, 3), st.integers(1, 400))
@settings(deadline=None)
def test_every_sample_once(
    shards: list[int], batch: int, seed: int | None, even: Even, epoch: int, window: int
) -> None:
    order = Order(blocks_of(shards), batch=batch, seed=seed, epoch=epoch, even=even, window_bytes=window)
    seen, want = everything(order), all_samples(shards)
    sizes = [order.size(step) for step in range(order.steps)]
    assert sizes == [len(order.step(step)) for step in range(order.steps)]
    if even == "none":
        assert sorted(seen) == want
    elif even == "drop":
        assert len(set(seen)) == len(seen) == len(want) // batch * batch
        assert set(seen) <= set(want)
    else:
        assert set(sizes) <= {batch}
        assert sorted(seen[: len(seen) - order.padding]) == want
        assert set(seen) == set(want)


@given(counts, seeds, evens, st.integers(1, 400))
@settings(max_examples=40, deadline=None)
def test_the_same_for_any_ranks_and_workers(shards: list[int], seed: int | None, even: Even, window: int) -> None:
    order = Order(blocks_of(shards), batch=12, seed=seed, even=even, window_bytes=window)
    want = everything(order)
    for world in (1, 2, 3, 4):
        for workers in (1, 2, 4):
            fresh = Order(blocks_of(shards), batch=12, seed=seed, even=even, window_bytes=window)
            assert joined(fresh, world, workers) == want


@given(counts, st.integers(0, 9), st.sampled_from(["pad", "none"]))
@settings(max_examples=20, deadline=None)
def test_resume_at_every_step_under_every_layout(shards: list[int], seed: int, even: Even) -> None:
    def fresh() -> Order:
        return Order(blocks_of(shards), batch=8, seed=seed, even=even, window_samples=24)

    want = everything(fresh())
    for first in range(fresh().steps + 1):
        done = want[: first * 8]
        for world, workers in ((1, 1), (2, 1), (4, 2), (1, 4)):
            assert done + joined(fresh(), world, workers, first) == want


def test_the_order_never_changes() -> None:
    """A changed hash is another order: every state that users have is then worthless. Give the order a new name."""
    blocks = blocks_of([100, 1, 0, 333, 50], sample_bytes=100, block_bytes=2000)
    hashed = hashlib.sha256()
    for epoch in range(3):
        order = Order(blocks, batch=16, seed=7, epoch=epoch, window_bytes=20_000)
        for step in range(order.steps):
            found = order.step(step)
            hashed.update(np.stack([found.shard, found.sample]).astype("<i8").tobytes())
    assert hashed.hexdigest() == "71f8e6d5e88528fb4238935bbe89b788dd99b3a2e045441bc070bafb61d93706"


def test_the_documented_way_of_shuffling() -> None:
    key, n, bits = key_of("one", 2), 11, 4
    assert key == int.from_bytes(hashlib.blake2b(b"one|2", digest_size=8).digest(), "little")
    draws = []
    for i in range(n):
        x = (key + (i + 1) * 0x9E3779B97F4A7C15) % 2**64
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        draws.append((x ^ (x >> 31)) >> bits << bits | i)
    assert shuffled(n, key).tolist() == [draw % 2**bits for draw in sorted(draws)]


def test_every_place_is_as_likely() -> None:
    first = Counter(int(shuffled(5, key_of(i))[0]) for i in range(5000))
    assert all(850 < first[i] < 1150 for i in range(5))


def test_without_a_seed_it_is_the_order_of_the_files() -> None:
    order = Order(blocks_of([30, 0, 41]), batch=8)
    assert everything(order) == all_samples([30, 0, 41])


def test_seed_and_epoch_give_other_orders() -> None:
    blocks = blocks_of([200, 200])
    seen = [everything(Order(blocks, batch=8, seed=seed, epoch=epoch)) for seed in (1, 2) for epoch in (0, 1)]
    assert len({tuple(one) for one in seen}) == 4


def test_a_step_is_spread_over_the_data() -> None:
    order = Order(blocks_of([1000] * 10), batch=64, seed=3)
    assert all(len(set(order.step(step).shard.tolist())) >= 6 for step in range(order.full_steps))


def test_windows_stay_within_a_block_of_their_bytes() -> None:
    order = Order(blocks_of([5000]), batch=8, seed=1, lanes=4, window_bytes=1200)
    for number in range(4):
        lane = order.lane(number)
        sizes = [int(lane.blocks_of(window).size_bytes.sum()) for window in range(lane.windows)]
        assert max(sizes) <= 300 + 80
        assert sum(lane.blocks_of(window).samples for window in range(lane.windows)) == len(lane)


def test_a_billion_samples_take_no_memory_and_no_replay() -> None:
    n = 50_000
    each = np.full(n, 20_000, np.int64)
    blocks = Blocks(np.arange(n) // 100, np.arange(n) % 100 * 20_000, each, each * 200)
    tracemalloc.start()
    try:
        order = Order(blocks, batch=1024, seed=1)
        assert order.samples == 10**9
        late = order.step(order.steps - 2).pairs()
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(set(late)) == 1024
    assert held < 300 << 20
    [(number, same)] = list(walk(Order(blocks, batch=1024, seed=1), first=order.steps - 2))[:1]
    assert (number, same.pairs()) == (order.steps - 2, late)


@pytest.mark.parametrize(("batch", "lanes"), [(1, 1), (7, 7), (256, 64), (192, 48), (1000, 40), (67, 1)])
def test_lanes_suit_many_numbers_of_ranks(batch: int, lanes: int) -> None:
    assert default_lanes(batch) == lanes


def test_padding_repeats_what_there_is() -> None:
    order = Order(blocks_of([3]), batch=8, seed=1, even="pad")
    assert order.steps == 1
    assert order.padding == 5
    assert set(order.step(0).pairs()) == {(0, 0), (0, 1), (0, 2)}
    assert len(order.step(0)) == 8


def test_wrong_settings_are_named() -> None:
    blocks = blocks_of([10])
    with pytest.raises(ValueError, match="divides the batch of 8, got 3"):
        Order(blocks, batch=8, seed=1, lanes=3)
    with pytest.raises(ValueError, match="at least one sample, got 0"):
        Order(blocks, batch=0)
    with pytest.raises(ValueError, match="got 'odd'"):
        Order(blocks, batch=8, even="odd")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="window of at least 1, got 0"):
        Order(blocks, batch=8, seed=1, window_bytes=0)
    with pytest.raises(ValueError, match="epoch from 0 up, got -1"):
        Order(blocks, batch=8, epoch=-1)
    with pytest.raises(IndexError, match="from 0 to 2, got 2 to 3"):
        Order(blocks, batch=8).step(2)
    with pytest.raises(ValueError, match="3 ranks can share, got 8: take 6 or 9"):
        next(walk(Order(blocks, batch=8), Part(world=3)))
    with pytest.raises(ValueError, match="got rank 2 of 2"):
        Part(rank=2, world=2)
