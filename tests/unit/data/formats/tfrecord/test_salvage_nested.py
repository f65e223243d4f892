"""Records that hold TFRecords, damaged up to four times: none of the inner frames is taken for a record.

And files of all kinds, damaged once: what the damage did not touch is kept, or told to be doubtful.
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from holdfast import TFRecordReader
from holdfast._native import codec
from holdfast.data.formats.tfrecord.frame_stream import OnCorrupt
from holdfast.data.formats.tfrecord.salvage import RepairedShard, build_repair_map, salvage_file
from holdfast.data.formats.tfrecord.verify import verify_file
from holdfast.errors import DataError

pytestmark = pytest.mark.formats

HEADER, FOOTER, OVERHEAD = codec.HEADER_BYTES, codec.FOOTER_BYTES, codec.OVERHEAD_BYTES
FOREIGN = -2

DAMAGES = ("length", "length CRC", "data", "data CRC", "header", "zeros", "noise", "insert", "remove", "cut", "twice")


def frames(records: list[bytes]) -> bytes:
    return b"".join(map(codec.frame, records))


def make_data(rng: random.Random, depth: int) -> bytes:
    """The data of one record: with frames in it, of records that hold frames, if `depth` allows it."""
    own = b"%09x" % rng.getrandbits(36)  # no two records are equal
    if depth == 0 or rng.random() < 0.2:
        return own + rng.randbytes(rng.choice([0, 3, 12, 40]))
    inner = frames([make_data(rng, rng.randrange(depth)) for _ in range(rng.randrange(1, 6))])
    shape = rng.random()
    if shape < 0.15:
        inner = inner[: -rng.choice([1, 4, 4, 5, 16, 30])]  # cut when it was put in
    elif shape < 0.25:
        inner = inner[rng.choice([1, 4, 8, 12]) :]
    before = rng.choice([b"", b"", own, own * 2 + b"."])
    behind = rng.choice([b"", b"", b"", own[:4], own * 3])
    return before + inner + behind


TAILS = {cut: {codec.frame(bytes(n))[cut:HEADER]: n for n in range(2000)} for cut in (1, 4, 8)}


class File:
    """A file that gets damaged, and where each of its bytes comes from: a place in the whole file, or none of it."""

    def __init__(self, records: list[bytes]) -> None:
        self.records = records
        self.starts = [0]
        for record in records:
            self.starts.append(self.starts[-1] + len(record) + OVERHEAD)
        self.data = np.frombuffer(frames(records), np.uint8)
        self.origin = np.arange(len(self.data))
        self.changed = np.zeros(len(self.data), np.bool_)

    def put(self, at: int, stop: int, new: bytes) -> None:
        """Puts `new` in the place of [at, stop)."""
        fresh = np.frombuffer(new, np.uint8)
        came_from, changed = np.full(len(fresh), FOREIGN), np.ones(len(fresh), np.bool_)
        if len(fresh) == stop - at:
            came_from = self.origin[at:stop]
            changed = self.changed[at:stop] | (self.data[at:stop] != fresh)
        self.data = np.concatenate([self.data[:at], fresh, self.data[stop:]])
        self.origin = np.concatenate([self.origin[:at], came_from, self.origin[stop:]])
        self.changed = np.concatenate([self.changed[:at], changed, self.changed[stop:]])

    def twice(self, at: int, stop: int) -> None:
        self.data = np.concatenate([self.data[:stop], self.data[at:]])
        self.origin = np.concatenate([self.origin[:stop], self.origin[at:]])
        self.changed = np.concatenate([self.changed[:stop], self.changed[at:]])

    def joined(self) -> bool:
        """Whether bytes that were taken out or came twice by chance put frames in step that were not.

        An inner frame behind a record or before the file's end, or where a record ends by its header; or the beginning
        of one header before the rest of another: such bytes are those of another file with other damages, and nobody
        can tell the two (`test_two_files_with_the_same_bytes`).
        """
        whole, at = frames(self.records), -1
        true = set(self.starts)
        begins, ends = set(true), set(true)
        while (at := codec.find_header(whole, at + 1, len(whole))) >= 0:
            begins.add(at)
            ends.add(at + OVERHEAD + int.from_bytes(whole[at : at + 8], "little"))
        for at in range(len(whole)):  # frames whose first bytes were cut off when they were put in
            for cut, lengths in TAILS.items():
                if (length := lengths.get(whole[at : at + HEADER - cut])) is not None:
                    begins.add(at - cut)
                    ends.add(at - cut + OVERHEAD + length)
        for start, stop in pairwise(self.starts):  # and those that were put in without their header
            end, _ = codec.find_end(whole, start + HEADER, stop - 1, 0)
            ends.update([end + FOOTER] if end >= 0 else [])
        inner = begins - true
        places = {origin: place for place, origin in enumerate(self.origin.tolist())}
        for start, stop in pairwise(self.starts):
            end = places.get(start, len(whole)) + stop - start
            if end < len(self.origin) and self.origin[end] in inner:
                return True
        before = [0, *(self.origin + 1).tolist()]  # where what stands before each place ended
        behind = [*self.origin.tolist(), len(whole)]
        seams = [(a, b) for a, b in zip(before, behind, strict=True) if a != b and not (a in true and b in true)]
        return any(
            any((a - k in ends or (k and a - k in begins)) and b - k in begins for k in range(HEADER)) for a, b in seams
        )

    def intact(self) -> list[bytes]:
        """The records that no damage touched."""
        found = []
        for record, start, stop in zip(self.records, self.starts, self.starts[1:], strict=False):
            places = np.flatnonzero(self.origin == start)
            spans = (slice(p, p + stop - start) for p in places)
            if any(np.array_equal(self.origin[s], np.arange(start, stop)) and not self.changed[s].any() for s in spans):
                found.append(record)
        return found


def damage(rng: random.Random, file: File, target: int) -> str:
    """One damage, mostly to the record `target`; what it was."""
    kind = rng.choice(DAMAGES)
    if rng.random() < 0.3:
        target = rng.randrange(len(file.records))
    # Where the record is now, if its first byte is still there: or anywhere.
    places = np.flatnonzero(file.origin == file.starts[target])
    size = len(file.records[target]) + OVERHEAD
    start = int(places[0]) if len(places) else rng.randrange(len(file.data))
    anywhere = start + rng.randrange(size)
    some = rng.choice([1, 4, 12, rng.randrange(1, 30), rng.randrange(1, 200)])
    parts = {"length": (0, 8), "length CRC": (8, 12), "data": (12, max(size - 4, 13)), "data CRC": (size - 4, size)}
    if kind in parts:
        low, high = parts[kind]
        at = min(start + rng.randrange(low, high), len(file.data) - 1)
        file.put(at, at + 1, bytes([file.data[at] ^ rng.randrange(1, 256)]))
    elif kind == "header":
        at = min(start, len(file.data))
        file.put(at, min(at + HEADER, len(file.data)), rng.randbytes(min(HEADER, len(file.data) - at)))
    else:
        at = min(rng.choice([start, anywhere, anywhere]), len(file.data) - 1)
        stop = min(at + some, len(file.data))
        if kind == "zeros":
            file.put(at, stop, bytes(stop - at))
        elif kind == "noise":
            file.put(at, stop, rng.randbytes(stop - at))
        elif kind == "insert":
            file.put(at, at, rng.randbytes(some))
        elif kind == "remove" and len(file.data) > some:
            file.put(at, stop, b"")
        elif kind == "cut" and at > 0:
            file.put(at, len(file.data), b"")
        elif kind == "twice":
            file.twice(at, stop)
        return f"{kind} {at}-{stop}"
    return f"{kind} {at}"


class Case(NamedTuple):
    file: File
    damages: list[str]


def make_case(seed: int, depth: int = 3) -> Case:
    rng = random.Random(seed)
    records = [make_data(rng, rng.choice([0, 0, depth])) for _ in range(rng.randrange(1, 12))]
    target = rng.randrange(len(records))
    records[target] = make_data(rng, depth)
    file = File(records)
    return Case(file, [damage(rng, file, target) for _ in range(rng.randrange(1, 5))])


def told(got: list[bytes], records: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """What was got and is no record; and what came twice or out of order."""
    numbers = {record: i for i, record in enumerate(records)}
    invented = [record for record in got if record not in numbers]
    last, again = -1, []
    for record in got:
        if record in numbers:
            if numbers[record] <= last:
                again.append(record)
            last = max(last, numbers[record])
    return invented, again


def read(path: Path, on_corrupt: OnCorrupt) -> list[bytes]:
    with TFRecordReader(path, on_corrupt=on_corrupt) as reader:
        return list(reader.records())


def around_damage(path: Path) -> list[bytes]:
    """What hold.read(on_corrupt="salvage") reads of the file."""
    try:
        layout = build_repair_map(path, salvage=True)
    except DataError:
        return []
    with RepairedShard(path, layout) as shard:
        column = shard.frames(0, len(shard))
        return [bytes(column[i])[HEADER:-FOOTER] for i in range(len(shard))]


@pytest.mark.parametrize("depth", [1, 3])
def test_nothing_is_invented_and_little_is_lost(tmp_path: Path, depth: int) -> None:
    path = tmp_path / "damaged.tfrecord"
    intact = kept = joined = 0
    for seed in range(150):
        file, damages = make_case(seed, depth)
        if file.joined():
            joined += 1
            continue
        path.write_bytes(file.data.tobytes())
        got = read(path, "salvage")
        for records in (got, read(path, "skip")):
            assert told(records, file.records)[0] == [], f"seed {seed}: {damages}"
        assert around_damage(path) == got, f"seed {seed}: {damages}"
        assert verify_file(path).records == len(got)
        untouched = set(file.intact())
        intact += len(untouched)
        kept += len(untouched.intersection(got))
        if len(damages) == 1:
            assert untouched <= set(got), f"seed {seed}: {damages}"
    assert kept > 0.88 * intact
    assert joined < 5


def test_two_files_with_the_same_bytes(tmp_path: Path) -> None:
    """Why nothing can be promised for what `File.joined` tells: the records of both files cannot be right.

    The first has a destroyed header, and the records behind it are to be kept. The second has the same, in a record
    that holds frames, and was cut right behind one of them.
    """
    plain = frames([b"first", b"second"]) + b"noise noise!" + codec.frame(b"lost" * 4)[HEADER:] + frames(INNER)
    nested = frames([b"first", b"second"]) + codec.frame(codec.frame(b"lost" * 4)[HEADER:] + frames(INNER) + b"more")
    at = len(frames([b"first", b"second"]))
    damaged = nested[:at] + b"noise noise!" + nested[at + HEADER : -FOOTER - len(b"more")]
    assert plain == damaged
    path = tmp_path / "x.tfrecord"
    path.write_bytes(plain)
    assert read(path, "salvage")[-len(INNER) :] == INNER


def test_a_frame_that_was_cut_when_it_was_put_in_is_no_record_that_the_file_cuts(tmp_path: Path) -> None:
    """By its header it ends behind the end of the file, but it lies in the data of one whole record."""
    file, damages = make_case(20082424)
    assert damages == ["header 0"]
    path = tmp_path / "x.tfrecord"
    path.write_bytes(file.data.tobytes())
    assert read(path, "salvage") == file.records


@pytest.mark.parametrize(("seed", "depth"), [(1011823, 3), (1068775, 1)])
def test_a_header_that_leads_past_the_end_of_the_record_it_lies_in(tmp_path: Path, seed: int, depth: int) -> None:
    """As many bytes are missing from a record as the next one's header has: it seems to end where a frame begins."""
    path = tmp_path / "x.tfrecord"
    path.write_bytes(make_case(seed, depth).file.data.tobytes())
    assert told(read(path, "salvage"), make_case(seed, depth).file.records)[0] == []


