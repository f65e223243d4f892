"""Data files made once, proof that all sides read the same, then rounds in which every side has its turn."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rows import MEMORY_LIMIT_BYTES, Data, MemoryTask, Peer, Task
from sides import HERE, SideError, Sides
from turns import take_turns
from workload import FRAME_BYTES, SHARDS, Sizes


@dataclass(slots=True)
class Speed:
    """The best of all rounds, and every round's seconds."""

    seconds: float
    records_per_s: float
    bytes_per_s: float
    rounds_s: list[float]
    fsync_s: float = 0.0


@dataclass(slots=True)
class Result:
    """One line of the table."""

    row: str
    key: str
    work: str
    peer: str
    wanted: float | None
    ours: Speed | None = None
    theirs: Speed | None = None
    ratio: float | None = None
    met: bool | None = None
    skipped: str = ""
    growth_bytes: int | None = None
    limit_bytes: int | None = None
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}


@dataclass(slots=True)
class DataFiles:
    files: list[str]
    records: int
    bytes: int

    @property
    def mean_example_bytes(self) -> float:
        return self.bytes / self.records - FRAME_BYTES


@dataclass(slots=True)
class Bench:
    """What all tasks of one run share."""

    sides: Sides
    sizes: Sizes
    rounds: int
    folders: dict[str, Path]  # "disk", and "tmpfs" where there is one
    say: Callable[[str], None]
    data: dict[Data, DataFiles] = field(default_factory=dict)
    _sums: dict[tuple[str, Data], dict[str, int]] = field(default_factory=dict)

    def sums_of(self, side: str, kind: Data) -> dict[str, int]:
        """What a side reads from the data files, added up. Kept: for the slow ones it takes a while."""
        if (side, kind) not in self._sums:
            answer = self.sides.get(side).call("sums", data=kind, files=self.files(kind).files)
            self._sums[side, kind] = answer
        return self._sums[side, kind]

    def files(self, kind: Data) -> DataFiles:
        """Made when first asked for."""
        if kind not in self.data:
            rows = (self.sizes.small_rows if kind == "small" else self.sizes.big_rows) // SHARDS
            files = [str(self.folders["disk"] / f"{kind}-{shard}.tfrecord") for shard in range(SHARDS)]
            self.say(f"making {SHARDS} files of {rows:,} {kind} records")
            ours = self.sides.get("holdfast")
            made = [
                ours.call("make", data=kind, rows=rows, out=path, seed=1_000_000 * shard)
                for shard, path in enumerate(files)
            ]
            self.data[kind] = DataFiles(files, sum(made), sum(Path(path).stat().st_size for path in files))
        return self.data[kind]


# ---- speed -------------------------------------------------------------------------------------------------


def measure_task(bench: Bench, task: Task) -> list[Result]:
    """One result for every peer of the task; a peer that cannot take part gives one that says why."""
    results = [Result(task.row, task.key, task.work, peer.name, peer.wanted) for peer in task.peers]
    ours = Peer("holdfast", task.operation, "holdfast")
    try:
        job, nbytes = _prepare(bench, task)
    except SideError as error:
        for result in results:
            result.skipped = str(error)
        return results
    able = [ours]
    for peer, result in zip(task.peers, results, strict=True):
        try:
            _check(bench, task, peer, job)
            able.append(peer)
        except SideError as error:
            result.skipped = str(error)
    bench.say(f"{task.row}  {task.work} (rounds: {bench.rounds}, sides: {len(able)})")
    turns = _rounds(bench, able, job)
    speeds = {peer: _best(turns[peer], nbytes) for peer in able}
    for peer, result in zip(task.peers, results, strict=True):
        if peer in speeds:
            result.ours, result.theirs = speeds[ours], speeds[peer]
            result.ratio = speeds[peer].seconds / speeds[ours].seconds
            result.met = None if peer.wanted is None else result.ratio >= peer.wanted
            result.note = _fsync_note(speeds[ours], speeds[peer])
    return results


