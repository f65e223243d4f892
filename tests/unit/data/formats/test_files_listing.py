"""Which files of a folder are listed, and in which order."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.data.formats.files import FilesShard, list_files
from holdfast.errors import InputError


def tree(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    return root


def paths(shard: FilesShard) -> list[str]:
    batch: dict[str, Any] = shard.read(0, len(shard))
    assert [os.path.basename(data) for data in batch["data"].tolist()] == [
        os.path.basename(path) for path in batch["path"].tolist()
    ]
    return [path.decode() for path in batch["path"].tolist()]


def test_sorted_by_the_bytes_of_whole_paths(tmp_path: Path) -> None:
    root = tree(
        tmp_path, "b.png", "a/z.png", "a-b/y.png", "a.png", "Z.png", "ä.png", "a/b/c/d.png", "a/10.png", "a/9.png"
    )
    want = ["Z.png", "a-b/y.png", "a.png", "a/10.png", "a/9.png", "a/b/c/d.png", "a/z.png", "b.png", "ä.png"]
    assert paths(list_files(root)) == want
    assert paths(list_files(str(root) + "/")) == want


def test_suffixes(tmp_path: Path) -> None:
    root = tree(tmp_path, "a.PNG", "b.jpeg", "c.txt", "d", "e.png.bak")
    assert paths(list_files(root)) == ["a.PNG", "b.jpeg"]
    assert paths(list_files(root, suffixes=[".TXT", ".bak"])) == ["c.txt", "e.png.bak"]
    assert paths(list_files(root, suffixes=None)) == ["a.PNG", "b.jpeg", "c.txt", "d", "e.png.bak"]
    with pytest.raises(TypeError, match="expected suffixes such as '.png', got 3"):
        list_files(root, suffixes=[3])  # type: ignore[list-item]


def test_hidden_names_are_skipped(tmp_path: Path) -> None:
    root = tree(tmp_path, ".a.png", ".cache/b.png", "c.png", "d/.e/f.png")
    assert paths(list_files(root)) == ["c.png"]


def test_names_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff\xfe.png")).write_bytes(b"x")
    assert list_files(tmp_path).read(0, 1)["path"].tolist() == [b"\xff\xfe.png"]


def test_classes_from_folders(tmp_path: Path) -> None:
    root = tree(tmp_path, "dog/1.png", "dog/sub/2.JPG", "cat/1.png", "beside.png", "a-b/y.png", "a/z.png", ".git/x.png")
    shard = list_files(root, classes_from_folder=True)
    assert shard.classes == ["a", "a-b", "cat", "dog"]
    assert paths(shard) == ["a-b/y.png", "a/z.png", "cat/1.png", "dog/1.png", "dog/sub/2.JPG"]
    assert shard.read(0, 5)["label"].tolist() == [1, 0, 2, 3, 3]
    (root / "emu").mkdir()
    with pytest.raises(InputError, match="the class 'emu' has no file that ends in .jpg"):
        list_files(root, classes_from_folder=True)
    with pytest.raises(InputError, match="the class 'emu' has no file$"):
        list_files(root, None, classes_from_folder=True)


def test_links(tmp_path: Path) -> None:
    root = tree(tmp_path / "data", "a/1.png")
    tree(tmp_path / "out", "2.png")
    (root / "b.png").symlink_to("a/1.png")
    (root / "round").symlink_to(".")
    (root / "away.txt").symlink_to("/nowhere")
    assert [path.decode() for path in list_files(root).read(0, 2)["path"].tolist()] == ["a/1.png", "b.png"]
    for name, target in (("c.png", tmp_path / "out" / "2.png"), ("folder", tmp_path / "out")):
        (root / name).symlink_to(target)
        with pytest.raises(InputError, match=f"{name}: the link leads out of .*/data, to .*/out"):
            list_files(root)
        (root / name).unlink()
    (root / "d.png").symlink_to("nowhere")
    with pytest.raises(InputError, match="d.png: broken link"):
        list_files(root)


def test_a_root_that_is_a_link(tmp_path: Path) -> None:
    tree(tmp_path / "data", "a/1.png")
    (tmp_path / "link").symlink_to("data")
    assert paths(list_files(tmp_path / "link")) == ["a/1.png"]


def test_what_cannot_be_a_sample_is_named(tmp_path: Path) -> None:
    root = tree(tmp_path, "a.png")
    os.mkfifo(root / "pipe")
    assert len(list_files(root)) == 1  # nobody asked for it
    with pytest.raises(InputError, match="pipe: expected a file to read, this is a FIFO"):
        list_files(root, suffixes=None)
    (root / "b.png").write_bytes(b"")
    with pytest.raises(InputError, match="b.png: the file is empty"):
        list_files(root)


def test_folders_that_cannot_be_listed(tmp_path: Path) -> None:
    tree(tmp_path, "a.png")
    with pytest.raises(InputError, match="nothing: cannot list the folder: No such file"):
        list_files(tmp_path / "nothing")
    with pytest.raises(InputError, match="a.png: cannot list the folder: Not a directory"):
        list_files(tmp_path / "a.png")
    (tmp_path / "none").mkdir()
    assert len(list_files(tmp_path / "none")) == 0
    assert list_files(tmp_path / "none", classes_from_folder=True).classes == []
