"""Mixes several datasets into one sequence by weights.

Each cycle of positions has an exact number of samples of every dataset, in shuffled order. So the weights hold over any
few thousand samples, and the position of each dataset at any point of the sequence is computed, not replayed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from math import ceil
from typing import Any, Literal, NamedTuple

import numpy as np

from ....schema import Column
from ...formats.columns import Ints
from ..options import Options
from ..order.blocks import Blocks, SamplePositions, join_blocks
from ..order.sharding import Order
from ..order.shuffle import key_of, shuffled
from .catalog import Catalog, OnProgress
from .file_source import Source, check_columns

Until = Literal["first", "all"]
_CYCLE = 1000
_MAX_DENOMINATOR = 10**6
_NEXT_PASS = 1_000_003  # added to the epoch when a dataset restarts: far from the epochs a user counts


class MixPart(NamedTuple):
    """One of the datasets, and its share of all samples."""

    source: Source
    settings: Options
    weight: Fraction


class MixSource:
    """until: the epoch ends when the "first" dataset is used up, or when "all" are; the others restart meanwhile."""

    def __init__(self, parts: Sequence[tuple[Source, Options, float]], seed: int, until: Until) -> None:
        if until not in ("first", "all"):
            raise ValueError(f"expected until to be 'first' or 'all', got {until!r}")
        weights = [Fraction(weight).limit_denominator(_MAX_DENOMINATOR) for *_, weight in parts]
        if not parts or min(weights) <= 0:
            raise ValueError(f"expected datasets with weights above 0, got {[weight for *_, weight in parts]}")
        self._parts = [
            MixPart(source, settings, weight / sum(weights))
            for (source, settings, _), weight in zip(parts, weights, strict=True)
        ]
        self._seed, self._until = seed, until

    def catalogs(self, progress: OnProgress | None = None) -> list[Catalog]:
        return [catalog for part in self._parts for catalog in part.source.catalogs(progress)]

    def schema(self) -> dict[str, Column]:
        first, *others = (part.source for part in self._parts)
        for other in others:
            check_columns("mix", first, other)
        return first.schema()

    def known_schema(self) -> dict[str, Column] | None:
        return self._parts[0].source.known_schema()

    def counts(self) -> list[int]:
        return [count for part in self._parts for count in part.source.counts()]

    def order(self, settings: Options, epoch: int) -> Order:
        return MixOrder(self._parts, self._seed, epoch, self._until)

    def made_from(self, settings: Options) -> dict[str, Any]:
        each = [part.source.made_from(part.settings) for part in self._parts]
        shares = "/".join(str(part.weight) for part in self._parts)
        digests = {
            name: hashlib.blake2b("|".join(str(one[name]) for one in each).encode(), digest_size=8).hexdigest()
            for name in ("names", "counts", "sizes", "schema")
        }
        return {
            **{name: sum(one[name] for one in each) for name in ("shards", "samples", "size_bytes")},
            **digests,
            "seed": f"{self._seed}: {', '.join(str(one['seed']) for one in each)}",
            "lanes": ", ".join(str(one["lanes"]) for one in each),
            "window": ", ".join(str(one["window"]) for one in each),
            "mix": f"{shares} until {self._until}",
            **(
                {"split": " + ".join(str(one.get("split")) for one in each)}
                if any("split" in one for one in each)
                else {}
            ),
        }

    def describe(self) -> str:
        return " + ".join(f"{float(part.weight):.3g} × {part.source.describe()}" for part in self._parts)


class MixOrder:
    """One epoch of a mix."""

    def __init__(self, parts: Sequence[MixPart], seed: int, epoch: int, until: Until) -> None:
        self._parts, self._key, self._epoch = list(parts), (seed, epoch), epoch
        self._orders = [part.source.order(part.settings, epoch) for part in parts]
        self._sizes = [order.samples for order in self._orders]
        shares = [part.weight for part in parts]
        self._sums = [sum(shares[: at + 1], Fraction(0)) for at in range(len(shares))]
        # Long enough for a sample of every dataset: otherwise counts could decrease.
        self._cycle = max(_CYCLE, ceil(1 / min(shares)))
        self.samples = self._length(until) if all(self._sizes) else 0

    def _length(self, until: Until) -> int:
        """Returns the last position before one dataset is used up, or the first where all are."""
        shares = [part.weight for part in self._parts]
        longest = max(ceil(size / share) for size, share in zip(self._sizes, shares, strict=True))
        low, high = 0, longest + 2 * self._cycle
        while low < high:
            middle = (low + high + (until == "first")) // 2
            taken = [int(n) for n in self._before(middle)]
            if until == "first":
                fits = all(n <= size for n, size in zip(taken, self._sizes, strict=True))
                low, high = (middle, high) if fits else (low, middle - 1)
            else:
                fits = all(n >= size for n, size in zip(taken, self._sizes, strict=True))
                low, high = (low, middle) if fits else (middle + 1, high)
        return low

    # ---- the dataset of every position

    def _at_cycle(self, cycle: int) -> list[int]:
        """Returns how many samples of each dataset come before a cycle."""
        ends = [int(cycle * self._cycle * one) for one in self._sums]
        return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]

    def _turns(self, cycle: int) -> Ints:
        """Returns the dataset of every position of a cycle."""
        here, after = self._at_cycle(cycle), self._at_cycle(cycle + 1)
        each = [b - a for a, b in zip(here, after, strict=True)]
        turns = np.repeat(np.arange(len(each), dtype=np.int64), each)
        return turns[shuffled(len(turns), key_of("holdfast mix 1", *self._key, cycle))]

    def _before(self, position: int) -> list[int]:
        """Returns how many samples of each dataset come before a position."""
        cycle, within = divmod(position, self._cycle)
        some = (
            np.bincount(self._turns(cycle)[:within], minlength=len(self._parts)) if within else [0] * len(self._parts)
        )
        return [a + int(b) for a, b in zip(self._at_cycle(cycle), some, strict=True)]

    def _datasets(self, first: int, stop: int) -> Ints:
        """Returns the dataset of every position."""
        cycles = range(first // self._cycle, -(-stop // self._cycle))
        turns = np.concatenate([np.zeros(0, np.int64), *(self._turns(cycle) for cycle in cycles)])
        begin = cycles.start * self._cycle
        return turns[first - begin : stop - begin]

    # ---- passes over a dataset: one, or more when it restarts

    @cached_property
    def _passes(self) -> list[list[tuple[Order, int, int]]]:
        """For every dataset, its passes: the order, the number of its first block, and that of its first shard."""
        found: list[list[tuple[Order, int, int]]] = []
        blocks = shards = 0
        for part, first, taken in zip(self._parts, self._orders, self._before(self.samples), strict=True):
            size = first.samples
            more = range(1, -(-taken // size)) if size else range(0)
            orders = [first, *(part.source.order(part.settings, self._epoch + n * _NEXT_PASS) for n in more)]
            found.append([])
            for order in orders:
                found[-1].append((order, blocks, shards))
                blocks += len(order.blocks)
            shards += sum(len(catalog) for catalog in part.source.catalogs())
        return found

    @cached_property
    def blocks(self) -> Blocks:
        return join_blocks(
            Blocks(order.blocks.shard + shards, order.blocks.first, order.blocks.count, order.blocks.size_bytes)
            for passes in self._passes
            for order, _, shards in passes
        )

    @cached_property
    def block_samples(self) -> Ints:
        return np.concatenate([order.block_samples for passes in self._passes for order, *_ in passes])

    @property
    def nbytes(self) -> int:
        return sum(order.nbytes for passes in self._passes for order, *_ in passes)

    def _spans(self, dataset: int, start: int, stop: int) -> Iterator[tuple[int, Order, int, int, int]]:
        """Yields samples [start, stop) of a dataset pass by pass: the pass, its order, first block, start and stop."""
        size = self._sizes[dataset]
        while start < stop:
            turn, within = divmod(start, size)
            end = min(stop, (turn + 1) * size)
            order, blocks, _ = self._passes[dataset][turn]
            yield turn, order, blocks, within, within + end - start
            start = end

    # ---- the Order protocol

    def take(self, first: int, stop: int, rank: int = 0, world: int = 1) -> SamplePositions:
        if not 0 <= first <= stop <= self.samples:
            raise IndexError(f"expected positions from 0 to {self.samples:,}, got {first:,} to {stop:,}")
        datasets, before = self._datasets(first, stop), self._before(first)
        block, row = np.empty((2, len(datasets)), np.int64)
        for dataset, start in enumerate(before):
            at = np.flatnonzero(datasets == dataset)
            done = 0
            for _, order, blocks, begin, end in self._spans(dataset, start, start + len(at)):
                positions = order.take(begin, end)
                here = at[done : done + len(positions)]
                block[here], row[here] = positions.block + blocks, positions.row
                done += len(positions)
        own = slice((rank - first) % world, None, world)
        return SamplePositions(np.ascontiguousarray(block[own]), np.ascontiguousarray(row[own]))

    def windows(self, first: int, stop: int, rank: int = 0, world: int = 1) -> Iterator[tuple[Any, Ints]]:
        for dataset, (start, end) in enumerate(zip(self._before(first), self._before(stop), strict=True)):
            for turn, order, blocks, begin, finish in self._spans(dataset, start, end):
                for key, those in order.windows(begin, finish):
                    yield (dataset, turn, key), those + blocks
