"""Checks that all contenders write the same, then measures them in rounds; times commits; counts descriptors."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

from benchmarks.common.contenders import Contender, ContenderError, Contenders, Job, Round, take_rounds
from benchmarks.common.report import Result, times
from benchmarks.write.tasks import (
    BLOCK_BYTES,
    BLOCK_ROWS,
    COMMIT_LIMIT_MS,
    COMMIT_ROW,
    COUNT_ROW,
    FEW_ROUNDS,
    PRODUCER_LIMIT,
    PRODUCERS,
    SERVER_SPARE,
    VIEW_DESCRIPTORS,
    Peer,
    Sizes,
    Task,
)

_OF_PARTS = ("consolidate", "merge", "merge_verified")
_FEWER_TO_COMPRESS = 8  # compressing with gzip takes many times as long as copying
_TIMES = 5


@dataclass(slots=True)
class Speed:
    """The best of all rounds, and the seconds of every round. CPU time is that of all processes of the contender."""

    seconds: float
    bytes_per_s: float | None
    cpu_s: float | None
    rounds_s: list[float]


@dataclass(slots=True, kw_only=True)
class WriteResult(Result):
    """`value` is compared with the target: at least that much, or (`at_most`) no more."""

    at_most: bool = False
    unit: Literal["×", " ms", ""] = "×"
    value: float | None = None
    cpu_ratio: float | None = None
    more: dict[str, Any] = field(default_factory=dict)

    def check_target(self) -> None:
        if self.target is not None and self.value is not None:
            self.met = self.value <= self.target if self.at_most else self.value >= self.target

    def ratio_text(self) -> str:
        if self.value is None:
            return ""
        if self.unit == "×":
            return times(self.value) + (" the time" if self.at_most else "")
        return f"{self.value:+.1f} ms" if self.unit else f"{self.value:g}"

    def target_text(self) -> str:
        return "" if self.target is None else f"{'≤' if self.at_most else '≥'} {self.target:g}{self.unit}"


@dataclass(slots=True)
class Bench:
    """Shared by all tasks of one run."""

    contenders: Contenders
    sizes: Sizes
    rounds: int
    folders: dict[str, Path]  # "disk", and "tmpfs" where there is one with enough space
    log: Callable[[str], None]
    data: dict[str, Any] = field(default_factory=dict)  # how much was written, for the report

    def folder(self, place: str) -> Path:
        if place not in self.folders:
            raise ContenderError(f"there is no {place} here, or no space on it")
        return self.folders[place]


# ---- speed -------------------------------------------------------------------------------------------------


def measure_task(bench: Bench, task: Task) -> list[WriteResult]:
    """Returns one result for every peer; that of a peer that cannot take part says why."""
    results = [
        WriteResult(
            row=task.row, key=task.key, work=task.work, peer=peer.name, target=peer.target, at_most=task.by_time
        )
        for peer in task.peers
    ]
    home = None
    try:
        home = bench.folder(task.place) / task.key
        home.mkdir()
        job = _prepare(bench, task, home)
        _measure(bench, task, job, home, results)
    except ContenderError as error:
        for result in results:
            result.skipped = result.skipped or str(error)
    finally:
        if home is not None:
            shutil.rmtree(home, ignore_errors=True)
    return results


def _prepare(bench: Bench, task: Task, home: Path) -> Job:
    """Returns the job for all contenders."""
    sizes = bench.sizes
    job: Job = {"codec": task.codec, "min_s": sizes.round_s}
    if task.ours.operation in _OF_PARTS:
        blocks = max(2, sizes.part_blocks // _FEWER_TO_COMPRESS) if task.short_rows else sizes.part_blocks
        job |= {"folder": str(home / "parts.hold"), "parts": sizes.parts, "blocks": blocks, "short": task.short_rows}
        bench.log(f"making {sizes.parts} {task.codec} parts of {blocks * BLOCK_BYTES / 1e6:,.0f} MB")
        job |= bench.contenders.get("holdfast").call("make_parts", **job)
        job["records"] = sizes.parts * (blocks * BLOCK_ROWS - task.short_rows)
    else:
        blocks = sizes.disk_blocks if task.place == "disk" else sizes.central_blocks[task.codec]
        job |= {"producers": PRODUCERS, "blocks": blocks, "bytes": PRODUCERS * blocks * BLOCK_BYTES}
        job["records"] = PRODUCERS * blocks * BLOCK_ROWS
    bench.data[task.key] = {name: job[name] for name in ("records", "bytes")}
    return job


def _measure(bench: Bench, task: Task, job: Job, home: Path, results: list[WriteResult]) -> None:
    able, sums = [], {"records": job["records"]}
    for peer, result in zip((task.ours, *task.peers), [None, *results], strict=True):
        try:
            sums |= _check_sums(bench, peer, _job_of(peer, job, home), sums)
            able.append(peer)
        except ContenderError as error:
            if result is None:
                raise
            bench.log(f"   skipping {peer.name}: {error}")
            result.skipped = str(error)
    bench.log(f"{task.row}  {task.work} (rounds: {bench.rounds}, contenders: {len(able)})")
    limits = {peer: FEW_ROUNDS for peer in able if peer.few_rounds}
    rounds = take_rounds(able, bench.rounds, lambda peer: _round(bench, peer, _job_of(peer, job, home)), limits)
    speeds = {peer: _best(taken, job["bytes"]) for peer, taken in rounds.items()}
    for peer, result in zip(task.peers, results, strict=True):
        if peer in speeds:
            ours = rounds[task.ours][: len(rounds[peer])]  # as many tries as the peer had
            _compare(task, result, _best(ours, job["bytes"]), speeds[peer])
            result.more = _acknowledged(ours, rounds[peer])
    if not task.by_time and task.place == "tmpfs":  # on a disk, the time of the disk would be included
        results[0].more = _overhead(bench, task, job, home, speeds[task.ours].seconds)


def _overhead(bench: Bench, task: Task, job: Job, home: Path, seconds: float) -> dict[str, Any]:
    """Measures holdfast with almost nothing to write: consolidate mostly starts a process that loads HDF5."""
    tiny = _job_of(task.ours, job, home) | {"blocks": 1, "min_s": 0.0}
    if task.ours.operation in _OF_PARTS:
        tiny["folder"] = str(home / "tiny.hold")
        tiny |= bench.contenders.get(task.ours.contender).call("make_parts", **tiny)
    start_s = min(_round(bench, task.ours, tiny)["seconds"] for _ in range(bench.rounds))
    return {"start_s": round(start_s, 6), "note": f"{start_s:.2f} of {seconds:.2f} s is start and end"}


def _job_of(peer: Peer, job: Job, home: Path) -> Job:
    """Every contender writes to its own path, so that none finds the files of another."""
    name = f"{peer.contender}-{peer.operation}-{peer.ack}"
    return job | {
        "ack": peer.ack,
        "out": str(home / (name + (".hold" if peer.operation in ("central", "one_part") else ".h5"))),
    }


def _round(bench: Bench, peer: Peer, job: Job) -> Round:
    return bench.contenders.get(peer.contender).measure(peer.operation, **job)


def _check_sums(bench: Bench, peer: Peer, job: Job, expected: dict[str, int]) -> dict[str, int]:
    """Compares the sums over what it wrote with those of the others. Also the warm-up."""
    contender, out = bench.contenders.get(peer.contender), Path(job["out"])
    contender.call(peer.operation, **job)
    try:
        if peer.operation.startswith("cat"):
            return expected  # it has checked its number of bytes itself
        files = sorted(map(str, out.glob("parts/*.h5"))) if out.is_dir() else [str(out)]
        got: dict[str, int] = bench.contenders.get("plain").call("sums", files=files)
        if got != expected | {"sum": expected.get("sum", got["sum"])}:
            raise SystemExit(f"{peer.name} did not write the same as the others: expected {expected}, got {got}")
        return got
    finally:
        shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)


def _best(rounds: list[Round], nbytes: int) -> Speed:
    seconds = min(one["seconds"] for one in rounds)
    cpu_s = min(one["cpu_s"] for one in rounds)
    return Speed(seconds, nbytes / seconds, cpu_s, [round(one["seconds"], 6) for one in rounds])


def _compare(task: Task, result: WriteResult, ours: Speed, theirs: Speed) -> None:
    result.ours, result.theirs = ours, theirs
    result.value = ours.seconds / theirs.seconds if task.by_time else theirs.seconds / ours.seconds
    if ours.cpu_s and theirs.cpu_s:
        result.cpu_ratio = theirs.cpu_s / ours.cpu_s
    result.check_target()


def _acknowledged(ours: list[Round], theirs: list[Round]) -> dict[str, Any]:
    """How long it took until everything was acknowledged, where both contenders report that."""
    if not all("acked_s" in one for one in (*ours, *theirs)):
        return {}
    a, b = (min(one["acked_s"] for one in rounds) for rounds in (ours, theirs))
    return {"acked_s": [round(a, 6), round(b, 6)], "note": f"until all is acknowledged: {a:.2f} s and {b:.2f} s"}


# ---- commits -----------------------------------------------------------------------------------------------

OURS, PLAIN = ("holdfast", "part"), ("plain", "plain_file")

# Which time of holdfast's is compared with which times of a plain file, and with what target.
COMMIT_PEERS = {
    "fsync of a plain file": ("leaving_s", ("fsync_s",), COMMIT_LIMIT_MS),
    "write and fsync of it": ("leaving_s", ("write_s", "fsync_s"), COMMIT_LIMIT_MS),
    "the same, of the whole `with` block": ("whole_s", ("write_s", "fsync_s"), None),
}


def measure_commits(bench: Bench) -> list[WriteResult]:
    """Times what committing a part takes beyond writing its bytes to the disk."""
    results = []
    for size, rows in bench.sizes.part_rows.items():
        bench.log(f"{COMMIT_ROW}  a part of {size} (times: {bench.sizes.commits})")
        home = bench.folder("disk") / f"commit-{rows}"
        home.mkdir()
        rounds = _commit_rounds(bench, home, rows)
        results += [_commit_result(size, peer, rounds) for peer in COMMIT_PEERS]
    return results


def _commit_rounds(bench: Bench, home: Path, rows: int) -> dict[tuple[str, str], list[Round]]:
    outs = {OURS: str(home / "run.hold"), PLAIN: str(home / "plain")}

    def measure(which: tuple[str, str]) -> Round:
        contender, operation = which
        return bench.contenders.get(contender).measure(operation, rows=rows, out=outs[which], min_s=0.0)

    take_rounds([OURS, PLAIN], 1, measure)  # warm-up
    return take_rounds([OURS, PLAIN], bench.sizes.commits, measure)


def _commit_result(size: str, peer: str, rounds: dict[tuple[str, str], list[Round]]) -> WriteResult:
    ours, plain, target = COMMIT_PEERS[peer]
    mine = [1000 * one[ours] for one in rounds[OURS]]
    theirs = [1000 * sum(one[name] for name in plain) for one in rounds[PLAIN]]
    best = min(mine) - min(theirs)
    result = WriteResult(
        row=COMMIT_ROW,
        key=f"commit-{size}",
        work=f"leaving `with out.part()` after {size}, on a disk",
        peer=peer,
        target=target,
        at_most=True,
        unit=" ms",
        ours=_median_text(mine),
        theirs=_median_text(theirs),
        value=median(mine) - median(theirs),
        more={
            "ours_ms": [round(one, 3) for one in mine],
            "theirs_ms": [round(one, 3) for one in theirs],
            "best_ms": round(best, 3),
            "note": f"of the median; of the best {best:+.1f} ms",
        },
    )
    result.check_target()
    return result


def _median_text(times_ms: list[float]) -> str:
    return f"{median(times_ms):.1f} ms (best {min(times_ms):.1f})"


# ---- descriptors -------------------------------------------------------------------------------------------


def measure_counts(bench: Bench) -> list[WriteResult]:
    """Counts the descriptors of the central writer and its producers, and reads a view with too few of them."""
    results = []
    home = bench.folders.get("tmpfs", bench.folders["disk"])
    holdfast = bench.contenders.get("holdfast")
    for producers in bench.sizes.producers:
        bench.log(f"{COUNT_ROW}  descriptors, producers: {producers}")
        found = holdfast.call("descriptors", out=str(home / "counted.hold"), producers=producers, times=_TIMES)
        results += _counted(producers, found)
    parts = bench.sizes.view_parts
    bench.log(f"{COUNT_ROW}  a view of {parts} parts, {VIEW_DESCRIPTORS} descriptors")
    (home / "viewed").mkdir()
    paths = holdfast.call("make_view", out=str(home / "viewed"), parts=parts)
    results += _viewed(paths, parts)
    shutil.rmtree(home / "viewed")
    return results


def _counted(producers: int, found: dict[str, int]) -> list[WriteResult]:
    limits = {"server": producers + SERVER_SPARE, "producer": PRODUCER_LIMIT}
    names = {"server": "the server", "producer": "each producer, beyond its process's own"}
    work = f"most descriptors at once: {producers} {'producer' if producers == 1 else 'producers'}"
    return [_count_result(f"descriptors-{producers}", work, names[who], limits[who], found[who]) for who in limits]


def _viewed(paths: dict[str, str], parts: int) -> list[WriteResult]:
    work = f"{parts} parts read with {VIEW_DESCRIPTORS} descriptors: wrong values"
    readers = {
        "hold.read(view)": ("holdfast", paths["view"], 0),
        "hold.read(folder)": ("holdfast", paths["parts"], 0),
        "h5py.File(view)": ("h5py", paths["view"], None),
    }
    results = []
    for name, (reader, path, target) in readers.items():
        few, many = (_read_numbers(reader, path, parts, limit) for limit in (VIEW_DESCRIPTORS, 2 * parts))
        result = _count_result("view", work, name, target, few["wrong"])
        # Otherwise a reader that cannot read views at all would look like one that needs few descriptors.
        result.more = {"few": few, "many": many, "note": f"{few['outcome']}; with {2 * parts}: {many['outcome']}"}
        results.append(result)
    return results


def _read_numbers(reader: str, path: str, parts: int, descriptors: int) -> dict[str, Any]:
    try:
        with Contender("write", "holdfast") as fresh:
            found: dict[str, Any] = fresh.call(
                "read_numbers", reader=reader, path=path, count=parts, descriptors=descriptors
            )
    except ContenderError as error:  # a crash is neither right data nor an error that a program could handle
        return {"outcome": str(error), "wrong": parts}
    return found


def _count_result(key: str, work: str, peer: str, target: float | None, value: float) -> WriteResult:
    result = WriteResult(
        row=COUNT_ROW, key=key, work=work, peer=peer, target=target, at_most=True, unit="", value=value
    )
    result.check_target()
    return result
