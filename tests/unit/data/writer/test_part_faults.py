"""What goes wrong while a part is written: each has one answer, nothing is visible of it, and the task can be tried
again. A full disk is in the integration tests, on a disk of its own."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hold
from holdfast.data.formats.hdf5.writer import HDF5Writer
from holdfast.data.writer import commit
from holdfast.data.writer.dataset_writer import DatasetWriter, write
from holdfast.errors import WriteError

NOBODY = 65534
YEAR_S = 365 * 24 * 3600.0


@pytest.fixture
def out(tmp_path: Path) -> DatasetWriter:
    return write(tmp_path / "run", {"x": hold.Int64()})


def put(out: DatasetWriter, task: str = "t", meanwhile: Callable[[], Any] = lambda: None, kind: Any = "hdf5") -> None:
    with out.part(task, kind) as part:
        part.append(x=1)
        meanwhile()


def nothing_is_left(out: DatasetWriter) -> bool:
    return os.listdir(out.folder / "parts") == [] == os.listdir(out.folder / "tmp")


@pytest.fixture
def anybodys() -> Iterator[Path]:
    """A folder of somebody who is not root, and we are that somebody: root may write anywhere."""
    with tempfile.TemporaryDirectory() as folder:
        if os.geteuid() != 0:
            yield Path(folder)
            return
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
        try:
            yield Path(folder)
        finally:
            os.seteuid(0)


@pytest.mark.parametrize("kind", ["hdf5", "tfrecord"])
def test_the_right_to_write_is_lost(anybodys: Path, kind: Any) -> None:
    out = write(anybodys / "run", {"x": hold.Int64()})
    parts = out.folder / "parts"
    with pytest.raises(WriteError, match=r"cannot commit task 't': Permission denied: .*t\.0\."):
        put(out, meanwhile=lambda: parts.chmod(0o500), kind=kind)
    parts.chmod(0o700)
    assert nothing_is_left(out)
    (out.folder / "tmp").chmod(0o500)
    with pytest.raises(WriteError, match=r"cannot work in .*tmp: Permission denied"):
        put(out, kind=kind)
    (out.folder / "tmp").chmod(0o700)
    put(out, kind=kind)
    assert out.verify().ok


@pytest.mark.parametrize("kind", ["hdf5", "tfrecord"])
def test_the_folder_is_removed_meanwhile_and_made_again(out: DatasetWriter, kind: Any) -> None:
    with pytest.raises(WriteError, match="cannot commit task 't': No such file or directory"):
        put(out, meanwhile=lambda: shutil.rmtree(out.folder), kind=kind)
    again = write(out.folder, out.schema)
    put(again, kind=kind)
    assert again.rows == 1


def test_a_sync_that_fails_commits_nothing(out: DatasetWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    def no(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(commit, "sync_file", no)
    with pytest.raises(WriteError, match="cannot commit task 't': Input/output error"):
        put(out)
    assert nothing_is_left(out)
    monkeypatch.undo()
    put(out)
    assert out.rows == 1


def test_without_a_free_thread(out: DatasetWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    def no(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no)
    put(out)
    assert out.rows == 1


@pytest.mark.parametrize("after", ["claim", "data"])
def test_ctrl_c_right_after_a_link(out: DatasetWriter, monkeypatch: pytest.MonkeyPatch, after: str) -> None:
    link = os.link

    def interrupted(source: Any, target: Any) -> None:
        link(source, target)
        if (Path(target).name == ".t.json") == (after == "claim"):
            raise KeyboardInterrupt

    monkeypatch.setattr(commit.os, "link", interrupted)
    with pytest.raises(KeyboardInterrupt):
        put(out)
    monkeypatch.undo()
    again = write(out.folder)
    assert again.part("t").done == (after == "claim")
    assert again.verify().leftovers == []
    assert again.verify().ok
    put(again, "u")
    assert again.rows == (2 if after == "claim" else 1)


def test_a_link_whose_answer_was_lost(out: DatasetWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over NFS a request is sent again when no answer comes: the second finds what the first has made."""
    link = os.link

    def doubled(source: Any, target: Any) -> None:
        link(source, target)
        if Path(target).name == ".t.json":
            raise FileExistsError(errno.EEXIST, "File exists", str(target))

    monkeypatch.setattr(commit.os, "link", doubled)
    put(out)
    assert out.rows == 1
    assert out.verify().ok


def test_a_descriptor_that_was_closed_behind_our_back(tmp_path: Path) -> None:
    """Its number is the next to be given out: to the very file that is to take its place."""
    writer = HDF5Writer(tmp_path / "a.h5", {"x": hold.Int64()})
    os.close(writer._hdf5_fd)
    writer.detach()
    writer.detach()
    writer.discard()
    assert os.listdir(tmp_path) == ["a.h5"]  # detached, it is somebody else's to remove


@pytest.mark.parametrize("jump_s", [50 * YEAR_S, -50 * YEAR_S])
def test_the_clock_jumps(out: DatasetWriter, monkeypatch: pytest.MonkeyPatch, jump_s: float) -> None:
    """No order and no commit depends on it; nor does what is taken for dead, here or on another machine."""
    other = out.folder / "tmp" / "elsewhere-1-abc"
    other.mkdir()
    (other / "lock").write_text("theirs\n")
    real = time.time
    with out.part("alive") as alive:
        alive.append(x=1)
        monkeypatch.setattr(time, "time", lambda: real() + jump_s)
        again = write(out.folder)
        put(again, "t")
        assert len(again.verify().at_work) == 2
        os.utime(other / "lock", (real() + YEAR_S, real() + YEAR_S))  # from the future, to us
        write(out.folder)
        assert other.exists()
    assert [record.task for record in write(out.folder).parts()] == ["alive", "t"]
    os.utime(other / "lock", (real() - YEAR_S, real() - YEAR_S))
    write(out.folder)
    assert not other.exists()
    assert out.verify().ok


FEW_DESCRIPTORS = """
import os, resource, sys, holdfast as hold
out = hold.write(sys.argv[1])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
for kind in ("hdf5", "tfrecord"):
    with out.part(kind, kind) as part:
        part.append(x=1)
    for free in range(17, 22):  # a part takes 5: each of its steps is the one that finds none
        low = os.open("/", os.O_RDONLY)
        resource.setrlimit(resource.RLIMIT_NOFILE, (low + free, hard))
        os.close(low)
        parts = []
        try:
            while True:
                part = out.part(f"{kind}-{free}-{len(parts)}", kind)
                part.__enter__()
                parts.append(part)
                part.append(x=1)
        except hold.HoldfastError as error:
            print(len(parts), error)
        for part in parts:
            part.__exit__(None, None, None)
"""


def test_with_few_descriptors_every_part_that_was_opened_is_committed(out: DatasetWriter) -> None:
    command = [sys.executable, "-c", FEW_DESCRIPTORS, str(out.folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 10
    assert all(int(line.split()[0]) >= 3 and "Too many open files" in line for line in lines)
    assert any("its commit needs 2 free descriptors" in line for line in lines)
    assert out.rows == 2 + sum(int(line.split()[0]) for line in lines)
