"""A format that is only registered works in all functions and commands: nothing else has to know it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import holdfast as hold
from holdfast.cli.app import run
from holdfast.data.formats.base import Format
from holdfast.data.formats.registry import FORMATS, open_shard, register
from holdfast.data.formats.row_buffers import buffers_of, column_from
from holdfast.errors import CorruptError, DataError, FormatError
from holdfast.schema import Column, as_code, check_schema, schema_from_json, schema_to_json

MAGIC = b"toy format\n"


class ToyShard:
    """A line with the schema, a line of JSON for each sample, and their number."""

    seekable = True
    rows_per_chunk = 1

    def __init__(self, path: Any, schema: Any = None, *, fd: int | None = None, **_: Any) -> None:
        self.path = os.fsdecode(path)
        with open(self.path if fd is None else fd, "rb") as file:
            magic, schema_line, *lines, end = file.read().split(b"\n")[:-1] or [b"", b"", b""]
        if magic + b"\n" != MAGIC:
            raise FormatError(self.path, None, 0, "not a toy")
        if end != b"%d" % len(lines):
            raise CorruptError(self.path, None, None, f"expected {len(lines)} at the end, got {end!r}")
        self.schema = schema_from_json(json.loads(schema_line))
        self.samples = [json.loads(line) for line in lines]

    def __len__(self) -> int:
        return len(self.samples)

    def read(self, start: int, stop: int, schema: Any = None) -> Any:
        return self.read_rows(range(start, stop), schema)

    def read_rows(self, rows: Any, schema: Any = None) -> Any:
        columns = self.schema if schema is None else check_schema(schema)
        keys = {name: name if column.key is None else column.key for name, column in columns.items()}
        values = {name: [self.samples[row][key] for row in rows] for name, key in keys.items()}
        buffers, _ = buffers_of(columns, values)
        return {name: column_from(columns[name], parts) for name, parts in zip(columns, buffers, strict=True)}

    def bytes_of(self, start: int, stop: int) -> int:
        return 50 * (stop - start)

    def stamp(self) -> None:
        return None

    def close(self) -> None:
        pass

    def __enter__(self) -> ToyShard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ToyOutput:
    def __init__(self, path: Path, schema: dict[str, Column], *, first: int) -> None:
        self._path, self._schema, self._lines = path, schema, list[str]()

    def extend(self, columns: Mapping[str, Any]) -> None:
        values = {name: [plain(value) for value in columns[name]] for name in self._schema}
        rows = zip(*values.values(), strict=True)
        self._lines += [json.dumps(dict(zip(values, row, strict=True))) for row in rows]

    def close(self) -> hold.FileEntry:
        lines = [json.dumps(schema_to_json(self._schema)), *self._lines, str(len(self._lines))]
        self._path.write_bytes(MAGIC + "".join(f"{line}\n" for line in lines).encode())
        return hold.FileEntry(str(self._path), len(self._lines), self._path.stat().st_size, 0)

    def discard(self) -> None:
        pass


def plain(value: Any) -> Any:
    return bytes(value).decode() if isinstance(value, (bytes, memoryview)) else value.tolist()


@dataclass(frozen=True, slots=True)
class ToyReport(hold.VerifiedFile):
    samples: int = 0

    @property
    def content(self) -> tuple[int, str]:
        return self.samples, "sample"

    def as_dict(self) -> dict[str, object]:
        return {"path": self.path, "ok": self.ok, "format": "toy", "samples": self.samples}


def verify(path: str, progress: Any) -> ToyReport:
    try:
        return ToyReport(path, os.path.getsize(path), samples=len(ToyShard(path)))
    except DataError as error:
        return ToyReport(path, problems=[hold.Problem(error.offset, error.record, error.reason)])


@dataclass
class ToySurvey:
    path: str
    format: str = "toy"
    bytes: int = 0
    rows: int = 0
    schema: dict[str, Column] = field(default_factory=dict)
    problem: str | None = None
    readable: bool = True

    @property
    def code(self) -> str:
        return as_code(self.schema)

    def as_dict(self) -> dict[str, object]:
        return {"path": self.path, "format": "toy", "rows": self.rows}


def inspect(path: str, sample: int, progress: Any) -> ToySurvey:
    shard = ToyShard(path)
    return ToySurvey(path, bytes=os.path.getsize(path), rows=len(shard), schema=shard.schema)


TOY = Format(
    name="toy",
    title="Toy",
    suffixes=(".toy",),
    is_start=lambda head: head.startswith(MAGIC),
    open=ToyShard,
    verify=verify,
    inspect=inspect,
    written=(".toy",),
    write=ToyOutput,
)

SCHEMA = {"name": hold.Bytes(), "label": hold.Int64(), "emb": hold.Float32(3)}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register(TOY)
    yield
    del FORMATS["toy"]


def samples(rows: int) -> dict[str, list[Any]]:
    return {
        "name": [b"name %d" % i for i in range(rows)],
        "label": list(range(rows)),
        "emb": [[i + 0.5, -i, i * 0.25] for i in range(rows)],
    }


def make(path: Path, rows: int) -> Path:
    out = ToyOutput(path, SCHEMA, first=0)
    buffers, _ = buffers_of(SCHEMA, samples(rows))
    out.extend({name: column_from(SCHEMA[name], parts) for name, parts in zip(SCHEMA, buffers, strict=True)})
    out.close()
    return path


def test_functions_know_the_format(tmp_path: Path) -> None:
    path = make(tmp_path / "a.toy", 20)
    ds = hold.read(path).shuffle(seed=1).batch(8)
    assert sorted(int(label) for batch in ds for label in batch["label"]) == list(range(20))
    (tmp_path / "folder").mkdir()
    make(tmp_path / "folder" / "no_suffix", 3)
    assert len(hold.read(tmp_path / "folder")) == 3, "by its content"
    there = hold.convert(path, tmp_path / "a.h5")
    back = hold.convert(tmp_path / "a.h5", tmp_path / "b.toy", shards=2)
    assert [entry.records for entry in back.files] == [10, 10]
    assert there.checksum == back.checksum == hold.convert(path, tmp_path / "a.tar").checksum
    assert hold.convert(path, tmp_path / "a.tfrecord").rows == 20
    found = hold.inspect([path, tmp_path / "a.h5"])
    assert [(one.format, one.rows) for one in found.files] == [("toy", 20), ("hdf5", 20)]
    assert found.files[0].code == found.files[1].code
    checked = hold.verify(tmp_path)
    assert checked.ok
    assert [one.content for one in checked.files if one.path.endswith(".toy")] == [(n, "sample") for n in (20, 10, 10)]
    path.write_bytes(path.read_bytes()[:-5] + b"7\n")
    assert not hold.verify(path).ok
    with pytest.raises(CorruptError, match="at the end"):
        hold.convert(path, tmp_path / "c.h5")


def test_a_format_says_what_it_cannot_do(tmp_path: Path) -> None:
    path = make(tmp_path / "a.toy", 3)
    with pytest.raises(ValueError, match="is Toy, which cannot be merged"):
        hold.merge(path, tmp_path / "b.toy")
    with pytest.raises(FormatError, match="expected TFRecord or HDF5 to salvage, this is a Toy"):
        hold.salvage(path, tmp_path / "b.toy")
    with pytest.raises(FormatError, match="expected TFRecord, this is Toy"):
        hold.split(path, tmp_path / "out", parts=2)
    with pytest.raises(ValueError, match="a codec is for HDF5"):
        hold.convert(path, tmp_path / "b.toy", codec="gzip")
    (tmp_path / "a.tfrecord").write_bytes(path.read_bytes())
    with pytest.raises(FormatError, match="expected TFRecord by its name, its content is Toy"):
        open_shard(tmp_path / "a.tfrecord")
    with pytest.raises(ValueError, match="expected a new format"):
        register(TOY)


def test_commands_know_the_format(tmp_path: Path, capsys: Any) -> None:
    path = str(make(tmp_path / "a.toy", 20))
    assert run(["convert", path, "-o", str(tmp_path / "b.h5")]) == 0
    assert run(["convert", str(tmp_path / "b.h5"), "-o", str(tmp_path / "b.toy")]) == 0
    capsys.readouterr()
    assert run(["verify", path, str(tmp_path / "b.toy")]) == 0
    assert "2 files, 40 samples" in capsys.readouterr().out
    assert run(["inspect", path]) == 0
    shown = capsys.readouterr().out
    assert "Toy" in shown
    assert "'emb': hold.Float32(3)" in shown
    assert run(["index", path]) == 1
    assert run(["merge", path, "-o", str(tmp_path / "c.toy")]) == 2
    (tmp_path / "a.toy").write_bytes(MAGIC + b"{}\n7\n")
    assert run(["verify", path]) == 1