# ---- one by one

INNER = [b"inner %02d" % i for i in range(5)]
OUTER = [b"first", b"before " + frames(INNER), b"third", b"the last"]


def damaged(path: Path, *changes: tuple[int, bytes]) -> Path:
    """OUTER with bytes overwritten."""
    data = bytearray(frames(OUTER))
    for at, new in changes:
        data[at : at + len(new)] = new
    path.write_bytes(data)
    return path


AT = len(codec.frame(OUTER[0]))  # where the record with frames in it begins
BYTE = AT + HEADER + 7 + 3 * len(codec.frame(INNER[0])) + HEADER + 2  # in the data of its fourth frame


@pytest.mark.parametrize("header", [b"\xff", b"", b"\0" * 12, b"noise noise!"])
def test_a_damaged_length_and_a_byte_of_the_data(tmp_path: Path, header: bytes) -> None:
    """The inner frames before and behind that byte are good, and so is the header of the one it is in."""
    path = damaged(tmp_path / "x.tfrecord", (AT, header), (BYTE, b"?"))
    assert read(path, "salvage") == [OUTER[0], *OUTER[2:]]


@pytest.mark.parametrize("header", [b"\0" * 12, b"noise noise!"])
def test_what_might_be_data_is_reported(tmp_path: Path, header: bytes) -> None:
    path = damaged(tmp_path / "x.tfrecord", (AT, header), (BYTE, b"?"))
    [problem] = verify_file(path).problems
    first, size = AT + HEADER + 7, len(codec.frame(INNER[0]))
    said = f"bad length CRC; 4 records in bytes {first}–{first + 5 * size} might be data of a corrupt record: left out"
    assert (problem.reason, problem.records_doubtful) == (said, 4)
    salvage_file(path, tmp_path / "out.tfrecord", keep_doubtful=True)
    assert read(tmp_path / "out.tfrecord", "raise") == [OUTER[0], *INNER[:3], INNER[4], *OUTER[2:]]


