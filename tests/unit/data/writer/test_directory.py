"""A run's folder: made, reopened, refused."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast as hold
from holdfast.data.writer.dataset_writer import DatasetWriter, write
from holdfast.errors import InputError, SchemaError, WriteError

SCHEMA = {"label": hold.Int64(), "emb": hold.Float32(4)}
NOBODY = 65534


def test_it_is_made_with_its_folders_and_reopened(tmp_path: Path) -> None:
    out = write(tmp_path / "deep" / "run", SCHEMA)
    assert sorted(os.listdir(out.folder)) == ["manifest", "parts", "quarantine", "schema.json", "tmp"]
    assert write(out.folder, SCHEMA).schema == SCHEMA
    assert write(str(out.folder)).schema == SCHEMA
    assert out.parts() == []
    assert out.rows == 0


def test_types_stand_for_columns_and_the_order_does_not_matter(tmp_path: Path) -> None:
    write(tmp_path / "run", {"a": hold.Int64, "b": hold.Bytes})
    assert write(tmp_path / "run", {"b": hold.Bytes(), "a": hold.Int64()}).schema == {
        "a": hold.Int64(),
        "b": hold.Bytes(),
    }


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({**SCHEMA, "emb": hold.Float32(5)}, r"column 'emb': the dataset has Float32\(4\), got Float32\(5\)"),
        ({"label": hold.Int64()}, r"column 'emb': the dataset has Float32\(4\), got no such column"),
        ({**SCHEMA, "more": hold.Bytes()}, r"column 'more': the dataset has no such column, got Bytes\(\)"),
        (
            {**SCHEMA, "label": hold.Int64(default=3)},
            r"column 'label': the dataset has Int64\(\), got Int64\(default=3\)",
        ),
    ],
)
def test_another_schema_is_refused_with_both_sides(tmp_path: Path, other: dict[str, object], said: str) -> None:
    write(tmp_path / "run", SCHEMA)
    with pytest.raises(SchemaError, match=said):
        write(tmp_path / "run", other)  # type: ignore[arg-type]


def test_what_is_no_such_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(WriteError, match="file: expected a directory, this is a file"):
        write(tmp_path / "file", SCHEMA)
    with pytest.raises(WriteError, match="expected a directory, but this or a parent is a file"):
        write(tmp_path / "file" / "run", SCHEMA)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"x")
    with pytest.raises(WriteError, match="expected an empty or new directory.* got one with 'cat.jpg'"):
        write(tmp_path / "photos", SCHEMA)
    assert os.listdir(tmp_path / "photos") == ["cat.jpg"]
    with pytest.raises(InputError, match="there is none; pass a schema to create it"):
        write(tmp_path / "none")
    with pytest.raises(WriteError, match=r"expected a store that creates a file only if .* got ftp://"):
        write("ftp://nowhere/run", SCHEMA)


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"type": "object"}', b'{"holdfast_write": 9, "schema": {}}'])
def test_a_schema_file_of_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "schema.json").write_bytes(content)
    with pytest.raises(InputError, match="not the schema of a dataset made by hold.write"):
        write(tmp_path, SCHEMA)


@pytest.fixture
def without_rights() -> Iterator[None]:
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def shut(tmp_path: Path) -> Path:
    (tmp_path / "shut").mkdir(mode=0o500)
    return tmp_path / "shut"


def test_no_permission_is_reported(shut: Path, without_rights: None) -> None:
    with pytest.raises(WriteError, match="cannot create or open .*run: Permission denied"):
        write(shut / "run", SCHEMA)
    with pytest.raises(WriteError, match="cannot create or open .*run: Permission denied"):
        write(shut / "run")  # and not: there is none


def test_it_pickles(tmp_path: Path) -> None:
    out: DatasetWriter = pickle.loads(pickle.dumps(write(tmp_path / "run", SCHEMA)))
    with out.part("a") as part:
        part.append(label=1, emb=[1, 2, 3, 4])
    assert out.rows == 1


def test_it_stays_where_it_was_after_a_chdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = write("run", SCHEMA)
    monkeypatch.chdir("/")
    with out.part("a") as part:
        part.append(label=1, emb=[1, 2, 3, 4])
    assert (tmp_path / "run" / "parts" / "a.0.h5").exists()


def test_defaults_and_keys_come_back(tmp_path: Path) -> None:
    schema = {
        "w": hold.Float32(2, default=[1.5, 2.5]),
        "s": hold.Bytes(default=b"\xff"),
        "y": hold.Int64(key="train/y"),
        "r": hold.Ragged(hold.Ragged(hold.Bytes()), key="lists"),
    }
    out = write(tmp_path / "run", schema)
    assert write(out.folder).schema == schema
    assert json.loads((out.folder / "schema.json").read_bytes())["schema"]["s"]["default"] == {"hex": "ff"}
