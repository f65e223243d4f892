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
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np

from .. import Bytes, Float32, Int64, Ragged, TFRecordReader, TFRecordWriter, read
from .._native import codec
from .._util.helper_process import child_environment
from .._util.text import counted, format_bytes, printable
from ..data.formats.columns import BytesColumn, RaggedColumn
from ..data.formats.tfrecord.index import build_index
from ..data.formats.tfrecord.manifest import MANIFEST_NAME, read_manifest, write_manifest
from ..data.formats.tfrecord.salvage import salvage_file
from ..data.formats.tfrecord.source import open_source
from ..data.formats.tfrecord.verify import verify_file
from ..errors import TargetExistsError, WriteError
from ..process.doctor.diagnose import Examination
from ..process.doctor.model import Verdict
from ..procfs.descriptors import count_own
from ..schema import Column, as_code
from .app import FINE, FOUND, command
from .console import Screen, show_facts, show_schema

_SHARDS = 4
_RECORDS = 50_000 if codec.NATIVE else 6_000  # pure Python is far slower
_SCHEMA: dict[str, Column] = {"image": Bytes(), "label": Int64(), "embedding": Float32(16), "boxes": Ragged(Float32(4))}

# What a step returns: its facts for --json, and the checks that must hold.
_Result = tuple[dict[str, Any], dict[str, bool]]


@dataclass
class _Dataset:
    """The directory, and what the steps wrote to it."""

    folder: Path
    labels: list[Any] = field(default_factory=list)  # of each shard
    lost: dict[int, range] = field(default_factory=dict)  # the records of a corrupt shard that cannot be recovered
    samples: list[float] = field(default_factory=list)  # one number of each remaining record, sorted

    def shard(self, number: int, folder: str = "data") -> Path:
        return self.folder / folder / f"train-{number:05d}.tfrecord"

    def readable_paths(self) -> list[Path]:
        """Returns the salvaged copy of each corrupt shard, and the other shards as they are."""
        return [self.shard(shard, "salvaged" if shard in self.lost else "data") for shard in range(_SHARDS)]


def _rates(records: int, size: int, seconds: float) -> str:
    return f"{records / seconds:,.0f}/s, {format_bytes(int(size / seconds))}/s"


def _make(data: _Dataset, screen: Screen) -> _Result:
    rng = np.random.default_rng(7)
    data.labels = np.array_split(rng.integers(0, 1000, _RECORDS), _SHARDS)
    data.shard(0).parent.mkdir()
    entries, visible_early, seconds = [], False, 0.0
    for shard, labels in enumerate(data.labels):
        ends, boxes = (np.cumsum(np.append(0, rng.integers(*few, len(labels)))) for few in ((200, 900), (0, 5)))
        columns = {
            "image": BytesColumn(rng.integers(0, 256, int(ends[-1]), dtype=np.uint8), ends),
            "label": labels,
            "embedding": rng.random((len(labels), 16), dtype=np.float32),
            "boxes": RaggedColumn(rng.random((int(boxes[-1]), 4), dtype=np.float32), boxes),
        }
        started = time.perf_counter()
        with TFRecordWriter(data.shard(shard), _SCHEMA) as writer:
            writer.extend(columns)
            visible_early |= data.shard(shard).exists()
        seconds += time.perf_counter() - started
        assert writer.entry is not None
        entries.append(writer.entry)
    manifest = read_manifest(write_manifest(data.folder / "data", entries))
    shutil.copytree(data.folder / "data", data.folder / "originals")

    size = sum(entry.bytes for entry in entries)
    screen.print(f"{_SHARDS} files of tf.train.Example: bytes, an integer, 16 floats, ragged boxes.\n")
    rows = [(Path(e.path).name, f"{e.records:,}", format_bytes(e.bytes), f"{e.crc32c:08x}") for e in entries]
    screen.table(["file", ">records", ">size", "crc32c"], rows)
    screen.print(f"\n{_RECORDS:,} records from columns to disk, including fsync: {_rates(_RECORDS, size, seconds)}")
    return {"records": _RECORDS, "bytes": size, "bytes_per_second": round(size / seconds)}, {
        "no file was visible before it was complete": not visible_early,
        f"{MANIFEST_NAME} lists their counts and checksums": len(manifest.entries) == _SHARDS,
    }


