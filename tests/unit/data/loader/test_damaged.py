"""Damaged files in hold.read: every good record is a sample, every loss is listed, and all ranks agree on both."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
from pathlib import Path

import fsspec
import h5py
import numpy as np
import pytest
from factories_files import SCHEMA, check_rows, ids_of, make_shards

import holdfast as hold
from holdfast._native import codec
from holdfast.data.loader.options import OnCorrupt
from holdfast.data.loader.sources.catalog import is_corruption
from holdfast.data.loader.stats import SkippedSample
from holdfast.errors import CorruptError, FormatError, InputError, StateError, UnfinishedError

BOUND_S = 60

HEADER, DATA = 1, 30  # bytes of a record: in its length, and in its data


def starts_of(path: Path) -> list[int]:
    data, starts, at = path.read_bytes(), [], 0
    while at < len(data):
        starts.append(at)
        at += int.from_bytes(data[at : at + 8], "little") + codec.OVERHEAD_BYTES
    return [*starts, at]


def flip(path: Path, *places: tuple[int, int]) -> list[int]:
    """Damages records at a byte of each. Gives where all records began."""
    starts = starts_of(path)
    data = bytearray(path.read_bytes())
    for record, byte in places:
        data[starts[record] + byte] ^= 0x55
    path.write_bytes(data)
    return starts


def seen(loss: SkippedSample) -> tuple[str, str, int | None]:
    return Path(loss.path).name, loss.kind, loss.offset


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """Samples 0 to 99, 20 in each of 5 shards."""
    return make_shards(tmp_path, [20] * 5)


# ---- TFRecord


def test_a_damaged_header_costs_one_record_and_is_reported_before_the_first_batch(shards: list[Path]) -> None:
    starts = flip(shards[1], (7, HEADER))
    with hold.read(shards, SCHEMA, on_corrupt="skip").batch(10).iterate() as it:
        [loss] = it.skipped()
        assert seen(loss) == ("shard-0001.tfrecord", "damaged", starts[7])
        assert loss.bytes_lost == starts[8] - starts[7]
        assert loss.reason.startswith("bad length CRC")
        assert f"record 7 at byte {starts[7]:,}: damaged: bad length CRC" in str(loss)
        batches = list(it)
        assert it.stats().lost == len(it.skipped()) == 1
    assert ids_of(batches) == [i for i in range(100) if i != 27]
    assert {len(batch["id"]) for batch in batches[:-1]} == {10}  # the plan is made of what is there
    for batch in batches:
        check_rows(batch)


def test_salvage_gets_back_what_has_only_lost_its_header(shards: list[Path]) -> None:
    flip(shards[0], (0, HEADER), (19, HEADER))
    flip(shards[1], (7, HEADER), (12, DATA))
    with hold.read(shards, SCHEMA, on_corrupt="salvage").shuffle(seed=3).batch(9).iterate() as it:
        batches = list(it)
        assert [loss.record for loss in it.skipped()] == [12]
    assert sorted(ids_of(batches)) == [i for i in range(100) if i != 32]
    for batch in batches:
        check_rows(batch)


def test_records_between_two_destroyed_headers_are_kept_on_request(shards: list[Path]) -> None:
    starts = starts_of(shards[2])
    data = bytearray(shards[2].read_bytes())
    for record in (3, 11):
        data[starts[record] : starts[record] + 40] = bytes(40)
    shards[2].write_bytes(data)
    with hold.read(shards, SCHEMA, on_corrupt="salvage").batch(9).iterate() as it:
        assert ids_of(it) == [i for i in range(100) if not 43 <= i <= 51]
        assert "7 records in bytes" in it.skipped()[0].reason
        assert "keep_doubtful=True reads them" in it.skipped()[0].reason
    for how in ("skip", "salvage"):
        kept = hold.read(shards, SCHEMA, on_corrupt=how, keep_doubtful=True)
        assert ids_of(kept.batch(9)) == [i for i in range(100) if i not in (43, 51)]
    with pytest.raises(ValueError, match="keep_doubtful=True goes with on_corrupt='skip' or 'salvage'"):
        hold.read(shards, SCHEMA, keep_doubtful=True)


def test_a_torn_tail(shards: list[Path]) -> None:
    starts = starts_of(shards[4])
    os.truncate(shards[4], starts[20] - 3)
    ds = hold.read(shards, SCHEMA, on_corrupt="skip")
    assert ids_of(ds.batch(10)) == list(range(99))
    with ds.iterate() as it:
        [loss] = it.skipped()
    assert (loss.offset, loss.bytes_lost) == (starts[19], starts[20] - 3 - starts[19])
    assert "truncated" in loss.reason


def test_damage_found_by_looking_and_by_reading_are_one_list_and_one_bound(shards: list[Path]) -> None:
    flip(shards[1], (7, HEADER), (9, DATA))  # both are found by looking: a damaged shard is checked through and through
    starts = flip(shards[3], (5, DATA))  # found by reading
    want = [i for i in range(100) if i not in (27, 29, 65)]
    for ds in (hold.read(shards, SCHEMA, on_corrupt="skip"), hold.read(shards, on_corrupt="skip", max_corrupt=3)):
        with ds.batch(10).iterate() as it:
            assert ids_of(it) == want
            assert len(it.skipped()) == it.stats().lost == 3
            assert seen(it.skipped()[-1]) == ("shard-0003.tfrecord", "damaged", starts[5])
    with pytest.raises(CorruptError, match=r"shard-0003.*one more than the 2 that max_corrupt"):
        list(hold.read(shards, SCHEMA, on_corrupt="skip", max_corrupt=2).batch(10))
    with pytest.raises(CorruptError, match=r"shard-0001.*one more than the 1 that max_corrupt"):
        list(hold.read(shards, SCHEMA, on_corrupt="skip", max_corrupt=1).batch(10))


@pytest.mark.parametrize("given", [True, False])
def test_a_damaged_first_record_does_not_stop_the_snapshot_at_the_columns(shards: list[Path], given: bool) -> None:
    for shard in shards[:3]:
        flip(shard, (0, DATA))
    ds = hold.read(shards, SCHEMA if given else None, on_corrupt="skip").batch(10)
    assert ids_of(ds) == [i for i in range(100) if i not in (0, 20, 40)]


def test_a_packed_shard_up_to_where_it_breaks_off(tmp_path: Path) -> None:
    paths = make_shards(tmp_path, [50, 50], pad=200, suffix=".tfrecord.gz")
    os.truncate(paths[0], paths[0].stat().st_size * 2 // 3)
    ds = hold.read(paths, SCHEMA, on_corrupt="skip").batch(10)
    with ds.iterate() as it:
        [loss] = it.skipped()
        assert "the gzip data are cut short" in loss.reason
        batches = list(it)
    ids = ids_of(batches)
    first = [i for i in ids if i < 50]
    assert ids == [*range(len(first)), *range(50, 100)]
    assert 10 < len(first) < 50
    for batch in batches:
        check_rows(batch, pad=200)


def test_other_ways_in(shards: list[Path]) -> None:
    flip(shards[1], (7, HEADER))
    flip(shards[2], (0, HEADER))
    ds = hold.read(shards, SCHEMA, on_corrupt="skip").shuffle(seed=5)
    want = ids_of(ds.batch(7))
    assert sorted(want) == [i for i in range(100) if i not in (27, 40)]
    for other in (
        ds.limits(open_files=1),
        ds.limits(memory=500),
        ds.map(lambda sample: sample, num_workers=2),
        ds.prefetch("1MB"),
        pickle.loads(pickle.dumps(ds)),
    ):
        assert ids_of(other.batch(7)) == want
    by_number = hold.read(shards, SCHEMA, on_corrupt="skip")
    assert [by_number[i]["id"] for i in (26, 27, 38, 39)] == [26, 28, 39, 41]
    with hold.mix({ds: 0.5, hold.read(shards[3:], SCHEMA): 0.5}, until="all").batch(7).iterate() as it:
        assert sorted(set(ids_of(it))) == sorted(want)
        assert len(it.skipped()) == 2


# ---- whole shards


def make_h5(path: Path, first: int) -> Path:
    with h5py.File(path, "w") as file:
        file["id"] = np.arange(first, first + 10)
    return path


def make_tar(path: Path, first: int) -> Path:
    with tarfile.open(path, "w") as tar:
        for i in range(first, first + 10):
            info = tarfile.TarInfo(f"{i:04}.id")
            info.size = len(str(i))
            tar.addfile(info, io.BytesIO(str(i).encode()))
    return path


def not_a_tfrecord(shards: list[Path]) -> None:
    shards[1].write_bytes(b"these are no records at all, but text\n" * 10)


def gone(shards: list[Path]) -> None:
    shards[1].unlink()


def looping(shards: list[Path]) -> None:
    """It is there, and cannot be opened: not even by root, whom no permission stops."""
    shards[1].unlink()
    shards[1].symlink_to(shards[1])


@pytest.mark.parametrize(
    ("what", "reason", "error"),
    [
        (not_a_tfrecord, "not a TFRecord: this looks like a text file", FormatError),
        (gone, "cannot open: No such file", InputError),
        (looping, "cannot open: Too many levels of symbolic links", InputError),
    ],
)
def test_a_shard_that_cannot_be_read_is_one_loss(
    shards: list[Path], what: object, reason: str, error: type[Exception]
) -> None:
    assert callable(what)
    ds = hold.read(shards, SCHEMA, on_corrupt="skip", max_corrupt=1).batch(10)
    strict = hold.read(shards, SCHEMA).batch(10)
    none = hold.read(shards, SCHEMA, on_corrupt="skip", max_corrupt=0).batch(10)
    what(shards)
    with ds.iterate() as it:
        [loss] = it.skipped()
        assert seen(loss) == ("shard-0001.tfrecord", "unreadable", 0)
        assert reason in loss.reason
        assert loss.bytes_lost == (shards[1].stat().st_size if what is not_a_tfrecord else 0)
        assert str(loss).startswith(f"{shards[1]}: unreadable: ")
        assert ids_of(it) == [i for i in range(100) if not 20 <= i < 40]
        assert it.stats().lost == 1
    with pytest.raises(error, match=r"shard-0001\.tfrecord"):
        list(strict)
    with pytest.raises(CorruptError, match=r"shard-0001\.tfrecord.*one more than the 0 that max_corrupt"):
        list(none)


@pytest.mark.parametrize("make", [make_h5, make_tar])
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_hdf5_and_tar_shards_that_do_not_open_are_left_out(tmp_path: Path, make: object, bad: int) -> None:
    assert callable(make)
    suffix = ".h5" if make is make_h5 else ".tar"
    paths = [make(tmp_path / f"{at}{suffix}", 10 * at) for at in range(3)]
    os.truncate(paths[bad], 700)
    schema = {"id": hold.Int64()}
    ds = hold.read(paths, schema, on_corrupt="skip").batch(4)
    with ds.iterate() as it:
        assert [seen(loss) for loss in it.skipped()] == [(f"{bad}{suffix}", "unreadable", 0)]
        assert ids_of(it) == [i for i in range(30) if i // 10 != bad]
    with pytest.raises(CorruptError, match=f"{bad}{suffix}"):
        list(hold.read(paths, schema).batch(4))


def test_when_nothing_is_left_the_error_says_why(shards: list[Path]) -> None:
    not_a_tfrecord(shards)
    with pytest.raises(InputError, match="expected samples, got none in all 1 shards: .*unreadable: not a TFRecord"):
        list(hold.read(shards[1], SCHEMA, on_corrupt="skip").batch(2))


def test_a_remote_shard_is_named_by_its_url(tmp_path: Path, shards: list[Path]) -> None:
    flip(shards[1], (7, HEADER))
    not_a_tfrecord(shards[2:])
    urls = [f"memory:///damaged/{path.name}" for path in shards]
    store = fsspec.filesystem("memory")
    try:
        for path in shards:
            store.pipe(f"/damaged/{path.name}", path.read_bytes())
        ds = hold.read(urls, SCHEMA, on_corrupt="skip", cache_folder=tmp_path / "cache").batch(10)
        with ds.iterate() as it:
            assert [(loss.path, loss.kind) for loss in it.skipped()] == [(urls[1], "damaged"), (urls[3], "unreadable")]
            assert str(tmp_path) not in "".join(map(str, it.skipped()))
            assert ids_of(it) == [i for i in range(100) if i != 27 and not 60 <= i < 80]
        with pytest.raises(FormatError, match=f"{urls[3]}.*not a TFRecord"):
            list(hold.read(urls[3], SCHEMA, cache_folder=tmp_path / "cache"))
    finally:
        store.rm("/damaged", recursive=True)


# ---- what is no damage


def test_a_shard_that_is_being_written_is_an_error(shards: list[Path]) -> None:
    os.truncate(shards[2], shards[2].stat().st_size - 3)
    ds = hold.read(shards, SCHEMA, on_corrupt="skip").batch(10)
    with open(shards[2], "ab"), pytest.raises(UnfinishedError, match=r"shard-0002.*still being written by process"):
        list(ds)
    assert ids_of(ds) == [i for i in range(100) if i != 59]


def test_a_schema_that_does_not_fit_is_a_mistake(shards: list[Path]) -> None:
    with pytest.raises(hold.errors.DecodeError, match=r"shard-0000.*'name'"):
        list(hold.read(shards, {"name": hold.Int64()}, on_corrupt="skip").batch(10))


def test_no_free_descriptor_is_no_damage(tmp_path: Path) -> None:
    full = InputError("x: cannot open: Too many open files")
    full.__cause__ = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    assert not is_corruption(full, str(tmp_path))
    assert is_corruption(InputError("x: cannot open: Permission denied"), str(tmp_path))


# ---- ranks, and states

RANK = """
import sys, json
import holdfast as hold
rank, mode, *paths = sys.argv[1:]
ds = hold.read(paths, on_corrupt=mode).shuffle(seed=4).shard((int(rank), 2)).batch(6)
with ds.iterate() as it:
    losses = [str(loss) for loss in it.skipped()]
    state = it.state_dict()
    ids = [batch["id"].tolist() for batch in it]
