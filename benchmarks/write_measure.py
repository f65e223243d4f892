"""Proof that all sides write the same, then rounds in which every side has its turn."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sides import SideError, Sides
from turns import Turn, take_turns
from write_pass import BLOCK_BYTES, BLOCK_ROWS
from write_rows import FEW_ROUNDS, PRODUCERS, Peer, Result, Sizes, Speed, Task

Job = dict[str, Any]

_OF_PARTS = ("consolidate", "merge")
_LESS_TO_BUILD = 8  # packing with gzip takes many times as long as copying


@dataclass(slots=True)
class Bench:
    """What all tasks of one run share."""

    sides: Sides
    sizes: Sizes
    rounds: int
    folders: dict[str, Path]  # "disk", and "tmpfs" where there is one with room
    say: Callable[[str], None]
    data: dict[str, Any] = field(default_factory=dict)  # what was written, for the report

    def folder(self, place: str) -> Path:
        if place not in self.folders:
            raise SideError(f"there is no {place} here, or no room in it")
        return self.folders[place]


def measure_task(bench: Bench, task: Task) -> list[Result]:
    """One result for every peer of the task; a side that cannot take part gives some that say why."""
    results = [
        Result(task.row, task.key, task.work, peer.name, peer.wanted, at_most=task.by_time) for peer in task.peers
    ]
    home = None
    try:
        home = bench.folder(task.place) / task.key
        home.mkdir()
        job = _prepare(bench, task, home)
        _measure(bench, task, job, home, results)
    except SideError as error:
        for result in results:
            result.skipped = result.skipped or str(error)
    finally:
        if home is not None:
            shutil.rmtree(home, ignore_errors=True)
    return results


def _prepare(bench: Bench, task: Task, home: Path) -> Job:
    """What all sides are told."""
    sizes = bench.sizes
    job: Job = {"codec": task.codec, "least_s": sizes.turn_s}
    if task.ours.operation in _OF_PARTS:
        blocks = max(2, sizes.part_blocks // _LESS_TO_BUILD) if task.short_rows else sizes.part_blocks
        job |= {"folder": str(home / "parts.hold"), "parts": sizes.parts, "blocks": blocks, "short": task.short_rows}
        bench.say(f"making {sizes.parts} {task.codec} parts of {blocks * BLOCK_BYTES / 1e6:,.0f} MB")
        job |= bench.sides.get("write_holdfast").call("make_parts", **job)
        job["records"] = sizes.parts * (blocks * BLOCK_ROWS - task.short_rows)
    else:
        blocks = sizes.disk_blocks if task.place == "disk" else sizes.central_blocks[task.codec]
        job |= {"producers": PRODUCERS, "blocks": blocks, "bytes": PRODUCERS * blocks * BLOCK_BYTES}
        job["records"] = PRODUCERS * blocks * BLOCK_ROWS
    bench.data[task.key] = {name: job[name] for name in ("records", "bytes")}
    return job


def _measure(bench: Bench, task: Task, job: Job, home: Path, results: list[Result]) -> None:
    able, sums = [], {"records": job["records"]}
    for peer, result in zip((task.ours, *task.peers), [None, *results], strict=True):
        try:
            sums |= _prove(bench, peer, _told(peer, job, home), sums)
            able.append(peer)
        except SideError as error:
            if result is None:
                raise
            bench.say(f"   {peer.name} is left out: {error}")
            result.skipped = str(error)
    bench.say(f"{task.row}  {task.work} (rounds: {bench.rounds}, sides: {len(able)})")
    most = {peer: FEW_ROUNDS for peer in able if peer.few_rounds}
    turns = take_turns(able, bench.rounds, lambda peer: _turn(bench, peer, _told(peer, job, home)), most)
    speeds = {peer: best(taken, job["bytes"]) for peer, taken in turns.items()}
    for peer, result in zip(task.peers, results, strict=True):
        if peer in speeds:
            ours = turns[task.ours][: len(turns[peer])]  # as many tries as it had
            _compare(task, result, best(ours, job["bytes"]), speeds[peer])
            result.more = _acked(ours, turns[peer])
    if not task.by_time and task.place == "tmpfs":  # a disk's own time would be in it
        results[0].more = _start(bench, task, job, home, speeds[task.ours].seconds)


def _start(bench: Bench, task: Task, job: Job, home: Path, seconds: float) -> dict[str, Any]:
    """What our side takes with next to nothing to write: of consolidate, mostly to start a process that loads HDF5."""
    tiny = _told(task.ours, job, home) | {"blocks": 1, "least_s": 0.0}
    if task.ours.operation in _OF_PARTS:
        tiny["folder"] = str(home / "tiny.hold")
        tiny |= bench.sides.get(task.ours.side).call("make_parts", **tiny)
    start_s = min(_turn(bench, task.ours, tiny)["seconds"] for _ in range(bench.rounds))
    return {"start_s": round(start_s, 6), "note": f"{start_s:.2f} of {seconds:.2f} s to begin and to end"}


def _told(peer: Peer, job: Job, home: Path) -> Job:
    """Every side has its own place to write to: what one leaves is not in another's way."""
    name = f"{peer.side}-{peer.operation}-{peer.ack}"
    return job | {"ack": peer.ack, "out": str(home / (name + (".hold" if peer.operation == "central" else ".h5")))}


def _turn(bench: Bench, peer: Peer, job: Job) -> Turn:
    return bench.sides.get(peer.side).turn(peer.operation, **job)


def _prove(bench: Bench, peer: Peer, job: Job, wanted: dict[str, int]) -> dict[str, int]:
    """Sums over what it wrote, which must be those of the sides before. Also the warm-up."""
    side, out = bench.sides.get(peer.side), Path(job["out"])
    side.call(peer.operation, **job)
    try:
        if peer.operation.startswith("cat"):
            return wanted  # it has seen to its number of bytes itself
        files = sorted(map(str, out.glob("parts/*.h5"))) if out.is_dir() else [str(out)]
        got: dict[str, int] = bench.sides.get("write_plain").call("sums", files=files)
        if got != wanted | {"sum": wanted.get("sum", got["sum"])}:
            raise SystemExit(f"{peer.name} and the sides before did not write the same: {got} and {wanted}")
        return got
    finally:
        shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)


def best(turns: list[Turn], nbytes: int) -> Speed:
    seconds = min(turn["seconds"] for turn in turns)
    cpu_s = min(turn["cpu_s"] for turn in turns)
    return Speed(seconds, nbytes / seconds, cpu_s, [round(turn["seconds"], 6) for turn in turns])


def _compare(task: Task, result: Result, ours: Speed, theirs: Speed) -> None:
    result.ours, result.theirs = ours, theirs
    result.value = ours.seconds / theirs.seconds if task.by_time else theirs.seconds / ours.seconds
    if ours.cpu_s and theirs.cpu_s:
        result.cpu_ratio = theirs.cpu_s / ours.cpu_s
    result.judge()


def _acked(ours: list[Turn], theirs: list[Turn]) -> dict[str, Any]:
    """How long it took until everything was acknowledged, where both sides know of that."""
    if not all("acked_s" in turn for turn in (*ours, *theirs)):
        return {}
    a, b = (min(turn["acked_s"] for turn in turns) for turns in (ours, theirs))
    return {"acked_s": [round(a, 6), round(b, 6)], "note": f"until all is acknowledged: {a:.2f} s and {b:.2f} s"}
