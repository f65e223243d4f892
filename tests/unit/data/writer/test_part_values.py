"""Values as people have them: what is taken is written, whatever it comes with; what is not is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import h5py
import numpy as np
import pytest
import torch

import holdfast as hold
from holdfast.data.formats.row_buffers import buffers_of
from holdfast.data.writer.dataset_writer import DatasetWriter, write
from holdfast.data.writer.row_buffer import RowBuffer, join_rows, row_of
from holdfast.errors import ClosedWriterError, SchemaError, WriteError
from holdfast.schema import Column

KINDS = pytest.mark.parametrize("kind", ["hdf5", "tfrecord"])


def read(out: DatasetWriter, name: str) -> list[Any]:
    with hold.read(str(out.folder)).shard(None).batch(100).iterate() as batches:
        return [value for batch in batches for value in batch[name].tolist()]


@KINDS
def test_rows_that_fit_one_by_one_fit_together(tmp_path: Path, kind: Any) -> None:
    """An empty array has another type and shape; two types of integers make a float."""
    out = write(tmp_path / "run", {"box": hold.Ragged(hold.Float32(2)), "ids": hold.Ragged(hold.Int64())})
    boxes: list[Any] = [np.array([]), np.ones((2, 2)), [], np.zeros((0, 7), object), [[1, 2]]]
    ids: list[Any] = [np.array([]), np.array([2**62 + 1], np.uint64), np.array([-1]), (), [3]]
    with out.part("a", kind) as part:
        for row in range(1000):  # more than are kept back
            part.append(box=boxes[row % 5], ids=ids[row % 5])
    assert out.rows == 1000
    assert read(out, "ids")[:5] == [[], [2**62 + 1], [-1], [], [3]]
    assert [len(box) for box in read(out, "box")] == [0, 2, 0, 0, 1] * 200
    with out.part("b", kind) as part:
        part.extend({"box": boxes[:3], "ids": [np.array([]), np.array([1]), np.array([2])]})
    assert out.rows == 1003


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (hold.Ragged(hold.Float32()), [[], [1.5], [2.0, 3.0]]),
        (hold.Ragged(hold.Int64(2)), [[[1, 2]], [], [[3, 4], [5, 6]]]),
        (hold.Ragged(hold.Bytes()), [[b"a", b""], [], [b"bcd"]]),
        (hold.Ragged(hold.Bytes(2)), [[[b"a", b""]], []]),
        (hold.Ragged(hold.Ragged(hold.Int64())), [[[1], []], [], [[2, 3], [4]]]),
        (hold.Ragged(hold.Ragged(hold.Bytes())), [[], [[], [b"x", b"yy"]], [[b"z"]]]),
        (hold.Bytes(2, 2), [[["a", b"b"], [b"", "é"]], [[b"1", b"2"], [b"3", b"4"]]]),
    ],
)
def test_rows_joined_are_the_column(column: Column, values: list[Any]) -> None:
    whole, _ = buffers_of({"c": column}, {"c": values})
    joined, _ = buffers_of({"c": column}, {"c": join_rows(column, [row_of("c", column, one) for one in values])})
    for wanted, got in zip(whole[0], joined[0], strict=True):
        assert (wanted is None) == (got is None)
        np.testing.assert_array_equal(got, wanted)


def test_a_row_is_a_copy(tmp_path: Path) -> None:
    out = write(tmp_path / "run", {"r": hold.Ragged(hold.Int64()), "s": hold.Bytes(), "v": hold.Int64(2)})
    numbers, text, pair = np.array([1, 2]), bytearray(b"ab"), np.array([3, 4])
    with out.part("a") as part:
        part.append(r=numbers, s=text, v=pair)
        numbers[:], text[:], pair[:] = 0, b"xx", 0
        part.append(r=numbers, s=text, v=pair)
    assert (read(out, "r"), read(out, "s"), read(out, "v")) == ([[1, 2], [0, 0]], [b"ab", b"xx"], [[3, 4], [0, 0]])


@KINDS
def test_columns_that_can_be_gone_through_once(tmp_path: Path, kind: Any) -> None:
    out = write(tmp_path / "run", {"s": hold.Bytes()})
    with out.part("a", kind) as part:
        part.extend({"s": (b"%d" % i for i in range(5))})
        assert part.rows == 5
    assert read(out, "s") == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("v", [[1], [1, 2]]),
        ("v", torch.zeros(2, requires_grad=True)),
        ("s", "\udc80"),
        ("s", 3),
        ("r", [["a"]]),
        ("r", torch.zeros(2, requires_grad=True)),
    ],
)
def test_what_is_no_value_is_named_and_not_in(tmp_path: Path, name: str, value: Any) -> None:
    out = write(tmp_path / "run", {"v": hold.Float32(2), "s": hold.Bytes(), "r": hold.Ragged(hold.Float32())})
    good = {"v": [1, 2], "s": b"x", "r": [1]}
    with out.part("a") as part:
        part.append(**good)
        with pytest.raises(SchemaError, match=f"column '{name}': expected "):
            part.append(**{**good, name: value})
        with pytest.raises(SchemaError, match=f"column '{name}': expected "):
            part.extend({**{key: [one] for key, one in good.items()}, name: [value]})
        part.append(**good)
    assert out.rows == 2


def test_what_was_taken_is_not_dropped_without_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If samples that each were taken do not go in together after all, the part must not be committed without them."""
    out = write(tmp_path / "run", {"x": hold.Int64()})
    monkeypatch.setattr(RowBuffer, "take", lambda self: {"x": ["no number"]})
    with out.part("a") as part:
        part.append(x=1)
        with pytest.raises(SchemaError):
            part.extend({"x": [2]})
        with pytest.raises(ClosedWriterError, match="failed earlier"):
            part.append(x=3)
    assert out.parts() == []


