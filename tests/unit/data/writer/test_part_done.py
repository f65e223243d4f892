"""What is called done is there; what is committed is kept, whoever opens the folder, and in whatever state it is."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast as hold
from holdfast.data.writer.commit import LocalLocation
from holdfast.data.writer.dataset_writer import DatasetWriter, write
from holdfast.errors import CorruptError, WriteError

NOBODY = 65534


def made(folder: Path, *tasks: str) -> DatasetWriter:
    out = write(folder / "run", {"x": hold.Int64()})
    for task in tasks:
        put(out, task)
    return out


def put(out: DatasetWriter, task: str) -> None:
    with out.part(task) as part:
        part.extend({"x": [1, 2, 3]})


def killed_at(out: DatasetWriter, place: str, task: str) -> None:
    code = f"import holdfast as hold\nwith hold.write({str(out.folder)!r}).part({task!r}) as p: p.extend({{'x': [7]}})"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"HOLDFAST_FAILPOINT": place}, timeout=60, check=False
    )
    assert done.returncode == -9


@pytest.mark.parametrize("gone", [["a.0.h5"], ["a.0.h5", "a.0.json"]])
def test_a_task_whose_data_are_gone_is_not_done(tmp_path: Path, gone: list[str]) -> None:
    out = made(tmp_path, "a", "b")
    for name in gone:
        (out.folder / "parts" / name).unlink()
    out = write(out.folder)
    with pytest.raises(CorruptError, match=r"parts/a\.0\.h5: it is missing: attempt 0 of task 'a' .* has committed it"):
        out.part("a")
    assert out.part("b").done
    for name in (".a.json", "a.0.json"):  # what the error says
        (out.folder / "parts" / name).unlink(missing_ok=True)
    put(out, "a")
    assert (out.part("a").done, out.rows, out.verify().ok) == (True, 6, True)


def test_a_task_whose_part_went_into_a_file_stays_done(tmp_path: Path) -> None:
    out = made(tmp_path, "a")
    out.consolidate(tmp_path / "all.h5", delete_parts=True)
    assert out.part("a").done
    (tmp_path / "all.h5").rename(tmp_path / "elsewhere.h5")
    assert out.part("a").done


def test_a_damaged_claim_does_not_cost_the_data(tmp_path: Path) -> None:
    """Its writer was killed before it could tidy up: who sweeps cannot tell what is committed, so it takes nothing."""
    out = made(tmp_path)
    killed_at(out, "committed", "a")
    claim = out.folder / "parts" / ".a.json"
    claim.write_bytes(claim.read_bytes().replace(b'"rows":1', b'"rows":2'))
    write(out.folder)
    assert (out.folder / "parts" / "a.0.h5").exists()
    assert os.listdir(out.folder / "tmp") == []
    assert any("record is corrupt" in str(problem) for problem in out.verify().problems)
    with pytest.raises(CorruptError, match="corrupt"):
        out.part("a")


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """pytest's own folders are for one user."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def test_who_may_only_read_can_open_it(open_to_all: Path) -> None:
    """Also where a commit is to be finished, or something to be swept: that is for others."""
    out = made(open_to_all, "a")
    killed_at(out, "data-linked", "half")
    killed_at(out, "claimed", "b")
    with only_reading(out.folder / "parts", out.folder / "tmp"):
        again = write(out.folder)
        assert (again.rows, again.part("a").done) == (3, True)
        with pytest.raises(WriteError, match="'b' is committed, but not visible to readers: cannot create .*json: "):
            again.part("b")
    assert (write(out.folder).rows, sorted(record.task for record in out.parts())) == (4, ["a", "b"])


@contextmanager
def only_reading(*folders: Path) -> Iterator[None]:
    is_root = os.geteuid() == 0
    for folder in folders:
        folder.chmod(0o555)
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        for folder in folders:
            folder.chmod(0o755)


def test_what_is_committed_while_it_is_listed_is_not_accused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long folder is listed piece by piece: of what is made meanwhile, any may be missing."""
    out = made(tmp_path, "a", "b")
    names = LocalLocation.names
    first = {"a": ["a.0.json", "a.0.h5"], "b": [".b.json"]}
    listings: list[Any] = [[name for found in first.values() for name in found]]
    monkeypatch.setattr(LocalLocation, "names", lambda self: listings.pop() if listings else names(self))
    report = out.verify()
    assert listings == []
    assert report.problems == []
