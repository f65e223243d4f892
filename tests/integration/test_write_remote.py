"""Parts in a store that speaks S3: a real server on loopback, real writers, some of which are killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_store import BOUND_S, HERE, Store, running_store

from holdfast._util.failpoints import VARIABLE

CHILD = HERE / "write_remote_child.py"
ROWS = 3000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with running_store() as found:
        found.put(tmp_path_factory.mktemp("nothing"))  # the bucket
        found.environment["TMPDIR"] = str(tmp_path_factory.mktemp("scratch"))
        yield found


def command(*work: tuple[str, list[Any], dict[str, Any]]) -> list[str]:
    return [sys.executable, "-W", "error", str(CHILD), json.dumps(work)]


def ran(store: Store, *work: tuple[str, list[Any], dict[str, Any]]) -> list[Any]:
    found: list[Any] = json.loads(store.run(*command(*work)[1:]))
    return found


def scratch(store: Store) -> list[Path]:
    return [path for path in Path(store.environment["TMPDIR"]).rglob("*") if path.is_file()]


def test_written_committed_read_and_brought_here(store: Store, tmp_path: Path) -> None:
    url = "s3://bucket/whole/run.hold"
    found = ran(
        store,
        ("put", [url, 0], {}),
        ("put", [url, 1, "tfrecord"], {}),
        ("put", [url, 0], {}),
        ("check", [url, str(tmp_path / "cache")], {}),
        ("fetch", [url, str(tmp_path / "run")], {}),
    )
    assert found[:3] == ["committed", "committed", "done before"]
    assert found[3] == {
        "tasks": ["task0", "task1"],
        "rows": 2 * ROWS,
        "ok": True,
        "problems": [],
        "leftovers": 0,
        "data": 2,
    }
    assert found[4][0] == 2 * ROWS
    assert found[4][1].endswith("all as committed")
    assert found[4][2] == []
    assert scratch(store) == []


def test_a_part_of_many_pieces(store: Store) -> None:
    assert ran(store, ("large", ["s3://bucket/large/run.hold"], {})) == [[True, True, True]]
    assert scratch(store) == []


def test_of_several_attempts_at_once_one_wins(store: Store, tmp_path: Path) -> None:
    url = "s3://bucket/race/run.hold"
    running = [
        subprocess.Popen(
            command(("put", [url, 0], {})), env=store.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(3)
    ]
    outcomes = []
    try:
        for one in running:
            said, wrong = one.communicate(timeout=BOUND_S)
            lost = b"was committed meanwhile by attempt" in wrong
            outcomes.append(json.loads(said)[0] if not one.returncode else "lost" if lost else wrong.decode())
    finally:
        for one in running:
            one.kill()
            one.wait()
    assert outcomes.count("committed") == 1, outcomes
    assert set(outcomes) <= {"committed", "lost", "done before"}
    [found] = ran(store, ("check", [url, str(tmp_path / "cache")], {}))
    assert (found["tasks"], found["rows"], found["data"], found["ok"]) == (["task0"], ROWS, 1, True)


@pytest.mark.parametrize(
    ("place", "committed", "left"),
    [("settled", False, 0), ("data-linked", False, 1), ("record-written", False, 1), ("claimed", True, 0)],
)
def test_killed_on_the_way(store: Store, tmp_path: Path, place: str, committed: bool, left: int) -> None:
    url = f"s3://bucket/killed-{place}/run.hold"
    done = subprocess.run(
        command(("put", [url, 0], {})),
        env=store.environment | {VARIABLE: place},
        capture_output=True,
        timeout=BOUND_S,
        check=False,
    )
    assert done.returncode == -9, done.stderr
    assert scratch(store) != []
    cache = str(tmp_path / "cache")
    before, again, after, swept = ran(
        store, ("check", [url, cache], {}), ("put", [url, 0], {}), ("check", [url, cache], {}), ("sweep", [url], {})
    )
    assert before["tasks"] == (["task0"] if committed else [])
    assert (before["ok"], before["leftovers"]) == (True, left)
    assert again == ("done before" if committed else "committed")
    assert (after["tasks"], after["rows"], after["ok"], after["data"]) == (["task0"], ROWS, True, 1 + left)
    assert swept == [0, left, 0]
    assert scratch(store) == []


def test_a_damaged_object_is_found(store: Store, tmp_path: Path) -> None:
    url = "s3://bucket/damaged/run.hold"
    _, where, found = ran(
        store, ("put", [url, 0], {}), ("damage", [url], {}), ("check", [url, str(tmp_path / "cache")], {})
    )
    assert found["problems"] == [where]


def test_what_the_store_refuses(store: Store) -> None:
    url = "s3://bucket/theirs/run.hold"
    _, no_bucket, no_right = ran(
        store,
        ("put", [url, 0], {}),
        ("refused", ["s3://no-bucket/run.hold"], {}),
        ("refused", [url], {"anon": True}),
    )
    assert no_bucket.startswith("WriteError: s3://no-bucket/run.hold/schema.json: the store has no such bucket")
    assert no_right == f"InputError: {url}/schema.json: no permission: Forbidden"
