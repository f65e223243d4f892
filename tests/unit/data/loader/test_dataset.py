"""Reading as users do it: files in, batches out."""

from __future__ import annotations

import json
import pickle
import queue
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories_files import SCHEMA, check_rows, ids_of, make_shards

import holdfast as hold
from holdfast.data.formats.columns import RaggedColumn
from holdfast.errors import InputError, MapError, SchemaError, StateError


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    make_shards(folder, [300, 0, 1, 477, 222])
    return folder


ALL = range(1000)


def twice(sample: dict[str, Any]) -> dict[str, Any]:
    return {"id": sample["id"], "double": sample["emb"] * 2}


def in_turn(ranks: list[list[Any]]) -> list[int]:
    """The samples of all ranks, one of each in turn."""
    out: list[int] = []
    for steps in zip(*ranks, strict=True):
        ids = [batch["id"].tolist() for batch in steps]
        for at in range(max(map(len, ids), default=0)):
            out += [one[at] for one in ids if at < len(one)]
    return out


# ---- one order


@pytest.mark.formats
def test_every_sample_once_with_all_its_columns(shards: Path) -> None:
    for ds in (hold.read(shards, SCHEMA), hold.read(shards, SCHEMA).shuffle(seed=3), hold.read(shards)):
        seen = []
        for batch in ds.batch(64):
            check_rows(batch)
            seen += batch["id"].tolist()
        assert sorted(seen) == list(ALL)


def test_in_the_order_of_the_files_without_a_shuffle(shards: Path) -> None:
    assert ids_of(hold.read(shards, SCHEMA).batch(7)) == list(ALL)


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("where", ["inline", "threads"])
def test_the_same_sequence_for_any_ranks_workers_and_batches(shards: Path, world: int, where: Any) -> None:
    base = hold.read(shards, SCHEMA).shuffle(seed=7)
    want = ids_of(base.batch(1000))
    assert want != sorted(want)
    workers = 0 if where == "inline" else 2
    ranks = [
        list(base.shard((rank, world)).map(twice, workers, where).batch(11).prefetch("1MB")) for rank in range(world)
    ]
    assert in_turn(ranks) == want


def test_another_epoch_another_order(shards: Path) -> None:
    ds = hold.read(shards, SCHEMA).shuffle(seed=7).batch(100)
    with ds.iterate(epoch=0) as a, ds.iterate(epoch=1) as b, ds.iterate(epoch=0) as again:
        orders = [ids_of(it) for it in (a, b, again)]
    assert orders[0] != orders[1]
    assert orders[0] == orders[2]


def jitter(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"id": sample["id"], "jitter": rng.integers(1 << 40)}


def seen(batches: Any) -> list[tuple[int, int]]:
    """The order, and what a random function made of each sample."""
    return [pair for batch in batches for pair in zip(batch["id"].tolist(), batch["jitter"].tolist(), strict=True)]


def test_every_pass_is_the_next_epoch(shards: Path) -> None:
    ds = hold.read(shards, SCHEMA).shuffle(seed=7).map(jitter, random=True).batch(100)
    want = []
    for epoch in range(5):
        with ds.iterate(epoch) as it:  # does not count
            want.append(seen(it))
    assert len({number for epoch in want for _, number in epoch}) == 5000
    assert seen(ds) == want[0]
    for _ in ds:
        break
    assert seen(ds) == want[2]
    assert seen(pickle.loads(pickle.dumps(ds))) == want[3]
    with ds.iterate() as it:
        assert seen(it) == want[3]
    assert seen(ds.limits(memory="200MB")) == want[0]  # another dataset


def test_passes_of_several_epochs_and_of_states(shards: Path) -> None:
    ds = hold.read(shards, SCHEMA).shuffle(seed=7).batch(100)
    epochs = [ids_of(ds.iterate(epoch)) for epoch in range(7)]
    twice_each = ds.repeat(2)
    assert ids_of(twice_each) == epochs[0] + epochs[1]
    assert ids_of(twice_each) == epochs[2] + epochs[3]
    with ds.iterate(5) as it:
        next(it)
        state = it.state_dict()
    with ds.iterate() as it:
        it.load_state_dict(state)
        assert ids_of(it) == epochs[5][100:]
    assert ids_of(ds) == epochs[6]
    endless = ds.repeat()
    for epoch in range(2):
        with endless.iterate() as it:
            assert ids_of(next(it) for _ in range(11)) == epochs[epoch] + epochs[epoch + 1][:100]


