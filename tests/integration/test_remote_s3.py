"""Shards in a store that speaks S3: a real server on loopback, read by real programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import holdfast as hold

HERE = Path(__file__).parent
BOUND_S = 120
SAMPLES = 40
# The server lets only a signed request replace an object, and believes every signature.
_SIGNED = "AWS4-HMAC-SHA256 Credential=nobody/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


class Store:
    """A server and the environment that leads to it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.environment = {
            **os.environ,
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "nothing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "NO_PROXY": "127.0.0.1",
        }

    def run(self, *command: object) -> str:
        done = subprocess.run(
            [sys.executable, *map(str, command)],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=BOUND_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def put(self, folder: Path, *keys: str) -> None:
        """Files of this folder, as objects of the bucket."""
        connection = HTTPConnection(self.address.removeprefix("http://"), timeout=BOUND_S)
        with closing(connection):
            for key, content in [("", b""), *((key, (folder / Path(key).name).read_bytes()) for key in keys)]:
                connection.request("PUT", f"/bucket/{key}", content, {"Authorization": _SIGNED})
                answer = connection.getresponse()
                assert answer.status == 200, answer.read()
                answer.read()

    def read(self, cache: Path, *each: list[str], most_bytes: int = 10**9) -> list[dict[str, Any]]:
        """What one program finds that is given each of these in turn."""
        found: list[dict[str, Any]] = json.loads(self.run(HERE / "s3_child.py", cache, most_bytes, json.dumps(each)))
        return found


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    for package in ("moto", "s3fs"):
        if find_spec(package) is None:
            pytest.skip(f"needs the Python package {package}")
    with subprocess.Popen(
        [sys.executable, HERE / "s3_server.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield Store(server.stdout.readline().strip())
            server.stdin.close()
            server.wait(BOUND_S)
        finally:
            server.kill()


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
    most = max((tmp_path / name).stat().st_size for name in names)
    (found,) = store.read(tmp_path / "cache", ["s3://bucket/packed"], most_bytes=most)
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
        "s3://bucket/none/*": "wanted shards, nothing matches",
        "s3://no-bucket/a.tfrecord": "the store has no such file",
    }
    found = store.read(tmp_path / "cache", *([url] for url in expected))
    assert [one["error"] for one in found] == [f"InputError: {url}: {why}" for url, why in expected.items()]
