"""Proof that all sides read the same, then rounds in which every side has its turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from read_data import DataSet, Sizes, data_set
from read_rows import Data, Peer, Task
from read_sides import ReadSides, SideError
from turns import Turn, take_turns


@dataclass(slots=True)
class Speed:
    """The best of all rounds, and every round's seconds. CPU time is of all processes of the side."""

    seconds: float
    records_per_s: float
    cpu_s: float | None
    rounds_s: list[float]
    descriptors_grown: int | None = None


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
    cpu_ratio: float | None = None
    cpu_wanted: float | None = None
    met: bool | None = None
    skipped: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}


@dataclass(slots=True)
class Bench:
    """What all tasks of one run share."""

    sides: ReadSides
    sizes: Sizes
    rounds: int
    folder: Path
    say: Callable[[str], None]
    data: dict[Data, DataSet] = field(default_factory=dict)
    wanted_sums: dict[Data, dict[str, int]] = field(default_factory=dict)

    def files(self, kind: Data) -> DataSet:
        if kind not in self.data:
            self.data[kind] = data_set(self.folder, kind, self.sizes, self.say)
        return self.data[kind]


def measure_task(bench: Bench, task: Task) -> list[Result]:
    """One result for every peer of the task; a side that cannot take part gives some that say why."""
    results = [Result(task.row, task.key, task.work, peer.name, peer.wanted) for peer in task.peers]
    ours = Peer("read_holdfast", task.pipeline, "holdfast")
    job: dict[str, Any] = {"data": task.data, "files": bench.files(task.data).files}
    job |= {"least_s": bench.sizes.turn_s, "epochs": bench.sizes.epochs}
    able, reasons = _able(bench, task, [ours, *task.peers], job)
    bench.say(f"{task.row}  {task.work} (rounds: {bench.rounds}, sides: {len(able)})")
    speeds = _rounds(bench, task, able, job)
    for peer, result in zip(task.peers, results, strict=True):
        result.skipped = reasons.get(peer, reasons.get(ours, ""))
        result.ours, result.theirs = speeds.get(ours), speeds.get(peer)
        _compare(result)
    _judge(task, results)
    return results


def _able(bench: Bench, task: Task, peers: list[Peer], job: dict[str, Any]) -> tuple[list[Peer], dict[Peer, str]]:
    """Those that can take part, and the reasons of those that cannot. Also the warm-up: all have read all files."""
    able, reasons = [], {}
    for peer in peers:
        try:
            _prove(bench, task, peer, job)
            able.append(peer)
        except SideError as error:
            reasons[peer] = str(error)
            bench.say(f"   {peer.name} is left out: {error}")
    return able, reasons


def _prove(bench: Bench, task: Task, peer: Peer, job: dict[str, Any]) -> None:
    got = bench.sides.get(peer.side).call("sums", pipeline=peer.pipeline, **job)
    wanted = bench.wanted_sums.setdefault(task.data, got)
    if got != wanted or got["records"] != bench.files(task.data).records:
        raise SystemExit(f"{task.work}: {peer.name} and the side before do not agree: {got} and {wanted}")


def _rounds(bench: Bench, task: Task, able: list[Peer], job: dict[str, Any]) -> dict[Peer, Speed]:
    def turn(peer: Peer) -> Turn:
        return bench.sides.get(peer.side).turn(task.operation, pipeline=peer.pipeline, **job)

    turns = take_turns(able, bench.rounds, turn)
    return {peer: _best(taken, "first_s" if task.operation == "starts" else "seconds") for peer, taken in turns.items()}


def _best(turns: list[dict[str, float]], by: str) -> Speed:
    best = min(turns, key=lambda turn: turn[by])
    speed = Speed(best[by], best["records"] / best["seconds"], None, [round(turn[by], 6) for turn in turns])
    if "cpu_s" in best:
        speed.cpu_s = min(turn["cpu_s"] for turn in turns)
    if "descriptors_grown" in best:
        speed.descriptors_grown = round(max(turn["descriptors_grown"] for turn in turns))
    return speed


def _compare(result: Result) -> None:
    if result.ours is None or result.theirs is None:
        return
    result.ratio = result.theirs.seconds / result.ours.seconds
    if result.ours.cpu_s and result.theirs.cpu_s:
        result.cpu_ratio = result.theirs.cpu_s / result.ours.cpu_s


def _judge(task: Task, results: list[Result]) -> None:
    if task.quickest_only:
        able = [result for result in results if result.theirs is not None]
        quickest = min(able, key=lambda result: result.theirs.seconds if result.theirs else 0.0, default=None)
        for result in able:
            result.wanted = result.wanted if result is quickest else None
    for result in results:
        if result.wanted is None or result.ratio is None or result.ours is None:
            continue
        result.cpu_wanted = 1.0 if task.cpu_too else None
        result.met = (
            result.ratio >= result.wanted
            and (result.cpu_wanted is None or (result.cpu_ratio or 0.0) >= result.cpu_wanted)
            and (result.ours.descriptors_grown or 0) <= 0
        )