def test_a_header_is_put_right_for_its_length_even_if_the_data_are_bad(tmp_path: Path) -> None:
    """Nothing behind the damage reaches the end of the file, but where the record ends is known."""
    end = len(frames(OUTER))
    path = damaged(tmp_path / "x.tfrecord", (AT + 1, b"\7"), (BYTE, b"?"), (end - 24, b"\7" * 24))
    assert read(path, "salvage") == [OUTER[0], OUTER[2]]


def test_records_that_were_written_twice_come_once(tmp_path: Path) -> None:
    """A write that was broken off within a record, and then repeated from within an earlier one."""
    records = [b"%d " % i * (20 + 7 * i) for i in range(9)]
    whole, starts = frames(records), File(records).starts
    path = tmp_path / "x.tfrecord"
    for stop in range(starts[6] + 1, starts[7]):
        path.write_bytes(whole[:stop] + whole[starts[3] - 5 :])
        assert read(path, "salvage") == records
    [problem] = verify_file(path).problems
    assert "the records before it were written a second time: left out" in problem.reason


def test_equal_records_are_kept(tmp_path: Path) -> None:
    data = bytearray(frames([b"the same"] * 9))
    data[5 * 24 + 15] ^= 1
    path = tmp_path / "x.tfrecord"
    path.write_bytes(data)
    assert read(path, "salvage") == [b"the same"] * 8


