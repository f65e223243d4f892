"""Show the main features on generated data, in under a minute.

Writes a small dataset, corrupts it in three ways, locates every corruption,
salvages the intact records and reads them into numpy columns. Then it trains
on them with ranks that are killed and resumed, and diagnoses a worker that
leaks descriptors, down to the variable that holds them. Each step checks its
own result. Everything happens in a temporary directory, which needs about
200 MB and is removed at the end.

Example:

  holdfast demo
  holdfast demo --keep /tmp/demo && holdfast verify /tmp/demo/data

With --json:

  {"ok": true, "steps": [{"name": "make", "ok": true, "seconds": 0.41,
   "facts": {"records": 50000}}]}

Exit codes: 0 all checks passed; 1 a check failed; 3 the directory cannot be
written.
"""

from __future__ import annotations

import json
import os
import resource
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
from typing import Any, NamedTuple

import click
import numpy as np

from .._native import codec
from .._util.helper_process import child_environment
from .._util.text import counted, format_bytes, printable
from ..doctor.diagnose import Examination
from ..doctor.model import Verdict
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
from ..procfs.descriptors import count_own
from ..schema import Bytes, Column, Float32, Int64, Ragged, as_code
from .app import FINE, FOUND, command
from .console import Screen

_SHARDS = 4
_RECORDS = 50_000 if codec.NATIVE else 6_000  # pure Python is far slower
_SCHEMA: dict[str, Column] = {"image": Bytes(), "label": Int64(), "embedding": Float32(16), "boxes": Ragged(Float32(4))}
_WIDTH = 80


class _Corruption(NamedTuple):
    shard: int
    what: str
    offset: int
    lost: range  # the records that cannot be recovered


@dataclass
class _Dataset:
    """What the steps share: the files on disk, and what was written to them."""

    folder: Path
    entries: list[FileEntry] = field(default_factory=list)
    labels: Any = None
    corruptions: list[_Corruption] = field(default_factory=list)
    salvaged: dict[int, Path] = field(default_factory=dict)

    def shard(self, number: int) -> Path:
        return Path(self.entries[number].path)

    def readable_paths(self) -> list[Path]:
        """Returns the salvaged copy of each corrupt shard, and the other shards as they are."""
        return [self.salvaged.get(shard, self.shard(shard)) for shard in range(_SHARDS)]


@dataclass
class _Step:
    """One step: what it prints, its facts for --json, and the checks that must hold."""

    name: str
    screen: Screen
    facts: dict[str, Any] = field(default_factory=dict)
    checks: dict[str, bool] = field(default_factory=dict)
    seconds: float = 0.0

    def run(self, function: Callable[[_Dataset, _Step], None], data: _Dataset) -> None:
        started = time.perf_counter()
        function(data, self)
        self.seconds = time.perf_counter() - started
        for what, ok in self.checks.items():
            self.screen.print(self.screen.styled("✓ " if ok else "✗ ", "bold green" if ok else "bold red"), what)
        self.screen.print()

    def print(self, line: str) -> None:
        self.screen.print(line)

    def table(self, heads: list[str], rows: Sequence[Sequence[str]]) -> None:
        self.screen.table(heads, rows)

    def check(self, what: str, ok: bool) -> None:
        self.checks[what] = bool(ok)

    @property
    def ok(self) -> bool:
        return all(self.checks.values())

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "ok": self.ok, "seconds": round(self.seconds, 3), "facts": self.facts}


def _rates(records: int, size: int, seconds: float) -> str:
    return f"{records / seconds:,.0f}/s, {format_bytes(int(size / seconds))}/s"


# ---- make, corrupt, verify, salvage, read


