"""Functions that make tuples and nested dicts: batches have the structure of their samples."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
from factories_files import SCHEMA, make_shards

import holdfast as hold
from holdfast.data.formats.columns import BytesColumn, RaggedColumn
from holdfast.data.loader.pipeline.collate import collate
from holdfast.errors import MapError, SchemaError

ALL = list(range(200))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> hold.Dataset:
    folder = tmp_path_factory.mktemp("shards")
    make_shards(folder, [70, 0, 1, 97, 32])
    return hold.read(folder, SCHEMA).shuffle(seed=7)


def pair(sample: dict[str, Any]) -> tuple[Any, ...]:
    """x, a dict with a dict in it, and y."""
    number = sample["id"]
    return {"emb": sample["emb"], "of": {"name": sample["name"], "two": (number, number * 2)}}, number


def is_even(sample: tuple[Any, ...]) -> bool:
    return bool(sample[1] % 2 == 0)


def check(batch: Any) -> list[int]:
    """The ids of a batch of pairs, all of whose values belong to them."""
    assert type(batch) is tuple
    x, y = batch
    assert isinstance(x["of"]["name"], BytesColumn)
    assert x["emb"].shape == (len(y), 3)
    for at, number in enumerate(y.tolist()):
        assert x["emb"][at].tolist() == [number * 3, number * 3 + 1, number * 3 + 2]
        assert bytes(x["of"]["name"][at]) == f"sample {number}".encode()
        assert (x["of"]["two"][0][at], x["of"]["two"][1][at]) == (number, number * 2)
    return [int(number) for number in y]


def seen(batches: Iterable[Any]) -> list[int]:
    return [number for batch in batches for number in check(batch)]


@pytest.mark.parametrize("where", ["inline", "threads", "processes"])
def test_every_sample_once_wherever_the_function_runs(base: hold.Dataset, where: Any) -> None:
    order = [int(sample["id"]) for sample in base.iterate(epoch=0)]
    ds = base.map(pair, 0 if where == "inline" else 2, where).filter(is_even).cache()
    want = [number for number in order if number % 2 == 0]
    assert seen(ds.batch(16).prefetch(2)) == want
    ranks = [seen(ds.shard((rank, 2)).batch(8)) for rank in range(2)]
    assert sorted(ranks[0] + ranks[1]) == sorted(want)


def test_a_cache_gives_them_again(base: hold.Dataset) -> None:
    calls = 0

    def counted(sample: dict[str, Any]) -> Any:
        nonlocal calls
        calls += 1
        return pair(sample)

    ds = base.map(counted).cache().batch(16)
    for _ in range(3):
        assert sorted(seen(ds)) == ALL
    assert calls == len(ALL)


def test_resumes_anywhere(base: hold.Dataset) -> None:
    ds = base.map(pair, 2)
    want = seen(ds.batch(64).iterate(epoch=0))
    for step in range(5):
        with ds.batch(48).iterate(epoch=0) as it:
            before = [number for _ in range(step) for number in check(next(it))]
            state = json.dumps(it.state_dict())
        with ds.batch(13).iterate() as it:
            it.load_state_dict(json.loads(state))
            assert before + seen(it) == want


def test_functions_of_batches_and_samples_one_by_one(base: hold.Dataset) -> None:
    def halves(batch: Any) -> Any:
        return batch[1] % 2 == 0

    ds = base.map(pair)
    assert sorted(seen(ds.batch(16).filter(halves).map(lambda batch: batch))) == ALL[::2]
    assert sorted(int(y) for _, y in ds.iterate()) == ALL
    assert seen(base.batch(16).map(lambda batch: (batch["emb"], batch["id"])).map(as_pair)) == seen(ds.batch(16))


def as_pair(batch: tuple[Any, Any]) -> Any:
    emb, number = batch
    names = collate([{"name": f"sample {one}".encode()} for one in number])["name"]
    return {"emb": emb, "of": {"name": names, "two": (number, number * 2)}}, number


def test_a_batch_of_no_samples_has_the_structure_of_those_before(base: hold.Dataset) -> None:
    first = [int(sample["id"]) for sample in base.take(16)]
    batches = list(base.map(pair).filter(lambda sample: int(sample[1]) in first).batch(16))
    assert [len(y) for _, y in batches] == [16] + [0] * 12
    assert check(batches[-1]) == []


@pytest.mark.parametrize(
    ("other", "column", "dtype"),
    [
        (lambda sample: 0, "hash", "uint64"),
        (lambda sample: 0.1, "weight", "float64"),
        (lambda sample: np.int64(0), "hash", "sample 0 is uint64, sample 2 is int64"),
        (lambda sample: float("nan"), "id", "sample 0 is int64, sample 2 is Python float"),
    ],
)
def test_numbers_that_functions_return_keep_their_dtype(tmp_path: Path, other: Any, column: str, dtype: str) -> None:
    columns = {
        "hash": np.array([2**64 - 1, 2**63 + 1, 7], np.uint64),
        "weight": np.array([0.1, 0.2, 0.3]),
        "id": np.array([16777217, 2, 3]),
    }
    with h5py.File(tmp_path / "numbers.h5", "w") as file:
        for name, values in columns.items():
            file[name] = values
    ds = hold.read(tmp_path / "numbers.h5").map(lambda s: {"x": other(s) if s["id"] == 3 else s[column]}).batch(3)
    if dtype not in ("uint64", "float64"):
        with pytest.raises(SchemaError, match=dtype):
            next(iter(ds))
        return
    (batch,) = ds
    assert batch["x"].dtype == dtype
    assert batch["x"].tolist() == [*columns[column][:2].tolist(), other(None)]


# ---- collate


class Point(NamedTuple):
    x: Any
    y: Any


def test_the_structure_is_kept() -> None:
    batch = collate([{"p": Point(1, [1.0, 2.0]), "s": ("a", {"b": True})} for _ in range(3)])
    assert isinstance(batch["p"], Point)
    assert (batch["p"].x.dtype, batch["p"].y.shape) == (np.int64, (3, 2))
    assert batch["s"][0].tolist() == [b"a"] * 3
    assert batch["s"][1]["b"].tolist() == [True] * 3


def test_pad_and_ragged_reach_inside() -> None:
    samples = [(np.ones(n), {"t": [n] * n}) for n in (1, 3)]
    x, inner = collate(samples, "pad", pad_value=9)
    assert (x.shape, inner["t"].tolist()) == ((2, 3), [[1, 9, 9], [3, 3, 3]])
    x, inner = collate(samples, "ragged")
    assert isinstance(x, RaggedColumn)
    assert inner["t"].row_splits.tolist() == [0, 1, 4]


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        ([(1, 2), (1, 2, 3)], "sample 0 of the batch is a tuple of 2, sample 1 one of 3"),
        ([{"a": (1,)}, {"a": (1, 2)}], r"column 'a': sample 0 of the batch is a tuple of 1, sample 1 one of 2"),
        ([(1, 2), {"a": 1}], "sample 1 of the batch: expected a tuple, got dict"),
        ([{"a": {"b": 1}}, {"a": 3}], "column 'a', sample 1 of the batch: expected a dict of columns, got int 3"),
        ([{"a": {"b": 1}}, {"a": {"c": 1}}], "column 'a.b' is in sample 0 of the batch, but not in sample 1"),
        ([({"b": 1},), ({"b": 1, "c": 2},)], r"column '\[0\].c' is in sample 1 of the batch, but not in sample 0"),
        ([(1, np.zeros(2)), (1, np.zeros(3))], r"column '\[1\]': sample 0 .* the shape \(2,\), sample 1"),
        ([3], "sample 0 of the batch: expected a dict of columns or a tuple, got int 3"),
    ],
)
def test_samples_of_other_structures_are_distinguished(samples: list[Any], said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        collate(samples)


def test_what_is_neither_a_dict_nor_a_tuple_is_refused(base: hold.Dataset) -> None:
    with pytest.raises(MapError, match="expected a dict or a tuple of what the sample has now, got ndarray"):
        next(iter(base.map(lambda sample: sample["emb"]).batch(4)))