def test_rows_larger_than_a_chunk(tmp_path: Path) -> None:
    """And nothing is set aside for hundreds of them."""
    out = write(tmp_path / "run", {"v": hold.Float32(1 << 20), "i": hold.Int64()})
    parts = [out.part(f"t{i}") for i in range(50)]
    with parts[0] as part:
        for i in range(3):
            part.append(v=np.full(1 << 20, i, np.float32), i=i)
        assert part._row_buffer._columns["v"]._rows.nbytes <= 4 << 20  # type: ignore[union-attr]
    with h5py.File(out.path_of(out.parts()[0])) as file:
        assert (file["v"].chunks, file["v"][2, 5]) == ((1, 1 << 20), 2)
    assert out.verify().ok


@pytest.mark.parametrize(("shape", "rows"), [((1 << 30,), None), ((1024,), 1 << 20), ((1024,), 10**15)])
def test_a_chunk_that_hdf5_cannot_have_is_refused_at_once(tmp_path: Path, shape: Any, rows: int | None) -> None:
    out = write(tmp_path / "run", {"v": hold.Float32(*shape), "i": hold.Int64()})
    with pytest.raises(SchemaError, match="column 'v': expected chunks of less than 4 GiB, HDF5's limit, got "):
        with out.part("a", chunk_rows=rows):
            pass
    assert (out.verify().leftovers, out.verify().at_work) == ([], [])
    ends = write(tmp_path / "ends", {"s": hold.Bytes(chunk_rows=1 << 29)})
    with pytest.raises(SchemaError, match="column 's'"):
        with ends.part("a"):
            pass


def test_a_part_lost_while_it_was_tidied_up_keeps_no_lock(tmp_path: Path) -> None:
    """A Ctrl-C may come there, too."""
    out = write(tmp_path / "run", {"x": hold.Int64()})

    def interrupted() -> None:
        raise KeyboardInterrupt

    def work() -> None:
        part = out.part("a")
        with pytest.raises(KeyboardInterrupt):
            with part:
                file: Any = part._file
                discard, file.discard = file.discard, interrupted
                raise WriteError("no")
        discard()

    work()
    write(out.folder)
    assert (out.verify().at_work, out.verify().leftovers) == ([], [])


@pytest.mark.parametrize("kinds", [["tfrecord"], ["hdf5", "tfrecord"]])
def test_a_run_is_read_as_its_schema_says(tmp_path: Path, kinds: list[Any]) -> None:
    """A TFRecord has no shapes, and a list of one item each looks like a number."""
    schema: dict[str, Column] = {"v": hold.Float32(2, 3), "r": hold.Ragged(hold.Int64()), "s": hold.Bytes(2)}
    for where in (str(tmp_path / "run"), "memory://values/run.hold"):
        out = write(where, schema)
        for kind in kinds:
            with out.part(kind, kind) as part:
                part.extend({"v": np.ones((4, 2, 3)), "r": [[1], [2], [3], [4]], "s": [[b"a", b"b"]] * 4})
        with hold.read(where, cache_folder=tmp_path / "cache").shard(None).batch(100).iterate() as batches:
            [batch] = list(batches)
        assert (list(batch), batch["v"].shape) == (["v", "r", "s"], (4 * len(kinds), 2, 3))
        assert batch["r"].tolist() == [[1], [2], [3], [4]] * len(kinds)
    fsspec.filesystem("memory").rm("/values", recursive=True)
