"""Two workers log into a store that speaks S3; one is killed, and started again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from log_cases import await_end, logged, merged, started
from s3_store import Store, running_store

import holdfast as hold

URL = "s3://bucket/logs"
WORKER = """
import os, signal, sys
from holdfast.data.runlog.logger import log

rank, begin, end = map(int, sys.argv[2:5])
book = log(sys.argv[1], rank=rank, every_rows=10)
for step in range(begin, end):
    book(step, loss=step / 2, grad=[step, rank])
print(book.dropped, book.rows, flush=True)
if sys.argv[5] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[5] == "close":
    book.close()
"""
FETCH = """
import json, sys
import holdfast as hold
out = hold.write(sys.argv[1])
print(json.dumps([out.verify().ok, hold.write(sys.argv[1]).fetch(sys.argv[2]).rows]))
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with running_store() as found:
        found.put(tmp_path)  # the bucket
        yield found


def test_every_step_of_every_worker_once_after_a_kill(store: Store, tmp_path: Path) -> None:
    led = {**store.environment, "TMPDIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with (
        started("-c", WORKER, URL, 0, 0, 35, "", **led) as first,  # nobody closes it: the program's end does
        started("-c", WORKER, URL, 1, 0, 25, "kill", **led) as second,
    ):
        assert second.communicate(timeout=60)[0] == b"0 25\n"
        assert second.returncode == -9
        assert await_end(first) == "0 35\n"
    with started("-c", WORKER, URL, 1, 15, 35, "close", **led) as third:
        assert await_end(third) == "5 15\n"
    with started("-c", FETCH, f"{URL}/run.hold", tmp_path / "here" / "run.hold", **led) as fetching:
        assert json.loads(await_end(fetching)) == [True, 70]
    rows = logged(tmp_path / "here")
    for rank in (0, 1):
        assert rows[rank]["step"] == [*range(35)]
        assert rows[rank]["loss"] == [step / 2 for step in range(35)]
        assert rows[rank]["grad"] == [[step, rank] for step in range(35)]
    assert merged(tmp_path / "here") == rows
    assert hold.write(tmp_path / "here" / "run.hold").rows == 70
