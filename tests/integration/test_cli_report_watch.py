"""`holdfast report` on the database of a watch."""

from __future__ import annotations

import os
import resource
from contextlib import closing
from pathlib import Path

import pytest
from cli_process import document, holdfast, refused
from leaking_process import leaker

from holdfast.process.watch.collector import Selection, WatchCollector
from holdfast.process.watch.store import Store


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two processes, one of them at its limit."""
    path = tmp_path_factory.mktemp("watch") / "watch.db"
    with leaker() as full, leaker() as fine:
        full.leak(61)  # beside stdin, stdout and stderr
        resource.prlimit(full.pid, resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        with closing(WatchCollector(Selection(pids=(full.pid, fine.pid)), Store(path), every_s=5.0)) as collector:
            collector.round()
    return path


def test_text_shows_a_row_for_each_target_and_what_to_do(database: Path) -> None:
    done = holdfast("report", database)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("EXHAUSTED: ")
    assert lines[1].split() == [
        "Target",
        "PID",
        "Verdict",
        "Open",
        "Limit",
        "Growth/h",
        "Full",
        "in",
        "Dead",
        "pipe",
        "ends",
    ]
    assert lines[2].split()[2:5] == ["EXHAUSTED", "64", "64"]
    assert lines[3].split()[2] == "OK"
    assert any(line.startswith("  advice: ") and "prlimit" in line for line in lines[4:])


def test_json_is_the_state_document(database: Path) -> None:
    state = document("report", database)
    assert (state["version"], state["live"], state["verdict"]) == (1, False, "EXHAUSTED")
    assert [target["verdict"] for target in state["targets"]] == ["EXHAUSTED", "OK"]


def test_html_is_one_file(database: Path, tmp_path: Path) -> None:
    done = holdfast("report", database, "--html", tmp_path / "watch.html")
    assert done.stdout == f"wrote {tmp_path / 'watch.html'}\n"
    page = (tmp_path / "watch.html").read_text()
    assert "static/" not in page.split("<script type=")[0]
    assert '"verdict":"EXHAUSTED"' in page


def test_wrong_use_is_refused(database: Path, tmp_path: Path) -> None:
    for wrong in (["--diff", database, database], ["--top", "3", database], ["--collapsed", database]):
        done = holdfast("report", *wrong)
        assert done.returncode == 2
        assert "expected one database of holdfast watch" in done.stderr
    assert "expected one of --html and --json" in holdfast("report", database, "--html", "x", "--json").stderr
    other = tmp_path / "other.db"
    other.write_bytes(b"SQLite format 3\0" + bytes(100))
    assert "other.db" in refused("report", other, code=3)
    # A file that is no database is still read as a recording.
    (tmp_path / "no.hft").write_bytes(b"nothing")
    assert holdfast("report", tmp_path / "no.hft").returncode in (1, 3)


def test_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "a device or a pipe" in holdfast("report", tmp_path / "pipe").stderr
