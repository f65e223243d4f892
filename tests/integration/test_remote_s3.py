"""Shards in a store that speaks S3: a real server on loopback, read by real programs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_store import BOUND_S, Store, running_store

import holdfast as hold

HERE = Path(__file__).parent
SAMPLES = 40


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with running_store() as found:
        yield found


def write_shards(folder: Path, count: int, suffix: str = "tfrecord") -> list[str]:
    names = [f"{i}.{suffix}" for i in range(count)]
    for number, name in enumerate(names):
        with hold.TFRecordWriter(folder / name, {"n": hold.Int64()}, overwrite=True) as writer:
            for i in range(SAMPLES):
                writer.append(n=SAMPLES * number + i)
    return names


def test_globs_folders_braces_and_lists(store: Store, tmp_path: Path) -> None:
    names = write_shards(tmp_path, 3)
    store.put(tmp_path, *(f"train/{name}" for name in names))
    cache, urls = tmp_path / "cache", [f"s3://bucket/train/{name}" for name in names]
    found = store.read(
        cache, ["s3://bucket/train/*.tfrecord"], ["s3://bucket/train"], ["s3://bucket/train/{0..2}.tfrecord"], urls
    )
    assert found == [{"paths": urls, "counts": [SAMPLES] * 3, "found": list(range(3 * SAMPLES))}] * 4
    assert len(list(cache.iterdir())) == 3


def test_more_than_the_cache_holds(store: Store, tmp_path: Path) -> None:
    names = write_shards(tmp_path, 4, "tfrecord.gz")
    store.put(tmp_path, *(f"packed/{name}" for name in names))
    maximum = max((tmp_path / name).stat().st_size for name in names)
    (found,) = store.read(tmp_path / "cache", ["s3://bucket/packed"], max_bytes=maximum)
    assert found["found"] == list(range(4 * SAMPLES))
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_replaced_object_is_brought_again(store: Store, tmp_path: Path) -> None:
    write_shards(tmp_path, 1)
    store.put(tmp_path, "again/0.tfrecord")
    cache = tmp_path / "cache"
    assert store.read(cache, ["s3://bucket/again"])[0]["found"][0] == 0
    with hold.TFRecordWriter(tmp_path / "0.tfrecord", {"n": hold.Int64()}, overwrite=True) as writer:
        for i in range(SAMPLES):
            writer.append(n=SAMPLES - 1 - i)  # as long as before
    store.put(tmp_path, "again/0.tfrecord")
    assert store.read(cache, ["s3://bucket/again"])[0]["found"][0] == SAMPLES - 1


def test_several_processes_at_once(store: Store, tmp_path: Path) -> None:
    names = write_shards(tmp_path, 6)
    store.put(tmp_path, *(f"many/{name}" for name in names))
    command = [sys.executable, HERE / "s3_child.py", tmp_path / "cache", "1000000", '[["s3://bucket/many"]]']
    running = [subprocess.Popen(command, env=store.environment, stdout=subprocess.PIPE) for _ in range(3)]
    try:
        for one in running:
            assert json.loads(one.communicate(timeout=BOUND_S)[0])[0]["found"] == list(range(6 * SAMPLES))
    finally:
        for one in running:
            one.kill()
            one.wait()
    assert len(list((tmp_path / "cache").iterdir())) == 6


def test_what_is_not_there(store: Store, tmp_path: Path) -> None:
    store.put(tmp_path)
    expected = {
        "s3://bucket/none.tfrecord": "the store has no such file",
        "s3://bucket/none/*": "expected shards, nothing matches",
        "s3://no-bucket/a.tfrecord": "the store has no such file",
    }
    found = store.read(tmp_path / "cache", *([url] for url in expected))
    assert [one["error"] for one in found] == [f"MissingFileError: {url}: {why}" for url, why in expected.items()]
