"""Reading against a plain model of it: whatever is combined, what comes is what a few lines of Python say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories_files import SCHEMA, check_rows, columns_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast as hold
from holdfast.data.loader.dataset import Dataset

LARGE = 9000  # more than a sample may have to be held


@dataclass
class Data:
    """Samples 0 … n-1, and the file and record of each."""

    paths: list[Path]
    places: list[tuple[str, int]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Data]:
    """Without and with packed shards: small samples, large ones, none, one."""
    folder = tmp_path_factory.mktemp("shards")
    shards = [(60, 0, ""), (0, 0, ""), (25, LARGE, ""), (1, 0, ""), (90, 0, ""), (40, 0, ".gz"), (0, 0, ".gz")]
    both, first = Data([], []), 0
    for at, (count, pad, suffix) in enumerate(shards):
        path = folder / f"shard-{at}.tfrecord{suffix}"
        with hold.TFRecordWriter(path, SCHEMA) as writer:
            if count:
                writer.extend(columns_of(first, count, pad))
        first += count
        both.paths.append(path)
        both.places += [(str(path), record) for record in range(count)]
    plain = Data(both.paths[:5], both.places[:176])
    return {"plain": plain, "packed": both}


@dataclass(frozen=True)
class Layout:
    """How the samples are shared and cut."""

    world: int
    batch: int
    remainder: Any
    take: int | None
    skip: int

    def model(self, sequence: list[int], done: int = 0) -> list[list[list[int]]]:
        """Of every rank, its batches: numbers of samples."""
        sequence = sequence[: self.take]
        last, each, done = len(sequence), self.world * self.batch, max(done, self.skip)
        over = max(0, last - done) % each
        end = max(last, done)
        if over and self.remainder != "keep":
            end = last - over + (each if self.remainder == "pad" else 0)
        # What is behind the last sample begins again with the first.
        again = sequence[self.skip :]
        at = [sequence[p] if p < last else again[(p - last) % len(again)] if again else -1 for p in range(end)]
        return [
            [
                [at[p] for p in range(start, min(start + each, end)) if p % self.world == rank]
                for start in range(done, end, each)
            ]
            for rank in range(self.world)
        ]


layouts = st.builds(
    Layout,
    world=st.sampled_from([1, 2, 3, 5, 300]),
    batch=st.sampled_from([1, 3, 16, 50, 1000]),
    remainder=st.sampled_from(["keep", "pad", "drop"]),
    take=st.sampled_from([None, None, 1, 100, 170]),
    skip=st.sampled_from([0, 0, 5, 64]),
)


@dataclass(frozen=True)
class Ways:
    """What must not change anything."""

    workers: int
    prefetch: Any
    memory: int | None
    open_files: int | None
    cache: bool

    def given_to(self, ds: Dataset) -> Dataset:
        ds = ds.prefetch(self.prefetch)
        return ds.limits(memory=self.memory, open_files=self.open_files)


ways = st.builds(
    Ways,
    workers=st.sampled_from([0, 0, 2]),
    prefetch=st.sampled_from([0, 1]),
    memory=st.sampled_from([None, 3000]),
    open_files=st.sampled_from([None, 1]),
    cache=st.booleans(),
)


class Functions:
    """Some samples are filtered out, then some fail."""

    def __init__(self, drop: int, fail: int) -> None:
        self.drop, self.fail = drop, fail

    def stays(self, sample: Any) -> bool:
        return bool(sample["id"] % self.drop)

    def made(self, sample: Any) -> Any:
        if sample["id"] % self.fail == 1:
            raise ValueError(f"no {sample['id']}")
        sample["emb"] += 0  # a sample may be changed in place, and is not seen by others
        sample["emb"][:] = sample["emb"]
        return sample

    def lost(self, number: int) -> bool:
        return number % self.drop != 0 and number % self.fail == 1

    def left(self, numbers: list[int]) -> list[int]:
        return [n for n in numbers if n % self.drop and n % self.fail != 1]

    def apply(self, ds: Dataset, ways: Ways) -> Dataset:
        ds = ds.filter(self.stays, ways.workers)
        ds = ds.cache("1MB") if ways.cache else ds
        return ds.map(self.made, ways.workers, on_error="skip", max_errors=1000)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(["plain", "packed"]),
    seed=st.sampled_from([None, 0, 7]),
    window=st.sampled_from(["256MB", 2000]),
    lanes=st.sampled_from([None, 1, 3, 8]),
    first=layouts,
    second=layouts,
    ways=ways,
    cut=st.integers(0, 4),
    drop=st.sampled_from([2, 7, 1000]),
    fail=st.sampled_from([3, 11, 1000]),
)
def test_what_comes_is_what_the_model_says(
    data: dict[str, Data],
    kind: str,
    seed: int | None,
    window: Any,
    lanes: int | None,
    first: Layout,
    second: Layout,
    ways: Ways,
    cut: int,
    drop: int,
    fail: int,
) -> None:
    some = data[kind]
    if kind == "packed":
        ways = Ways(ways.workers, ways.prefetch, None, ways.open_files, ways.cache)  # it must fit into memory
    base = hold.read(some.paths, SCHEMA)
    if seed is not None:
        base = base.shuffle(seed=seed, window=window, lanes=lanes)
    sequence = [int(i) for batch in base.batch(1000) for i in batch["id"]]
    assert sorted(sequence) == list(range(len(some.places)))
    functions = Functions(drop, fail)
    mapped = functions.apply(base, ways)

    def run(layout: Layout, steps: int | None, state: Any) -> Any:
        """Rank 0 and the last one: of 300 not all are read."""
        ds = (mapped if layout.take is None else mapped.take(layout.take)).skip(layout.skip)
        done = 0 if state is None else state["done"]
        want = layout.model(sequence, done)
        for rank in {0, layout.world - 1}:
            own = ways.given_to(ds.shard((rank, layout.world), remainder=layout.remainder).batch(layout.batch))
            assert len(own) == len(layout.model(sequence)[0])
            with own.iterate() as it:
                if state is not None:
                    it.load_state_dict(state)
                batches = [batch for _, batch in zip(range(10**9 if steps is None else steps), it, strict=False)]
                saved, lost = it.state_dict(), it.skipped()
            stats = it.stats()
            asked = want[rank][:steps]
            assert [ids(batch) for batch in batches] == [functions.left(numbers) for numbers in asked]
            for batch in batches:
                check_columns(batch)
            places = {(loss.path, loss.record) for loss in lost}
            here = {some.places[n] for numbers in asked for n in numbers if functions.lost(n)}
            assert places >= here if ways.workers or ways.prefetch else places == here
            assert stats.open_files_max <= stats.open_files_bound
            assert stats.samples == sum(map(len, map(ids, batches)))
            assert stats.memory_bytes == 0
        return saved

    state = run(first, cut, None)
    run(replace(second, take=first.take, skip=first.skip), None, state)  # a state belongs to what they select


def ids(batch: Any) -> list[int]:
    """A batch of no samples has no columns before there was one with some."""
    return batch["id"].tolist() if batch else []


def check_columns(batch: Any) -> None:
    if len(ids(batch)):
        large = np.array([len(name) > LARGE for name in batch["name"]])
        for pad in (0, LARGE):
            which = np.flatnonzero(large == bool(pad))
            check_rows(
                {name: [column[i] for i in which] for name, column in batch.items() if name != "id"}
                | {"id": batch["id"][which]},
                pad,
            )