def _damage(data: _Dataset, screen: Screen) -> _Result:
    """Corrupts three shards in three ways; the first shard stays intact."""
    rows = []
    for shard, what in enumerate(("two bits flipped", "a 4 KiB page zeroed", "truncated in a record"), 1):
        path = data.shard(shard)
        content = bytearray(path.read_bytes())
        with open_source(path) as source:
            starts = build_index(source)
        if shard == 1:
            first, stop = len(starts) // 3, len(starts) // 3 + 1
            offset = int(starts[first]) + 100
            content[offset] ^= 0b101
        elif shard == 2:
            offset = len(content) // 2 // 4096 * 4096
            content[offset : offset + 4096] = bytes(4096)
            # A record of which only the header was hit can be repaired.
            first = int(np.searchsorted(starts, offset, side="right")) - 1
            stop = int(np.searchsorted(starts + codec.HEADER_BYTES, offset + 4096, side="left"))
        else:
            first, stop = len(starts) * 9 // 10, len(starts) - 1
            offset = (int(starts[first]) + int(starts[first + 1])) // 2
            del content[offset:]
        path.write_bytes(content)
        data.lost[shard] = range(first, stop)
        rows.append((path.name, what, f"{offset:,}", f"{stop - first:,}"))

    screen.print("Silent corruption, as disks and broken copies cause it. Nothing reports it yet.\n")
    screen.table(["file", "what was done", ">at byte", ">records hit"], rows)
    sizes = [[data.shard(n, where).stat().st_size for n in range(3)] for where in ("data", "originals")]
    return {"damaged_files": len(rows), "records_hit": sum(map(len, data.lost.values()))}, {
        "the first three files still have their size": sizes[0] == sizes[1],
    }


def _verify(data: _Dataset, screen: Screen) -> _Result:
    started = time.perf_counter()
    reports = [verify_file(data.shard(shard)) for shard in range(_SHARDS)]
    seconds, size = time.perf_counter() - started, sum(report.bytes for report in reports)
    found = [(shard, problem) for shard, report in enumerate(reports) for problem in report.problems]
    rows = [(data.shard(shard).name, f"{p.record:,}", f"{p.offset:,}", p.reason) for shard, p in found]
    screen.table(["file", ">record", ">at byte", "what is wrong"], rows)
    screen.print(f"\n{format_bytes(size)} with every CRC checked: {format_bytes(int(size / seconds))}/s")
    first_lost = [(shard, lost[0]) for shard, lost in data.lost.items()]
    return {"damaged_files": sum(not report.ok for report in reports), "problems": len(found)}, {
        "the first file is intact": reports[0].ok,
        "every corruption was found at the right record": [(shard, p.record) for shard, p in found] == first_lost,
    }


def _salvage(data: _Dataset, screen: Screen) -> _Result:
    data.shard(0, "salvaged").parent.mkdir()
    rows, kept, same = [], 0, True
    for shard, lost in data.lost.items():
        path = data.shard(shard, "salvaged")
        result = salvage_file(data.shard(shard), path)
        with TFRecordReader(data.shard(shard, "originals")) as before, TFRecordReader(path) as after:
            expected = [record for number, record in enumerate(before.records()) if number not in lost]
            same &= list(after.records()) == expected
        kept += result.records_kept
        rows.append((path.name, f"{len(data.labels[shard]):,}", f"{result.records_kept:,}", f"{len(lost):,}"))
    screen.table(["file", ">written", ">kept", ">lost"], rows)
    return {"records_kept": kept, "records_lost": sum(map(len, data.lost.values()))}, {
        "every record that was not hit is kept, byte for byte and in order": same,
    }