def _make(data: _Dataset, step: _Step) -> None:
    folder = data.folder / "data"
    folder.mkdir()
    rng = np.random.default_rng(7)
    visible_early, seconds = False, 0.0
    data.labels = rng.integers(0, 1000, _RECORDS)
    for shard, labels in enumerate(np.array_split(data.labels, _SHARDS)):
        path = folder / f"train-{shard:05d}.tfrecord"
        columns = {"label": labels, **_random_columns(rng, len(labels))}
        started = time.perf_counter()
        with TFRecordWriter(path, _SCHEMA) as writer:
            writer.extend(columns)
            visible_early |= path.exists()
        seconds += time.perf_counter() - started
        assert writer.entry is not None
        data.entries.append(writer.entry)
    write_manifest(folder, data.entries)
    shutil.copytree(folder, data.folder / "originals")

    size = sum(entry.bytes for entry in data.entries)
    step.facts = {"records": _RECORDS, "bytes": size, "bytes_per_second": round(size / seconds)}
    step.print(f"{_SHARDS} files of tf.train.Example: bytes, an integer, 16 floats, ragged boxes.\n")
    rows = [(Path(e.path).name, f"{e.records:,}", format_bytes(e.bytes), f"{e.crc32c:08x}") for e in data.entries]
    step.table(["file", ">records", ">size", "crc32c"], rows)
    step.print(f"\n{_RECORDS:,} records from columns to disk, including fsync: {_rates(_RECORDS, size, seconds)}")
    step.check("no file was visible before it was complete", not visible_early)
    listed = read_manifest(folder / MANIFEST_NAME).entries
    step.check(f"{MANIFEST_NAME} lists their counts and checksums", len(listed) == _SHARDS)


def _random_columns(rng: np.random.Generator, rows: int) -> dict[str, object]:
    ends = np.concatenate(([0], np.cumsum(rng.integers(200, 900, rows))))
    boxes = np.concatenate(([0], np.cumsum(rng.integers(0, 5, rows))))
    return {
        "image": BytesColumn(rng.integers(0, 256, int(ends[-1]), dtype=np.uint8), ends),
        "embedding": rng.random((rows, 16), dtype=np.float32),
        "boxes": RaggedColumn(rng.random((int(boxes[-1]), 4), dtype=np.float32), boxes),
    }


def _damage(data: _Dataset, step: _Step) -> None:
    """Corrupts three shards in three ways; the first shard stays intact."""
    offsets = [_record_offsets(data.shard(shard)) for shard in range(_SHARDS)]

    record = len(offsets[1]) // 3
    offset = int(offsets[1][record]) + 100
    with open(data.shard(1), "r+b") as file:
        os.pwrite(file.fileno(), bytes([os.pread(file.fileno(), 1, offset)[0] ^ 0b101]), offset)
    data.corruptions.append(_Corruption(1, "two bits flipped", offset, range(record, record + 1)))

    offset = int(offsets[2][-1]) // 2 // 4096 * 4096
    with open(data.shard(2), "r+b") as file:
        os.pwrite(file.fileno(), bytes(4096), offset)
    # A record of which only the header was hit can be repaired.
    first = int(np.searchsorted(offsets[2], offset, side="right")) - 1
    stop = int(np.searchsorted(offsets[2] + codec.HEADER_BYTES, offset + 4096, side="left"))
    data.corruptions.append(_Corruption(2, "a 4 KiB page zeroed", offset, range(first, stop)))

    record = len(offsets[3]) * 9 // 10
    offset = (int(offsets[3][record]) + int(offsets[3][record + 1])) // 2
    os.truncate(data.shard(3), offset)
    data.corruptions.append(_Corruption(3, "truncated in a record", offset, range(record, len(offsets[3]) - 1)))

    step.facts = {"damaged_files": 3, "records_hit": sum(len(one.lost) for one in data.corruptions)}
    step.print("Silent corruption, as disks and broken copies cause it. Nothing reports it yet.\n")
    rows = [(data.shard(c.shard).name, c.what, f"{c.offset:,}", f"{len(c.lost):,}") for c in data.corruptions]
    step.table(["file", "what was done", ">at byte", ">records hit"], rows)
    sizes = [os.path.getsize(data.shard(shard)) for shard in range(_SHARDS)]
    step.check("the first file is unchanged", sizes[0] == data.entries[0].bytes)
    step.check("two of the corrupt files still have their size", sizes[1:3] == [e.bytes for e in data.entries[1:3]])