@pytest.mark.parametrize("damage", [b"\1", b"\1\1", b"\0" * 12], ids=["a byte", "two bytes", "zeros"])
def test_frames_in_a_record_that_is_cut_are_data(tmp_path: Path, damage: bytes) -> None:
    """They reach the end of the file, but behind a good header that says that they are data."""
    records = [b"first", bytes(range(40)), frames(INNER)]
    at = len(codec.frame(records[0]))
    data = bytearray(frames(records)[:-FOOTER])
    data[at : at + len(damage)] = damage
    path = tmp_path / "x.tfrecord"
    path.write_bytes(data)
    for how in ("skip", "salvage"):
        assert set(read(path, how)) <= set(records)
    assert sum(problem.records_doubtful for problem in verify_file(path).problems) == len(INNER)


# ---- one damage

HEADERS = b"".join(codec.frame(bytes(length))[:HEADER] for length in range(60, 300, 20))


def make_varied(rng: random.Random, depth: int) -> bytes:
    """The data of one record: of any size, equal to others, or made of frames or of their headers."""
    shape = rng.random()
    if shape < 0.5:
        return rng.randbytes(rng.randrange(300) if shape > 0.1 else 0)
    if shape < 0.6 or not depth:
        return rng.choice([b"the same record", bytes(rng.randrange(300)), frames([b""] * rng.randrange(1, 9))])
    if shape < 0.65:
        return HEADERS[HEADER * rng.randrange(9) :]
    inner = frames([make_varied(rng, depth - 1) for _ in range(rng.randrange(1, 5))])
    return inner if rng.random() < 0.8 else inner[: -rng.randrange(1, 20)]


