"""Salvage loses only what is damaged: every record the damage did not touch comes back, in order, none is invented."""

from __future__ import annotations

import gzip
import random
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast as hold
from holdfast import TFRecordReader
from holdfast._native import codec
from holdfast.data.formats.tfrecord.salvage import salvage_file
from holdfast.errors import CorruptError, WriteError

pytestmark = pytest.mark.formats

PAGE = 4096


def frames(records: list[bytes]) -> bytes:
    return b"".join(codec.frame(record) for record in records)


def salvaged(folder: Path, data: bytes) -> list[bytes]:
    path = folder / "damaged.tfrecord"
    path.write_bytes(data)
    with TFRecordReader(path, on_corrupt="salvage") as reader:
        return list(reader.records())


def borders(records: list[bytes]) -> list[tuple[int, int]]:
    places, at = [], 0
    for record in records:
        places.append((at, at + len(record) + 16))
        at += len(record) + 16
    return places


def check(records: list[bytes], got: list[bytes], touched: tuple[int, int]) -> None:
    """`touched`: the range of the file's bytes [a, b) that a damage changed, or a == b for an insertion there."""
    a, b = touched
    intact = [
        record for record, (start, stop) in zip(records, borders(records), strict=True) if stop <= a or start >= b
    ]
    # A record whose header alone was hit may come back too; nothing else may.
    rest = iter(records)
    assert all(any(record == other for other in rest) for record in got), "invented, or out of order"
    missing = list(intact)
    for record in got:
        if missing and record == missing[0]:
            missing.pop(0)
    assert not missing, f"{len(missing)} intact records were lost"