def _record_offsets(path: Path) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    with open_source(path) as source:
        return build_index(source)


def _verify(data: _Dataset, step: _Step) -> None:
    started = time.perf_counter()
    reports = [verify_file(data.shard(shard)) for shard in range(_SHARDS)]
    seconds = time.perf_counter() - started
    size = sum(report.bytes for report in reports)
    rows = [
        (Path(report.path).name, f"{p.record:,}", f"{p.offset:,}", p.reason)
        for report in reports
        for p in report.problems
        if p.record is not None
    ]
    step.facts = {"damaged_files": sum(not report.ok for report in reports), "problems": len(rows)}
    step.table(["file", ">record", ">at byte", "what is wrong"], rows)
    step.print(f"\n{format_bytes(size)} with every CRC checked: {format_bytes(int(size / seconds))}/s")
    step.check("the first file is intact", reports[0].ok)
    found = {shard: reports[shard].problems[0].record for shard in range(1, _SHARDS) if reports[shard].problems}
    first_lost = {one.shard: one.lost[0] for one in data.corruptions}
    step.check("every corruption was found at the right record", found == first_lost)


def _salvage(data: _Dataset, step: _Step) -> None:
    folder = data.folder / "salvaged"
    folder.mkdir()
    rows, kept, same = [], 0, True
    for one in data.corruptions:
        target = data.salvaged[one.shard] = folder / data.shard(one.shard).name
        result = salvage_file(data.shard(one.shard), target)
        same &= _is_same_without(one.lost, data.folder / "originals" / target.name, target)
        kept += result.records_kept
        written = data.entries[one.shard].records
        rows.append((target.name, f"{written:,}", f"{result.records_kept:,}", f"{written - result.records_kept:,}"))
    lost = sum(len(one.lost) for one in data.corruptions)
    written = sum(data.entries[one.shard].records for one in data.corruptions)
    step.facts = {"records_kept": kept, "records_lost": lost}
    step.table(["file", ">written", ">kept", ">lost"], rows)
    step.check("the kept records equal the written ones, byte for byte and in order", same)
    step.check(f"only the {lost:,} records that were hit are lost", written - kept == lost)


def _is_same_without(lost: range, original: Path, kept: Path) -> bool:
    with TFRecordReader(original) as before, TFRecordReader(kept) as after:
        expected = (record for number, record in enumerate(before.records()) if number not in lost)
        return all(a == b for a, b in zip(expected, after.records(), strict=True))


def _read(data: _Dataset, step: _Step) -> None:
    """Reads all remaining records into numpy columns, and measures memory and descriptors."""
    paths = data.readable_paths()
    with TFRecordReader(paths[0]) as reader:
        schema = infer_schema(islice(reader.records(), 100)).schema
    rows, labels, size = 0, 0, sum(map(os.path.getsize, paths))
    fds_before = fds_peak = count_own()
    memory_before, started = _peak_memory_bytes(), time.perf_counter()
    for path in paths:
        with TFRecordReader(path) as reader:
            for batch in reader.batches(schema, 256):
                rows += len(batch["label"])
                labels += int(batch["label"].sum())  # type: ignore[union-attr]
            fds_peak = max(fds_peak, count_own())
    seconds = time.perf_counter() - started
    fds = [fds_before, fds_peak, count_own()]

    step.facts = {"records": rows, "bytes_per_second": round(size / seconds), "descriptors": fds}
    step.print("The schema, inferred from the first 100 records:\n")
    step.print("\n".join(f"    {line}" for line in f"schema = {as_code(schema)}".splitlines()))
    step.print(f"\n{rows:,} records into columns, 256 per batch: {_rates(rows, size, seconds)}")
    step.print(f"open descriptors: {fds[0]} before, {fds[1]} at most, {fds[2]} after")
    step.facts["memory_rise_bytes"] = rise = _peak_memory_bytes() - memory_before
    step.print(f"peak memory: {f'{format_bytes(rise)} more than before' if rise else 'no more than before'}")
    firsts = np.concatenate(([0], np.cumsum([entry.records for entry in data.entries])))
    lost = [int(firsts[one.shard]) + record for one in data.corruptions for record in one.lost]
    left = np.delete(data.labels, lost)
    step.check("every record that was not hit is there, with its label", (rows, labels) == (len(left), int(left.sum())))
    step.check("every descriptor was closed", fds[0] == fds[2])


