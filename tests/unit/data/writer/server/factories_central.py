"""What the tests of the central writer share: a server in a thread, the contents of the parts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import holdfast as hold
from holdfast.data.formats.registry import open_shard
from holdfast.data.writer.dataset_writer import DatasetWriter, write
from holdfast.data.writer.server.server import CentralWriter
from holdfast.data.writer.server.server_process import ServerSettings

SMALL = {"x": hold.Int64()}
WIDE = {"x": hold.Float32(255), "seq": hold.Int64()}  # the second column begins at no multiple of 8
PATIENCE_S = 30.0


def wide_rows(first: int, count: int) -> dict[str, Any]:
    seq = np.arange(first, first + count)
    return {"x": np.repeat(seq[:, None], 255, 1).astype(np.float32), "seq": seq}


def check_wide(out: DatasetWriter, **wanted: int) -> None:
    """So many rows of each producer, in its order, with the values that belong to them, and every byte as recorded."""
    found = by_producer(out)
    assert {name: len(got["seq"]) for name, got in found.items()} == wanted
    for got in found.values():
        assert got["seq"] == list(range(len(got["seq"])))
        assert (np.array(got["x"]) == np.arange(len(got["seq"]))[:, None]).all()
    report = out.verify()
    assert report.ok, report.problems


def small(tmp_path: Path) -> DatasetWriter:
    return write(tmp_path / "run", SMALL)


def by_producer(out: DatasetWriter) -> dict[str, dict[str, list[Any]]]:
    """All rows of all parts, put back into each producer's order by what the records say."""
    found: dict[str, list[tuple[int, int, dict[str, Any]]]] = {}
    for record in out.parts():
        with open_shard(out.path_of(record), out.schema) as shard:
            got = {name: column.tolist() for name, column in shard.read(0, len(shard), out.schema).items()}
        at = 0
        assert record.runs is not None
        for producer, first, count in record.runs:
            slice_rows = {name: column[at : at + count] for name, column in got.items()}
            found.setdefault(producer, []).append((first, count, slice_rows))
            at += count
        assert at == record.rows
    return {producer: _joined(sorted(runs, key=lambda run: run[0])) for producer, runs in found.items()}


def _joined(runs: list[tuple[int, int, dict[str, Any]]]) -> dict[str, list[Any]]:
    joined: dict[str, list[Any]] = {name: [] for name in runs[0][2]}
    expected = 0
    for first, count, slice_rows in runs:
        assert first == expected, f"rows {expected} to {first} are missing or doubled"
        expected = first + count
        for name, column in slice_rows.items():
            joined[name] += column
    return joined


@contextmanager
def served(out: DatasetWriter, **settings: Any) -> Iterator[CentralWriter]:
    """A server in a thread of this process, for tests that look inside."""
    server = CentralWriter(out.folder, out.schema, ServerSettings(**settings))
    failures: list[BaseException] = []

    def work() -> None:
        try:
            server.run()
        except BaseException as error:  # noqa: BLE001 - told to the test
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    if failures:
        raise failures[0]
