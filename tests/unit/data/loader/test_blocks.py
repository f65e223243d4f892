from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.data.loader.order.blocks import cut_shard, join_blocks

MB = 10**6


@given(st.lists(st.integers(0, 3000), max_size=80), st.integers(1, 5000))
@settings(deadline=None)
def test_blocks_are_the_shard_in_order(sizes: list[int], block_bytes: int) -> None:
    ends = np.concatenate([[0], np.cumsum(sizes)])
    blocks = cut_shard(3, len(sizes), lambda start, stop: int(ends[stop] - ends[start]), block_bytes=block_bytes)
    rows = list(zip(blocks.first.tolist(), blocks.count.tolist(), blocks.size_bytes.tolist(), strict=True))
    assert [i for first, count, _ in rows for i in range(first, first + count)] == list(range(len(sizes)))
    assert all(count > 0 for _, count, _ in rows)
    assert [size for *_, size in rows] == [sum(sizes[first : first + count]) for first, count, _ in rows]
    assert set(blocks.shard.tolist()) <= {3}


@pytest.mark.parametrize("samples", [3_000, 100_000, 1_000_000])
def test_blocks_have_one_to_eight_megabytes(samples: int) -> None:
    blocks = cut_shard(0, samples, lambda start, stop: (stop - start) * 1000)
    assert blocks.size_bytes.min() >= MB
    assert blocks.size_bytes.max() <= 8 * MB


def test_a_compressed_shard_is_one_block() -> None:
    assert cut_shard(0, 1000, lambda start, stop: (stop - start) * MB, one_block=True).count.tolist() == [1000]


def test_a_sample_larger_than_a_block() -> None:
    assert cut_shard(0, 3, lambda start, stop: (stop - start) * 50 * MB).count.tolist() == [1, 1, 1]


def test_no_samples_are_no_blocks() -> None:
    assert len(cut_shard(0, 0, lambda start, stop: 0)) == 0
    assert len(join_blocks([])) == 0
