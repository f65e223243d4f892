"""The status file of a supervisor: what is written is read, and nothing else is taken for one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.process.guard.supervisor.status import (
    StatusFile,
    SupervisorEvent,
    SupervisorStatus,
    WorkerState,
    WorkerStatus,
    parse_supervisor_status,
    read_supervisor_status,
)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StatusFile]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    file = StatusFile()
    assert not file.problem
    yield file
    file.remove()
    assert os.listdir(tmp_path / "holdfast") == []


def status_of(file: StatusFile) -> SupervisorStatus:
    pid, ticks = file.identity
    worker = WorkerStatus(
        worker=1, pid=7, state=WorkerState.RUNNING, since=3.5, restarts={"failing": 2}, sentence="it works"
    )
    event = SupervisorEvent(t=4.5, worker=1, kind="start", text="a\nb \udc80")
    return SupervisorStatus(
        pid=pid,
        start_ticks=ticks or 0,
        name="worker",
        command=("python", "worker.py"),
        workers=(worker,),
        restarts={"failing": 2},
        events=(event,),
    )


def test_what_is_written_is_read(file: StatusFile) -> None:
    assert read_supervisor_status(os.getpid()) is None
    file.write(status_of(file))
    assert read_supervisor_status(os.getpid()) == status_of(file)
    later = replace(status_of(file), name="other")
    file.write(later)
    assert read_supervisor_status(os.getpid()) == later


def test_a_file_of_another_process_is_not_taken(file: StatusFile) -> None:
    file.write(replace(status_of(file), start_ticks=1))
    assert read_supervisor_status(os.getpid()) is None


def test_a_file_of_another_user_or_a_link_is_not_taken(file: StatusFile) -> None:
    file.write(status_of(file))
    assert file.path is not None
    if os.getuid() == 0:
        os.chown(file.path, 1234, -1)
        assert read_supervisor_status(os.getpid()) is None
        os.chown(file.path, 0, -1)
    aside = file.path.with_name("aside")
    os.rename(file.path, aside)
    os.symlink(aside, file.path)
    assert read_supervisor_status(os.getpid()) is None
    os.unlink(aside)


def test_files_of_ended_supervisors_are_removed(file: StatusFile) -> None:
    assert file.path is not None
    old, new = file.path.with_name("1-1.supervise.json"), file.path.with_name("1-2.supervise.json")
    old.touch()
    os.utime(old, (0, 0))
    new.touch()
    StatusFile()
    assert (old.exists(), new.exists()) == (False, True)
    new.unlink()


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"{}", b'{"version": 2}', b'{"version": 1, "pid": "x"}', b"[" * 100_000, b"\xff"]
)
def test_other_bytes_are_no_status(data: bytes) -> None:
    assert parse_supervisor_status(data) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"t": 4.5', b'"t": Infinity'),
        (b'"t": 4.5', b'"t": NaN'),
        (b'"t": 4.5', b'"t": 1e18'),
        (b'"worker": 1', b'"worker": Infinity'),
        (b'"pid": 7', b'"pid": 1' + b"0" * 30),
        (b'"pid": 7', b'"pid": -7'),
        (b'"failing": 2', b'"failing": -1'),
        (b'"failing": 2', b",".join(b'"%d": 2' % at for at in range(1000))),
    ],
)
def test_numbers_that_no_reader_could_use_are_no_status(file: StatusFile, old: bytes, new: bytes) -> None:
    """A process writes what it likes; a watch that runs as root must not end because of it."""
    file.write(status_of(file))
    assert file.path is not None
    data = file.path.read_bytes()
    assert parse_supervisor_status(data) is not None
    assert old in data
    assert parse_supervisor_status(data.replace(old, new)) is None


def test_too_many_workers_are_no_status(file: StatusFile) -> None:
    many = replace(status_of(file), workers=status_of(file).workers * 1001)
    file.write(many)
    assert read_supervisor_status(os.getpid()) is None