print(json.dumps([len(ds), losses, state, ids]))
"""


@pytest.mark.parametrize("mode", ["skip", "salvage"])
def test_two_ranks_that_plan_by_themselves_agree(tmp_path: Path, shards: list[Path], mode: OnCorrupt) -> None:
    flip(shards[0], (19, HEADER))
    flip(shards[1], (7, HEADER), (8, DATA))
    not_a_tfrecord(shards[2:])
    os.truncate(shards[4], shards[4].stat().st_size - 3)
    ranks = []
    for rank in range(2):  # each with a cache of its own, as on two machines
        (tmp_path / f"home-{rank}").mkdir()
        ran = subprocess.run(
            [sys.executable, "-c", RANK, str(rank), mode, *map(str, shards)],
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / f"home-{rank}")},
            capture_output=True,
            text=True,
            timeout=BOUND_S,
            check=True,
        )
        ranks.append(json.loads(ran.stdout))
    assert ranks[0][:3] == ranks[1][:3]
    assert len(ranks[0][1]) == {"skip": 5, "salvage": 3}[mode]
    alone = ids_of(hold.read(shards, on_corrupt=mode).shuffle(seed=4).batch(12))
    in_turn = [np.array(step).T.reshape(-1).tolist() for step in zip(ranks[0][3], ranks[1][3], strict=True)]
    assert [i for step in in_turn for i in step] == alone
    lost = {28, 99, *range(60, 80)} | ({19, 27} if mode == "skip" else set())
    assert sorted(alone) == [i for i in range(100) if i not in lost]


def test_a_state_goes_on_around_the_same_damage_only(shards: list[Path]) -> None:
    whole = shards[1].read_bytes()
    flip(shards[1], (7, HEADER))
    ds = hold.read(shards, SCHEMA, on_corrupt="skip").shuffle(seed=2)
    want = ids_of(ds.batch(10))
    with ds.batch(10).iterate() as it:
        ids = ids_of([next(it), next(it), next(it)])
        state = it.state_dict()
    with hold.read(shards, SCHEMA, on_corrupt="skip").shuffle(seed=2).batch(7).iterate() as it:
        it.load_state_dict(state)
        assert ids + ids_of(it) == want
        assert len(it.skipped()) == 1
    shards[1].write_bytes(whole)
    with hold.read(shards, SCHEMA, on_corrupt="skip").shuffle(seed=2).batch(10).iterate() as it:
        with pytest.raises(StateError, match="99 samples then, 100 now"):
            it.load_state_dict(state)


def test_a_shard_damaged_after_the_plan_is_refused(shards: list[Path]) -> None:
    flip(shards[1], (7, HEADER))
    ds = hold.read(shards, SCHEMA, on_corrupt="skip").batch(10)
    assert len(list(ds)) == 10
    os.truncate(shards[1], shards[1].stat().st_size - 3)
    with pytest.raises(CorruptError, match=r"shard-0001.*changed since the dataset was opened"):
        list(ds)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="expected on_corrupt to be one of 'raise', 'skip', 'salvage', got 'ignore'"):
        hold.read("x", on_corrupt="ignore")  # type: ignore[arg-type]
