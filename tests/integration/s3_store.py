"""A store that speaks S3, on loopback, and programs that are led to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
BOUND_S = 120
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

    def read(self, cache: Path, *each: list[str], max_bytes: int = 10**9) -> list[dict[str, Any]]:
        """What one program finds that is given each of these in turn."""
        found: list[dict[str, Any]] = json.loads(self.run(HERE / "s3_child.py", cache, max_bytes, json.dumps(each)))
        return found


@contextmanager
def running_store() -> Iterator[Store]:
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
