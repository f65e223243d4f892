from __future__ import annotations

import hashlib
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from factories_blocks import all_samples, blocks_of, counts, remainders, seeds
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.data.loader.order.blocks import Blocks, SamplePositions
from holdfast.data.loader.order.sharding import BatchPlan, Remainder, ShardSpec, Step, plan_steps
from holdfast.data.loader.order.shuffle import SampleOrder, default_lanes, key_of, shuffled

batches = st.sampled_from([1, 3, 4, 8, 16])


def pairs(order: SampleOrder, places: SamplePositions) -> list[tuple[int, int]]:
    shard, sample = order.blocks.samples_at(places)
    return list(zip(shard.tolist(), sample.tolist(), strict=True))


def everything(order: SampleOrder) -> list[tuple[int, int]]:
    return pairs(order, order.take(0, order.samples))


def rank_steps(order: SampleOrder, cut: BatchPlan, part: ShardSpec, done: int = 0, at_once: int = 16) -> list[Step]:
    return [step for run in plan_steps(order, cut, part, done, at_once) for step in run.steps]


def joined(order: SampleOrder, cut: BatchPlan, world: int, workers: int, done: int = 0) -> list[tuple[int, int]]:
    """What all ranks' loaders give, one sample of each in turn: each asks its workers in turn."""
    out: list[tuple[int, int]] = []
    ranks = []
    for rank in range(world):
        parts = [ShardSpec(rank=rank, world=world, worker=worker, workers=workers) for worker in range(workers)]
        walks = [iter(rank_steps(order, cut, part, done)) for part in parts]
        ranks.append([next(walks[turn % workers]) for turn in range(cut.steps(order, world, done))])
        assert all(next(one, None) is None for one in walks)
    for steps in zip(*ranks, strict=True):
        assert len({(step.start, step.done) for step in steps}) == 1
        samples = [pairs(order, step.positions) for step in steps]
        start = steps[0].start
        maximum = sum(map(len, samples))
        turns = [iter(one) for one in samples]
        out += [next(turns[(start + at) % world]) for at in range(maximum)]
    return out


@given(counts, seeds, st.integers(0, 3), st.integers(1, 400), st.sampled_from([None, 1, 3, 8]))
@settings(deadline=None)
def test_every_sample_once(shards: list[int], seed: int | None, epoch: int, window: int, lanes: int | None) -> None:
    order = SampleOrder(blocks_of(shards), seed=seed, epoch=epoch, window_bytes=window, lanes=lanes)
    assert sorted(everything(order)) == all_samples(shards)


