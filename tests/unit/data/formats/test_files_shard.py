"""Lists of files as shards: every way in which a file can fail to be the one that was listed."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

import holdfast as hold
from holdfast.data.formats import files
from holdfast.data.formats.files import FilesShard, list_files
from holdfast.errors import CorruptError, DecodeError, InputError, SchemaError

pytestmark = pytest.mark.formats


def made(root: Path, **files: bytes) -> list[str]:
    for name, data in files.items():
        (root / name).write_bytes(data)
    return sorted(files)


def lists(batch: Any) -> dict[str, list[Any]]:
    return {name: column.tolist() for name, column in batch.items()}


def test_files_in_the_order_given(tmp_path: Path) -> None:
    made(tmp_path, a=b"first", b=b"second", c=b"third")
    shard = FilesShard(["c", tmp_path / "a", str(tmp_path / "b").encode()], root=tmp_path)
    assert list(shard.schema) == ["data", "path"]
    assert lists(shard.read(0, 3)) == {"data": [b"third", b"first", b"second"], "path": [b"c", b"a", b"b"]}
    assert lists(shard.read_rows([1, 1, 0])) == {"data": [b"first", b"first", b"third"], "path": [b"a", b"a", b"c"]}
    assert (shard.path, shard.bytes_of(1, 3)) == (str(tmp_path), 11)


def test_other_names_and_defaults(tmp_path: Path) -> None:
    shard = FilesShard(made(tmp_path, a=b"1", b=b"2"), root=tmp_path)
    schema = {"image": hold.Bytes(key="data"), "w": hold.Float32(default=2.0), "label": hold.Int64(default=-1)}
    assert lists(shard.read(0, 2, schema)) == {"image": [b"1", b"2"], "w": [2.0, 2.0], "label": [-1, -1]}


def test_paths_without_a_root(tmp_path: Path) -> None:
    made(tmp_path, a=b"1", b=b"2")
    shard = FilesShard([tmp_path / "a", tmp_path / "b"])
    assert lists(shard.read(0, 2))["path"] == [os.fsencode(tmp_path / "a"), os.fsencode(tmp_path / "b")]
    assert shard.path == f"{tmp_path / 'a'} and 1 more files"
    assert len(FilesShard([])) == 0


def test_labels_by_folder(tmp_path: Path) -> None:
    for folder in ("cat", "dog"):
        (tmp_path / folder / "deep").mkdir(parents=True)
        (tmp_path / folder / "deep" / "x").write_bytes(folder.encode())
    shard = FilesShard(["dog/deep/x", "cat/deep/x"], root=tmp_path, classes=["cat", "dog"])
    assert lists(shard.read(0, 2))["label"] == [1, 0]
    assert lists(shard.read_rows([1], {"y": hold.Int64(key="label")})) == {"y": [0]}
    got = shard.read(0, 2)["label"]
    got[:] = 9  # type: ignore[index]
    assert lists(shard.read(0, 2))["label"] == [1, 0]
    with pytest.raises(InputError, match="dog/deep/x: expected a file in the folder of a class: cat, cow"):
        FilesShard(["dog/deep/x"], root=tmp_path, classes=["cat", "cow"])
    with pytest.raises(SchemaError, match="expected each class once"):
        FilesShard(["dog/deep/x"], root=tmp_path, classes=["dog", "dog"])


def test_columns_that_do_not_fit(tmp_path: Path) -> None:
    shard = FilesShard(made(tmp_path, a=b"1"), root=tmp_path)
    for column in (hold.Int64(key="data"), hold.Bytes(2, key="data"), hold.Ragged(hold.Bytes(), key="data")):
        with pytest.raises(SchemaError, match=r"column 'x' is Bytes\(\) in a list of files"):
            shard.read(0, 1, {"x": column})
    with pytest.raises(DecodeError, match="no 'label' for column 'label'.*when classes are given"):
        shard.read(0, 1, {"label": hold.Int64()})


def test_paths_that_are_no_list_or_not_below_the_root(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="expected a list of paths"):
        FilesShard(str(tmp_path))
    made(tmp_path, a=b"1")
    (tmp_path / "sub").mkdir()
    with pytest.raises(InputError, match=r"a: expected files below .*/sub"):
        FilesShard([tmp_path / "a"], root=tmp_path / "sub")


# ---- files that cannot be samples


def test_what_cannot_be_listed(tmp_path: Path) -> None:
    made(tmp_path, empty=b"")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "away").symlink_to("nowhere")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    for name, reason in {
        "empty": "the file is empty",
        "folder": "expected a file to read, this is a folder",
        "fifo": "expected a file to read, this is a FIFO",
        "socket": "expected a file to read, this is a socket",
        "away": "cannot open: No such file",
        "nothing": "cannot open: No such file",
        "/dev/null": "expected a file to read, this is a device",
    }.items():
        with pytest.raises(InputError, match=f"{name}: {reason}"):
            FilesShard([name], root="" if name.startswith("/") else tmp_path)


def test_a_huge_file(tmp_path: Path) -> None:
    made(tmp_path, huge=b"x")
    os.truncate(tmp_path / "huge", files.MAX_BYTES + 1)
    with pytest.raises(InputError, match=r"huge: expected files of up to 1,073,741,824 bytes .*this has 1,073,741,825"):
        FilesShard(["huge"], root=tmp_path)
    with pytest.raises(InputError, match="huge: expected files of up to"):
        list_files(tmp_path, suffixes=None)


@pytest.mark.parametrize("row", [0, 1, 2])
def test_what_a_file_becomes_after_it_was_listed(tmp_path: Path, row: int) -> None:
    names = made(tmp_path, a=b"11111", b=b"22222", c=b"33333")
    shard = FilesShard(names, root=tmp_path)
    file = tmp_path / names[row]

    def fails(kind: type[Exception], text: str) -> None:
        with pytest.raises(kind, match=f"{file.name}.*{text}"):
            shard.read(0, 3)
        with pytest.raises(kind, match=f"{file.name}.*{text}"):
            shard.read_rows([row])

    for size in (0, 4, 6, 100):
        file.write_bytes(b"x" * size)
        fails(CorruptError, f"it had 5 bytes when it was listed, and has {size} now")
    file.unlink()
    fails(InputError, "cannot open: No such file")
    file.mkdir()
    fails(InputError, "cannot read: Is a directory")
    file.rmdir()
    os.mkfifo(file)
    fails(InputError, "this is a FIFO by now")
    with open(os.open(file, os.O_RDWR), "wb"):  # with a writer that says nothing
        fails(InputError, "cannot read: Resource temporarily unavailable")
    file.unlink()
    file.symlink_to(file.name)
    fails(InputError, "cannot open: Too many levels")
    file.unlink()
    file.write_bytes(b"44444")
    assert lists(shard.read(0, 3))["data"][row] == b"44444"


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything, so the kernel's answer is pretended."""
    shard = FilesShard(made(tmp_path, a=b"1"), root=tmp_path)

    def refuse(path: bytes, flags: int) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(InputError, match="a: cannot open: Permission denied") as caught:
        shard.read(0, 1)
    monkeypatch.undo()
    assert isinstance(caught.value.__cause__, PermissionError)


def test_a_file_system_that_gives_less_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = FilesShard(made(tmp_path, a=b"0123456789" * 10, b=b"tail"), root=tmp_path)
    readv, preadv = os.readv, os.preadv
    monkeypatch.setattr(os, "readv", lambda fd, views: readv(fd, [views[0][:3]]))
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: preadv(fd, [views[0][:7]], at))
    got = lists(shard.read(0, 2))["data"]
    monkeypatch.undo()
    assert got == [b"0123456789" * 10, b"tail"]


def test_three_calls_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = FilesShard(made(tmp_path, a=b"1" * 3000, b=b"2" * 5000), root=tmp_path)
    calls: list[str] = []
    for name in ("open", "readv", "close", "fstat", "stat", "preadv", "read"):
        real = getattr(os, name)

        def counted(*given: Any, name: str = name, real: Any = real) -> Any:
            calls.append(name)
            return real(*given)

        monkeypatch.setattr(os, name, counted)
    shard.read(0, 2)
    seen = list(calls)
    monkeypatch.undo()
    assert seen == ["open", "readv", "close"] * 2
