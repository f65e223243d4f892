"""Checks that all contenders read the same, then measures them in rounds; counts what loaders leak."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common.contenders import ContenderError, Contenders, Round, take_rounds
from benchmarks.common.report import Result
from benchmarks.read.data import DataSet, Sizes, data_set
from benchmarks.read.tasks import LEAKS_ROW, Data, Peer, Task

LOADERS = ("torch", "holdfast")


@dataclass(slots=True)
class Speed:
    """The best of all rounds, and the seconds of every round. CPU time is that of all processes of the contender."""

    seconds: float
    records_per_s: float
    cpu_s: float | None
    rounds_s: list[float]
    descriptors_grown: int | None = None


@dataclass(slots=True, kw_only=True)
class ReadResult(Result):
    cpu_ratio: float | None = None
    cpu_target: float | None = None

    def target_text(self) -> str:
        return Result.target_text(self) + (", CPU too" if self.cpu_target else "")


@dataclass(slots=True)
class Bench:
    """Shared by all tasks of one run."""

    contenders: Contenders
    sizes: Sizes
    rounds: int
    folder: Path
    log: Callable[[str], None]
    data: dict[Data, DataSet] = field(default_factory=dict)
    expected_sums: dict[Data, dict[str, Any]] = field(default_factory=dict)

    def files(self, kind: Data) -> DataSet:
        if kind not in self.data:
            self.data[kind] = data_set(self.folder, kind, self.sizes, self.log)
        return self.data[kind]

    def check_sums(self, task: Task, peer: Peer, got: dict[str, Any]) -> None:
        if not task.same_pixels:
            got = {"records": got["records"]}
        expected = self.expected_sums.setdefault(task.data, got)
        if got != expected or got["records"] != self.files(task.data).records:
            raise SystemExit(
                f"{task.work}: {peer.name} does not read the same as the others: expected {expected}, got {got}"
            )


# ---- speed -------------------------------------------------------------------------------------------------


def measure_task(bench: Bench, task: Task) -> list[ReadResult]:
    """Returns one result for every peer; that of a peer that cannot take part says why."""
    results = [
        ReadResult(row=task.row, key=task.key, work=task.work, peer=peer.name, target=peer.target)
        for peer in task.peers
    ]
    ours = Peer("holdfast", task.pipeline, "holdfast")
    job: dict[str, Any] = {"data": task.data, "files": bench.files(task.data).files}
    job |= {"min_s": bench.sizes.round_s, "epochs": bench.sizes.epochs}
    able, reasons = _able(bench, task, [ours, *task.peers], job)
    bench.log(f"{task.row}  {task.work} (rounds: {bench.rounds}, contenders: {len(able)})")
    speeds = _take_rounds(bench, task, able, job)
    for peer, result in zip(task.peers, results, strict=True):
        result.skipped = reasons.get(peer, reasons.get(ours, ""))
        result.ours, result.theirs = speeds.get(ours), speeds.get(peer)
        _compare(result)
    _check_targets(task, results)
    return results


def _able(bench: Bench, task: Task, peers: list[Peer], job: dict[str, Any]) -> tuple[list[Peer], dict[Peer, str]]:
    """Returns those that can take part, and why others cannot. Also the warm-up: all have then read all files."""
    able, reasons = [], {}
    for peer in peers:
        try:
            got = bench.contenders.get(peer.contender).call("sums", pipeline=peer.pipeline, **job)
            bench.check_sums(task, peer, got)
            able.append(peer)
        except ContenderError as error:
            reasons[peer] = str(error)
            bench.log(f"   skipping {peer.name}: {error}")
    return able, reasons


def _take_rounds(bench: Bench, task: Task, able: list[Peer], job: dict[str, Any]) -> dict[Peer, Speed]:
    def measure(peer: Peer) -> Round:
        return bench.contenders.get(peer.contender).measure(task.operation, pipeline=peer.pipeline, **job)

    by = "first_s" if task.operation == "starts" else "seconds"
    return {peer: _best(rounds, by) for peer, rounds in take_rounds(able, bench.rounds, measure).items()}


def _best(rounds: list[Round], by: str) -> Speed:
    best = min(rounds, key=lambda one: one[by])
    speed = Speed(best[by], best["records"] / best["seconds"], None, [round(one[by], 6) for one in rounds])
    if "cpu_s" in best:
        speed.cpu_s = min(one["cpu_s"] for one in rounds)
    if "descriptors_grown" in best:
        speed.descriptors_grown = round(max(one["descriptors_grown"] for one in rounds))
    return speed


def _compare(result: ReadResult) -> None:
    if result.ours is None or result.theirs is None:
        return
    result.ratio = result.theirs.seconds / result.ours.seconds
    if result.ours.cpu_s and result.theirs.cpu_s:
        result.cpu_ratio = result.theirs.cpu_s / result.ours.cpu_s


def _check_targets(task: Task, results: list[ReadResult]) -> None:
    if task.fastest_only:
        able = [result for result in results if result.theirs is not None]
        fastest = min(able, key=lambda result: result.theirs.seconds, default=None)
        for result in able:
            result.target = result.target if result is fastest else None
    for result in results:
        if result.target is None or result.ratio is None or result.ours is None:
            continue
        result.cpu_target = 1.0 if task.cpu_too else None
        result.met = (
            result.ratio >= result.target
            and (result.cpu_target is None or (result.cpu_ratio or 0.0) >= result.cpu_target)
            and (result.ours.descriptors_grown or 0) <= 0
        )


# ---- leaks -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeakCounts:
    """Open descriptors and memory at the start and after every loader."""

    loader: str
    scenario: str
    descriptors: list[int]
    rss_bytes: list[int]

    @property
    def descriptors_grown(self) -> int:
        return self.descriptors[-1] - self.descriptors[0]

    @property
    def rss_grown_bytes(self) -> int:
        return self.rss_bytes[-1] - self.rss_bytes[0]


def measure_leaks(bench: Bench) -> list[LeakCounts]:
    contender = bench.contenders.get("leaks")
    found = []
    for scenario in contender.call("scenarios"):
        bench.log(f"{LEAKS_ROW}  {scenario}: {bench.sizes.leak_loaders} loaders each")
        for loader in LOADERS:
            counts = contender.call("leak", loader=loader, scenario=scenario, loaders=bench.sizes.leak_loaders)
            found.append(LeakCounts(loader, scenario, **counts))
    return found
