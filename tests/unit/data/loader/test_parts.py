"""Parts of a dataset and several in one: select, skip, split, concat. Every sample is where it should be, once."""

from __future__ import annotations

import hashlib
import json
import math
import pickle
import re
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories_files import SCHEMA, check_rows, columns_of, ids_of, make_shards
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hold
from holdfast.data.loader.order.dataset_split import part_sizes, picked_counts, split_masks
from holdfast.errors import InputError, MapError, SchemaError, StateError

COUNTS = [13, 0, 1, 24, 9]
SAMPLES = sum(COUNTS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shards")
    make_shards(made, COUNTS)
    return made


@pytest.fixture
def base(folder: Path) -> hold.Dataset:
    return hold.read(folder, SCHEMA).shard(None)


def resumed_everywhere(ds: hold.Dataset, want: list[int]) -> None:
    """What is read before and after a state, at every step, by two ranks and then by three with other batches."""
    for steps in range(len(ds.shard((0, 2)).batch(2)) + 1):
        seen, state = [], None
        for rank in range(2):
            with ds.shard((rank, 2)).batch(2).iterate(epoch=1) as it:
                seen += [int(i) for _ in range(steps) for i in next(it)["id"]]
                assert state in (None, it.state_dict())
                state = it.state_dict()
        for rank in range(3):
            with ds.shard((rank, 3)).batch(4).iterate() as it:
                it.load_state_dict(json.loads(json.dumps(state)))
                seen += ids_of(it)
        assert sorted(seen) == sorted(want), steps


# ---- skip


@pytest.mark.parametrize("seed", [None, 7])
def test_skip_and_take_cut_the_order_of_an_epoch(base: hold.Dataset, seed: int | None) -> None:
    base = base if seed is None else base.shuffle(seed=seed, samples=20, lanes=2)
    order = ids_of(base.batch(5).iterate(epoch=1))
    for ds, want in (
        (base.skip(10), order[10:]),
        (base.skip(10).take(20), order[10:30]),
        (base.take(20).skip(15), order[15:20]),
        (base.skip(3).skip(4).take(9).take(30), order[7:16]),
        (base.skip(SAMPLES), []),
        (base.take(5).skip(9), []),
    ):
        assert ids_of(ds.iterate(epoch=1)) == want
        assert len(ds) == len(want)
        assert sum(len(ds.shard((rank, 3))) for rank in range(3)) == len(want)
        resumed_everywhere(ds, want)


def test_skip_behind_batch_counts_batches_of_every_rank(base: hold.Dataset) -> None:
    ranks = [base.shard((rank, 2)).batch(4).skip(2).take(3) for rank in range(2)]
    assert sorted(ids_of(ranks[0]) + ids_of(ranks[1])) == list(range(16, 40))
    assert [len(ds) for ds in ranks] == [3, 3]
    assert ids_of(base.skip(1).batch(4).skip(2).repeat(2)) == list(range(9, SAMPLES)) * 2


@pytest.mark.parametrize(("remainder", "want"), [("drop", 36), ("pad", 40), ("keep", 38)])
def test_what_is_left_over_after_a_skip(base: hold.Dataset, remainder: Any, want: int) -> None:
    ranks = [ids_of(base.skip(9).shard((rank, 2), remainder=remainder).batch(2)) for rank in range(2)]
    turns = [ranks[(9 + at) % 2][at // 2] for at in range(want)]
    assert turns == [*range(9, SAMPLES), *range(9, 11)][:want]
    assert {len(ids) for ids in ranks} == {want // 2}


def test_progress_counts_what_is_left(base: hold.Dataset) -> None:
    with base.skip(7).take(20).batch(5).iterate() as it:
        next(it)
        assert (it.progress().done, it.progress().total) == (5, 20)


def test_a_number_of_a_sample_is_refused_behind_skip(base: hold.Dataset) -> None:
    with pytest.raises(TypeError, match=r"got one with skip\(\)"):
        base.skip(3)[0]
    with pytest.raises(ValueError, match="skip must be a non-negative integer, got -1"):
        base.skip(-1)


def test_an_epoch_of_nothing_does_not_repeat_for_ever(base: hold.Dataset) -> None:
    for ds in (base.skip(SAMPLES), base.take(0), base.shard((0, 1), remainder="drop").take(9).batch(10)):
        assert list(ds.repeat()) == []


# ---- select


def test_select_gives_these_columns_in_the_same_order(folder: Path, base: hold.Dataset) -> None:
    shuffled = base.shuffle(seed=7)
    want = ids_of(shuffled.batch(9).iterate(epoch=0))
    for ds in (
        shuffled.select("emb", "id"),
        shuffled.select(["emb", "id"]),
        base.select(["id", "emb"]).shuffle(seed=7),
    ):
        assert set(ds.schema) == {"emb", "id"}
        batches = list(ds.batch(9).iterate(epoch=0))
        assert all(set(batch) == {"emb", "id"} for batch in batches)
        assert ids_of(batches) == want
        assert set(next(iter(ds))) == {"emb", "id"}
    assert set(base.select("name", "id").select("id")[5]) == {"id"}
    resumed_everywhere(shuffled.select("id"), want)
    with hold.read(folder, {"id": SCHEMA["id"]}).shuffle(seed=7).batch(9).iterate() as it:
        state = it.state_dict()
    with shuffled.select("id").batch(9).iterate() as it:
        it.load_state_dict(state)  # it is the same as a schema of these columns


@pytest.mark.parametrize("where", ["inline", "threads", "processes"])
def test_select_behind_a_function_selects_what_it_returned(base: hold.Dataset, where: Any) -> None:
    ds = base.map(doubled, 0 if where == "inline" else 1, where).select("double", "id")
    assert [set(batch) for batch in ds.batch(30)] == [{"double", "id"}] * 2
    assert [set(batch) for batch in base.batch(30).filter(lambda batch: batch["id"] >= 0).select("id")] == [{"id"}] * 2
    with pytest.raises(MapError, match="there is no column 'dubble'. Did you mean 'double'"):
        list(base.map(doubled).select("dubble"))


def doubled(sample: dict[str, Any]) -> dict[str, Any]:
    return sample | {"double": sample["emb"] * 2}


def test_a_column_that_is_not_there_is_answered_with_the_nearest(folder: Path, base: hold.Dataset) -> None:
    with pytest.raises(
        SchemaError, match=r"no column 'tag'. Did you mean 'tags'\? There are: 'id', 'name', 'emb', 'tags'"
    ):
        base.select("id", "tag")
    unknown = hold.read(folder / "shard-0000.tfrecord").select("tag")  # it is known when a file is looked at
    with pytest.raises(SchemaError, match="Did you mean 'tags'"):
        next(iter(unknown))
    with pytest.raises(TypeError, match=r"expected names of columns, got \(3,\)"):
        base.select(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected names of columns"):
        base.select()
    with pytest.raises(ValueError, match="each column once, got 'id' twice"):
        base.select("id", "id")


@pytest.mark.formats
def test_other_columns_are_not_read_from_hdf5(tmp_path: Path) -> None:
    schema = {"id": hold.Int64(), "image": hold.Float32((64, 64))}
    with hold.write(tmp_path / "run.hold", schema).part(0) as part:
        for number in range(64):
            part.append(id=number, image=np.full((64, 64), number))
    ds = hold.read(tmp_path / "run.hold", schema)
    ds.plan()
    found = []
    for one in (ds, ds.select("id")):
        before = bytes_read()
        assert ids_of(one.batch(8)) == list(range(64))
        found.append(bytes_read() - before)
    assert found[0] > 64 * 64 * 64 * 4 > 5 * found[1]


def bytes_read() -> int:
    """By this process, as the kernel counts them."""
    return int(re.findall(r"rchar: (\d+)", Path("/proc/self/io").read_text())[0])


# ---- concat


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other samples, in another format, numbered from 100 on."""
    made = tmp_path_factory.mktemp("others")
    with hold.write(made / "run.hold", SCHEMA).part(0) as part:
        part.extend(columns_of(100, 11))
    return made / "run.hold"


@pytest.mark.formats
def test_one_behind_the_other_and_shuffled_together(folder: Path, others: Path) -> None:
    a, b = hold.read(folder, SCHEMA), hold.read(others, SCHEMA)
    everything = [*range(SAMPLES), *range(100, 111)]
    for ds in (hold.concat([a, b]), a.concat(b)):
        assert ids_of(ds.batch(7)) == everything
        assert (len(ds), ds.samples) == (len(everything), len(everything))
        assert [int(ds[at]["id"]) for at in (0, SAMPLES - 1, SAMPLES, -1)] == [0, SAMPLES - 1, 100, 110]
        for batch in ds.batch(20):
            check_rows(batch)
    shuffled = hold.concat([a, b]).shuffle(seed=3)
    order = ids_of(shuffled.batch(7).iterate(epoch=1))
    assert sorted(order) == everything
    assert {number >= 100 for number in order[:20]} == {number >= 100 for number in order[-20:]} == {False, True}
    resumed_everywhere(hold.concat([a, b]).shuffle(seed=3, samples=20), everything)
    assert ids_of(a.concat(b, a).batch(7)) == [*everything, *range(SAMPLES)]


@pytest.mark.formats
def test_each_part_has_its_own_keys_and_defaults(tmp_path: Path, others: Path) -> None:
    """A tar has its columns in members such as id.cls; the TFRecords have features of two names, and no weight."""
    hold.convert(others, tmp_path / "others.tar")
    for file, first in (("a", 0), ("b", 20)):
        with hold.TFRecordWriter(tmp_path / f"{file}.tfrecord", {file: hold.Int64()}) as writer:
            writer.extend({file: range(first, first + 20)})

    def of_key(key: str, weight: list[float]) -> hold.Dataset:
        schema = {"id": hold.Int64(key=key), "weight": hold.Float32(2, default=np.array(weight))}
        return hold.read(tmp_path / f"{key}.tfrecord", schema)

    tar, hdf5 = hold.read(tmp_path / "others.tar"), hold.read(others)
    numbers = tar.select("id").concat(hdf5.select("id"), of_key("b", [1, 2]).select("id"))
    for ds, want in (
        (tar.concat(hdf5), [*range(100, 111)] * 2),
        (hdf5.concat(tar), [*range(100, 111)] * 2),
        (numbers, [*range(100, 111), *range(100, 111), *range(20, 40)]),
        (of_key("a", [0, math.nan]).concat(of_key("b", [1, 2])), list(range(40))),
    ):
        assert ids_of(ds) == want
        assert ids_of(ds.batch(3)) == want
        assert [int(sample["id"]) for sample in ds[:]] == want
        assert sorted(ids_of(ds.shuffle(seed=2).batch(4))) == sorted(want)
        resumed_everywhere(ds.shuffle(seed=3, samples=9), want)
    for ds in (tar.concat(hdf5), hold.mix({hdf5: 0.5, tar: 0.5})):
        for batch in ds.batch(5):
            check_rows(batch)
    often = Counter(ids_of(hold.mix({tar: 0.5, hdf5: 0.5}, until="all")))  # which begins one of them again
    assert set(often) == set(range(100, 111))
    assert min(often.values()) == 2
    weights = {int(one["id"]): one["weight"].tolist() for one in of_key("a", [3, 4]).concat(of_key("b", [1, 2]))}
    assert weights == {number: [3, 4] if number < 20 else [1, 2] for number in range(40)}
    with of_key("a", [3, 4]).concat(of_key("b", [1, 2])).iterate() as it:
        state = it.state_dict()
    with of_key("a", [3, 4]).concat(of_key("b", [1, 5])).iterate() as it, pytest.raises(StateError, match="schema"):
        it.load_state_dict(state)
    with pytest.raises(SchemaError, match=r"others\.tar.*hold\.concat"):
        next(iter(hold.read([tmp_path / "others.tar", next(others.glob("*/*.h5"))])))


def test_concatenated_files_are_the_files_in_a_list(folder: Path) -> None:
    paths = sorted(folder.glob("*.tfrecord"))
    listed = hold.read(paths, SCHEMA).shuffle(seed=5).batch(6)
    joined = hold.concat([hold.read(paths[:2], SCHEMA), hold.read(paths[2:], SCHEMA)]).shuffle(seed=5).batch(6)
    with listed.iterate(epoch=2) as it:
        before = ids_of([next(it), next(it)])
        state = it.state_dict()
    with joined.iterate() as it:
        it.load_state_dict(state)
        assert before + ids_of(it) == ids_of(listed.iterate(epoch=2))


def test_what_cannot_be_concatenated(folder: Path, others: Path) -> None:
    a = hold.read(folder, SCHEMA)
    b = hold.read(others, SCHEMA).select("id", "emb")
    with pytest.raises(SchemaError, match=r"column 'name' is Bytes\(\) in .*, but missing in id, emb of .*: sele"):
        next(iter(a.concat(b)))
    assert len(a.select("id", "emb").concat(b).batch(100)) == 1
    with pytest.raises(ValueError, match=r"got one with more: call shuffle\(\), shard\(\), map"):
        a.concat(a.shuffle(seed=1))
    with pytest.raises(ValueError, match="the same on_corrupt and max_corrupt"):
        a.concat(hold.read(folder, SCHEMA, on_corrupt="skip"))
    with pytest.raises(TypeError, match="expected datasets of hold.read"):
        hold.concat([a, "b"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="expected datasets of hold.read"):
        hold.concat([])


# ---- split


def test_parts_are_exact_disjoint_and_everything(base: hold.Dataset) -> None:
    parts = base.split(train=0.8, val=0.1, test=0.1, seed=7)
    ids = [ids_of(part.batch(5)) for part in parts]
    assert [len(one) for one in ids] == [len(part) for part in parts] == [37, 5, 5]
    assert sorted(ids[0] + ids[1] + ids[2]) == list(range(SAMPLES))
    assert all(one == sorted(one) for one in ids)  # in the order of the files, until they are shuffled
    assert parts.names == ("train", "val", "test")
    assert ids_of(parts.val.batch(5)) == ids_of(parts["val"].batch(5)) == ids[1]
    assert [int(sample["id"]) for sample in parts.test[:]] == ids[2]
    assert int(parts.train[-1]["id"]) == ids[0][-1]
    for part, want in zip(parts, ids, strict=True):
        for batch in part.shuffle(seed=1).batch(4):
            check_rows(batch)
        assert part.samples == len(want)
        shuffled = part.shuffle(seed=3, samples=10)
        assert sorted(ids_of(shuffled.batch(5).iterate(epoch=4))) == want
        resumed_everywhere(shuffled, want)
        resumed_everywhere(part.shuffle(seed=3).skip(2), ids_of(part.shuffle(seed=3).batch(5).iterate(epoch=1))[2:])


def test_a_split_is_the_same_wherever_it_is_made(folder: Path, base: hold.Dataset) -> None:
    val = ids_of(base.split(train=0.9, val=0.1, seed=7).val)
    program = (
        "import sys, holdfast as hold\n"
        "ds = hold.read(sys.argv[1], {'id': hold.Int64()}).shuffle(seed=5).split(train=0.9, val=0.1, seed=7).val\n"
        "print(*sorted(int(sample['id']) for sample in ds))"
    )
    told = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, check=True).stdout
    assert [int(word) for word in told.split()] == val
    assert ids_of(pickle.loads(pickle.dumps(base.split(train=0.9, val=0.1, seed=7))).val) == val
    assert ids_of(base.map(doubled).select("id").split(train=0.9, val=0.1, seed=7)["val"]) == val
    assert ids_of(base.split(train=0.9, val=0.1, seed=8).val) != val


def test_parts_by_number_and_parts_of_parts(base: hold.Dataset) -> None:
    parts = base.split(train=30, val=10)
    assert [part.samples for part in parts] == [30, 10]  # seven are in neither
    train, val = (ids_of(part) for part in parts)
    assert len({*train, *val}) == 40
    inner = parts.train.split(a=0.5, b=0.5, seed=3)
    assert sorted(ids_of(inner.a) + ids_of(inner.b)) == train
    with pytest.raises(InputError, match="at most the 47 samples of .*, got train=40, val=10"):
        len(base.split(train=40, val=10).train)


def test_parts_can_be_concatenated_and_mixed(folder: Path) -> None:
    base = hold.read(folder, SCHEMA)
    a, b = base.split(a=0.3, b=0.7, seed=2)
    both = b.concat(a)
    assert sorted(ids_of(both)) == list(range(SAMPLES))
    resumed_everywhere(both.shuffle(seed=4, samples=9), list(range(SAMPLES)))
    mixed = hold.mix({a.shuffle(seed=1): 0.5, b: 0.5}, until="all")
    assert {*ids_of(mixed)} == set(range(SAMPLES))
    with mixed.batch(4).iterate() as it:
        state = it.state_dict()
    with hold.mix({b.shuffle(seed=1): 0.5, a: 0.5}, until="all").batch(4).iterate() as it, pytest.raises(StateError):
        it.load_state_dict(state)
    with pytest.raises(ValueError, match="got a mix"):
        mixed.split(train=0.5, val=0.5)


def test_a_state_of_another_split_is_refused(base: hold.Dataset) -> None:
    parts = base.split(train=0.9, val=0.1, seed=7)
    with parts.train.batch(4).iterate() as it:
        next(it)
        state = it.state_dict()
    for other, said in (
        (parts.val, r"the split was 'train of \(train=9/10, val=1/10, seed=7\)', and is 'val of"),
        (base.split(train=0.9, val=0.1, seed=8).train, "seed=8"),
        (base, "and is None"),
    ):
        with other.batch(4).iterate() as it, pytest.raises(StateError, match=said):
            it.load_state_dict(state)


def test_a_state_of_another_concatenation_of_parts_is_refused(folder: Path) -> None:
    """The same files in the same order, of which other ones are split."""
    files = sorted(folder.iterdir())
    halves = {"a": 0.5, "b": 0.5, "seed": 1}

    def joined(first: int) -> hold.Dataset:
        return hold.concat([hold.read(files[:first], SCHEMA), hold.read(files[first:], SCHEMA).split(**halves).a])

    def nested(*, inside: bool) -> hold.Dataset:
        whole, half = hold.read(files[:1], SCHEMA), hold.read(files[3:4], SCHEMA).split(**halves).b
        last = hold.read(files[4:], SCHEMA).split(**halves).b
        if inside:
            return hold.concat([whole, half, last]).split(**halves).a
        return hold.concat([hold.concat([whole, half]).split(**halves).a, last])

    for then, now in ((joined(3), joined(4)), (nested(inside=True), nested(inside=False))):
        with then.shard(None).iterate() as it:
            read = [int(next(it)["id"]) for _ in range(3)]
            state = it.state_dict()
        with now.shard(None).iterate() as it, pytest.raises(StateError, match="the split was"):
            it.load_state_dict(state)
        with then.shard(None).iterate() as it:
            it.load_state_dict(state)
            assert read + ids_of(it) == ids_of(then.shard(None))


def test_parts_with_workers_and_a_cache(base: hold.Dataset) -> None:
    val = base.split(train=0.5, val=0.5).val
    want = ids_of(val)
    cached = val.map(doubled).cache().batch(4)
    assert [ids_of(cached) for _ in range(2)] == [want, want]
    workers = [ids_of(val.batch(4).iterate(worker=(worker, 2))) for worker in range(2)]
    assert sorted(workers[0] + workers[1]) == want


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({}, "expected parts by name"),
        ({"train": 0.9, "val": 0.2}, "at most 1 together, got train=0.9, val=0.2"),
        ({"train": 0.9, "val": 10}, "and not both"),
        ({"train": 1.5}, "above 0 up to 1"),
        ({"train": 0.0}, "above 0 up to 1"),
        ({"train": -3}, "a positive integer, got -3"),
        ({"train": "most"}, "got train='most'"),
        ({"train": True}, "got train=True"),
        ({"count": 0.5}, "cannot be called 'count'"),
        ({"train": float("nan")}, "got train=nan"),
    ],
)
def test_parts_that_make_no_sense(base: hold.Dataset, parts: dict[str, Any], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        base.split(**parts)


def test_split_comes_before_take_and_names_its_parts(base: hold.Dataset) -> None:
    with pytest.raises(ValueError, match="before take"):
        base.take(10).split(train=0.5)
    parts = base.split(train=0.5, val=0.5)
    with pytest.raises(AttributeError, match="no part 'trian'. Did you mean 'train'"):
        parts.trian  # noqa: B018
    with pytest.raises(KeyError, match="no part 'test'"):
        parts["test"]


# ---- the arithmetic


def test_large_splits_are_exact_and_even() -> None:
    counts = [10_000, 3, 0, 50_001, 4096]
    parts = [Fraction(7, 10), Fraction(2, 10), Fraction(1, 10)]
    found = [split_masks(counts, [None] * 5, parts, which, seed=1) for which in range(3)]
    bits = [[np.unpackbits(mask)[:n] for mask, n in zip(one, counts, strict=True)] for one in found]
    for at in range(len(counts)):
        assert (sum(one[at] for one in bits) == 1).all()
    sizes = [sum(int(one.sum()) for one in part) for part in bits]
    assert sizes == part_sizes(sum(counts), parts) == [44_870, 12_820, 6_410]
    large = np.concatenate(bits[2])[:60_000].reshape(-1, 4000).sum(1, dtype=int)
    assert (abs(large - 400) < 60).all()


def test_sizes_by_the_largest_remainder() -> None:
    assert part_sizes(10, [Fraction(1, 3)] * 3) == [4, 3, 3]
    assert part_sizes(10, [Fraction(1, 4), Fraction(1, 4)]) == [3, 2]
    assert part_sizes(3, [Fraction(9, 10), Fraction(1, 10)]) == [3, 0]
    assert part_sizes(10**12 + 1, [Fraction(1, 2)] * 2) == [5 * 10**11 + 1, 5 * 10**11]
    assert part_sizes(10, [4, 3]) == [4, 3]


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=4),
    st.lists(st.integers(1, 30), min_size=1, max_size=4),
    st.integers(0, 5),
)
@settings(deadline=None, max_examples=60)
def test_any_split_is_a_partition(counts: list[int], weights: list[int], seed: int) -> None:
    parts = [Fraction(weight, sum(weights)) for weight in weights]
    some = split_masks(counts, [None] * len(counts), [Fraction(2, 3)], 0, seed)
    for masks in ([None] * len(counts), some):
        found = [split_masks(counts, masks, parts, which, seed) for which in range(len(parts))]
        there = picked_counts(counts, masks)
        assert [sum(picked_counts(counts, one)) for one in found] == part_sizes(sum(there), parts)
        for at, n in enumerate(counts):
            whole = np.ones(n) if masks[at] is None else np.unpackbits(masks[at])[:n]
            assert (sum(np.unpackbits(one[at])[:n].astype(int) for one in found) == whole).all()


def test_the_split_of_version_1_stays() -> None:
    """Otherwise train and val would mix after an upgrade. The first part alone does not show the shares of others."""

    def digest(counts: list[int], masks: Any, parts: list[Any], which: int, seed: int) -> str:
        found = split_masks(counts, masks, parts, which, seed)
        return hashlib.blake2b(b"".join(mask.tobytes() for mask in found), digest_size=8).hexdigest()

    assert digest([5000, 20], [None, None], [Fraction(1, 10)], 0, 7) == "b68e4fd6ef2d8aad"
    shards = [9000, 0, 4096, 17]
    tenths = [Fraction(7, 10), Fraction(2, 10), Fraction(1, 10)]
    nested = split_masks(shards, [None] * 4, tenths, 0, 3)
    found = {
        "tenths": [digest(shards, [None] * 4, tenths, which, 3) for which in range(3)],
        "nested": [digest(shards, nested, [Fraction(1, 3)] * 3, which, 4) for which in range(3)],
        "counts": [digest(shards, [None] * 4, [5000, 3, 1000], which, 3) for which in range(3)],
    }
    assert found == {
        "tenths": ["4207817e1d5ea1f7", "5207a1ced0b43e32", "ce1016e042c9cce5"],
        "nested": ["bee4522036ea5b06", "57fa31b36665c3d5", "f72df6aa2e0471ad"],
        "counts": ["c39b59c72df45012", "4c6c974ac1ce11e5", "12665f54cead4a2b"],
    }
