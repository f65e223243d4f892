"""The demo's steps. A new capability adds a function to STEPS: it does its work on the stage, and tells the outcome."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np

from .._base.units import format_bytes
from .._native import codec
from ..formats.columns import BytesColumn, RaggedColumn
from ..formats.tfrecord.index import build_index
from ..formats.tfrecord.infer import infer_schema
from ..formats.tfrecord.manifest import MANIFEST_NAME, read_manifest, write_manifest
from ..formats.tfrecord.reader import TFRecordReader
from ..formats.tfrecord.salvage import salvage_file
from ..formats.tfrecord.source import open_source
from ..formats.tfrecord.verify import verify_file
from ..formats.tfrecord.writer import TFRecordWriter
from ..schema import Bytes, Column, Float32, Int64, Ragged, as_code
from .demo_look import look
from .demo_stage import Damage, MemoryMeter, Outcome, Stage, open_descriptors, rate
from .demo_train import train

SHARDS = 4
RECORDS = 50_000 if codec.NATIVE else 6_000  # pure Python is far slower
BATCH = 256
PAGE = 4096

SCHEMA: dict[str, Column] = {"image": Bytes(), "label": Int64(), "embedding": Float32(16), "boxes": Ragged(Float32(4))}


def make(stage: Stage, out: Outcome) -> None:
    """Shards of Examples, each appearing whole, and a manifest."""
    folder = stage.folder / "data"
    folder.mkdir()
    rng = np.random.default_rng(7)
    seen_early, seconds = False, 0.0
    stage.labels = rng.integers(0, 1000, RECORDS)
    for shard, labels in enumerate(np.array_split(stage.labels, SHARDS)):
        path = folder / f"train-{shard:05d}.tfrecord"
        columns = {"label": labels, **_columns(rng, len(labels))}
        since = time.perf_counter()
        with TFRecordWriter(path, SCHEMA) as writer:
            writer.extend(columns)
            seen_early |= path.exists()
        seconds += time.perf_counter() - since
        assert writer.entry is not None
        stage.entries.append(writer.entry)
    write_manifest(folder, stage.entries)
    shutil.copytree(folder, stage.folder / "originals")

    size = sum(entry.bytes for entry in stage.entries)
    out.facts = {"records": RECORDS, "bytes": size, "bytes_per_second": round(rate(size, seconds))}
    out.say(f"{SHARDS} files of tf.train.Example: bytes, an integer, 16 floats, ragged boxes.\n")
    rows = [(Path(e.path).name, f"{e.records:,}", format_bytes(e.bytes), f"{e.crc32c:08x}") for e in stage.entries]
    out.table(["file", ">records", ">size", "crc32c"], rows)
    out.say(f"\n{RECORDS:,} records from columns to disk, fsync included: {_rates(RECORDS, size, seconds)}")
    out.check("no file was visible before it was whole", not seen_early)
    listed = read_manifest(folder / MANIFEST_NAME).entries
    out.check(f"{MANIFEST_NAME} keeps their counts and checksums", len(listed) == SHARDS)


def _columns(rng: np.random.Generator, rows: int) -> dict[str, object]:
    sizes = rng.integers(200, 900, rows)
    ends = np.concatenate(([0], np.cumsum(sizes)))
    boxes = np.concatenate(([0], np.cumsum(rng.integers(0, 5, rows))))
    return {
        "image": BytesColumn(rng.integers(0, 256, int(ends[-1]), dtype=np.uint8), ends),
        "embedding": rng.random((rows, 16), dtype=np.float32),
        "boxes": RaggedColumn(rng.random((int(boxes[-1]), 4), dtype=np.float32), boxes),
    }


def _rates(records: int, size: int, seconds: float) -> str:
    return f"{rate(records, seconds):,.0f}/s, {format_bytes(int(rate(size, seconds)))}/s"


def damage(stage: Stage, out: Outcome) -> None:
    """Three files in three ways; the first stays as it is."""
    flipped, zeroed, cut = 1, 2, 3
    offsets = {shard: _offsets(stage.shard(shard)) for shard in (flipped, zeroed, cut)}

    record = len(offsets[flipped]) // 3
    place = int(offsets[flipped][record]) + 100
    with open(stage.shard(flipped), "r+b") as file:
        byte = os.pread(file.fileno(), 1, place)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 0b101]), place)
    stage.damages.append(Damage(flipped, "two bits flipped", place, range(record, record + 1)))

    place = int(offsets[zeroed][-1]) // 2 // PAGE * PAGE
    with open(stage.shard(zeroed), "r+b") as file:
        os.pwrite(file.fileno(), bytes(PAGE), place)
    stage.damages.append(Damage(zeroed, "a 4 KiB page zeroed", place, _hit(offsets[zeroed], place, place + PAGE)))

    record = len(offsets[cut]) * 9 // 10
    place = (int(offsets[cut][record]) + int(offsets[cut][record + 1])) // 2
    os.truncate(stage.shard(cut), place)
    stage.damages.append(Damage(cut, "cut inside a record", place, range(record, len(offsets[cut]) - 1)))

    lost = sum(len(done.lost) for done in stage.damages)
    out.facts = {"damaged_files": len(stage.damages), "records_hit": lost}
    out.say("Silent damage, as disks and broken copies make it. Nothing reports it by itself.\n")
    rows = [(stage.shard(d.shard).name, d.done, f"{d.offset:,}", f"{len(d.lost):,}") for d in stage.damages]
    out.table(["file", "what was done", ">at byte", ">records gone"], rows)
    sizes = [os.path.getsize(stage.shard(shard)) for shard in range(SHARDS)]
    out.check("the first file was left alone", sizes[0] == stage.entries[0].bytes)
    out.check("two of the damaged files still have their size", sizes[1:3] == [e.bytes for e in stage.entries[1:3]])


def _offsets(path: Path) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    with open_source(path) as source:
        return build_index(source)


def _hit(offsets: np.ndarray[tuple[int], np.dtype[np.int64]], start: int, stop: int) -> range:
    """Records of which data, or their CRC, lie in these bytes. One whose header alone does can be repaired."""
    first = int(np.searchsorted(offsets, start, side="right")) - 1
    last = int(np.searchsorted(offsets + codec.HEADER_BYTES, stop, side="left")) - 1
    return range(first, last + 1)


def verify(stage: Stage, out: Outcome) -> None:
    """Finds all of it."""
    since = time.perf_counter()
    reports = [verify_file(stage.shard(shard)) for shard in range(SHARDS)]
    seconds = time.perf_counter() - since
    size = sum(report.bytes for report in reports)
    rows = [
        (Path(report.path).name, f"{p.record:,}", f"{p.offset:,}", p.reason)
        for report in reports
        for p in report.problems
        if p.record is not None
    ]
    out.facts = {"damaged_files": sum(not report.ok for report in reports), "problems": len(rows)}
    out.table(["file", ">record", ">at byte", "what is wrong"], rows)
    out.say(f"\n{format_bytes(size)} with every CRC checked: {format_bytes(int(rate(size, seconds)))}/s")
    out.check("the first file is whole", reports[0].ok)
    found = {shard: reports[shard].problems[0].record for shard in range(1, SHARDS) if reports[shard].problems}
    first_lost = {done.shard: done.lost[0] for done in stage.damages}
    out.check("every damage was found, at the record it was done to", found == first_lost)


def salvage(stage: Stage, out: Outcome) -> None:
    """Gets back every intact record, and compares with what was written."""
    folder = stage.folder / "salvaged"
    folder.mkdir()
    rows, kept, lost, same = [], 0, 0, True
    for done in stage.damages:
        target = stage.salvaged[done.shard] = folder / stage.shard(done.shard).name
        result = salvage_file(stage.shard(done.shard), target)
        same &= _same_but(stage.original(done.shard), target, done.lost)
        kept += result.records_kept
        lost += len(done.lost)
        written = stage.entries[done.shard].records
        rows.append((target.name, f"{written:,}", f"{result.records_kept:,}", f"{written - result.records_kept:,}"))
    out.facts = {"records_kept": kept, "records_lost": lost}
    out.table(["file", ">written", ">kept", ">lost"], rows)
    out.check("what was kept equals what was written, byte for byte and in order", same)
    written = sum(stage.entries[done.shard].records for done in stage.damages)
    out.check(f"nothing was lost but the {lost:,} records that were hit", written - kept == lost)


def _same_but(original: Path, kept: Path, lost: range) -> bool:
    with TFRecordReader(original) as before, TFRecordReader(kept) as after:
        expected = (record for number, record in enumerate(before.records()) if number not in lost)
        return all(a == b for a, b in zip(expected, after.records(), strict=True))


def read(stage: Stage, out: Outcome) -> None:
    """All that is left, into numpy columns."""
    paths = [stage.salvaged.get(shard, stage.shard(shard)) for shard in range(SHARDS)]
    with TFRecordReader(paths[0]) as reader:
        schema = infer_schema(islice(reader.records(), 100)).schema
    rows, labels, size = 0, 0, sum(map(os.path.getsize, paths))
    before = most = open_descriptors()
    meter, since = MemoryMeter(), time.perf_counter()
    for path in paths:
        with TFRecordReader(path) as reader:
            for batch in reader.batches(schema, BATCH):
                rows += len(batch["label"])
                labels += int(batch["label"].sum())  # type: ignore[union-attr]
            most = max(most or 0, open_descriptors() or 0)
    seconds, rise = time.perf_counter() - since, meter.rise_bytes()
    after = open_descriptors()

    out.facts = {"records": rows, "bytes_per_second": round(rate(size, seconds)), "descriptors": [before, most, after]}
    out.say("The schema, found by looking at the first 100 records:\n")
    out.say("\n".join(f"    {line}" for line in f"schema = {as_code(schema)}".splitlines()))
    out.say(f"\n{rows:,} records into columns, {BATCH} a batch: {_rates(rows, size, seconds)}")
    if before is not None:
        out.say(f"open descriptors: {before} before, {most} at most, {after} after")
    if rise is not None:
        out.facts["memory_rise_bytes"] = rise
        out.say(f"memory: {f'at most {format_bytes(rise)} above the start' if rise else 'no more than before'}")
    left = np.delete(stage.labels, _all_lost(stage))
    out.check("every record that was not hit is there, with its label", (rows, labels) == (len(left), int(left.sum())))
    out.check("every descriptor was given back", before == after)


def _all_lost(stage: Stage) -> list[int]:
    """Numbers over all shards."""
    firsts = np.concatenate(([0], np.cumsum([entry.records for entry in stage.entries])))
    return [int(firsts[done.shard]) + record for done in stage.damages for record in done.lost]


STEPS: list[Callable[[Stage, Outcome], None]] = [make, damage, verify, salvage, read, train, look]
