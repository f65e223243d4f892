"""The main job end to end, on data it makes, in under a minute.

Makes a small dataset, damages it in three ways, finds every damage, gets all
intact records back, and reads them into numpy columns; then finds the worker
of two that leaks, and the variable that holds what it leaked. Each step checks
what it shows. Works in a temporary folder that is gone afterwards; needs about
200 MB there.

Example:

  holdfast demo
  holdfast demo --keep /tmp/demo && holdfast verify /tmp/demo/data

With --json:

  {"ok": true, "steps": [{"name": "make", "ok": true, "seconds": 0.41,
   "facts": {"records": 50000}}]}

Exit codes: 0 every step did what it should; 1 one did not; 3 the folder cannot
be written.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import click
import numpy as np

from .._native import codec
from .._util.process import child_environment
from .._util.text import counted, format_bytes, printable
from ..doctor.model import Verdict
from ..doctor.observe import Examination, diagnose
from ..errors import TargetExistsError, WriteError
from ..formats.columns import BytesColumn, RaggedColumn
from ..formats.tfrecord.index import build_index
from ..formats.tfrecord.manifest import MANIFEST_NAME, FileEntry, read_manifest, write_manifest
from ..formats.tfrecord.reader import TFRecordReader
from ..formats.tfrecord.salvage import salvage_file
from ..formats.tfrecord.schema_inference import infer_schema
from ..formats.tfrecord.source import open_source
from ..formats.tfrecord.verify import verify_file
from ..formats.tfrecord.writer import TFRecordWriter
from ..loader.dataset import read
from ..schema import Bytes, Column, Float32, Int64, Ragged, as_code
from .app import FINE, FOUND, command
from .console import Screen


@dataclass
class Damage:
    shard: int
    done: str  # as a person would say it
    offset: int  # in the file
    lost: range  # the records that cannot be got back


@dataclass
class DemoStage:
    folder: Path
    entries: list[FileEntry] = field(default_factory=list)  # of the shards, as they were written
    labels: Any = None  # of all records, for comparison
    damages: list[Damage] = field(default_factory=list)
    salvaged: dict[int, Path] = field(default_factory=dict)  # by shard

    def shard(self, number: int) -> Path:
        return Path(self.entries[number].path)

    def original(self, number: int) -> Path:
        return self.folder / "originals" / self.shard(number).name

    def damage_of(self, number: int) -> Damage | None:
        return next((damage for damage in self.damages if damage.shard == number), None)


@dataclass
class StepResult:
    """What a step says and found out. `checks` hold what must be so."""

    name: str
    seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    checks: dict[str, bool] = field(default_factory=dict)
    parts: list[str | tuple[list[str], Sequence[Sequence[str]]]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(self.checks.values())

    def say(self, line: str) -> None:
        self.parts.append(line)

    def table(self, heads: list[str], rows: Sequence[Sequence[str]]) -> None:
        self.parts.append((heads, rows))

    def check(self, what: str, ok: bool) -> None:
        self.checks[what] = bool(ok)

    def show(self, screen: Screen) -> None:
        for part in self.parts:
            if isinstance(part, str):
                screen.print(part)
            else:
                screen.table(*part)
        for what, ok in self.checks.items():
            screen.print(screen.styled("✓ " if ok else "✗ ", "bold green" if ok else "bold red"), what)
        screen.print()

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "ok": self.ok, "seconds": round(self.seconds, 3), "facts": self.facts}


def rate(n: int, seconds: float) -> float:
    return n / max(seconds, 1e-9)


def open_descriptors() -> int | None:
    """Of this process; None where there is no /proc."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # the listing's own
    except OSError:
        return None


class MemoryMeter:
    """How far memory rose above where it was. Linux: the kernel's high-water mark can be set back there."""

    def __init__(self) -> None:
        try:
            Path("/proc/self/clear_refs").write_text("5")
            self._start = self._read("VmRSS")
        except OSError:
            self._start = None

    def rise_bytes(self) -> int | None:
        if self._start is None:
            return None
        peak = self._read("VmHWM")
        return None if peak is None else max(peak - self._start, 0)

    @staticmethod
    def _read(name: str) -> int | None:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
        return None


# The demo's last step: a worker that leaks, and a look at it from outside.

_WATCH_S = 2.0

# What a loader that is never closed does: the reading ends of pipes whose writers are long gone stay in a list.
_WORKER = """\
import multiprocessing as mp, sys, time
import holdfast

kept = []

def epoch():
    reader, writer = mp.Pipe(duplex=False)
    writer.close()  # as when the process that had it ended
    if sys.argv[1] == "leak":
        kept.append(reader)
    else:
        reader.close()

with holdfast.listen():
    for _ in range(50):
        epoch()
    print("ready", flush=True)
    while True:
        epoch()
        time.sleep(0.004)
"""


