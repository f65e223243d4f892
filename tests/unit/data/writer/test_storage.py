"""Codec, chunk and task name: from the schema and the launcher, unless somebody says otherwise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import holdfast as hold
from holdfast.data.formats.hdf5.salvage import salvage_hdf5
from holdfast.data.formats.hdf5.verify import verify_hdf5
from holdfast.data.formats.registry import open_shard
from holdfast.data.writer.dataset_writer import DatasetWriter, write
from holdfast.errors import InputError, SchemaError
from holdfast.schema import schema_digest

SCHEMA = {
    "plain": hold.Int64(),
    "packed": hold.Float32(4, codec=("gzip", 1), chunk_rows=16),
    "text": hold.Bytes(codec="lzf"),
    "lists": hold.Ragged(hold.Int64(), codec="zstd"),
}
ZSTD = 32015
NAMES = {1: "gzip", 32000: "lzf", ZSTD: "zstd"}
ROWS = 50


def put(out: DatasetWriter, task: str, **how: Any) -> Path:
    with out.part(task, **how) as part:
        part.extend(
            {
                "plain": np.arange(ROWS),
                "packed": np.ones((ROWS, 4)),
                "text": [b"text %d" % i for i in range(ROWS)],
                "lists": [[i] * (i % 3) for i in range(ROWS)],
            }
        )
    return out.path_of(part.record)


def filters(path: Path) -> dict[str, tuple[Any, int]]:
    """Of each dataset: how it is packed, and the rows of a chunk."""
    found = {}

    def see(name: str, thing: Any) -> None:
        if isinstance(thing, h5py.Dataset):
            plist = thing.id.get_create_plist()
            numbers = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]
            found[name] = (NAMES[numbers[-1]] if numbers else None, thing.chunks[0])

    with h5py.File(path) as file:
        file.visititems(see)
    return found


def test_each_column_as_its_schema_says(tmp_path: Path) -> None:
    out = write(tmp_path / "run", SCHEMA)
    found = filters(put(out, "t"))
    assert found["plain"] == (None, 16)
    assert found["packed"] == ("gzip", 16)
    assert found["text/offsets"] == ("lzf", 16)
    assert found["text/values"][0] == "lzf"
    assert found["lists/row_splits"] == ("zstd", 16)
    assert found["lists/values"][0] == "zstd"
    assert out.verify().ok


def test_what_a_part_is_given_goes_before(tmp_path: Path) -> None:
    out = write(tmp_path / "run", SCHEMA)
    assert set(filters(put(out, "a", codec="none", chunk_rows=10)).values()) >= {(None, 10)}
    assert {kind for kind, _ in filters(put(out, "b", codec="gzip")).values()} == {"gzip"}
    put(out, "c", format="tfrecord")  # has neither chunks nor codecs
    assert out.verify().ok
    assert out.rows == 3 * ROWS


def test_the_folder_keeps_it_and_it_makes_no_difference(tmp_path: Path) -> None:
    plain = {
        "plain": hold.Int64(),
        "packed": hold.Float32(4),
        "text": hold.Bytes(),
        "lists": hold.Ragged(hold.Int64()),
    }
    out = write(tmp_path / "run", SCHEMA)
    again = write(tmp_path / "run", plain)  # no SchemaError
    assert schema_digest(again.schema) == schema_digest(plain) == schema_digest(out.schema)
    assert again.schema == plain
    assert [column.codec for column in again.schema.values()] == [None, ("gzip", 1), "lzf", "zstd"]
    assert again.schema["packed"].chunk_rows == 16
    with h5py.File(put(again, "t")) as file:
        assert b"codec" not in file.attrs["holdfast"]
    assert repr(again.schema["packed"]) == "Float32(4, chunk_rows=16, codec=('gzip', 1))"
    assert repr(again.schema["lists"]) == "Ragged(Int64(), codec='zstd')"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: hold.Int64(codec="zip"), "expected codec to be"),
        (lambda: hold.Int64(codec=("zstd", 23)), "expected codec to be"),
        (lambda: hold.Int64(codec=("lzf", 1)), "expected codec to be"),
        (lambda: hold.Int64(codec=3), "expected codec to be"),
        (lambda: hold.Int64(chunk_rows=0), "chunk_rows must be a positive integer, got 0"),
        (lambda: hold.Ragged(hold.Int64(codec="gzip")), "go to the outermost Ragged"),
        (
            lambda: write("never", {"a": hold.Int64(chunk_rows=4), "b": hold.Int64(chunk_rows=8)}),
            r"columns 'a' and 'b': expected one chunk_rows .* got 4 and 8",
        ),
    ],
)
def test_nonsense_is_refused(make: Any, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        make()


# ---- zstd


@pytest.mark.parametrize("codec", ["zstd", ("zstd", 9)])
def test_zstd_is_written_read_checked_and_rescued(tmp_path: Path, codec: Any) -> None:
    out = write(tmp_path / "run", SCHEMA)
    path = put(out, "t", codec=codec)
    with open_shard(path) as shard:
        assert shard.read(0, ROWS)["lists"].tolist() == [[i] * (i % 3) for i in range(ROWS)]
    assert out.verify().ok
    assert verify_hdf5(path).problems == []  # in a process of its own
    assert salvage_hdf5(path, tmp_path / "rescued.h5").rows_lost == 0
    with open_shard(tmp_path / "rescued.h5") as shard:
        assert shard.read(0, ROWS)["plain"].tolist() == list(range(ROWS))


WITHOUT = """
import sys
sys.modules["hdf5plugin"] = None
import holdfast as hold
from holdfast.errors import HoldfastError
run, path = sys.argv[1:]
def said(work):
    try:
        work()
    except HoldfastError as error:
        print(type(error).__name__, error)
out = hold.write(run)
said(lambda: out.part("new"))
said(lambda: out.part("new", codec="zstd"))
said(lambda: list(hold.read(path)))
said(lambda: list(hold.read(path, on_corrupt="skip")))
print(len(list(hold.read(path, {"plain": hold.Int64()}))))
with out.part("new", codec="gzip"):
    pass
"""


def test_without_the_package_it_is_named(tmp_path: Path) -> None:
    path = put(write(tmp_path / "run", SCHEMA), "t")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, tmp_path / "run", path],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    needs = "needs the Python package hdf5plugin"
    packed = f"dataset 'lists' is compressed with filter {ZSTD} (zstd)"
    lacking = f"DecodeError {path}: {packed}, which {needs}. pip install hdf5plugin"
    wanted = [f'WriteError codec "zstd" {needs}: pip install hdf5plugin'] * 2 + [lacking] * 2 + [str(ROWS)]
    assert (done.stdout.splitlines(), done.stderr) == (wanted, "")


# ---- the task's name


def test_the_launchers_rank_is_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = write(tmp_path / "run", {"x": hold.Int64()})
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    with out.part() as part:
        part.append(x=1)
    assert [record.task for record in out.parts()] == ["rank3"]
    assert out.part().done
    monkeypatch.setenv("JAX_PROCESS_ID", "1")
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    with pytest.raises(InputError, match=r"cannot determine the rank: .* task=…"):
        out.part()
    for name in ("RANK", "WORLD_SIZE", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES"):
        monkeypatch.delenv(name)
    with pytest.raises(ValueError, match="expected task=, a name .* no launcher tells the rank of this process"):
        out.part()