def damage_once(rng: random.Random, file: File) -> str:
    kind = rng.choice(["length", "length CRC", "data", "data CRC", "first", "last", "cut", "start", "insert", "remove"])
    target, size = rng.choice([0, -1, rng.randrange(len(file.records))]), len(file.data)
    start, stop = file.starts[:-1][target], file.starts[1:][target]
    parts = {"length": (0, 8), "length CRC": (8, 12), "data": (12, max(stop - start - 4, 13)), "data CRC": (-4, 0)}
    if kind in parts:
        at = rng.randrange(*parts[kind]) + (stop if kind == "data CRC" else start)
    else:
        anywhere = rng.randrange(size)
        at = {"first": 0, "last": size - 1}.get(kind, rng.choice([0, size - 1, start, rng.randrange(start, stop)]))
        at = anywhere if kind in ("cut", "start") else at
    some = rng.choice([1, rng.randrange(1, 40)])
    changes = {
        "cut": (at, size, b""),
        "start": (0, at, b""),
        "insert": (at, at, rng.randbytes(some)),
        "remove": (at, min(at + some, size), b""),
    }
    file.put(*changes.get(kind, (at, at + 1, bytes([file.data[at] ^ rng.randrange(1, 256)]))))
    return f"{kind} {at}"


def make_single(seed: int) -> Case:
    rng = random.Random(seed)
    depth, count = rng.choice([0, 2]), rng.randrange(1, 14)
    few = [make_varied(rng, depth) for _ in range(2)]
    file = File(rng.choices(few, [3, 1], k=count) if seed % 4 == 0 else [make_varied(rng, depth) for _ in range(count)])
    return Case(file, [damage_once(rng, file)])


def test_one_damage_costs_only_what_it_touches(tmp_path: Path) -> None:
    """Or what it does not touch is told as doubtful, with the reason, and kept if asked for."""
    path, out = tmp_path / "damaged.tfrecord", tmp_path / "out.tfrecord"
    doubtful = joined = 0
    for seed in range(1000):
        file, damages = make_single(seed)
        path.write_bytes(file.data.tobytes())
        got, untouched = Counter(read(path, "salvage")), Counter(file.intact())
        if untouched == got:
            continue
        if file.joined():
            joined += 1
            continue
        assert got <= Counter(file.records), f"seed {seed}: {damages}"
        if untouched <= got:
            continue
        doubtful += 1
        found = salvage_file(path, out, keep_doubtful=True, overwrite=True)
        assert untouched <= Counter(read(out, "raise")), f"seed {seed}: {damages}"
        assert sum((untouched - got).values()) <= found.records_doubtful
        reason = verify_file(path).problems[0].reason
        assert "leads past the end of the file" in reason or "truncated: " in reason, f"seed {seed}: {reason}"
    assert doubtful <= 10
    assert joined <= 10


def test_a_byte_inserted_between_equal_records_is_no_repeated_write(tmp_path: Path) -> None:
    """By chance it is the first byte of a record that follows."""
    records = [b"first", b"", b"", b"x" * 173]
    at = File(records).starts[2]
    path = tmp_path / "x.tfrecord"
    path.write_bytes(frames(records)[:at] + bytes([173]) + frames(records)[at:])
    assert read(path, "salvage") == records


def test_bytes_missing_between_equal_records_are_no_repeated_write(tmp_path: Path) -> None:
    records = [b"one" * 9, b"one" * 9, b"two" * 30] * 4
    whole, starts = frames(records), File(records).starts
    path = tmp_path / "x.tfrecord"
    for at in range(starts[6], starts[7]):
        path.write_bytes(whole[:at] + whole[at + 1 :])
        assert len(read(path, "salvage")) >= len(records) - 1


def test_one_wrong_byte_in_a_record_of_headers_costs_that_record(tmp_path: Path) -> None:
    """One header leads to the third record, others past the file's end: but the CRC shows where the record ends."""
    third = 2 * OVERHEAD + HEADER + len(HEADERS) + len(b"second")
    records = [codec.frame(bytes(third - HEADER - OVERHEAD))[:HEADER] + HEADERS, b"second", b"third"]
    path = tmp_path / "x.tfrecord"
    for at in range(2 * HEADER, HEADER + len(records[0])):
        data = bytearray(frames(records))
        data[at] ^= 8
        path.write_bytes(data)
        assert read(path, "salvage") == records[1:]