def _prepare(bench: Bench, task: Task) -> tuple[dict[str, Any], int]:
    """What every side is told, and how many bytes a pass reads or writes."""
    least = {"least_s": bench.sizes.turn_s}
    if not task.target:
        data = bench.files(task.data)
        job: dict[str, Any] = {"data": task.data, "files": data.files, **least}
        job |= {"records": data.records, "bytes": data.bytes}
        bench.sides.get("holdfast").call(task.operation, **job)  # warm, as its peers will be
        return job, data.bytes
    if task.target not in bench.folders:
        raise SideError(f"there is no {task.target} here")
    out = bench.folders[task.target] / "written.tfrecord"
    job = {"data": task.data, "rows": bench.sizes.write_rows, "out": str(out), **least}
    ours = bench.sides.get("holdfast")
    ours.call("write", **job)
    nbytes = out.stat().st_size
    job["sums"] = ours.call("sums", data=task.data, files=[str(out)])
    out.unlink()
    return job, nbytes


def _check(bench: Bench, task: Task, peer: Peer, job: dict[str, Any]) -> None:
    """Also the warm-up: every side has read all files, or written one, before the first round."""
    side, ours = bench.sides.get(peer.side), bench.sides.get("holdfast")
    did = side.call(peer.operation, **job)
    if task.target:
        got, wanted = ours.call("sums", data=task.data, files=[job["out"]]), job["sums"]
        Path(job["out"]).unlink()
    elif peer.side == "plain":
        got, wanted = did, {"records": job["records"]}  # it has no columns to add up
    else:
        got, wanted = bench.sums_of(peer.side, task.data), bench.sums_of("holdfast", task.data)
    if got != wanted or did["records"] != wanted["records"]:
        raise SystemExit(f"{peer.name} and holdfast do not agree on the data: {got} and {wanted}")


def _rounds(bench: Bench, able: list[Peer], job: dict[str, Any]) -> dict[Peer, list[dict[str, float]]]:
    turns = take_turns(able, bench.rounds, lambda peer: bench.sides.get(peer.side).turn(peer.operation, **job))
    counts = {turn["records"] for taken in turns.values() for turn in taken}
    if len(counts) != 1:
        raise SystemExit(f"the sides did not work on the same number of records: {sorted(counts)}")
    return turns


def _best(turns: list[dict[str, float]], nbytes: int) -> Speed:
    best = min(turns, key=lambda turn: turn["seconds"])
    seconds = best["seconds"]
    rounds_s = [round(turn["seconds"], 6) for turn in turns]
    return Speed(seconds, best["records"] / seconds, nbytes / seconds, rounds_s, best.get("fsync_s", 0.0))


def _fsync_note(ours: Speed, theirs: Speed) -> str:
    if ours.fsync_s < 0.001 * ours.seconds:
        return ""
    without = theirs.seconds / (ours.seconds - ours.fsync_s)
    return f"fsync is {1000 * ours.fsync_s:.1f} ms of ours, the peer has none; without it {without:.3g}×"


# ---- memory ------------------------------------------------------------------------------------------------


def measure_memory(bench: Bench, tasks: tuple[MemoryTask, ...]) -> list[Result]:
    """How far a fresh process grows over one large file. The files are made and removed one at a time."""
    results = []
    for kind in dict.fromkeys(task.data for task in tasks):
        large = bench.folders["disk"] / f"{kind}-large.tfrecord"
        bench.say(f"making a file of {bench.sizes.memory_bytes / 1e9:.2f} GB of {kind} records")
        _repeat(Path(bench.files(kind).files[0]), large, bench.sizes.memory_bytes)
        try:
            results += [_memory_of(bench, task, large) for task in tasks if task.data == kind]
        finally:
            large.unlink()
    return results


def _repeat(part: Path, whole: Path, size: int) -> None:
    """Frames know nothing of their place: a TFRecord file behind another is a TFRecord file."""
    block = part.read_bytes()
    with whole.open("wb") as file:
        while file.tell() < size:
            file.write(block)


def _memory_of(bench: Bench, task: MemoryTask, large: Path) -> Result:
    bench.say(f"{task.row}  {task.work}")
    command = [sys.executable, str(HERE / "memory_child.py"), str(large), task.data, task.operation]
    answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    growth = answer["growth_bytes"]
    read = f"{large.stat().st_size / 1e9:.2f} GB, {answer['records']:,} records"
    result = Result(task.row, task.key, task.work, "its own start", None, growth_bytes=growth, note=read)
    result.limit_bytes = MEMORY_LIMIT_BYTES
    result.met = growth <= MEMORY_LIMIT_BYTES
    return result