def look(stage: DemoStage, out: StepResult) -> None:
    """Two workers do the same work; one of them forgets to close what it opened."""
    script = stage.folder / "worker.py"
    script.write_text(_WORKER)
    with _Worker(script, "leak") as leaking, _Worker(script, "honest") as honest:
        seen = Examination([leaking.pid], role="worker")
        seen.watch(_WATCH_S)
        [target] = seen.conclude()
        [other, *_] = diagnose(honest.pid, _WATCH_S)
    found = target.worst.diagnosis
    out.facts = {"verdict": str(found.verdict), "honest_verdict": str(other.diagnosis.verdict), "fds": found.fds}
    out.say("A worker keeps the reading ends of pipes whose writers are gone. Seen from outside:")
    growth = f"+{found.trend.per_hour:,.0f} an hour" if found.trend else "not known"
    out.table(
        ["", ""],
        [
            ("verdict", str(found.verdict)),
            ("growth", growth),
            *_wrapped("evidence", found.evidence[0]),
            *_wrapped("cause", f"looks like {found.match.cause}" if found.match else ""),
            *_wrapped("held by", target.held_by[0] if target.held_by else ""),
        ],
    )
    out.check("the leak was told from a working set", found.verdict is Verdict.LEAK)
    out.check("the variable that keeps the descriptors was named", any("'kept'" in line for line in target.held_by))
    out.check("a worker that closes what it opens was not accused", other.diagnosis.verdict is Verdict.OK)


def _wrapped(name: str, text: str) -> list[tuple[str, str]]:
    lines = textwrap.wrap(text, 60) or [""]
    return [(name, lines[0]), *(("", line) for line in lines[1:])]


class _Worker:
    """A child that is gone when the block ends, however it ends."""

    def __init__(self, script: Path, how: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(script), how], stdout=subprocess.PIPE, env=child_environment(), text=True
        )
        self.pid = self._process.pid

    def __enter__(self) -> _Worker:
        assert self._process.stdout is not None
        self._process.stdout.readline()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


# The demo's training step: two ranks that are killed in the middle of an epoch, and three that go on from there.

_BATCH = 128
_OPEN_FILES = 64
_COLUMNS = {"label": Int64(), "embedding": Float32(16)}

# One rank. It saves what it saw and where it stands, and is killed; or goes on from a state to the end.
_RANK = """\
import json, os, resource, signal, sys
import numpy as np
import holdfast as hold

paths, rank, world, batch, stop, state, out = json.loads(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
ds = hold.read(paths, {"label": hold.Int64(), "embedding": hold.Float32(16)})
ds = ds.shuffle(seed=7).shard((rank, world)).batch(batch).prefetch("16MB")
seen = []
with ds.iterate() as it:
    if state:
        it.load_state_dict(json.loads(state))
    for step, rows in enumerate(it, 1):
        seen.append(rows["embedding"][:, 0])
        if step == stop:
            np.save(out, np.concatenate(seen))
            print(json.dumps(it.state_dict()), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
np.save(out, np.concatenate([np.zeros(0, np.float32), *seen]))
"""