def _read(data: _Dataset, screen: Screen) -> _Result:
    """Reads all remaining records into numpy columns, and measures memory and descriptors."""
    paths = data.readable_paths()
    schema = read(paths).schema
    labels, ids, fds = [], [], [count_own()]
    memory, started = _peak_memory_bytes(), time.perf_counter()
    for path in paths:
        with TFRecordReader(path) as reader:
            for batch in reader.batches(schema, 256):
                labels.append(batch["label"])
                ids.append(np.asarray(batch["embedding"])[:, 0])
            fds.append(count_own())
    seconds, rise = time.perf_counter() - started, _peak_memory_bytes() - memory
    fds = [fds[0], max(fds), count_own()]
    data.samples = np.sort(np.concatenate(ids)).tolist()

    rows, size = len(data.samples), sum(map(os.path.getsize, paths))
    screen.print("The schema, inferred from the records:\n")
    show_schema(screen, as_code(schema))
    screen.print(f"\n{rows:,} records into columns, 256 per batch: {_rates(rows, size, seconds)}")
    screen.print(f"open descriptors: {fds[0]} before, {fds[1]} at most, {fds[2]} after")
    screen.print(f"peak memory: {f'{format_bytes(rise)} more than before' if rise else 'no more than before'}")
    left = np.concatenate([np.delete(all_of, data.lost.get(n, [])) for n, all_of in enumerate(data.labels)])
    facts = {"records": rows, "bytes_per_second": round(size / seconds), "descriptors": fds, "memory_rise_bytes": rise}
    return facts, {
        "every record that was not hit is there, with its label": np.array_equal(np.concatenate(labels), left),
        "every descriptor was closed": fds[0] == fds[2],
    }


def _peak_memory_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# ---- train: two ranks are killed in the middle of an epoch, three resume from their state

# One rank. It prints what it has seen and its state after `stop` batches, and kills itself; or it reads to the end.
_RANK = """\
import json, os, resource, signal, sys
import holdfast as hold

paths, rank, world, stop, state = json.loads(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
ds = hold.read(paths, {"embedding": hold.Float32(16)})
ds = ds.shuffle(seed=7).shard((rank, world)).batch(128).prefetch("16MB")
seen = []
with ds.iterate() as it:
    if state:
        it.load_state_dict(state)
    for step, rows in enumerate(it, 1):
        seen += rows["embedding"][:, 0].tolist()
        if step == stop:
            print(json.dumps([seen, it.state_dict()]), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
print(json.dumps([seen, None]))
"""


def _train(data: _Dataset, screen: Screen) -> _Result:
    paths = [str(path) for path in data.readable_paths()]
    started = time.perf_counter()
    killed = _run_ranks(paths, 2, stop=len(data.samples) // (5 * 128))  # two fifths of an epoch
    state = killed[0][1]
    resumed = _run_ranks(paths, 3, state=state)
    seen = [x for ids, _ in killed + resumed for x in ids]
    seconds, state_bytes = time.perf_counter() - started, len(json.dumps(state))

    rows = [(f"rank {at} of 2", "killed (SIGKILL)", f"{len(ids):,}") for at, (ids, _) in enumerate(killed)]
    rows += [(f"rank {at} of 3", "resumed to the end", f"{len(ids):,}") for at, (ids, _) in enumerate(resumed)]
    screen.print(f"Shuffled, with a limit of 64 open files. The checkpoint has {state_bytes} bytes.\n")
    screen.table(["process", "how it ended", ">samples"], rows)
    screen.print(f"\n{len(seen):,} samples in five processes, including their start: {len(seen) / seconds:,.0f}/s")
    facts = {"samples": len(data.samples), "seen": len(seen), "state_bytes": state_bytes, "seconds": round(seconds, 2)}
    return facts, {
        "both ranks saved the same state": state == killed[1][1],
        "every sample was seen exactly once": sorted(seen) == data.samples,
    }


def _run_ranks(paths: list[str], world: int, *, stop: int = 0, state: Any = None) -> list[Any]:
    """Returns what every rank saw, and its state."""
    with ExitStack() as stack:
        arguments = [json.dumps([paths, rank, world, stop, state]) for rank in range(world)]
        ranks = [_start(stack, "-c", _RANK, argument) for argument in arguments]
        return [json.loads(rank.communicate()[0]) for rank in ranks]


def _start(stack: ExitStack, *arguments: str) -> subprocess.Popen[str]:
    """Starts a Python process that is killed, if it still runs, at the end of the block."""
    line = [sys.executable, *arguments]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=child_environment())
    stack.enter_context(process)
    stack.callback(process.kill)
    return process


