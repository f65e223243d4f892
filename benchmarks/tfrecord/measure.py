"""Makes the data files, checks that all contenders read the same, then measures them in rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common.contenders import Contender, ContenderError, Contenders, Round, take_rounds
from benchmarks.common.report import Result
from benchmarks.tfrecord.tasks import MEMORY_LIMIT_BYTES, SHARDS, Data, MemoryTask, Peer, Sizes, Task

FRAME_BYTES = 16  # length, its CRC, the data's CRC


@dataclass(slots=True)
class Speed:
    """The best of all rounds, and the seconds of every round."""

    seconds: float
    records_per_s: float
    bytes_per_s: float
    rounds_s: list[float]
    fsync_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class TFRecordResult(Result):
    """Compares speeds, or the growth of memory with a limit."""

    growth_bytes: int | None = None
    limit_bytes: int | None = None
    note: str = ""

    def ratio_text(self) -> str:
        return Result.ratio_text(self) if self.growth_bytes is None else f"+{self.growth_bytes / (1 << 20):.1f} MiB"

    def target_text(self) -> str:
        return Result.target_text(self) if self.limit_bytes is None else f"≤ {self.limit_bytes >> 20} MiB"


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
    """Shared by all tasks of one run."""

    contenders: Contenders
    sizes: Sizes
    rounds: int
    folders: dict[str, Path]  # "disk", and "tmpfs" where there is one
    log: Callable[[str], None]
    data: dict[Data, DataFiles] = field(default_factory=dict)
    _sums: dict[tuple[str, Data], dict[str, int]] = field(default_factory=dict)

    def sums_of(self, contender: str, kind: Data) -> dict[str, int]:
        """Sums of what a contender reads from the data files. Cached, because slow contenders take long."""
        if (contender, kind) not in self._sums:
            answer = self.contenders.get(contender).call("sums", data=kind, files=self.files(kind).files)
            self._sums[contender, kind] = answer
        return self._sums[contender, kind]

    def files(self, kind: Data) -> DataFiles:
        """Makes the files when they are first needed."""
        if kind not in self.data:
            rows = (self.sizes.small_rows if kind == "small" else self.sizes.big_rows) // SHARDS
            files = [str(self.folders["disk"] / f"{kind}-{shard}.tfrecord") for shard in range(SHARDS)]
            self.log(f"making {SHARDS} files of {rows:,} {kind} records")
            ours = self.contenders.get("holdfast")
            made = [
                ours.call("make", data=kind, rows=rows, out=path, seed=1_000_000 * shard)
                for shard, path in enumerate(files)
            ]
            self.data[kind] = DataFiles(files, sum(made), sum(Path(path).stat().st_size for path in files))
        return self.data[kind]


# ---- speed -------------------------------------------------------------------------------------------------


def measure_task(bench: Bench, task: Task) -> list[TFRecordResult]:
    """Returns one result for every peer; that of a peer that cannot take part says why."""
    results = [
        TFRecordResult(row=task.row, key=task.key, work=task.work, peer=peer.name, target=peer.target)
        for peer in task.peers
    ]
    ours = Peer("holdfast", task.operation, "holdfast")
    try:
        job, nbytes = _prepare(bench, task)
    except ContenderError as error:
        for result in results:
            result.skipped = str(error)
        return results
    able = [ours]
    for peer, result in zip(task.peers, results, strict=True):
        try:
            _check(bench, task, peer, job)
            able.append(peer)
        except ContenderError as error:
            result.skipped = str(error)
    bench.log(f"{task.row}  {task.work} (rounds: {bench.rounds}, contenders: {len(able)})")
    rounds = _take_rounds(bench, able, job)
    speeds = {peer: _best(rounds[peer], nbytes) for peer in able}
    for peer, result in zip(task.peers, results, strict=True):
        if peer in speeds:
            result.ours, result.theirs = speeds[ours], speeds[peer]
            result.ratio = speeds[peer].seconds / speeds[ours].seconds
            result.met = None if peer.target is None else result.ratio >= peer.target
            result.note = _fsync_note(speeds[ours], speeds[peer])
    return results


def _prepare(bench: Bench, task: Task) -> tuple[dict[str, Any], int]:
    """Returns the job for all contenders, and how many bytes a pass reads or writes."""
    timing = {"min_s": bench.sizes.round_s}
    if not task.place:
        data = bench.files(task.data)
        job: dict[str, Any] = {"data": task.data, "files": data.files, **timing}
        job |= {"records": data.records, "bytes": data.bytes}
        bench.contenders.get("holdfast").call(task.operation, **job)  # warms up, as _check does for the peers
        return job, data.bytes
    if task.place not in bench.folders:
        raise ContenderError(f"there is no {task.place} here")
    out = bench.folders[task.place] / "written.tfrecord"
    job = {"data": task.data, "rows": bench.sizes.write_rows, "out": str(out), **timing}
    ours = bench.contenders.get("holdfast")
    ours.call("write", **job)
    nbytes = out.stat().st_size
    job["sums"] = ours.call("sums", data=task.data, files=[str(out)])
    out.unlink()
    return job, nbytes


def _check(bench: Bench, task: Task, peer: Peer, job: dict[str, Any]) -> None:
    """Checks what a peer reads or writes. Also the warm-up: it has read all files, or written one, before round 1."""
    contender, ours = bench.contenders.get(peer.contender), bench.contenders.get("holdfast")
    done = contender.call(peer.operation, **job)
    if task.place:
        got, expected = ours.call("sums", data=task.data, files=[job["out"]]), job["sums"]
        Path(job["out"]).unlink()
    elif peer.contender == "plain":
        got, expected = done, {"records": job["records"]}  # it has no columns to add up
    else:
        got, expected = bench.sums_of(peer.contender, task.data), bench.sums_of("holdfast", task.data)
    if got != expected or done["records"] != expected["records"]:
        raise SystemExit(f"{peer.name} does not read the same as holdfast: expected {expected}, got {got}")


def _take_rounds(bench: Bench, able: list[Peer], job: dict[str, Any]) -> dict[Peer, list[Round]]:
    def measure(peer: Peer) -> Round:
        return bench.contenders.get(peer.contender).measure(peer.operation, **job)

    rounds = take_rounds(able, bench.rounds, measure)
    counts = {one["records"] for taken in rounds.values() for one in taken}
    if len(counts) != 1:
        raise SystemExit(f"the contenders did not process the same number of records: {sorted(counts)}")
    return rounds


def _best(rounds: list[Round], nbytes: int) -> Speed:
    best = min(rounds, key=lambda one: one["seconds"])
    seconds = best["seconds"]
    rounds_s = [round(one["seconds"], 6) for one in rounds]
    return Speed(seconds, best["records"] / seconds, nbytes / seconds, rounds_s, best.get("fsync_s", 0.0))


def _fsync_note(ours: Speed, theirs: Speed) -> str:
    if ours.fsync_s < 0.001 * ours.seconds:
        return ""
    without = theirs.seconds / (ours.seconds - ours.fsync_s)
    return f"fsync takes {1000 * ours.fsync_s:.1f} ms of holdfast's time, the peer has none; without it {without:.3g}×"


# ---- memory ------------------------------------------------------------------------------------------------


def measure_memory(bench: Bench, tasks: tuple[MemoryTask, ...]) -> list[TFRecordResult]:
    """Measures how far a fresh process grows over one large file. The files are made and removed one at a time."""
    results = []
    for kind in dict.fromkeys(task.data for task in tasks):
        large = bench.folders["disk"] / f"{kind}-large.tfrecord"
        bench.log(f"making a file of {bench.sizes.memory_bytes / 1e9:.2f} GB of {kind} records")
        _repeat(Path(bench.files(kind).files[0]), large, bench.sizes.memory_bytes)
        try:
            results += [_memory_of(bench, task, large) for task in tasks if task.data == kind]
        finally:
            large.unlink()
    return results


def _repeat(part: Path, large: Path, size: int) -> None:
    """Repeats a file: TFRecord files one after the other are a TFRecord file."""
    block = part.read_bytes()
    with large.open("wb") as file:
        while file.tell() < size:
            file.write(block)


def _memory_of(bench: Bench, task: MemoryTask, large: Path) -> TFRecordResult:
    bench.log(f"{task.row}  {task.work}")
    with Contender("tfrecord", "holdfast") as fresh:
        answer = fresh.call("memory", data=task.data, file=str(large), work=task.operation)
    growth = answer["growth_bytes"]
    return TFRecordResult(
        row=task.row,
        key=task.key,
        work=task.work,
        peer="its own start",
        met=growth <= MEMORY_LIMIT_BYTES,
        growth_bytes=growth,
        limit_bytes=MEMORY_LIMIT_BYTES,
        note=f"{large.stat().st_size / 1e9:.2f} GB, {answer['records']:,} records",
    )
