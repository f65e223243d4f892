"""One order, whoever reads it: over workers, ranks and ways to start; resumed at every step; with few descriptors."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from read_child import SCHEMA, work

import holdfast as hold

COUNTS = [70, 0, 1, 97, 32, 40]
SAMPLES = sum(COUNTS)
RANKS = (1, 2, 4)
WAYS: list[tuple[int, Any, Any]] = [
    (0, "inline", "forkserver"),
    *((workers, "threads", "forkserver") for workers in (1, 2, 4)),
    *((workers, "processes", start) for workers, start in ((1, "forkserver"), (4, "forkserver"), (2, "spawn"))),
]


def make(folder: Path, counts: Sequence[int]) -> Path:
    first = 0
    for number, count in enumerate(counts):
        with hold.TFRecordWriter(folder / f"{number:04}.tfrecord", SCHEMA) as writer:
            writer.extend({"id": np.arange(first, first + count)})
        first += count
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("shards"), COUNTS)


def shuffled(folder: Path) -> hold.Dataset:
    return hold.read(folder, SCHEMA).shuffle(seed=3, window=500)


def interleaved(ranks: list[list[int]]) -> list[int]:
    """The global sequence: sample i is rank i % world's."""
    return [ranks[at % len(ranks)][at // len(ranks)] for at in range(sum(map(len, ranks)))]


def hash_of(ids: list[int]) -> str:
    return hashlib.sha256(np.array(ids, "<i8").tobytes()).hexdigest()


def read_all(ds: hold.Dataset, world: int) -> list[int]:
    each = [ds.shard((rank, world), remainder="keep").batch(12 // world) for rank in range(world)]
    return interleaved([[int(i) for batch in one for i in batch["id"]] for one in each])


@pytest.mark.parametrize(("workers", "where", "start"), WAYS)
def test_the_hash_of_the_order_is_the_same(folder: Path, workers: int, where: Any, start: Any) -> None:
    ds = shuffled(folder)
    want = [2 * i for i in read_all(ds, 1)]
    assert sorted(want) == [2 * i for i in range(SAMPLES)] != want
    mapped = ds.map(work, workers, where, start=start)
    assert {hash_of(read_all(mapped, world)) for world in RANKS} == {hash_of(want)}


LAYOUTS = [(world, workers) for world in RANKS for workers in (0, 2)]


@pytest.mark.parametrize("before", LAYOUTS)
def test_resumed_at_every_step_under_every_other_layout(folder: Path, before: tuple[int, int]) -> None:
    ds = shuffled(folder)
    want = [2 * i for i in read_all(ds, 1)]
    for step in range(SAMPLES // 12 + 2):
        seen, states = _some(ds, before, step)
        assert seen == want[: len(seen)]
        assert len(seen) == min(step * 12, SAMPLES)
        state = states[0]
        for after in LAYOUTS:
            assert seen + _rest(ds, after, state) == want, (step, after)
        assert [one["done"] for one in states] == [state["done"]] * len(states)


def test_resumed_in_processes(folder: Path) -> None:
    ds = shuffled(folder)
    want = [2 * i for i in read_all(ds, 1)]
    for (before, after), step in product([(0, "processes"), ("processes", 0), ("processes", "processes")], (1, 9)):
        seen, states = _some(ds, (2, before), step)
        assert seen + _rest(ds, (1, after), states[1]) == want


def _laid_out(ds: hold.Dataset, layout: tuple[int, Any]) -> list[hold.Dataset]:
    world, workers = layout
    where: Any = "processes" if workers == "processes" else "threads" if workers else "inline"
    ds = ds.map(work, 2 if workers else 0, where)
    return [ds.shard((rank, world), remainder="keep").batch(12 // world) for rank in range(world)]


def _some(ds: hold.Dataset, layout: tuple[int, Any], steps: int) -> tuple[list[int], list[Any]]:
    """What all ranks got in so many steps, and the state of each; as JSON, as it is kept."""
    got, states = [], []
    for one in _laid_out(ds, layout):
        with one.iterate() as opened:
            batches = [batch for _, batch in zip(range(steps), opened, strict=False)]
            states.append(json.loads(json.dumps(opened.state_dict())))
        got.append([int(i) for batch in batches for i in batch["id"]])
    return interleaved(got), states


def _rest(ds: hold.Dataset, layout: tuple[int, Any], state: Any) -> list[int]:
    got = []
    for one in _laid_out(ds, layout):
        with one.iterate() as opened:
            opened.load_state_dict(state)
            got.append([int(i) for batch in opened for i in batch["id"]])
    return interleaved(got)


# ---- few descriptors -----------------------------------------------------------------------------------------

FEW = """
import json, os, sys
import holdfast as hold
from read_child import SCHEMA, work

if __name__ == "__main__":
    ds = hold.read(sys.argv[1], SCHEMA).shuffle(seed=3)
    told = {}
    for where, workers in (("inline", 0), ("threads", 2), ("processes", 2)):
        most, ids = 0, []
        with ds.map(work, workers, where).batch(50).iterate() as it:
            for batch in it:
                ids += batch["id"].tolist()
                most = max(most, len(os.listdir("/proc/self/fd")))
            stats = it.stats()
        told[where] = {"ids": ids, "most": most, "bound": stats.open_files_bound}
    print(json.dumps(told))
"""


def test_six_hundred_shards_under_ulimit_n_64(tmp_path: Path) -> None:
    made = make(tmp_path, [1] * 600)
    done = subprocess.run(
        ["sh", "-c", 'ulimit -n 64 && exec "$@"', "sh", sys.executable, "-c", FEW, str(made)],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    want = [2 * i for i in read_all(hold.read(made, SCHEMA).shuffle(seed=3), 1)]
    for where, one in told.items():
        assert one["ids"] == want, where
        assert one["bound"] <= 32, where
        assert one["most"] < 64, where
