"""Where a salvaged file is written: into the one its owner made, and no other."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import pytest

from holdfast.data.formats.hdf5.sandbox import SandboxedProcess


def answers(path: Path, identity: list[int]) -> list[dict[str, object]]:
    with SandboxedProcess({"work": "rebuild", "out": str(path), "identity": identity}) as child:
        child.send({"make": "group", "path": "/a"})
        child.send({"finish": True})
        child.close_stdin()
        return [message.head for message in child.messages()]


def identity_of(path: Path) -> list[int]:
    info = os.stat(path)
    return [info.st_dev, info.st_ino]


def test_the_file_that_was_made_for_it(tmp_path: Path) -> None:
    path = tmp_path / "out.h5"
    path.touch()
    before = identity_of(path)
    assert answers(path, before) == [{"end": True}]
    assert identity_of(path) == before
    with h5py.File(path) as file:
        assert list(file) == ["a"]


@pytest.mark.parametrize("how", ["another", "not empty", "a link", "gone"])
def test_another_file_of_that_name_is_not_touched(tmp_path: Path, how: str) -> None:
    path, other = tmp_path / "out.h5", tmp_path / "other"
    path.touch()
    identity = identity_of(path)
    if how == "another":
        other.touch()
        os.replace(other, path)
    elif how == "not empty":
        path.write_bytes(b"mine")
    else:
        os.rename(path, other)
        if how == "a link":
            path.symlink_to(other)
    before = [file.read_bytes() for file in tmp_path.iterdir()]
    [said] = answers(path, identity)
    assert list(said) == ["failed"]
    assert [file.read_bytes() for file in tmp_path.iterdir()] == before
