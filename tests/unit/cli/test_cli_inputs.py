"""Files as people name them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast._util.text import natural_key
from holdfast.cli.path_arguments import expand
from holdfast.errors import InputError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    names = ["p-10.tfrecord", "p-9.tfrecord", "p-9.tfrecord.gz", "q.tfrecords-3", "r.tfrec", "S.TFRECORD"]
    names += ["t.tfrecord-00001-of-00002", ".hidden.tfrecord", "holdfast.manifest.json", "notes.txt"]
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "looks.tfrecord").mkdir()
    for name in [*names, "deep/er/z.tfrecord", "a[1].tfrecord"]:
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_folder_means_what_looks_like_tfrecord_in_natural_order(folder: Path) -> None:
    names = ["S.TFRECORD", "a[1].tfrecord", "p-9.tfrecord", "p-9.tfrecord.gz", "p-10.tfrecord"]
    names += ["q.tfrecords-3", "r.tfrec", "t.tfrecord-00001-of-00002"]
    assert expand([str(folder)]) == [str(folder / name) for name in names]


def test_globs(folder: Path) -> None:
    assert expand(["p-*"]) == ["p-9.tfrecord", "p-9.tfrecord.gz", "p-10.tfrecord"]
    assert expand(["**/z.*"]) == ["deep/er/z.tfrecord"]
    assert expand(["*.json", "p-1?.*"][1:]) == ["p-10.tfrecord"]
    assert "looks.tfrecord" not in expand(["*.tfrecord"])


def test_names_are_taken_as_they_are_first(folder: Path) -> None:
    assert expand(["a[1].tfrecord", "notes.txt", "missing"]) == ["a[1].tfrecord", "notes.txt", "missing"]


def test_a_name_of_a_file_that_leads_nowhere_is_kept(folder: Path) -> None:
    os.symlink("gone", folder / "gone[1].tfrecord")
    assert expand(["gone[1].tfrecord"]) == ["gone[1].tfrecord"]


def test_the_order_of_the_arguments_is_kept_and_no_file_comes_twice(folder: Path) -> None:
    assert expand(["r.tfrec", "p-10*", "missing"]) == ["r.tfrec", "p-10.tfrecord", "missing"]
    os.symlink("r.tfrec", folder / "link")
    for again in ("r.tfrec", "./r.tfrec", "r.*", "link"):
        with pytest.raises(InputError, match="expected every file once, got it twice"):
            expand(["r.tfrec", "p-10*", again])


@pytest.mark.parametrize("argument", ["nothing-*", "*.json", "deep"])
def test_what_matches_nothing_is_named(folder: Path, argument: str) -> None:
    with pytest.raises(InputError) as caught:
        expand([argument])
    assert str(caught.value).startswith(f"{argument}: ")


def test_natural_order() -> None:
    names = ["b", "a10", "a9", "a09b", "10", "9", ""]
    assert sorted(names, key=natural_key) == ["", "9", "10", "a9", "a09b", "a10", "b"]