def train(stage: DemoStage, out: StepResult) -> None:
    """Every sample exactly once, over a kill and another number of ranks."""
    paths = [str(stage.salvaged.get(shard, stage.shard(shard))) for shard in range(len(stage.entries))]
    since = time.perf_counter()
    whole = [batch["embedding"][:, 0] for batch in read(paths, _COLUMNS).batch(1024)]
    wanted = np.sort(np.concatenate(whole))
    steps = max(1, len(wanted) // (5 * _BATCH))  # before the kill: two fifths of an epoch
    first = _run(stage, paths, world=2, stop=steps, state="")
    state = first[0][1]
    second = _run(stage, paths, world=3, stop=0, state=state)
    seen = np.concatenate([ids for ids, _ in first + second])
    seconds = time.perf_counter() - since

    rows = [(f"rank {at} of 2", "killed (SIGKILL)", f"{len(ids):,}") for at, (ids, _) in enumerate(first)]
    rows += [(f"rank {at} of 3", "went on to the end", f"{len(ids):,}") for at, (ids, _) in enumerate(second)]
    out.facts = {"samples": len(wanted), "seen": len(seen), "state_bytes": len(state), "seconds": round(seconds, 2)}
    out.say(f"Shuffled, under a limit of {_OPEN_FILES} open files. The state has {len(state)} bytes.\n")
    out.table(["process", "how it ended", ">samples"], rows)
    out.say(f"\n{len(seen):,} samples by five processes, starting them included: {rate(len(seen), seconds):,.0f}/s")
    out.check("both ranks saved the same state", json.loads(first[0][1]) == json.loads(first[1][1]))
    out.check("every sample was seen exactly once", np.array_equal(np.sort(seen), wanted))


def _run(
    stage: DemoStage, paths: list[str], *, world: int, stop: int, state: str
) -> list[tuple[np.ndarray[tuple[int], np.dtype[np.float32]], str]]:
    """What every rank saw, and the state it printed."""
    ranks = []
    try:
        for rank in range(world):
            saved = stage.folder / f"seen-{world}-{rank}.npy"
            asked = json.dumps([paths, rank, world, _BATCH, stop, state, str(saved)])
            command = [sys.executable, "-c", _RANK, asked]
            ranks.append((saved, subprocess.Popen(command, stdout=subprocess.PIPE, text=True)))
        return [_end_training(saved, process) for saved, process in ranks]
    finally:
        for _, process in ranks:
            process.kill()
            process.wait()


def _end_training(
    saved: Path, process: subprocess.Popen[str]
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float32]], str]:
    said, _ = process.communicate()
    return np.load(saved), said.strip()


# The demo's steps. A new capability adds a function to STEPS: it does its work on the stage, and tells the outcome.

SHARDS = 4
RECORDS = 50_000 if codec.NATIVE else 6_000  # pure Python is far slower
BATCH = 256
PAGE = 4096

SCHEMA: dict[str, Column] = {"image": Bytes(), "label": Int64(), "embedding": Float32(16), "boxes": Ragged(Float32(4))}


def make(stage: DemoStage, out: StepResult) -> None:
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


def damage(stage: DemoStage, out: StepResult) -> None:
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


def verify(stage: DemoStage, out: StepResult) -> None:
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


def salvage(stage: DemoStage, out: StepResult) -> None:
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


def read_step(stage: DemoStage, out: StepResult) -> None:
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


def _all_lost(stage: DemoStage) -> list[int]:
    """Numbers over all shards."""
    firsts = np.concatenate(([0], np.cumsum([entry.records for entry in stage.entries])))
    return [int(firsts[done.shard]) + record for done in stage.damages for record in done.lost]


STEPS: list[Callable[[DemoStage, StepResult], None]] = [make, damage, verify, salvage, read_step, train, look]


_WIDTH = 80


@command(__doc__)
@click.option("--keep", metavar="DIR", help="Work in this new or empty folder, and leave everything there.")
def demo(screen: Screen, keep: str | None) -> int:
    outcomes: list[StepResult] = []
    with _folder(keep) as folder:
        stage = DemoStage(folder)
        for number, step in enumerate(STEPS, 1):
            _title(screen, f"{number} of {len(STEPS)} · {step.__name__}")
            outcome = StepResult(step.__name__)
            since = time.perf_counter()
            step(stage, outcome)
            outcome.seconds = time.perf_counter() - since
            outcome.show(screen)
            outcomes.append(outcome)
    screen.document({"ok": all(one.ok for one in outcomes), "steps": [one.as_dict() for one in outcomes]})
    return _end(screen, outcomes, keep)


def _title(screen: Screen, title: str) -> None:
    if screen.talks:
        from rich.rule import Rule

        screen.print(Rule(title, align="left", style="cyan", characters="─" if screen.terminal else "-"), width=_WIDTH)


def _end(screen: Screen, outcomes: list[StepResult], keep: str | None) -> int:
    if keep is not None:
        screen.print(f"everything is in {printable(keep)}")
    wrong = [f"{one.name}: {what}" for one in outcomes for what, ok in one.checks.items() if not ok]
    if wrong:
        screen.print(screen.styled(f"demo: {counted(len(wrong), 'check')} failed", "bold red"))
        for what in wrong:
            screen.print(f"  {what}")
        return FOUND
    took = sum(one.seconds for one in outcomes)
    screen.print(screen.styled(f"demo: all {len(outcomes)} steps did what they should, in {took:.1f} s", "bold green"))
    return FINE


@contextmanager
def _folder(keep: str | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
            yield Path(folder)
        return
    try:
        os.makedirs(keep, exist_ok=True)
        if os.listdir(keep):
            raise TargetExistsError(f"{keep} is not empty; name a new folder")
    except OSError as error:
        raise WriteError(f"cannot make the folder {keep}: {error.strerror}") from error
    yield Path(keep)
