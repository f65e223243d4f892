"""States that were saved before small shards were read together: they load, and the same samples come next.

`old_states.json` was written by `python -m tests.unit.data.loader.test_old_states` with the code of then. It must not
be made again: a program that resumes from a checkpoint has one of these states.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import holdfast as hold

SAVED = Path(__file__).with_name("old_states.json")
SCHEMA = {"label": hold.Int64(), "data": hold.Bytes()}
SHUFFLES: dict[str, dict[str, Any] | None] = {
    "files": None,
    "seed": {"seed": 3},
    "window": {"seed": 11, "window": "300kB"},
    "samples": {"seed": 11, "window": 500},
}


def make(folder: Path) -> Path:
    """Writes 200 shards of up to 12 samples, an empty one, and one of 2,000 larger samples: about 9 MB."""
    label = 0
    for shard in range(202):
        rows = 2000 if shard == 120 else shard % 13
        size = 4000 if shard == 120 else 50 + shard % 7 * 300
        with hold.TFRecordWriter(folder / f"s-{shard:03}.tfrecord", SCHEMA) as writer:
            if rows:
                data = [bytes([row % 251]) * (size + row % 5) for row in range(rows)]
                writer.extend({"label": np.arange(label, label + rows), "data": data})
        label += rows
    return folder


def dataset(folder: Path, shuffle: str, world: int, rank: int) -> Any:
    options = SHUFFLES[shuffle]
    read = hold.read(folder, SCHEMA)
    read = read if options is None else read.shuffle(**options)
    return read.shard((rank, world)).batch(16)


def labels(batches: Any, most: int) -> list[int]:
    found: list[int] = []
    for batch, _ in zip(batches, range(most), strict=False):
        found += batch["label"].tolist()
    return found


def digest(found: list[int]) -> list[int]:
    """Returns how many labels there are, the first ones, and a sum that depends on their order."""
    weights = np.arange(1, len(found) + 1, dtype=np.int64)
    return [len(found), *found[:8], int((np.array(found, np.int64) * weights).sum())]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("old"))


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("cached", ["cached", "not"])
def test_states_of_before_still_load_and_the_order_is_the_same(folder: Path, shuffle: str, cached: str) -> None:
    for saved in json.loads(SAVED.read_text()):
        if saved["shuffle"] == shuffle:
            read = dataset(folder, shuffle, saved["world"], saved["rank"])
            read = read if cached == "cached" else read.limits(memory="1MB")
            with read.iterate(epoch=saved["epoch"]) as batches:
                batches.load_state_dict(saved["state"])
                assert digest(labels(batches, 10_000)) == saved["rest"], saved


def _save() -> None:
    saved = []
    with tempfile.TemporaryDirectory() as name:
        folder = make(Path(name))
        for shuffle in SHUFFLES:
            for world, rank, steps in ((1, 0, 0), (1, 0, 37), (3, 2, 20), (8, 5, 3)):
                with dataset(folder, shuffle, world, rank).iterate(epoch=steps % 3) as batches:
                    labels(batches, steps)
                    state, rest = batches.state_dict(), digest(labels(batches, 10_000))
                one = {"shuffle": shuffle, "world": world, "rank": rank, "epoch": steps % 3}
                saved.append(one | {"state": state, "rest": rest})
    SAVED.write_text(json.dumps(saved, indent=0) + "\n")


if __name__ == "__main__":
    sys.exit(_save())
