"""Logs in a store behind a URL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

import holdfast as hold
from holdfast.data.runlog.logger import log
from holdfast.errors import SchemaError, TargetExistsError


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store = fsspec.filesystem("memory")
    yield "memory://bucket/logs"
    store.store.clear()
    store.pseudo_dirs[:] = [""]


def steps(url: str) -> list[tuple[int, int]]:
    out = hold.write(f"{url}/run.hold")
    assert out.verify().ok
    with hold.read(f"{url}/run.hold").shard(None).batch(100).iterate() as batches:
        return [
            pair for batch in batches for pair in zip(*(batch[n].tolist() for n in ("worker", "step")), strict=True)
        ]


def test_workers_log_into_a_store_and_go_on(url: str) -> None:
    for rank in (0, 1):
        with log(url, rank=rank, every_rows=4) as book:
            for step in range(10):
                book(step, loss=0.5 * step, grad=[step, step])
    with log(f"{url}/", rank=1) as book:
        assert book.last_step == 9
        for step in range(5, 12):
            book(step, loss=0.5, grad=[step, step])
        assert (book.dropped, book.rows) == (5, 2)
    assert sorted(steps(url)) == [*((0, step) for step in range(10)), *((1, step) for step in range(12))]


def test_what_a_store_refuses(url: str) -> None:
    first, second = log(url, rank=0), log(url, rank=0)
    first(0, x=1)
    second(0, x=1)
    first.close()
    with pytest.raises(TargetExistsError, match="another log of this process logs as worker 0 too"):
        second.close()


def test_columns_are_added_in_a_store_and_fetched(url: str, tmp_path: Path) -> None:
    with log(url, rank=0) as book:
        book(0, x=1)
    with log(url, rank=1) as other:
        other(0, y=0.5)
    assert hold.write(f"{url}/run.hold").verify().ok
    for _ in range(2):
        out = hold.write(f"{url}/run.hold").fetch(tmp_path / "run.hold")
        assert out.verify().ok
    found = {}
    for folder in (f"{url}/run.hold", str(tmp_path / "run.hold")):
        with hold.read(folder).shard(None).batch(9).iterate() as batches:
            found[folder] = [[batch[n].tolist() for n in ("x", "x_present", "y_present")] for batch in batches]
    assert list(found.values()) == [[[[1, 0], [1, 0], [0, 1]]]] * 2
    with pytest.raises(SchemaError, match="column 'step': the dataset has no such column"):
        hold.write(tmp_path / "other", {"z": hold.Int64()})
        hold.write(f"{url}/run.hold").fetch(tmp_path / "other")
