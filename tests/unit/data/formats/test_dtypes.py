"""Every dtype in every shape, bit by bit, wherever data go: written, read, shuffled, converted, consolidated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import holdfast as hold
from factories_dtypes import ROWS, SCHEMA, bits_of, made, numbers
from holdfast.data.formats.columns import RaggedColumn
from holdfast.data.formats.hdf5.merging.merge_files import merge_hdf5
from holdfast.data.formats.registry import open_shard
from holdfast.errors import DecodeError, SchemaError
from holdfast.schema import DTYPES

pytestmark = pytest.mark.formats


def in_order(batches: Any) -> dict[str, list[Any]]:
    """All rows of all batches by their ids."""
    rows: dict[int, dict[str, Any]] = {}
    for batch in batches:
        columns = {name: bits_of(column) for name, column in batch.items()}
        for place, number in enumerate(batch["id"].tolist()):
            rows[number] = {name: column[place] for name, column in columns.items()}
    return {name: [rows[number][name] for number in sorted(rows)] for name in SCHEMA}


def same(batches: Any, wanted: dict[str, Any]) -> None:
    found = in_order(batches)
    for name, column in wanted.items():
        assert found[name] == bits_of(column), name


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return made(np.random.default_rng(12), ROWS)


def rows_in(data: dict[str, Any], start: int, stop: int) -> dict[str, Any]:
    return {name: column[start:stop] for name, column in data.items()}


def sample_in(data: dict[str, Any], row: int) -> dict[str, Any]:
    return {name: column[row] for name, column in data.items()}


@pytest.fixture(scope="module")
def run(data: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dtypes") / "run.hold"
    out = hold.write(folder, SCHEMA)
    with out.part("a") as part:
        part.extend(rows_in(data, 0, 40))
        for row in range(40, 50):
            part.append(**sample_in(data, row))
    with out.part("b", codec="gzip") as part:
        part.extend(rows_in(data, 50, ROWS))
    return folder


def test_written_and_read_in_any_order(run: Path, data: dict[str, Any]) -> None:
    ds = hold.read(run)
    assert ds.schema == SCHEMA
    same(ds.batch(7), data)
    same(ds.shuffle(seed=3).batch(8), data)
    same(ds.shuffle(seed=3).map(dict).batch(8), data)  # samples, and put together again


def test_cached_and_filled_up(run: Path, data: dict[str, Any], tmp_path: Path) -> None:
    cached = hold.read(run).cache(folder=tmp_path).batch(8)
    same(cached, data)
    same(cached, data)
    [padded] = hold.read(run).batch(ROWS, collate="pad", pad_value=1)
    for name in SCHEMA:
        shape, _, dtype = name.partition("_")
        if shape in ("list", "boxes"):
            column, sizes = padded[name], np.diff(data[name].row_splits)
            assert column.dtype == np.dtype(dtype)
            there = np.arange(column.shape[1]) < sizes[:, None]
            assert column[there].tobytes() == data[name].values.tobytes()
            assert (column[~there] == 1).all()


def test_through_worker_processes(run: Path, data: dict[str, Any]) -> None:
    same(hold.read(run).shuffle(seed=3).map(dict, where="processes", num_workers=1).batch(16), data)


def test_converted_and_back(run: Path, data: dict[str, Any], tmp_path: Path) -> None:
    to_tar = hold.convert(run, tmp_path / "a.tar")
    back = hold.convert(tmp_path / "a.tar", tmp_path / "a.h5", codec="gzip")
    assert to_tar.schema == back.schema == SCHEMA == hold.read(tmp_path / "a.h5").schema
    assert to_tar.checksum == back.checksum
    assert not to_tar.notes
    for path in (tmp_path / "a.tar", tmp_path / "a.h5"):
        same(hold.read(path).batch(32), data)


def test_consolidated(run: Path, data: dict[str, Any], tmp_path: Path) -> None:
    out = hold.write(run)
    out.consolidate(tmp_path / "whole.h5")
    assert hold.read(tmp_path / "whole.h5").schema == SCHEMA
    same(hold.read(tmp_path / "whole.h5").batch(32), data)


@pytest.mark.parametrize("memory", ["shared", "socket"])
def test_through_the_central_writer(data: dict[str, Any], tmp_path: Path, memory: str) -> None:
    """Columns of a fixed shape lie in shared memory where there is nothing else; lists go through the socket."""
    fixed = memory == "shared"
    schema = {name: column for name, column in SCHEMA.items() if not (fixed and isinstance(column, hold.Ragged))}
    out = hold.write(tmp_path / "run.hold", schema)
    with out.server(chunk_rows=16) as server, hold.connect(server.address, "p") as producer:
        wanted = {name: data[name] for name in schema}
        producer.extend(rows_in(wanted, 0, 55))
        for row in range(55, ROWS):
            producer.append(**sample_in(wanted, row))
    found = in_order_of(hold.read(tmp_path / "run.hold").batch(32), schema)
    assert found == {name: bits_of(wanted[name]) for name in schema}


def in_order_of(batches: Any, schema: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {name: [] for name in schema}
    for batch in batches:
        for name in schema:
            found[name] += bits_of(batch[name])
    return found


def fits(data: dict[str, Any]) -> dict[str, Any]:
    """What a TFRecord can hold of them: float64 that float32 has, too, and no large uint64."""
    found = dict(data)
    rng = np.random.default_rng(5)
    for name in data:
        dtype = name.partition("_")[2]
        if dtype in ("float64", "float16", "uint64"):
            found[name] = _with_values(data[name], lambda values, d=dtype: _small(rng, values, d))
    return found


def _with_values(column: Any, make: Any) -> Any:
    if isinstance(column, RaggedColumn):
        return RaggedColumn(_with_values(column.values, make), column.row_splits)
    return make(column)


def _small(rng: np.random.Generator, values: Any, dtype: str) -> Any:
    if dtype == "uint64":
        return values >> np.uint64(1)
    odd = rng.choice(np.array([np.nan, -0.0, np.inf, 2.0**-24]), values.shape)  # the last is subnormal as a float16
    return np.where(rng.random(values.shape) < 0.3, odd, rng.integers(-99, 99, values.shape)).astype(dtype)


def test_a_tfrecord_has_them_in_its_own_types(run: Path, data: dict[str, Any], tmp_path: Path) -> None:
    wanted = fits(data)
    with hold.TFRecordWriter(tmp_path / "a.tfrecord", SCHEMA, sequence=True) as writer:
        writer.extend(rows_in(wanted, 0, 50))
        for row in range(50, ROWS):
            writer.append(**sample_in(wanted, row))
    with hold.TFRecordReader(tmp_path / "a.tfrecord") as reader:
        same(reader.batches(SCHEMA, 16), wanted)
    same(hold.read(tmp_path / "a.tfrecord", SCHEMA).shuffle(seed=1).batch(16), wanted)
    converted = hold.convert(tmp_path / "a.tfrecord", tmp_path / "a.h5", SCHEMA)
    same(hold.read(tmp_path / "a.h5").batch(16), wanted)
    assert hold.convert(tmp_path / "a.h5", tmp_path / "b.tfrecord").checksum == converted.checksum
    stored = hold.read(tmp_path / "b.tfrecord").schema
    assert (stored["one_uint8"], stored["one_float64"]) == (hold.Int64(), hold.Float32())


# ---- what a TFRecord cannot hold


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        (hold.Array("float64"), [0.5, 0.1], "column 'x', sample 5: got 0.1, which float32 cannot hold exactly"),
        (hold.Array("float64"), [0, 1e300], r"column 'x', sample 5: got 1e\+300, which float32 cannot hold exactly"),
        (hold.Array("float64"), [0, 1 + 2**-24], "sample 5: .* Float32 in the schema rounds it"),
        (hold.Array("uint64", 2), [[0, 1], [2, 2**63]], "sample 5: got 9223372036854775808, which int64 cannot hold"),
        (hold.Ragged(hold.Array("float64")), [[], [1, 0.3]], "column 'x', sample 5: got 0.3"),
    ],
)
@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_value_that_does_not_fit_a_tfrecord(
    tmp_path: Path, column: Any, values: Any, said: str, one_by_one: bool
) -> None:
    path = tmp_path / "a.tfrecord"
    with pytest.raises(SchemaError, match=said), hold.TFRecordWriter(path, {"x": column}) as writer:
        writer.extend({"x": values[:1] * 4})
        if one_by_one:
            for value in values:
                writer.append(x=value)
        else:
            writer.extend({"x": values})
    assert not path.exists()


@pytest.mark.parametrize("column", [hold.Array("int8"), hold.Array("uint8"), hold.Ragged(hold.Array("uint8"))])
def test_a_value_of_a_tfrecord_that_does_not_fit_the_schema(tmp_path: Path, column: Any) -> None:
    path = tmp_path / "a.tfrecord"
    with hold.TFRecordWriter(path, {"x": hold.Ragged(hold.Int64())}) as writer:
        writer.extend({"x": [[i if i != 17 else 300] for i in range(30)]})
    said = "a.tfrecord, record 17.*: got 300, which u?int8 cannot hold, in column 'x'"
    with open_shard(path) as shard, pytest.raises(DecodeError, match=said):
        shard.read(0, 30, {"x": column})
    with pytest.raises(DecodeError, match=said):
        list(hold.read(path, {"x": column}).shuffle(seed=1).batch(4))
    with hold.TFRecordReader(path) as reader, pytest.raises(DecodeError, match=said):
        list(reader.batches({"x": column}, 4))


# ---- files of others


@pytest.mark.parametrize("dtype", DTYPES)
def test_hdf5_of_either_byte_order(tmp_path: Path, dtype: str) -> None:
    values = numbers(np.random.default_rng(7), dtype, 20, 3)
    swapped = values.astype(values.dtype.newbyteorder(">"))
    lists = [row[: i % 4] for i, row in enumerate(values)]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = values, swapped
        vlen = file.create_dataset("z", 20, h5py.vlen_dtype(dtype))
        swapped_vlen = file.create_dataset("zz", 20, h5py.vlen_dtype(swapped.dtype))
        for i, row in enumerate(lists):
            vlen[i], swapped_vlen[i] = row, swapped[i][: i % 4]
    column = hold.Array(dtype, 3)
    ds = hold.read(tmp_path / "a.h5")
    assert ds.schema == {
        "x": column,
        "y": column,
        "z": hold.Ragged(hold.Array(dtype)),
        "zz": hold.Ragged(hold.Array(dtype)),
    }
    [batch] = ds.batch(20)
    assert batch["x"].dtype == batch["y"].dtype == np.dtype(dtype)
    assert batch["x"].tobytes() == values.tobytes() == batch["y"].tobytes()
    for name in ("z", "zz"):
        assert [row.tobytes() for row in batch[name]] == [row.tobytes() for row in lists]
    merge_hdf5([tmp_path / "a.h5"], tmp_path / "b.h5")
    [again] = hold.read(tmp_path / "b.h5").batch(20)
    assert [row.tobytes() for row in again["zz"]] == [row.tobytes() for row in lists]


def test_another_file_is_not_rounded_to_the_first_ones_dtype(tmp_path: Path) -> None:
    for name, dtype in (("a", "f4"), ("b", "f8")):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["x"] = np.array([1.0, 0.1], dtype)
    with pytest.raises((SchemaError, DecodeError), match="Array|cannot hold exactly"):
        list(hold.read(tmp_path).batch(4))
    [batch] = hold.read(tmp_path, {"x": hold.Float32()}).batch(4)  # said, so it is rounded
    assert batch["x"].tolist() == np.array([1, 0.1, 1, 0.1], "f4").tolist()
    [batch] = hold.read(tmp_path, {"x": hold.Array("float64")}).batch(4)
    assert batch["x"].tolist() == [1, float(np.float32(0.1)), 1, 0.1]


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        (hold.Array("uint8"), [1, 300], "expected Array.* got 300, which uint8 cannot hold"),
        (hold.Array("uint8"), np.array([3, -1]), "got -1, which uint8 cannot hold"),
        (hold.Array("uint8"), [0.5], "got float64 values"),
        (hold.Array("bool"), [0, 2], "got 2, which bool cannot hold"),
        (hold.Array("float16"), [1e6], "got 1000000.0, which float16 cannot hold"),
        (hold.Array("float16"), [70_000], "got 70000, which float16 cannot hold"),
        (hold.Array("float64"), [1, 2**53 + 1], "got 9007199254740993, which float64 cannot hold exactly"),
        (hold.Float32(), [2**25, 2**24 + 1], "got 16777217, which float32 cannot hold exactly"),
        (hold.Ragged(hold.Array("int8", 2)), [[], [[1, 2], [3, 128]]], r"got 128, which int8 cannot hold \(row 1 of"),
        (hold.Array("uint64"), [2**64 - 1, -1], "column 'x'"),
    ],
)
def test_a_value_that_does_not_fit_the_column(tmp_path: Path, column: Any, values: Any, said: str) -> None:
    out = hold.write(tmp_path / "run.hold", {"x": column})
    with out.part("a") as part:
        with pytest.raises(SchemaError, match=said):
            part.extend({"x": values})
        with pytest.raises(SchemaError, match=said.split(" \\(")[0]):
            for value in values:
                part.append(x=value)
    assert out.rows == len(values) - 1


def test_integers_are_read_as_floats_only_if_they_are_the_same_numbers(tmp_path: Path) -> None:
    column = {"n": hold.Array("float64")}
    for name, number in (("a", 2**53 + 1), ("b", 2**60)):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["n"] = np.array([number])
    with pytest.raises(DecodeError, match="dataset 'n' has 9007199254740993, which float64 cannot hold exactly"):
        list(hold.read(tmp_path / "a.h5", column).batch(1))
    with pytest.raises(DecodeError, match="cannot hold exactly"):
        hold.convert(tmp_path / "a.h5", tmp_path / "c.h5", column)
    [batch] = hold.read(tmp_path / "b.h5", column).batch(1)
    assert batch["n"].tolist() == [2.0**60]


def test_integers_of_python_beyond_int64(tmp_path: Path) -> None:
    out, column = hold.write(tmp_path / "run.hold", {"x": hold.Array("uint64")}), [1, 2**64 - 1, 2**63]
    with out.part("a") as part:
        part.extend({"x": column})
        for value in column:
            part.append(x=value)
    [batch] = hold.read(tmp_path / "run.hold").batch(6)
    assert batch["x"].tolist() == column * 2


def test_a_conversion_rounds_only_when_it_is_asked_to(tmp_path: Path) -> None:
    lists, narrow = {"x": hold.Ragged(hold.Array("float64"))}, {"x": hold.Ragged(hold.Float32())}
    with hold.write(tmp_path / "run.hold", lists).part("a") as part:
        part.extend({"x": [[0.5], [0.1]]})
    hold.convert(tmp_path / "run.hold", tmp_path / "a.tar")
    keyed = {"x": hold.Ragged(hold.Float32(), key="x.npy")}
    with pytest.raises(SchemaError, match="column 'x' is float64, which .* holds only rounded"):
        hold.convert(tmp_path / "run.hold", tmp_path / "b.tar", narrow)
    with pytest.raises(DecodeError, match="column 'x': got 0.1, which float32 cannot hold exactly"):
        hold.convert(tmp_path / "a.tar", tmp_path / "b.h5", keyed)
    for source, schema in (("run.hold", narrow), ("a.tar", keyed)):
        done = hold.convert(tmp_path / source, tmp_path / "c.h5", schema, cast=True, overwrite=True)
        assert done.schema == narrow
