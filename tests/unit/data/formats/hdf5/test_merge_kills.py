"""Merges that are killed, anywhere: nothing half-done gets a name, and the next call goes on with what was done."""

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
from factories_hdf5 import flip
from factories_merge import Arrays, check_rows, joined, nothing_left, read_file, table, write_file

from holdfast._util.failpoints import MERGE_CHILD_NAMES, MERGE_PARENT_NAMES, MERGE_REPEATED_NAMES, VARIABLE
from holdfast.data.formats.hdf5 import sandbox
from holdfast.data.formats.hdf5.merge.merge_files import merge_hdf5, work_path
from holdfast.errors import WriteError

Files = tuple[list[Path], Arrays]

PROGRAM = """
import sys
from holdfast.data.formats.hdf5.merge.merge_files import merge_hdf5
order, out, *files = sys.argv[1:]
made = merge_hdf5(files, out, order=order)
print(made.kept)
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


REPEATS = [f"{name}:{times}" for name in MERGE_REPEATED_NAMES for times in (1, 12)]


@pytest.mark.parametrize("where", [*MERGE_PARENT_NAMES, *MERGE_CHILD_NAMES, *REPEATS])
def test_killed_anywhere_it_goes_on(tmp_path: Path, files: Files, where: str) -> None:
    sources, wanted = files
    out = tmp_path / "out.h5"
    order = "any" if where in MERGE_CHILD_NAMES[2:4] else "exact"
    done = run(order, out, sources, **{VARIABLE: where})
    assert done.returncode == -signal.SIGKILL, done
    named = where in ("merge-linked", "merge-cleaned")
    assert out.exists() == named
    if where == "merge-cleaned":
        return
    again = run(order, out, sources)
    assert again.returncode == 0, again
    if where in ("merge-filled", "merge-proven", "merge-result"):
        assert int(again.stdout) > 50  # nothing was copied twice
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


def test_work_of_another_merge_is_not_gone_on_with(tmp_path: Path, files: Files) -> None:
    sources, wanted = files
    out = tmp_path / "out.h5"
    assert run("exact", out, sources, **{VARIABLE: "merge-filled"}).returncode == -signal.SIGKILL
    made = merge_hdf5(sources, out, order="any")
    assert made.kept == 0
    check_rows(read_file(out), wanted, "any")
    assert nothing_left(tmp_path)


def test_work_that_a_power_cut_spoiled_is_done_again(tmp_path: Path, files: Files) -> None:
    sources, wanted = files
    out = tmp_path / "out.h5"
    for name, damage in (("data.h5", 3000), ("spool", 50), ("data.h5", 20), ("states", 0)):
        assert run("exact", out, sources, **{VARIABLE: "merge-filled"}).returncode == -signal.SIGKILL
        flip(work_path(out) / name, damage)
        merge_hdf5(sources, out)
        check_rows(read_file(out), wanted, "exact")
        out.unlink()
    assert nothing_left(tmp_path)


def test_a_killed_child_is_said_and_its_work_kept(tmp_path: Path, files: Files, monkeypatch: Any) -> None:

    sources, wanted = files
    out = tmp_path / "out.h5"
    monkeypatch.setattr(sandbox, "PROGRAM", [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    with pytest.raises(WriteError, match="was killed; call it again to resume"):
        merge_hdf5(sources, out)
    monkeypatch.undo()
    merge_hdf5(sources, out)
    check_rows(read_file(out), wanted, "exact")
    assert nothing_left(tmp_path)