@given(counts, batches, seeds, remainders, st.integers(0, 100))
@settings(deadline=None)
def test_how_a_sequence_ends(shards: list[int], batch: int, seed: int | None, remainder: Remainder, end: int) -> None:
    order = SampleOrder(blocks_of(shards), seed=seed, window_bytes=200, lanes=4)
    want = everything(order)[:end]
    for world in (1, 2, 3):
        each = world * batch
        seen = joined(order, BatchPlan(batch=batch, remainder=remainder, stop=end), world, 1)
        if remainder == "keep":
            assert seen == want
        elif remainder == "drop":
            assert seen == want[: len(want) // each * each]
        else:
            assert len(seen) == -(-len(want) // each) * each
            assert seen == [want[at % len(want)] for at in range(len(seen))][: len(seen)]


@given(counts, seeds, st.sampled_from(["pad", "keep"]), st.integers(1, 400), st.sampled_from([None, 1, 4, 6]))
@settings(max_examples=40, deadline=None)
def test_the_same_for_any_ranks_batches_and_workers(
    shards: list[int], seed: int | None, remainder: Remainder, window: int, lanes: int | None
) -> None:
    def fresh() -> SampleOrder:
        return SampleOrder(blocks_of(shards), seed=seed, window_bytes=window, lanes=lanes)

    want = everything(fresh())
    for world, batch in ((1, 12), (2, 6), (3, 4), (4, 3), (2, 1), (5, 7)):
        for workers in (1, 2, 4):
            assert joined(fresh(), BatchPlan(batch=batch, remainder=remainder), world, workers)[: len(want)] == want


@given(counts, st.integers(0, 9))
@settings(max_examples=6, deadline=None)
def test_resume_anywhere_under_every_layout(shards: list[int], seed: int) -> None:
    def fresh() -> SampleOrder:
        return SampleOrder(blocks_of(shards), seed=seed, window_samples=24, lanes=4)

    want = everything(fresh())
    for done in range(len(want) + 1):
        for world, workers, batch in ((1, 1, 8), (2, 1, 3), (4, 2, 2), (1, 4, 5)):
            assert want[:done] + joined(fresh(), BatchPlan(batch=batch), world, workers, done) == want


def test_ranks_that_divide_the_lanes_read_disjoint_blocks() -> None:
    order = SampleOrder(blocks_of([4000]), seed=1)
    assert order.lanes == 64
    cut = BatchPlan(batch=8)
    read = [
        {int(block) for step in rank_steps(order, cut, ShardSpec(rank=rank, world=4)) for block in step.positions.block}
        for rank in range(4)
    ]
    shared = sum(map(len, read)) - len(set.union(*read))
    assert shared <= order.lanes + 10  # blocks that were cut between two lanes, and what is left over


def test_the_order_never_changes() -> None:
    """A changed hash is another order: every state that users have is then worthless. Give the order a new name."""
    blocks = blocks_of([1000, 1, 0, 3333, 50], sample_bytes=100, block_bytes=2000)
    hashed = hashlib.sha256()
    for epoch in range(3):
        order = SampleOrder(blocks, seed=7, epoch=epoch, window_samples=2000)
        hashed.update(np.stack(order.blocks.samples_at(order.take(0, order.samples))).astype("<i8").tobytes())
    assert hashed.hexdigest() == "315dc0ce33399a4ebebbb94205bea5c46b46b57ae948b73b205c945d6b2342f9"


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
    assert everything(SampleOrder(blocks_of([30, 0, 41]))) == all_samples([30, 0, 41])


def test_seed_and_epoch_give_other_orders() -> None:
    blocks = blocks_of([200, 200])
    seen = [everything(SampleOrder(blocks, seed=seed, epoch=epoch)) for seed in (1, 2) for epoch in (0, 1)]
    assert len({tuple(one) for one in seen}) == 4


def test_neighbours_are_spread_over_the_data() -> None:
    order = SampleOrder(blocks_of([1000] * 10), seed=3)
    shards = order.blocks.samples_at(order.take(0, order.samples))[0]
    assert all(len(set(shards[at : at + 64].tolist())) >= 6 for at in range(0, 9900, 64))


def test_windows_stay_within_a_block_of_their_bytes_and_begin_small() -> None:
    order = SampleOrder(
        blocks_of([500_000], sample_bytes=1000, block_bytes=100_000), seed=1, lanes=4, window_bytes=128 << 20
    )
    firsts = set()
    for number in range(4):
        lane = order.lane(number)
        sizes = [int(order.blocks.size_bytes[lane.blocks_of(window)].sum()) for window in range(lane.windows)]
        assert max(sizes) <= (32 << 20) + 100_000
        assert sizes[0] <= (8 << 20) + 100_000
        assert sizes[:2] == sorted(sizes[:2])
        firsts.add(sum(sizes[:3]))
    assert len(firsts) == 4  # they do not all end at once


def test_a_billion_samples_take_no_memory_and_no_replay() -> None:
    n = 50_000
    each = np.full(n, 20_000, np.int64)
    blocks = Blocks(np.arange(n) // 100, np.arange(n) % 100 * 20_000, each, each * 200)
    tracemalloc.start()
    try:
        order = SampleOrder(blocks, seed=1)
        assert (order.samples, order.lanes) == (10**9, 64)
        late = pairs(order, order.take(10**9 - 3000, 10**9 - 2000))
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(set(late)) == 1000
    assert held < 300 << 20
    run = next(plan_steps(SampleOrder(blocks, seed=1), BatchPlan(batch=1000), done=10**9 - 3000))
    assert (run.first, run.stop) == (10**9 - 3000, 10**9)
    assert pairs(order, run.steps[0].positions) == late


def test_a_rank_of_many_takes_no_more_memory_in_file_order() -> None:
    """It looked up the samples of all ranks, to select its own."""
    n = 16_000
    blocks = Blocks(np.arange(n), np.zeros(n, np.int64), np.full(n, 4000), np.full(n, 1_400_000))
    order, shard = SampleOrder(blocks), ShardSpec(rank=77, world=1000)
    tracemalloc.start()
    steps = next(plan_steps(order, BatchPlan(batch=256), shard))
    windows = dict(order.windows(steps.first, steps.stop, shard.rank, shard.world))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8_000_000
    shards, samples = order.blocks.samples_at(steps.positions)
    assert np.array_equal(shards * 4000 + samples, 77 + 1000 * np.arange(len(samples)))
    assert set(steps.positions.block.tolist()) <= {block for some in windows.values() for block in some.tolist()}


@pytest.mark.parametrize(("blocks", "lanes"), [(0, 1), (1, 1), (15, 1), (16, 2), (511, 32), (512, 64), (10**6, 64)])
def test_more_data_have_more_lanes(blocks: int, lanes: int) -> None:
    assert default_lanes(blocks) == lanes


@pytest.mark.parametrize("remainder", ["keep", "pad", "drop"])
@pytest.mark.parametrize(("world", "workers"), [(1, 1), (2, 1), (3, 2)])
def test_the_ranges_of_a_long_epoch_follow_each_other(remainder: Remainder, world: int, workers: int) -> None:
    """What is read ahead and what a state says is decided by where a range begins and stops."""
    order = SampleOrder(blocks_of([400, 100, 501]), seed=3)
    cut, done, at_once = BatchPlan(batch=7, first=5, remainder=remainder), 40, 30
    each, n_steps = world * 7, cut.steps(order, world, done)
    for worker in range(workers):
        shard = ShardSpec(rank=world - 1, world=world, worker=worker, workers=workers)
        ranges = list(plan_steps(order, cut, shard, done, at_once))
        assert [len(run.steps) for run in ranges[:-1]] == [at_once // 7] * (len(ranges) - 1)
        steps = [step for run in ranges for step in run.steps]
        assert [step.start for step in steps] == [done + at * each for at in range(worker, n_steps, workers)]
        assert [step.done for step in steps] == [min(step.start + each, order.samples) for step in steps]
        for run in ranges:
            assert (run.first, run.stop) == (run.steps[0].start, run.steps[-1].done)
            full = [step for step in run.steps if step.start + each <= order.samples] if workers == 1 else []
            wanted = [place for step in full for place in pairs(order, step.positions)]
            assert pairs(order, run.positions) == wanted


def test_padding_repeats_what_there_is() -> None:
    order = SampleOrder(blocks_of([3]), seed=1)
    [step] = rank_steps(order, BatchPlan(batch=8, remainder="pad"), ShardSpec())
    assert set(pairs(order, step.positions)) == {(0, 0), (0, 1), (0, 2)}
    assert len(step.positions) == 8
    assert step.done == 3


def test_no_samples_are_no_steps() -> None:
    order = SampleOrder(blocks_of([0]), seed=1)
    for remainder in ("pad", "drop", "keep"):
        assert rank_steps(order, BatchPlan(batch=4, remainder=remainder), ShardSpec()) == []  # type: ignore[arg-type]


def test_wrong_settings_are_named() -> None:
    blocks = blocks_of([10])
    with pytest.raises(ValueError, match="at least one lane, got 0"):
        SampleOrder(blocks, seed=1, lanes=0)
    with pytest.raises(ValueError, match="batch size must be a positive integer, got 0"):
        BatchPlan(batch=0)
    with pytest.raises(ValueError, match="got 'odd'"):
        BatchPlan(batch=8, remainder="odd")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="window of at least 1, got 0"):
        SampleOrder(blocks, seed=1, window_bytes=0)
    with pytest.raises(ValueError, match="epoch must be a non-negative integer, got -1"):
        SampleOrder(blocks, epoch=-1)
    with pytest.raises(IndexError, match="from 0 to 10, got 8 to 16"):
        SampleOrder(blocks).take(8, 16)
    with pytest.raises(ValueError, match="rank 2 is out of range for 2 ranks"):
        ShardSpec(rank=2, world=2)