def _peak_memory_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# ---- train: two ranks are killed in the middle of an epoch, three resume from their state

_BATCH = 128

# One rank. It saves what it has seen, prints its state and kills itself; or it resumes from a state to the end.
_RANK = """\
import json, os, resource, signal, sys
import numpy as np
import holdfast as hold

paths, rank, world, batch, stop, state, out = json.loads(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
ds = hold.read(paths, {"label": hold.Int64(), "embedding": hold.Float32(16)})
ds = ds.shuffle(seed=7).shard((rank, world)).batch(batch).prefetch("16MB")
seen = [np.zeros(0, np.float32)]
with ds.iterate() as it:
    if state:
        it.load_state_dict(json.loads(state))
    for step, rows in enumerate(it, 1):
        seen.append(rows["embedding"][:, 0])
        if step == stop:
            np.save(out, np.concatenate(seen))
            print(json.dumps(it.state_dict()), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
np.save(out, np.concatenate(seen))
"""

_Ids = np.ndarray[tuple[int], np.dtype[np.float32]]


def _train(data: _Dataset, step: _Step) -> None:
    paths = [str(path) for path in data.readable_paths()]
    started = time.perf_counter()
    columns = {"label": Int64(), "embedding": Float32(16)}
    every_sample = np.sort(np.concatenate([batch["embedding"][:, 0] for batch in read(paths, columns).batch(1024)]))
    batches = max(1, len(every_sample) // (5 * _BATCH))  # two fifths of an epoch before the kill
    killed = _run_ranks(data.folder, paths, world=2, stop=batches, state="")
    state = killed[0][1]
    resumed = _run_ranks(data.folder, paths, world=3, stop=0, state=state)
    seen = np.concatenate([ids for ids, _ in killed + resumed])
    seconds = time.perf_counter() - started

    rows = [(f"rank {at} of 2", "killed (SIGKILL)", f"{len(ids):,}") for at, (ids, _) in enumerate(killed)]
    rows += [(f"rank {at} of 3", "resumed to the end", f"{len(ids):,}") for at, (ids, _) in enumerate(resumed)]
    step.facts = {"samples": len(every_sample), "seen": len(seen), "state_bytes": len(state)}
    step.facts["seconds"] = round(seconds, 2)
    step.print(f"Shuffled, with a limit of 64 open files. The checkpoint has {len(state)} bytes.\n")
    step.table(["process", "how it ended", ">samples"], rows)
    step.print(f"\n{len(seen):,} samples in five processes, including their start: {len(seen) / seconds:,.0f}/s")
    step.check("both ranks saved the same state", json.loads(state) == json.loads(killed[1][1]))
    step.check("every sample was seen exactly once", np.array_equal(np.sort(seen), every_sample))


def _run_ranks(folder: Path, paths: list[str], *, world: int, stop: int, state: str) -> list[tuple[_Ids, str]]:
    """Returns what every rank saw, and the state it printed."""
    with _processes() as start:
        ranks = []
        for rank in range(world):
            out = folder / f"seen-{world}-{rank}.npy"
            ranks.append((out, start("-c", _RANK, json.dumps([paths, rank, world, _BATCH, stop, state, str(out)]))))
        states = [process.communicate()[0].strip() for _, process in ranks]
        return [(np.load(out), state) for (out, _), state in zip(ranks, states, strict=True)]


@contextmanager
def _processes() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Yields a function that starts Python processes; kills those that still run when the block ends."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        arguments = (sys.executable, *arguments)
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=child_environment())
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()


