"""Tars of webdataset's writer in holdfast, tars of holdfast's in webdataset, and one within the other's pipeline."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast as hold

pytest.importorskip("webdataset")

COUNT = 103
KEYED = {"__key__": hold.Bytes(), "id": hold.Int64(), "emb": hold.Float32(2), "jpg": hold.Bytes()}

# In processes of their own: webdataset imports torch.
WRITE = """
import sys
import numpy as np
import webdataset

for compress, name in ((False, "a-%03d.tar"), (True, "b-%03d.tar.gz")):
    with webdataset.ShardWriter(f"{sys.argv[1]}/{name}", maxcount=40, verbose=0, compress=compress) as writer:
        for i in range(int(sys.argv[2])):
            writer.write({
                "__key__": f"{i % 3}/sample{i:04d}",
                "cls": i,
                "txt": f"text {i}",
                "emb.npy": np.array([i, -i], np.float32),
                "meta.json": {"id": i},
                "jpg": bytes([i]) * i,
            })
"""

READ = """
import json, sys
import webdataset

found = []
for sample in webdataset.WebDataset(sys.argv[1], shardshuffle=False).decode():
    found.append([sample["__key__"], sample["id.cls"], sample["emb.npy"].tolist(), sample["jpg"].hex()])
print(json.dumps(found))
"""

PIPELINE = """
import json, sys
import webdataset
import holdfast as hold

def double(sample):
    return {"id": int(sample["id"]) * 2}

data = hold.read(sys.argv[1], {"id": hold.Int64()}).shuffle(seed=5).torch()
found = []
for splits in ([], [webdataset.split_by_node, webdataset.split_by_worker]):
    pipeline = webdataset.DataPipeline(data, splits, webdataset.map(double), webdataset.batched(8))
    for workers in (0, 2):
        loader = webdataset.WebLoader(pipeline, batch_size=None, num_workers=workers)
        found += [[int(i) for batch in loader for i in batch["id"]] for _ in range(2)]
print(json.dumps(found))
"""


def run(program: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    run(WRITE, folder, COUNT)
    return folder


SCHEMA = {
    "__key__": hold.Bytes(),
    "id": hold.Int64(key="cls"),
    "txt": hold.Bytes(),
    "emb": hold.Float32(2, key="emb.npy"),
    "meta": hold.Bytes(key="meta.json"),
    "jpg": hold.Bytes(),
}


@pytest.mark.parametrize("name", ["a-{000..002}.tar", "b-*.tar.gz"])
def test_tars_of_webdatasets_writer(written: Path, name: str) -> None:
    ds = hold.read(f"{written}/{name}", SCHEMA)
    seen = []
    for sample in ds.shuffle(seed=1):
        i = int(sample["id"])
        seen.append(i)
        assert bytes(sample["__key__"]).decode() == f"{i % 3}/sample{i:04d}"
        assert bytes(sample["txt"]).decode() == f"text {i}"
        assert sample["emb"].tolist() == [i, -i]
        assert json.loads(bytes(sample["meta"])) == {"id": i}
        assert bytes(sample["jpg"]) == bytes([i]) * i
    assert sorted(seen) == list(range(COUNT)) != seen


def test_tars_of_holdfast_in_webdataset(tmp_path: Path) -> None:
    with hold.TFRecordWriter(tmp_path / "from.tfrecord", KEYED) as writer:
        for i in range(COUNT):
            writer.append(__key__=f"{i % 3}/sample{i:04d}", id=i, emb=[i, -i], jpg=bytes([i]) * i)
    hold.convert(tmp_path / "from.tfrecord", tmp_path / "to.tar", schema=KEYED)
    found = json.loads(run(READ, tmp_path / "to.tar"))
    assert found == [[f"{i % 3}/sample{i:04d}", i, [i, -i], (bytes([i]) * i).hex()] for i in range(COUNT)]


def test_a_holdfast_dataset_in_a_pipeline_of_webdataset(tmp_path: Path) -> None:
    """It is the source, also where webdataset splits what it gives; every pass is of the next epoch."""
    with hold.TFRecordWriter(tmp_path / "a.tfrecord", {"id": hold.Int64()}) as writer:
        for i in range(COUNT):
            writer.append(id=i)
    ds = hold.read(tmp_path / "a.tfrecord", {"id": hold.Int64()}).shuffle(seed=5)
    orders = [[2 * int(sample["id"]) for sample in ds] for _ in range(8)]
    found = json.loads(run(PIPELINE, tmp_path / "a.tfrecord"))
    assert found[:2] == orders[:2]
    assert found[4:6] == orders[4:6]
    assert [sorted(one) for one in found] == [sorted(order) for order in orders]
    assert len({tuple(one) for one in found}) == 8