def test_a_pass_that_could_not_begin_does_not_count(tmp_path: Path) -> None:
    make_shards(tmp_path, [300])
    [shard] = tmp_path.iterdir()
    ds = hold.read(str(shard), SCHEMA).shuffle(seed=7).batch(100)
    shard.rename(tmp_path / "away")
    with pytest.raises((OSError, hold.errors.HoldfastError)):
        next(iter(ds))
    (tmp_path / "away").rename(shard)
    with ds.iterate(0) as first:
        assert ids_of(ds) == ids_of(first)


def test_two_epochs_in_a_row(shards: Path) -> None:
    ds = hold.read(shards, SCHEMA).shuffle(seed=7).batch(64)
    with ds.iterate(epoch=0) as a, ds.iterate(epoch=1) as b:
        want = [*ids_of(a), *ids_of(b)]
    assert ids_of(ds.repeat(2)) == want
    with ds.repeat().iterate() as it:
        assert ids_of(next(it) for _ in range(40))[:2000] == [*want, *ids_of([])][:2000]


@pytest.mark.parametrize("remainder", ["pad", "drop", "keep"])
def test_ranks_have_the_same_number_of_batches(shards: Path, remainder: Any) -> None:
    base = hold.read(shards, SCHEMA).shuffle(seed=1)
    ranks = [list(base.shard((rank, 3), remainder=remainder).batch(8)) for rank in range(3)]
    assert len({len(rank) for rank in ranks}) == 1
    assert len(ranks[0]) == len(base.shard((0, 3), remainder=remainder).batch(8))
    count = Counter(in_turn(ranks))
    if remainder == "keep":
        assert count == Counter(ALL)
    elif remainder == "drop":
        assert len(count) == sum(count.values()) == 1000 // 24 * 24
    else:
        assert set(count) == set(ALL)
        assert sum(count.values()) == -(-1000 // 24) * 24


def test_a_rank_without_a_sample_in_the_last_step_has_an_empty_batch(tmp_path: Path) -> None:
    make_shards(tmp_path, [9])
    base = hold.read(tmp_path, SCHEMA)
    first, second = (list(base.shard((rank, 2)).batch(4)) for rank in range(2))
    assert [len(batch["id"]) for batch in first] == [4, 1]
    assert [len(batch["id"]) for batch in second] == [4, 0]
    assert isinstance(second[1]["tags"], RaggedColumn)
    assert second[1]["emb"].shape == (0, 3)


def test_drop_last(shards: Path) -> None:
    assert {len(batch["id"]) for batch in hold.read(shards, SCHEMA).batch(64, drop_last=True)} == {64}


def test_a_global_batch_is_shared(shards: Path) -> None:
    ds = hold.read(shards, SCHEMA).batch(global_size=12)
    assert len(next(iter(ds.shard((1, 3))))["id"]) == 4
    with pytest.raises(ValueError, match="5 ranks can share, got 12: take 10 or 15"):
        ds.shard((0, 5)).iterate()


@pytest.mark.parametrize("remainder", ["pad", "drop", "keep"])
def test_samples_without_batches_come_out_even_too(shards: Path, remainder: Any) -> None:
    base = hold.read(shards, SCHEMA).shuffle(seed=1)
    ranks = [base.shard((rank, 3), remainder=remainder) for rank in range(3)]
    each = [ids_of(ds) for ds in ranks]
    assert [len(ids) for ids in each] == [len(ds) for ds in ranks]
    assert [len(ids) for ids in each] == {"pad": [334] * 3, "drop": [333] * 3, "keep": [334, 333, 333]}[remainder]
    together = [i for row in zip(*each, strict=False) for i in row]
    assert together == (ids_of(base) * 2)[: len(together)]


def test_a_function_of_batches_is_not_asked_about_no_sample(tmp_path: Path) -> None:
    make_shards(tmp_path, [9])

    def more(batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": batch["id"] * 2, "mean": batch["id"].mean(), "inner": {"a": 1}}

    base = hold.read(tmp_path, SCHEMA).map(twice)
    for workers in (0, 1):
        for ds in (base.batch(4).map(more, workers), base.batch(4).map(dict).map(more, workers)):
            batches = list(ds.shard((1, 2)))
            assert [batch["id"].tolist() for batch in batches] == [[2, 6, 10, 14], []]
    unmapped = hold.read(tmp_path, SCHEMA).filter(lambda sample: sample["id"] > 5).batch(4, collate="pad")
    assert [batch["emb"].shape for batch in unmapped] == [(0, 3), (2, 3), (1, 3)]


# ---- resume


@pytest.mark.parametrize("stop", [0, 1, 5, 15, 16])
def test_resume_mid_epoch_under_every_layout(shards: Path, stop: int) -> None:
    base = hold.read(shards, SCHEMA).shuffle(seed=7)
    want = ids_of(base.batch(1000))
    with base.batch(64).prefetch("1MB").iterate() as it:
        seen = ids_of(next(it) for _ in range(stop))
        text = json.dumps(it.state_dict())
    assert len(text) < 700
    for world, batch in ((1, 64), (1, 5), (2, 32), (4, 7)):
        ranks = []
        for rank in range(world):
            with base.shard((rank, world)).batch(batch).map(lambda b: b, 2).iterate() as it:
                it.load_state_dict(json.loads(text))
                ranks.append(list(it))
        assert sorted(seen + in_turn(ranks)) == list(ALL)
        if stop * 64 % world == 0:
            assert seen + in_turn(ranks) == want


def test_resume_sample_by_sample(shards: Path) -> None:
    base = hold.read(shards, SCHEMA).shuffle(seed=2)
    want = ids_of(base)
    with base.iterate(epoch=0) as it:
        seen = ids_of(next(it) for _ in range(301))
        state = it.state_dict()
    with base.batch(16).iterate() as it:
        it.load_state_dict(state)
        assert seen + ids_of(it) == want


def test_resume_in_a_later_epoch(shards: Path) -> None:
    ds = hold.read(shards, SCHEMA).shuffle(seed=2).batch(100).repeat(3)
    with ds.iterate() as it:
        seen = ids_of(next(it) for _ in range(13))
        state = it.state_dict()
        rest = ids_of(it)
    assert (state["epoch"], state["done"]) == (1, 300)
    with ds.iterate() as it:
        it.load_state_dict(state)
        assert ids_of(it) == rest
    assert len(seen + rest) == 3000
    with ds.repeat(1).iterate() as it:  # says nothing of epochs: the one that was begun is finished
        it.load_state_dict(state)
        assert ids_of(it) == rest[:700]


def test_a_state_of_other_data_is_refused(shards: Path, tmp_path: Path) -> None:
    make_shards(tmp_path, [300, 0, 1, 477, 223])
    with hold.read(tmp_path, SCHEMA).shuffle(seed=7).batch(8).iterate() as it:
        state = it.state_dict()
    with hold.read(shards, SCHEMA).shuffle(seed=7).batch(8).iterate() as it:
        with pytest.raises(StateError, match="1,001 samples then, 1,000 now"):
            it.load_state_dict(state)
        next(it)
        with pytest.raises(StateError, match="before the first batch"):
            it.load_state_dict(it.state_dict())


# ---- within bounds


@pytest.mark.formats
def test_little_memory_changes_nothing_but_the_speed(shards: Path) -> None:
    ds = hold.read(shards, SCHEMA).shuffle(seed=5).batch(32)
    want = ids_of(ds)
    with ds.limits(memory=2000).iterate() as it:
        got = []
        for batch in it:
            check_rows(batch)
            got += batch["id"].tolist()
        assert it.stats().memory_max_bytes <= 2000
    assert got == want


def test_large_samples_are_read_when_they_are_wanted(tmp_path: Path) -> None:
    make_shards(tmp_path, [40, 30, 50], pad=20_000)
    ds = hold.read(tmp_path, SCHEMA).shuffle(seed=5).batch(16)
    with ds.iterate() as it:
        seen = []
        for batch in it:
            check_rows(batch, pad=20_000)
            seen += batch["id"].tolist()
        assert it.stats().memory_max_bytes == 0
    assert sorted(seen) == list(range(120))


def test_packed_shards(tmp_path: Path) -> None:
    make_shards(tmp_path, [40, 30, 50], suffix=".tfrecord.gz")
    ds = hold.read(tmp_path, SCHEMA).shuffle(seed=5).batch(16)
    assert sorted(ids_of(ds)) == list(range(120))
    with pytest.raises(InputError, match=r"shard-000\d.tfrecord.gz: a compressed file"):
        list(ds.limits(memory=500))


def test_few_open_files(shards: Path) -> None:
    with hold.read(shards, SCHEMA).shuffle(seed=5).batch(32).limits(open_files=1).iterate() as it:
        assert sorted(ids_of(it)) == list(ALL)
        stats = it.stats()
    assert (stats.open_files_max, stats.open_files_bound) == (1, 1)


def test_leaving_early_leaves_nothing(shards: Path) -> None:
    ds = hold.read(shards, SCHEMA).shuffle(seed=1).map(twice, 2).batch(16).prefetch("1MB")
    for _ in range(3):
        for batch in ds:
            assert len(batch["id"]) == 16
            break
    it = ds.iterate()
    next(it)
    it.close()
    it.close()
    with pytest.raises(StopIteration):
        next(it)
    with pytest.raises(ZeroDivisionError), ds.iterate() as it:
        for _ in it:
            raise ZeroDivisionError


# ---- functions


def test_a_function_of_samples_and_one_of_batches(shards: Path) -> None:
    def more(batch: dict[str, Any]) -> dict[str, Any]:
        return batch | {"rows": len(batch["id"])}

    for workers in (0, 3):
        ds = hold.read(shards, SCHEMA).map(twice, workers).batch(10).map(more, workers)
        batches = list(ds)
        assert ids_of(batches) == list(ALL)
        assert batches[3]["double"].tolist() == (np.arange(90, 120).reshape(10, 3) * 2).tolist()
        assert {batch["rows"] for batch in batches} == {10}


def test_a_random_function_depends_on_the_sample_alone(shards: Path) -> None:
    def noisy(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"id": sample["id"], "noise": rng.random()}

    base = hold.read(shards, SCHEMA).shuffle(seed=7)
    alone = {
        int(i): x for b in base.map(noisy, random=True).batch(64) for i, x in zip(b["id"], b["noise"], strict=True)
    }
    ranks = [base.shard((rank, 2)).map(noisy, 2, random=True).batch(5) for rank in range(2)]
    shared = {int(i): x for ds in ranks for b in ds for i, x in zip(b["id"], b["noise"], strict=True)}
    assert alone == shared
    assert len(set(alone.values())) == 1000
    with base.map(noisy, random=True).batch(1000).iterate(epoch=1) as it:
        assert set(next(it)["noise"].tolist()).isdisjoint(alone.values())


def fails_on_13(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["id"] % 100 == 13:
        raise ValueError(f"no {sample['id']}")
    return {"id": sample["id"]}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_failure_names_file_record_and_line(shards: Path, workers: int) -> None:
    with pytest.raises(MapError) as caught:
        list(hold.read(shards, SCHEMA).map(fails_on_13, workers).batch(10))
    error = caught.value
    assert (Path(error.path).name, error.record, error.function) == ("shard-0000.tfrecord", 13, "fails_on_13")
    assert "ValueError: no 13" in str(error)
    assert 'raise ValueError(f"no' in error.traceback
    assert isinstance(error.__cause__, ValueError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("workers", [0, 2])
def test_failures_can_be_skipped_up_to_a_bound(shards: Path, workers: int) -> None:
    ds = hold.read(shards, SCHEMA)
    with ds.map(fails_on_13, workers, on_error="skip", max_errors=10).batch(10).iterate() as it:
        assert ids_of(it) == [i for i in ALL if i % 100 != 13]
        assert [(Path(loss.path).name, loss.record) for loss in it.skipped()][-1] == ("shard-0004.tfrecord", 135)
        assert len(it.skipped()) == it.stats().lost == 10
    with pytest.raises(MapError, match="one more than the 9 that max_errors"):
        list(ds.map(fails_on_13, workers, on_error="skip", max_errors=9).batch(10))
    with pytest.raises(MapError, match="one more than the 5 that max_errors"):
        list(ds.map(fails_on_13, workers, on_error="skip", max_errors=0.005).batch(10))


def test_losses_are_counted_by_function_and_once_a_sample(shards: Path) -> None:
    def fails_on_14(sample: dict[str, Any]) -> dict[str, Any]:
        return sample if sample["id"] % 100 != 14 else sample["nothing"]

    ds = hold.read(shards, SCHEMA)
    ds = ds.map(fails_on_13, on_error="skip", max_errors=10).map(fails_on_14, on_error="skip", max_errors=10)
    with ds.batch(10).repeat(3).iterate() as it:
        assert ids_of(it) == [i for i in ALL if i % 100 not in (13, 14)] * 3
        assert len(it.skipped()) == it.stats().lost == 20


def test_a_batch_that_a_function_fails_on_can_be_skipped(shards: Path) -> None:
    def fails(batch: dict[str, Any]) -> dict[str, Any]:
        return batch if 137 not in batch["id"] else batch["nothing"]

    ds = hold.read(shards, SCHEMA).filter(lambda sample: sample["id"] % 2 == 1)
    with ds.batch(10).map(fails, on_error="skip").iterate() as it:
        batches = list(it)
        assert ids_of(batches) == [i for i in ALL[1::2] if i // 10 != 13]
        assert (len(batches), batches[13]["emb"].shape) == (100, (0, 3))
        assert [loss.record for loss in it.skipped()] == [131, 133, 135, 137, 139]
    with pytest.raises(MapError, match="got None: does it return one"):
        next(iter(ds.batch(10).map(lambda batch: None)))


def test_a_filter_shortens_batches_and_moves_nothing(shards: Path) -> None:
    ds = hold.read(shards, SCHEMA)
    batches = list(ds.filter(lambda sample: sample["id"] % 2 == 0).batch(10))
    assert ids_of(batches) == list(ALL[::2])
    assert {len(batch["id"]) for batch in batches} == {5}
    rows = list(ds.batch(10).filter(lambda batch: batch["id"] % 5 == 0))
    assert ids_of(rows) == list(ALL[::5])
    for batch in rows:
        check_rows(batch)
    with pytest.raises(MapError, match="one bool for each of the 10 rows, got bool of shape"):
        list(ds.batch(10).filter(lambda batch: True))


def test_when_nothing_passes_a_filter_batches_are_empty(shards: Path) -> None:
    ds = hold.read(shards, SCHEMA).map(twice).filter(lambda sample: sample["id"] < 10).batch(10)
    batches = list(ds)
    assert len(batches) == len(ds) == 100
    assert batches[50]["double"].shape == (0, 3)


@pytest.mark.formats
def test_lists_are_ragged_padded_or_refused(shards: Path) -> None:
    ds = hold.read(shards, SCHEMA).take(4)
    [batch] = ds.batch(4)
    assert batch["tags"].tolist() == [[], [0], [0, 1], [0, 1, 2]]
    [batch] = ds.batch(4, collate="pad", pad_value=-1)
    assert batch["tags"].tolist() == [[-1, -1, -1], [0, -1, -1], [0, 1, -1], [0, 1, 2]]
    mapped = ds.map(lambda sample: {"id": sample["id"], "tags": sample["tags"] * 2})
    with pytest.raises(SchemaError, match="tags"):
        list(mapped.batch(4, collate="stack"))
    [batch] = mapped.batch(4, collate="ragged")
    assert batch["tags"].tolist() == [[], [0], [0, 2], [0, 2, 4]]


def test_take_counts_samples_before_batch_and_batches_behind(shards: Path) -> None:
    ds = hold.read(shards, SCHEMA)
    assert ids_of(ds.take(25).batch(10)) == list(range(25))
    assert ids_of(ds.batch(10).take(3)) == list(range(30))
    assert len(ds.take(25).batch(10)) == len(ds.batch(10).take(3)) == 3
    assert list(ds.take(0).batch(10)) == []
    assert ids_of(ds.take(5).take(9)) == ids_of(ds.take(9).take(5)) == list(range(5))


def test_a_state_belongs_to_what_take_and_skip_select(shards: list[Path]) -> None:
    ds = hold.read(shards, SCHEMA)
    with ds.take(50).iterate() as iteration:
        next(iteration)
        state = iteration.state_dict()
    for other in (ds, ds.take(5), ds.skip(20), ds.batch(5).take(50)):
        with other.iterate() as iteration, pytest.raises(StateError, match="what take\\(\\) and skip\\(\\) select was"):
            iteration.load_state_dict(state)
    del state["fingerprint"]["selection"]  # as older versions saved it
    with ds.take(50).batch(7).iterate() as iteration:
        iteration.load_state_dict(state)
        assert ids_of(iteration) == list(range(1, 50))


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("maximum", ["1MB", 30_000])
def test_a_cache_makes_samples_once(shards: Path, tmp_path: Path, folder: bool, maximum: Any) -> None:
    made: list[int] = []

    def counted(sample: dict[str, Any]) -> dict[str, Any]:
        made.append(int(sample["id"]))
        return twice(sample)

    ds = (
        hold.read(shards, SCHEMA)
        .shuffle(seed=1)
        .map(counted)
        .filter(lambda sample: sample["id"] != 7)
        .cache(maximum, tmp_path / "kept" if folder else None)
        .batch(64)
    )
    want = {i: (np.arange(i * 3, i * 3 + 3) * 2.0).tolist() for i in ALL if i != 7}
    for epoch in range(3):
        with ds.iterate(epoch=epoch) as it:
            got = {int(i): d.tolist() for b in it for i, d in zip(b["id"], b["double"], strict=True)}
        assert got == want
    if maximum == "1MB":
        assert sorted(made) == list(ALL)
    else:
        assert 1000 < len(made) < 3000
    del ds, it
    if folder:
        assert list((tmp_path / "kept").iterdir()) == []


# ---- damaged files


@pytest.mark.formats
def test_damaged_samples_are_skipped_and_listed(tmp_path: Path) -> None:
    [path, _] = make_shards(tmp_path, [50, 50])
    data = bytearray(path.read_bytes())
    for number in (10, 11, 33):
        data[data.index(f"sample {number}".encode())] ^= 1
    path.write_bytes(data)
    base = hold.read(tmp_path, SCHEMA, on_corrupt="skip").shuffle(seed=1).batch(10)
    want = [i for i in range(100) if i not in (10, 11, 33)]
    for ds in (base, base.limits(memory=500)):
        with ds.iterate() as it:
            batches = list(it)
            assert sorted(ids_of(batches)) == want
            assert sorted(loss.record for loss in it.skipped()) == [10, 11, 33]
        for batch in batches:
            check_rows(batch)
    with pytest.raises(hold.errors.CorruptError, match="one more than the 2 that max_corrupt"):
        list(hold.read(tmp_path, SCHEMA, on_corrupt="skip", max_corrupt=2).batch(10))
    with pytest.raises(hold.errors.CorruptError, match=r"shard-0000.tfrecord, record 10"):
        list(hold.read(tmp_path, SCHEMA).batch(10))


# ---- other ways in


def test_samples_by_number(shards: Path) -> None:
    ds = hold.read(shards, SCHEMA).map(twice)
    assert ds[0]["id"] == 0
    assert ds[-1]["id"] == 999
    assert [sample["id"] for sample in ds[298:304]] == list(range(298, 304))
    assert [sample["id"] for sample in ds[[500, 3, 500]]] == [500, 3, 500]
    assert ds.samples == 1000
    with pytest.raises(IndexError, match="from 0 to 999, got 1,000"):
        ds[1000]
    with pytest.raises(TypeError, match="got 'x'"):
        ds["x"]  # type: ignore[index]


def test_length_and_numbers_speak_of_the_same_samples(shards: Path) -> None:
    plain = hold.read(shards, SCHEMA).map(twice).prefetch("1MB").limits(open_files=2).shard(None)
    assert [sample["id"] for sample in plain[:]] == ids_of(plain) == list(ALL)
    assert len(plain) == 1000
    for name, ds in {
        "batch": plain.batch(10),
        "shuffle": plain.shuffle(seed=1),
        "shard": plain.shard((0, 2)),
        "take": plain.take(5),
        "filter": plain.filter(lambda sample: True),
        "repeat": plain.repeat(2),
    }.items():
        with pytest.raises(
            TypeError, match=rf"^\[\]: expected .* got one with {name}\(\)\. .*ds\.torch\(\), batch_size=None"
        ):
            ds[0]


def test_a_dataset_can_be_pickled_and_shown(shards: Path) -> None:
    ds = hold.read(shards, SCHEMA).shuffle(seed=7).map(twice, 2).batch(10).prefetch()
    assert ids_of(pickle.loads(pickle.dumps(ds))) == ids_of(ds)
    assert "shuffle(seed=7, window='256 MB').map(twice, 2 threads).batch(10)" in repr(ds)
    ds = hold.read(shards, SCHEMA).skip(5).take(40).batch(4).take(3).repeat(2).limits(open_files=8, memory="100MB")
    assert repr(ds).endswith(".skip(5).take(40).batch(4).take(3).repeat(2).limits(open_files=8, memory='100 MB')")


def test_statistics_and_progress(shards: Path) -> None:
    with hold.read(shards, SCHEMA).map(twice, 2).batch(100).iterate() as it:
        for _ in range(5):
            next(it)
        assert "500 of 1,000 samples (50 %)" in str(it.progress())
        list(it)
        text = str(it.stats())
    assert "10 batches, 1,000 samples" in text
    assert "rank 0 of 1" in text
    for word in ("read", "gather", "twice", "wait", "bottleneck: ", "open files", "memory"):
        assert word in text


@pytest.mark.parametrize("memory", [1 << 28, 2000], ids=["from cached blocks", "one by one"])
def test_the_time_to_gather_is_counted(shards: Path, memory: int) -> None:
    """It is a time, of every step that was gathered, and lies within the time of the iteration."""
    with hold.read(shards, SCHEMA).shuffle(seed=1).batch(100).limits(memory=memory).iterate() as it:
        list(it)
        stats = it.stats()
    gather = stats.stages["gather"]
    assert gather.calls >= 1
    assert 0 < gather.seconds < stats.elapsed_s


def test_progress_over_epochs_and_after_the_end(shards: Path) -> None:
    ds = hold.read(shards, SCHEMA).batch(64, drop_last=True).repeat(2)
    with ds.iterate() as it:
        for _ in range(20):
            next(it)
        now = it.progress()
        assert (now.epoch, now.done, now.total) == (1, 320, 960)
        assert now.samples_per_s * now.elapsed_s == pytest.approx(1280)
        list(it)
    assert it.progress().fraction == 1
    assert it.stats().elapsed_s == it.stats().elapsed_s
    assert it.stats().memory_bytes == it.stats().open_files == 0


def test_a_state_of_an_earlier_epoch_than_was_asked_for(shards: Path) -> None:
    ds = hold.read(shards, SCHEMA).shuffle(seed=2).batch(100)
    with ds.iterate(epoch=1) as it:
        next(it)
        state, rest = it.state_dict(), ids_of(it)
    with ds.iterate(epoch=3) as it:
        it.load_state_dict(state)
        assert ids_of(it) == rest


# ---- mixing


def test_a_mix_has_its_shares_everywhere(shards: Path, tmp_path: Path) -> None:
    make_shards(tmp_path, [500])
    a, b = hold.read(shards, SCHEMA).shuffle(seed=1), hold.read(tmp_path, {**SCHEMA}).shuffle(seed=2)
    both = hold.mix({a: 3, b: 1}, seed=5)
    counted = Counter(ids_of(both.batch(64)))
    assert len(ids_of(both.batch(64))) == pytest.approx(1333, abs=40)
    assert max(counted.values()) == 2  # an id is in both datasets
    world = [list(both.shard((rank, 2)).batch(16)) for rank in range(2)]
    assert in_turn(world) == ids_of(both.batch(64))
    with both.batch(64).iterate() as it:
        seen = ids_of(next(it) for _ in range(9))
        state = it.state_dict()
    with both.batch(10).iterate() as it:
        it.load_state_dict(state)
        assert seen + ids_of(it) == ids_of(both.batch(64))


def test_a_mix_has_one_budget_of_open_files(shards: Path, tmp_path: Path) -> None:
    make_shards(tmp_path, [50])
    a, b = hold.read(shards, SCHEMA).shuffle(seed=1), hold.read(tmp_path, SCHEMA).shuffle(seed=1)
    bounds = []
    for ds in (a.batch(8), hold.mix({a: 1, b: 1}).batch(8)):
        with ds.iterate() as it:
            next(it)
            bounds.append(it.stats().open_files_bound)
    assert bounds[1] <= bounds[0]
    with hold.mix({a: 1, b: 1}).batch(8).limits(open_files=4).iterate() as it:
        next(it)
        assert it.stats().open_files_bound == 4


def test_a_mix_until_all_are_used_up(shards: Path, tmp_path: Path) -> None:
    make_shards(tmp_path, [50])
    small, large = hold.read(tmp_path, SCHEMA).shuffle(seed=1), hold.read(shards, SCHEMA)
    ids = Counter(ids_of(hold.mix([(small, 0.5), (large, 0.5)], until="all").batch(64)))
    assert set(ids) == set(ALL)
    assert all(ids[i] >= 20 for i in range(50))
    with pytest.raises(ValueError, match="at most a shuffle"):
        hold.mix({small.batch(3): 1.0, large: 1.0})
    with pytest.raises(ValueError, match="weights above 0, got 0"):
        hold.mix({small: 0, large: 1.0})


# ---- made ready beforehand


@pytest.mark.parametrize(
    ("maximum", "ready", "memory"),
    [(3, 3, "2GB"), ("5.1MB", 5, "2GB"), (1000, 5, "20.4MB")],  # the last: a quarter of the memory
)
def test_prefetch_counts_batches_or_bytes(shards: Path, maximum: Any, ready: int, memory: str) -> None:
    made: queue.SimpleQueue[int] = queue.SimpleQueue()
    begun = asked = too_many = 0

    def one_megabyte(batch: dict[str, Any]) -> dict[str, Any]:
        nonlocal begun, too_many
        begun += 1
        too_many += begun - asked > ready
        made.put(begun)
        return {"id": batch["id"], "much": np.zeros((10, 12_500))}

    ds = hold.read(shards, SCHEMA).limits(memory=memory).batch(10).map(one_megabyte).prefetch(maximum)
    with ds.iterate() as it:
        for asked in range(1, 4):
            next(it)
            while made.get(timeout=60) < asked + ready:
                pass
    assert not too_many


def test_samples_are_prefetched_too(shards: Path) -> None:
    assert [sample["id"] for sample in hold.read(shards, SCHEMA).prefetch(2)] == list(ALL)


# ---- what is wrong is said at once


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda ds: ds.batch(0), "a positive integer, got 0"),
        (lambda ds: ds.batch(), "a size or a global_size"),
        (lambda ds: ds.batch(3).batch(4), "got one with batch() already"),
        (lambda ds: ds.batch(4, collate="pile"), "'stack', 'pad', 'ragged', got 'pile'"),
        (lambda ds: ds.shuffle(seed="x"), "seed must be an integer, got 'x'"),
        (lambda ds: ds.shuffle(window="much"), "got 'much'"),
        (lambda ds: ds.shard((2, 2)), "rank 2 is out of range for 2 ranks"),
        (lambda ds: ds.shard("all"), "got 'all'"),
        (lambda ds: ds.shard(remainder="odd"), "got 'odd'"),
        (lambda ds: ds.map(3), "expected a function, got 3"),
        (lambda ds: ds.map(len, where="cloud"), "got 'cloud'"),
        (lambda ds: ds.map(len, -1), "got -1"),
        (lambda ds: ds.map(len, on_error="ignore"), "got 'ignore'"),
        (lambda ds: ds.take(-1), "a non-negative integer, got -1"),
        (lambda ds: ds.repeat(0), "a positive integer, got 0"),
        (lambda ds: ds.limits(memory="1MB").prefetch("2MB"), "got 2.00 MB of 1.00 MB"),
        (lambda ds: ds.prefetch(256_000_000), 'a number counts batches. For bytes write prefetch("256MB'),
        (lambda ds: ds.prefetch(-1), "a non-negative integer, got -1"),
        (lambda ds: ds.shuffle(7), "positional argument"),
        (lambda ds: ds.batch(4, how="pad"), "unexpected keyword argument 'how'"),
        (lambda ds: ds.limits(open_files=0), "got 0"),
        (lambda ds: ds.batch(2).cache(), "before batch"),
        (lambda ds: ds.map(len, random=True).cache(), "put it after"),
        (lambda ds: ds.iterate(epoch=-1), "a non-negative integer, got -1"),
        (lambda ds: ds.iterate(worker=3), "got 3"),
        (lambda ds: ds.batch(64.0), "got 64.0"),
        (lambda ds: ds.batch(True), "got True"),
        (lambda ds: ds.batch(4, collate="pad", pad_value="x"), "as the pad_value, got 'x'"),
        (lambda ds: ds.shuffle(lanes=10**30), "a positive integer up to 4,096"),
        (lambda ds: ds.shuffle(samples=10**30), "got 1000"),
        (lambda ds: ds.shard((0.5, 2)), "got (0.5, 2)"),
        (lambda ds: ds.shard(("0", "2")), "got ('0', '2')"),
        (lambda ds: ds.map(len, timeout="soon"), "timeout=: expected a time such as 30s, 5m or 1h, got 'soon'"),
        (lambda ds: ds.map(len, max_errors=float("nan")), "got nan"),
        (lambda ds: hold.read("/nothing/here/*.tfrecord"), "/nothing/here"),
        (lambda ds: hold.read([]), "empty list"),
        (lambda ds: hold.mix({"a": 1.0}), "datasets of hold.read"),  # type: ignore[dict-item]
    ],
)
def test_what_is_wrong_is_reported_at_once(shards: Path, wrong: Any, said: str) -> None:
    with pytest.raises((ValueError, TypeError, InputError)) as caught:
        wrong(hold.read(shards, SCHEMA))
    assert said in str(caught.value)


def test_numbers_of_numpy_are_numbers(shards: Path) -> None:
    ds = hold.read(shards, SCHEMA).shuffle(seed=np.int64(7), samples=np.int32(100), lanes=np.int8(2))
    ds = ds.shard(np.array([1, 2])).take(np.int64(900)).batch(np.uint16(64)).repeat(np.int64(1))
    with ds.limits(open_files=np.int64(3), memory=np.int64(10**6)).iterate(epoch=np.int64(3)) as it:
        assert len(ids_of(it)) == 450
        json.dumps(it.state_dict())


def test_a_launcher_that_nobody_asked_is_pointed_out(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.warns(UserWarning, match=r'rank 1 of 4 .*call .shard\("auto"\)'):
        hold.read(shards, SCHEMA).batch(4).iterate()
    ids = ids_of(hold.read(shards, SCHEMA).shard("auto").batch(4))
    assert ids == list(ALL[1::4])
    hold.read(shards, SCHEMA).shard(None).batch(4).iterate()


def test_files_that_differ_are_named_before_the_first_batch(tmp_path: Path) -> None:
    make_shards(tmp_path, [3])
    with hold.TFRecordWriter(tmp_path / "z-other.tfrecord", {"id": hold.Bytes()}) as writer:
        writer.append(id=b"x")
    with pytest.raises(hold.HoldfastError, match="z-other"):
        hold.read(tmp_path).batch(2).iterate()
