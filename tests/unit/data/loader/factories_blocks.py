"""Blocks of made-up shards, and strategies that draw them."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from holdfast.data.loader.order.blocks import Blocks, cut_shard, join_blocks

counts = st.lists(st.integers(0, 60), min_size=1, max_size=6)
seeds = st.one_of(st.none(), st.integers(-(2**70), 2**70))
remainders = st.sampled_from(["pad", "drop", "keep"])


def blocks_of(shards: Sequence[int], sample_bytes: int = 10, block_bytes: int = 70) -> Blocks:
    """Shards with these numbers of samples, in blocks of about seven."""
    return join_blocks(
        cut_shard(at, n, lambda start, stop: (stop - start) * sample_bytes, block_bytes=block_bytes)
        for at, n in enumerate(shards)
    )


def all_samples(shards: Sequence[int]) -> list[tuple[int, int]]:
    return [(shard, sample) for shard, n in enumerate(shards) for sample in range(n)]
