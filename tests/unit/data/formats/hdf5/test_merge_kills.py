"""Merges that are killed, anywhere: nothing half-done gets a name, and the next call succeeds."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from factories_merge import Arrays, check_rows, joined, nothing_left, read_file, table, write_file

from holdfast._util.atomic import PartialFile
from holdfast._util.failpoints import MERGE_CHILD_NAMES, MERGE_PARENT_NAMES, MERGE_REPEATED_NAMES, VARIABLE
from holdfast.data.formats.hdf5 import sandbox
from holdfast.data.formats.hdf5.merging.merge_files import merge_hdf5
from holdfast.errors import WriteError, WriterBusyError

Files = tuple[list[Path], Arrays]

PROGRAM = """
import sys
from holdfast.data.formats.hdf5.merging.merge_files import merge_hdf5
order, out, *files = sys.argv[1:]
merge_hdf5(files, out, order=order)
"""


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Packed chunks that must be packed anew, plain ones that are copied, strings, and rows without chunks."""
    tables: list[Arrays] = []
    paths = []
    for i, rows in enumerate((67, 48, 90)):
        one = table(1000 * i, rows)
        path = write_file(tmp_path / f"w{i}.h5", one, chunks=8, compression="gzip")
        with h5py.File(path, "a") as file:
            more = {
                "plain": np.arange(rows * 3).reshape(-1, 3),
                "text": np.array([b"%d" % n for n in range(rows)], object),
            }
            file.create_dataset("plain", data=more["plain"], chunks=(6, 3))
            file.create_dataset("text", data=more["text"], dtype=h5py.string_dtype())
            file["flat"] = more["plain"]
        tables.append(one | more | {"flat": more["plain"]})
        paths.append(path)
    return paths, joined(tables)


def run(order: str, out: Path, files: list[Path], **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, order, str(out), *map(str, files)]
    return subprocess.run(command, env=os.environ | env, capture_output=True, text=True, timeout=120, check=False)


REPEATS = [f"{name}:{times}" for name in MERGE_REPEATED_NAMES for times in (1, 4)]


@pytest.mark.parametrize("where", [*MERGE_PARENT_NAMES, *MERGE_CHILD_NAMES, *REPEATS])
def test_killed_anywhere_the_next_one_succeeds(tmp_path: Path, files: Files, where: str) -> None:
    sources, wanted = files
    out = tmp_path / "out.h5"
    order = "any" if where in MERGE_CHILD_NAMES[1:3] else "exact"
    done = run(order, out, sources, **{VARIABLE: where})
    assert done.returncode == -signal.SIGKILL, done
    assert out.exists() == (where == "merge-linked")
    if not out.exists():
        again = run(order, out, sources)
        assert again.returncode == 0, again
    check_rows(read_file(out), wanted, order)
    assert nothing_left(tmp_path)


def test_killed_at_any_moment(tmp_path: Path, files: Files) -> None:
    sources, wanted = files
    out, chance = tmp_path / "out.h5", random.Random(3)
    command = [sys.executable, "-c", PROGRAM, "exact", str(out), *map(str, sources)]
    for _ in range(8):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                process.wait(0.2 + chance.random() * 0.5)
            except subprocess.TimeoutExpired:
                process.kill()
        assert process.returncode in (0, -signal.SIGKILL)
        if process.returncode == 0 or out.exists():
            break
    if not out.exists():
        assert run("exact", out, sources).returncode == 0
    check_rows(read_file(out), wanted, "exact")


def test_a_child_that_outlives_its_parent_keeps_the_lock(tmp_path: Path, files: Files, monkeypatch: Any) -> None:
    """It may be within a write to the partial file, which the next merge would use."""
    sources, wanted = files
    out = tmp_path / "out.h5"
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[(partial := PartialFile(out)).fd]) as child:
        partial.detach()
        with pytest.raises(WriterBusyError, match="another writer has .*out.h5 open"):
            merge_hdf5(sources, out)
        assert child.stdin is not None
        child.stdin.close()
    merge_hdf5(sources, out)
    check_rows(read_file(out), wanted, "exact")
    assert nothing_left(tmp_path)


def test_a_killed_child_is_reported(tmp_path: Path, files: Files, monkeypatch: Any) -> None:
    sources, wanted = files
    out = tmp_path / "out.h5"
    monkeypatch.setattr(sandbox, "PROGRAM", [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    with pytest.raises(WriteError, match="was killed; nothing of it was left behind"):
        merge_hdf5(sources, out)
    assert nothing_left(tmp_path)
    monkeypatch.undo()
    merge_hdf5(sources, out)
    check_rows(read_file(out), wanted, "exact")