# ---- diagnose a worker that leaks

# A loader that is never closed does this: it keeps the read ends of pipes whose writers have exited.
_WORKER = """\
import multiprocessing as mp, sys, time
import holdfast

kept = []
with holdfast.listen():
    print("ready", flush=True)
    while True:
        reader, writer = mp.Pipe(duplex=False)
        writer.close()  # as when the process that had it exits
        kept.append(reader)
        if sys.argv[1] == "clean":
            kept.pop().close()
        time.sleep(0.004)
"""


def _diagnose(data: _Dataset, screen: Screen) -> _Result:
    script = data.folder / "worker.py"
    script.write_text(_WORKER)
    with ExitStack() as stack:
        workers = [_start(stack, str(script), what) for what in ("leak", "clean")]
        for worker in workers:
            assert worker.stdout is not None
            worker.stdout.readline()
        examination = Examination([worker.pid for worker in workers], role="worker")
        examination.watch(2.0)
        leaking, clean = examination.conclude()
    found, clean_verdict = leaking.worst.diagnosis, clean.worst.diagnosis.verdict
    screen.print("A worker keeps the read ends of pipes whose writers have exited. From outside:\n")
    facts = {
        "verdict": str(found.verdict),
        "growth": f"+{found.trend.per_hour:,.0f} an hour" if found.trend else "unknown",
        "evidence": found.evidence[0],
        "cause": f"looks like {found.match.cause}" if found.match else "",
        "held by": leaking.held_by[0] if leaking.held_by else "",
    }
    show_facts(screen, list(facts.items()))
    return {"verdict": str(found.verdict), "honest_verdict": str(clean_verdict), "fds": found.fds}, {
        "the leak was distinguished from a working set": found.verdict is Verdict.LEAK,
        "the variable that holds the descriptors was named": any("'kept'" in line for line in leaking.held_by),
        "the worker that closes its descriptors was judged OK": clean_verdict is Verdict.OK,
    }


# ---- the command

_STEPS = (_make, _damage, _verify, _salvage, _read, _train, _diagnose)


@command(__doc__)
@click.option("--keep", metavar="DIR", help="Work in this new or empty directory, and keep everything.")
def demo(screen: Screen, keep: str | None) -> int:
    done, failed, started = [], [], time.perf_counter()
    with ExitStack() as stack:
        data = _Dataset(_work_directory(stack, keep))
        for number, step in enumerate(_STEPS, 1):
            name, step_started = step.__name__.removeprefix("_"), time.perf_counter()
            screen.print(screen.styled(f"{number} of {len(_STEPS)} · {name}", "bold cyan"))
            facts, checks = step(data, screen)
            for what, ok in checks.items():
                screen.print(screen.styled("✓ " if ok else "✗ ", "bold green" if ok else "bold red"), what)
            screen.print()
            seconds = round(time.perf_counter() - step_started, 3)
            done.append({"name": name, "ok": all(checks.values()), "seconds": seconds, "facts": facts})
            failed += [f"  {name}: {what}" for what, ok in checks.items() if not ok]
    screen.document({"ok": not failed, "steps": done})
    if keep is not None:
        screen.print(f"all files are in {printable(keep)}")
    if failed:
        screen.print(screen.styled(f"demo: {counted(len(failed), 'check')} failed", "bold red"))
        screen.print("\n".join(failed))
        return FOUND
    seconds = time.perf_counter() - started
    screen.print(screen.styled(f"demo: all {len(_STEPS)} steps passed in {seconds:.1f} s", "bold green"))
    return FINE


def _work_directory(stack: ExitStack, keep: str | None) -> Path:
    if keep is None:
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-demo-")))
    try:
        os.makedirs(keep, exist_ok=True)
        if os.listdir(keep):
            raise TargetExistsError(f"{keep}: expected a new or empty directory")
    except OSError as error:
        raise WriteError(f"cannot create the directory {keep}: {error.strerror}") from error
    return Path(keep)