def numbered(n: int, size: int = 24) -> list[bytes]:
    return [f"record {i:05d} ".encode() * (1 + size // 13) for i in range(n)]


def nested(trailing: int) -> list[bytes]:
    """A file with a record that holds another TFRecord, with `trailing` bytes behind it."""
    inner = frames([b"inner %03d" % i for i in range(6)])
    return [*numbered(3), b"" if not trailing else b"head ", inner + b"t" * trailing, *numbered(8)[3:]]


SHAPES = {
    "plain": numbered(8),
    "empty records": [b"", b"one", b"", b"", b"two", b""],
    "look-alike at the end of a record": nested(0),
    "look-alike with something behind it": nested(30),
    "look-alike in the first record": [frames([b"a" * 20, b"b" * 20, b"c" * 20]), *numbered(4)],
    "look-alike in the last record": [*numbered(4), frames([b"a" * 20, b"b" * 20, b"c" * 20])],
    "look-alike in the only record": [frames([b"a" * 20, b"b" * 20, b"c" * 20])],
    "a record that is one frame": [*numbered(2), codec.frame(b"just one"), *numbered(5)[2:]],
    "eight bytes and their CRC look like a header": [*numbered(2), b"8 bytes!", codec.frame(b"8 bytes!"), b"8 bytes!"],
    "look-alikes of one size": [*numbered(2), frames([b"same size"] * 9), *numbered(5)[2:]],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_one_flipped_bit_anywhere(shape: str, tmp_path: Path) -> None:
    records = SHAPES[shape]
    whole = frames(records)
    for at in range(len(whole)):
        data = bytearray(whole)
        data[at] ^= 1 << at % 8
        check(records, salvaged(tmp_path, bytes(data)), (at, at + 1))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_cut_anywhere(shape: str, tmp_path: Path) -> None:
    records = SHAPES[shape]
    whole = frames(records)
    for at in range(len(whole)):
        check(records, salvaged(tmp_path, whole[:at]), (at, len(whole)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [1, 4, 7, 16, 25, 40])
def test_bytes_inserted_anywhere(shape: str, size: int, tmp_path: Path) -> None:
    records = SHAPES[shape]
    whole = frames(records)
    rng = random.Random(size)
    for at in range(0, len(whole) + 1, 1 if size in (4, 25) else 3):
        check(records, salvaged(tmp_path, whole[:at] + rng.randbytes(size) + whole[at:]), (at, at))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [1, 13, 60])
def test_zeroed_bytes_anywhere(shape: str, size: int, tmp_path: Path) -> None:
    records = SHAPES[shape]
    whole = frames(records)
    for at in range(0, len(whole), 1 if size == 13 else 3):
        data = bytearray(whole)
        end = min(at + size, len(whole))
        data[at:end] = bytes(end - at)
        check(records, salvaged(tmp_path, bytes(data)), (at, end))


def test_a_zeroed_page_anywhere(tmp_path: Path) -> None:
    records = [*numbered(100, 200), frames(numbered(40)), *numbered(160, 200)[100:]]
    whole = frames(records)
    for page in range(0, len(whole), PAGE):
        data = bytearray(whole)
        end = min(page + PAGE, len(whole))
        data[page:end] = bytes(end - page)
        check(records, salvaged(tmp_path, bytes(data)), (page, end))


record_lists = st.lists(
    st.one_of(
        st.binary(max_size=60),
        st.lists(st.binary(max_size=20), max_size=4).map(frames),
        st.tuples(st.binary(max_size=9), st.lists(st.binary(max_size=20), max_size=4), st.binary(max_size=40)).map(
            lambda parts: parts[0] + frames(parts[1]) + parts[2]
        ),
    ),
    min_size=1,
    max_size=12,
)


@settings(
    max_examples=400, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    record_lists, st.sampled_from(["flip", "zero", "cut", "insert", "noise"]), st.integers(0, 10**6), st.integers(1, 80)
)
def test_any_single_damage(tmp_path: Path, records: list[bytes], kind: str, place: int, size: int) -> None:
    records = [record + b"%d" % i for i, record in enumerate(records)]  # told apart
    whole = frames(records)
    at = place % len(whole)
    end = min(at + size, len(whole))
    noise = random.Random(place).randbytes(size)
    if kind == "cut":
        data, touched = whole[:at], (at, len(whole))
    elif kind == "insert":
        data, touched = whole[:at] + noise + whole[at:], (at, at)
    elif kind == "flip":
        data, touched = whole[:at] + bytes([whole[at] ^ (1 << place % 8)]) + whole[at + 1 :], (at, at + 1)
    else:
        middle = bytes(end - at) if kind == "zero" else noise[: end - at]
        data, touched = whole[:at] + middle + whole[end:], (at, end)
    check(records, salvaged(tmp_path, data), touched)


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=3000))
def test_nothing_is_made_out_of_noise(tmp_path: Path, data: bytes) -> None:
    assert salvaged(tmp_path, data) in ([], *[[b""] * n for n in range(1, 200)])


def test_many_damages_cost_only_what_they_hit(tmp_path: Path) -> None:
    records = numbered(3000, 100)
    data = bytearray(frames(records))
    places = borders(records)
    hit = set(range(50, 3000, 97))
    for i in hit:
        start, _ = places[i]
        data[start + 12 + i % 80] ^= 255  # in the data
    headers = set(range(20, 3000, 301)) - hit
    for i in headers:
        data[places[i][0] + i % 12] ^= 255  # in the header: the data are whole, so nothing is lost
    got = salvaged(tmp_path, bytes(data))
    assert got == [record for i, record in enumerate(records) if i not in hit]


def test_a_header_is_rebuilt_and_reported(tmp_path: Path) -> None:
    records = numbered(5)
    data = bytearray(frames(records))
    data[borders(records)[2][0] + 1] ^= 8
    (tmp_path / "in.tfrecord").write_bytes(data)
    result = salvage_file(tmp_path / "in.tfrecord", tmp_path / "out.tfrecord")
    assert (tmp_path / "out.tfrecord").read_bytes() == frames(records)
    assert (result.records_kept, result.records_lost_at_least, result.bytes_lost) == (5, 0, 0)
    assert [(p.record, p.offset) for p in result.problems] == [(2, borders(records)[2][0])]
    assert "kept" in result.problems[0].reason


def test_counts_of_what_was_lost(tmp_path: Path) -> None:
    records = numbered(10)
    data = bytearray(frames(records))
    start, stop = borders(records)[4]
    data[start + 20] ^= 1
    (tmp_path / "in.tfrecord").write_bytes(data)
    result = salvage_file(tmp_path / "in.tfrecord", tmp_path / "out.tfrecord")
    assert (result.records_kept, result.records_lost_at_least, result.bytes_lost) == (9, 1, stop - start)
    assert result.as_dict()["problems"] == [{"offset": start, "record": 4, "reason": "bad data CRC"}]


def test_the_damaged_file_is_never_touched(tmp_path: Path) -> None:
    path = tmp_path / "in.tfrecord"
    path.write_bytes(frames(numbered(4))[:-1])
    before = path.read_bytes(), path.stat().st_mtime_ns
    salvage_file(path, tmp_path / "out.tfrecord")
    for out in (path, tmp_path / "." / "in.tfrecord"):
        with pytest.raises(WriteError, match="another"):
            salvage_file(path, out, overwrite=True)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_packed_files_give_what_can_be_unpacked(pack: object, damage: str, tmp_path: Path) -> None:
    rng = random.Random(1)
    records = [rng.randbytes(500) for _ in range(400)]  # stored blocks: what is before the damage can be had
    packed = bytearray(pack(frames(records)))  # type: ignore[operator]
    half = len(packed) // 2
    if damage == "cut":
        del packed[half:]
    else:
        packed[half] ^= 16
    (tmp_path / "in.tfrecord").write_bytes(packed)
    result = salvage_file(tmp_path / "in.tfrecord", tmp_path / "out.tfrecord")
    with TFRecordReader(tmp_path / "out.tfrecord") as reader:
        got = list(reader.records())
    assert got == [record for record in records if record in got]
    assert 180 <= len(got) < 400
    assert result.records_lost_at_least >= 1


def test_a_file_made_of_headers_ends_in_bounded_time(tmp_path: Path) -> None:
    # Every 12 bytes a good header that claims all the rest: a naive search is quadratic.
    size = 3 << 20
    headers = b"".join(codec.frame(b"")[:0] + header(size - 12 * i - 16) for i in range(size // 12))
    assert salvaged(tmp_path, b"garbage" + headers) == []


def header(length: int) -> bytes:
    length = max(length, 0)
    raw = length.to_bytes(8, "little")
    crc = codec.crc32c(raw)
    return raw + (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


@pytest.mark.parametrize("inside", ["cut", "bad header", "padded to a sector"])
@pytest.mark.parametrize("damage", ["flip", "zero", "noise"])
def test_a_record_that_holds_a_damaged_tfrecord(tmp_path: Path, inside: str, damage: str) -> None:
    """Its frames break off in every way; but its own data are whole, and prove themselves."""
    inner = frames([b"INNER%d" % i for i in range(3)])
    if inside == "cut":
        inner += codec.frame(b"q" * 100_000)[:40]
    elif inside == "bad header":
        inner += b"\1" + codec.frame(b"more")[1:] + codec.frame(b"last")
    else:
        inner += bytes(1024)
    records = [*numbered(5), inner, *numbered(10)[5:]]
    whole = bytearray(frames(records))
    at = borders(records)[5][0]
    if damage == "flip":
        whole[at + 9] ^= 4
    else:
        whole[at : at + 12] = bytes(12) if damage == "zero" else b"noise noise!"
    assert salvaged(tmp_path, bytes(whole)) == records


@pytest.mark.parametrize("length", [376, 35615, 40056])
def test_a_damaged_first_header_that_looks_packed(tmp_path: Path, length: int) -> None:
    records = [b"a" * length, *numbered(20)]
    data = bytearray(frames(records))
    data[9] ^= 1
    assert salvaged(tmp_path, bytes(data)) == records
    with pytest.raises(CorruptError, match="length"), TFRecordReader(tmp_path / "damaged.tfrecord") as reader:
        list(reader)


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_what_stands_behind_packed_data_costs_none_of_them(tmp_path: Path, pack: Any) -> None:
    assert salvaged(tmp_path, pack(frames(numbered(20))) + b"garbage") == numbered(20)


def test_a_file_of_nothing_but_damage_ends_soon(tmp_path: Path) -> None:
    data = bytearray(frames([b"x" * 300] * 4000))
    for i in range(4000):
        data[316 * i + 20] ^= 1
    assert salvaged(tmp_path, bytes(data)) == []


def test_nothing_is_invented_behind_the_damage_of_a_packed_file(tmp_path: Path) -> None:
    """Bytes behind it can unpack to copies of records that came before, with good CRCs."""
    path, rescued = tmp_path / "packed.tfrecord.gz", tmp_path / "rescued.tfrecord"
    schema = {"id": hold.Int64(), "x": hold.Float32(30)}
    columns = {"id": np.arange(200), "x": np.random.default_rng(1).random((200, 30), np.float32)}
    with hold.TFRecordWriter(path, schema) as writer:
        writer.extend(columns)
    packed = path.read_bytes()
    path.write_bytes(packed[: len(packed) // 2] + b"\xff" * 1000)
    salvage_file(path, rescued)
    with hold.TFRecordReader(rescued) as reader:
        ids = [i for batch in reader.batches(schema, 64) for i in batch["id"].tolist()]
    assert ids == list(range(len(ids)))
    assert 90 <= len(ids) <= 100


@pytest.mark.parametrize("last", [b"", b"a", b"12345678", b"the last record " * 9], ids=len)
def test_the_last_record_with_a_damaged_header(tmp_path: Path, last: bytes) -> None:
    """Its data end exactly at the end of the file, and nothing follows that would show where."""
    records = [*numbered(3), last]
    whole = frames(records)
    at = borders(records)[-1][0]
    for place in range(at, at + 12):
        damaged = bytearray(whole)
        damaged[place] ^= 0x41
        assert salvaged(tmp_path, bytes(damaged)) == records, place - at
        damaged[borders(records)[-2][0]] ^= 0x41  # that of the record before as well
        assert salvaged(tmp_path, bytes(damaged)) == records, place - at
    wiped = salvaged(tmp_path, whole[:at] + b"\xff" * 12 + whole[at + 12 :])
    assert wiped == (records[:3] if len(last) == 8 else records)  # eight bytes and their CRC may be a header
