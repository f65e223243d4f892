"""A column that no sample has is an error, not a column of empty lists."""

from pathlib import Path

import h5py
import numpy as np
import pytest

import holdfast as hold
from holdfast.data.rewrite.convert import convert
from holdfast.errors import SchemaError

SCHEMA = {
    "x": hold.Int64(3),
    "id": hold.Int64(),
    "tags": hold.Ragged(hold.Int64()),
    "words": hold.Ragged(hold.Bytes()),
    "text": hold.Bytes(),
}
TYPO = {"id": hold.Int64(), "tagz": hold.Ragged(hold.Int64())}


def sample(i: int) -> dict[str, object]:
    return {"x": [i, i, i], "id": i, "tags": [i] * i, "words": [b"a"] * i, "text": b"t"}


@pytest.fixture(params=["tfrecord", "tar"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "a.tfrecord"
    with hold.TFRecordWriter(path, SCHEMA) as out:
        for i in range(250):
            out.append(**sample(i % 3))
    if request.param == "tar":
        convert(path, tmp_path / "a.tar", SCHEMA)
        return tmp_path / "a.tar"
    return path


def test_the_schema_of_a_conversion_reads_the_result(made: Path) -> None:
    """A tar names the members of `x` `x.npy`, and those of `words` `words.npz`."""
    first, *_ = hold.read(made, SCHEMA).batch(3)
    assert [list(map(int, one)) for one in first["tags"]] == [[], [1], [2, 2]]
    assert [[bytes(word) for word in one] for one in first["words"]] == [[], [b"a"], [b"a", b"a"]]
    assert first["x"].tolist() == [[0] * 3, [1] * 3, [2] * 3]
    assert first["id"].tolist() == [0, 1, 2]


def test_a_list_that_no_sample_has(made: Path, tmp_path: Path) -> None:
    said = r"column 'tagz': none of the 250 samples looked at has 'tagz'\. Did you mean 'tags"
    with pytest.raises(SchemaError, match=said + r".*default=\[\]"):
        list(hold.read(made, TYPO).batch(10))
    lists = hold.Ragged(hold.Int64(), default=[])
    assert [len(one) for batch in hold.read(made, {"tagz": lists}).batch(250) for one in batch["tagz"]] == [0] * 250
    for column in (TYPO["tagz"], lists, hold.Int64(default=7)):
        with pytest.raises(SchemaError, match=said):
            convert(made, tmp_path / "out.h5", TYPO | {"tagz": column})
    assert not (tmp_path / "out.h5").exists()


def test_a_list_that_is_rare_or_always_empty(tmp_path: Path) -> None:
    """A rare one is looked for beyond the records that a schema is inferred from, and in the other shards."""
    usual = {"id": hold.Int64(), "empty": hold.Ragged(hold.Int64())}
    schema = {"id": hold.Int64(), "rare": hold.Ragged(hold.Int64())}
    with hold.TFRecordWriter(tmp_path / "one", schema) as out:
        out.append(id=1, rare=[1])
    with hold.TFRecordReader(tmp_path / "one") as reader:
        [record] = reader
    for name, number in (("a", 1000), ("b", 999)):
        with hold.TFRecordWriter(tmp_path / f"{name}.tfrecord", usual) as out:
            out.extend({"id": np.arange(number), "empty": [[]] * number})
            for _ in range(number, 1000):
                out.write(record)
    assert sum(len(one) for s in hold.read(tmp_path / "*.tfrecord", schema).batch(500) for one in s["rare"]) == 1
    with pytest.raises(SchemaError, match="none of the 1,000 samples"):
        list(hold.read(tmp_path / "a.tfrecord", schema))
    assert convert([tmp_path / "a.tfrecord", tmp_path / "b.tfrecord"], tmp_path / "out.h5", schema).rows == 2000
    [batch] = hold.read(tmp_path / "a.tfrecord", {"empty": hold.Ragged(hold.Int64())}).batch(1000)
    assert not any(map(len, batch["empty"]))


def test_hdf5(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["id"] = np.arange(4)
    with pytest.raises(SchemaError, match="none of the 4 samples looked at has 'idd'. Did you mean 'id'"):
        convert(tmp_path / "a.h5", tmp_path / "b.tfrecord", {"id": hold.Int64(), "idd": hold.Int64(default=1)})
    for inner in (hold.Int64(2), hold.Bytes(), hold.Ragged(hold.Int64())):
        [batch] = hold.read(tmp_path / "a.h5", {"id": hold.Int64(), "no": hold.Ragged(inner, default=[])}).batch(4)
        assert [len(one) for one in batch["no"]] == [0] * 4


def test_an_empty_list_is_the_only_default() -> None:
    column = hold.Ragged(hold.Int64(), default=[])
    assert column == hold.Ragged(hold.Int64(), default=())
    assert column != hold.Ragged(hold.Int64())
    assert repr(column) == "Ragged(Int64(), default=[])"
    for wrong in ([1], 0, b""):
        with pytest.raises(SchemaError, match="an empty list is the only default"):
            hold.Ragged(hold.Int64(), default=wrong)