# ---- diagnose a worker that leaks

# A loader that is never closed does this: it keeps the read ends of pipes whose writers have exited.
_WORKER = """\
import multiprocessing as mp, sys, time
import holdfast

kept = []

def epoch():
    reader, writer = mp.Pipe(duplex=False)
    writer.close()  # as when the process that had it exits
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


def _look(data: _Dataset, step: _Step) -> None:
    script = data.folder / "worker.py"
    script.write_text(_WORKER)
    with _processes() as start:
        workers = [start(str(script), "leak"), start(str(script), "clean")]
        for worker in workers:
            assert worker.stdout is not None
            worker.stdout.readline()
        examination = Examination([worker.pid for worker in workers], role="worker")
        examination.watch(2.0)
        leaking, clean = examination.conclude()
    found = leaking.worst.diagnosis
    clean_verdict = clean.worst.diagnosis.verdict
    step.facts = {"verdict": str(found.verdict), "honest_verdict": str(clean_verdict), "fds": found.fds}
    step.print("A worker keeps the read ends of pipes whose writers have exited. From outside:")
    facts = {
        "verdict": str(found.verdict),
        "growth": f"+{found.trend.per_hour:,.0f} an hour" if found.trend else "unknown",
        "evidence": found.evidence[0],
        "cause": f"looks like {found.match.cause}" if found.match else "",
        "held by": leaking.held_by[0] if leaking.held_by else "",
    }
    lines = [(name, textwrap.wrap(text, 60) or [""]) for name, text in facts.items()]
    step.table(["", ""], [(name if at == 0 else "", line) for name, text in lines for at, line in enumerate(text)])
    step.check("the leak was distinguished from a working set", found.verdict is Verdict.LEAK)
    step.check("the variable that holds the descriptors was named", any("'kept'" in line for line in leaking.held_by))
    step.check("the worker that closes its descriptors was judged OK", clean_verdict is Verdict.OK)


# ---- the command

_STEPS: dict[str, Callable[[_Dataset, _Step], None]] = {
    "make": _make,
    "damage": _damage,
    "verify": _verify,
    "salvage": _salvage,
    "read": _read,
    "train": _train,
    "look": _look,
}


@command(__doc__)
@click.option("--keep", metavar="DIR", help="Work in this new or empty directory, and keep everything.")
def demo(screen: Screen, keep: str | None) -> int:
    steps = [_Step(name, screen) for name in _STEPS]
    with _work_directory(keep) as folder:
        data = _Dataset(folder)
        for number, step in enumerate(steps, 1):
            _show_title(screen, f"{number} of {len(steps)} · {step.name}")
            step.run(_STEPS[step.name], data)
    screen.document({"ok": all(step.ok for step in steps), "steps": [step.as_dict() for step in steps]})
    if keep is not None:
        screen.print(f"all files are in {printable(keep)}")
    failed = [f"{step.name}: {what}" for step in steps for what, ok in step.checks.items() if not ok]
    if failed:
        screen.print(screen.styled(f"demo: {counted(len(failed), 'check')} failed", "bold red"))
        for line in failed:
            screen.print(f"  {line}")
        return FOUND
    seconds = sum(step.seconds for step in steps)
    screen.print(screen.styled(f"demo: all {len(steps)} steps passed in {seconds:.1f} s", "bold green"))
    return FINE


def _show_title(screen: Screen, title: str) -> None:
    if screen.talks:
        from rich.rule import Rule

        screen.print(Rule(title, align="left", style="cyan", characters="─" if screen.terminal else "-"), width=_WIDTH)


@contextmanager
def _work_directory(keep: str | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
            yield Path(folder)
        return
    try:
        os.makedirs(keep, exist_ok=True)
        if os.listdir(keep):
            raise TargetExistsError(f"{keep}: expected a new or empty directory")
    except OSError as error:
        raise WriteError(f"cannot create the directory {keep}: {error.strerror}") from error
    yield Path(keep)
