"""The rows of the table; starts trees of real processes, and measures all contenders on them in rounds."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.common.contenders import ContenderError, Contenders, Round, take_rounds
from benchmarks.common.report import Result
from benchmarks.fdscan.process_tree import SPARE

LSOF = ("lsof", "-nP", "-p")
LSOF_ENDS = ("lsof", "-nP", "+E", "-p")
LIMIT = "a limit"


class Peer(NamedTuple):
    """Work of a contender, or a command that takes pids. `target`: at least this many times its speed."""

    name: str
    work: str | tuple[str, ...]
    target: float | None = None
    contender: str = "psutil"


class Task(NamedTuple):
    """`tree` names the tree that is scanned. `limit_s` is the most CPU time that holdfast may take."""

    key: str
    what: str
    tree: str
    work: str
    peers: tuple[Peer, ...]
    limit_s: float | None = None
    one: bool = False  # only the first process


TASKS = (
    Task(
        "scan",
        "full scan",
        "work",
        "doctor",
        (
            Peer("lsof -nP +E", LSOF_ENDS, 4),
            Peer("lsof -nP", LSOF),
            Peer("psutil open_files (only files)", "open_files"),
        ),
    ),
    Task("count", "count", "large", "count", (Peer("psutil num_fds", "count", 1000),), one=True),
    Task("vitals", "count, RSS, threads", "large", "vitals", (Peer("psutil, the same", "vitals"),), 20e-6, one=True),
    Task("large", "full scan", "large", "full", (Peer("lsof -nP +E", LSOF_ENDS), Peer("lsof -nP", LSOF)), 0.5),
    Task("leak", "full scan", "leak", "full", (Peer("lsof -nP +E", LSOF_ENDS), Peer("lsof -nP", LSOF)), 0.5),
)
KEYS = tuple(task.key for task in TASKS)


@dataclass(slots=True)
class Cost:
    """The round that took the least CPU time, and the CPU time of every round."""

    cpu_s: float
    wall_s: float
    count: int
    rounds_cpu_s: list[float]


@dataclass(slots=True, kw_only=True)
class ScanResult(Result):
    """`ratio` is the peer's CPU time by holdfast's."""

    def target_text(self) -> str:
        if self.peer == LIMIT:
            return f"≤ {duration(self.theirs.cpu_s)}"
        return "" if self.target is None else f"≥ {self.target:,.0f}×"


def duration(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


# ---- trees of processes ------------------------------------------------------------------------------------


class Tree(NamedTuple):
    """`mix` is one that process_tree.py knows; `number` descriptors in each of the processes."""

    mix: str
    number: int
    processes: int

    def text(self) -> str:
        many = "process" if self.processes == 1 else "processes"
        return f"{self.number * self.processes:,} descriptors in {self.processes} {many} ({self.mix})"


def possible(tree: Tree) -> Tree:
    """Reduces a tree to as many descriptors as the hard limit lets a process have."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return tree if limit < 0 else tree._replace(number=min(tree.number, limit - SPARE))


@contextmanager
def running(tree: Tree) -> Iterator[list[int]]:
    """Runs the tree, and yields the pids of its processes, the parent's first."""
    command = [sys.executable, "-m", "benchmarks.fdscan.process_tree", *map(str, tree)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise ContenderError(f"the processes to scan ended with code {process.wait()}")
        yield json.loads(line)
    finally:
        process.communicate(timeout=60)


# ---- rounds ------------------------------------------------------------------------------------------------


def measure_task(task: Task, work: str, pids: list[int], rounds: int, contenders: Contenders) -> list[ScanResult]:
    """Returns one result for every peer, and one for the limit if there is one."""
    results = [ScanResult(key=task.key, work=work, peer=peer.name, target=peer.target) for peer in task.peers]
    ours = Peer("holdfast", task.work, contender="holdfast")
    able = [ours]
    _scan(ours, pids, contenders)  # warm-up
    for peer, result in zip(task.peers, results, strict=True):
        try:
            _scan(peer, pids, contenders)
            able.append(peer)
        except ContenderError as error:
            result.skipped = str(error)
    taken = take_rounds(able, rounds, lambda peer: _scan(peer, pids, contenders))
    costs = {peer: _best(taken[peer]) for peer in able}
    for peer, result in zip(task.peers, results, strict=True):
        result.ours, result.theirs = costs[ours], costs.get(peer)
        if result.theirs is not None:
            result.ratio = result.theirs.cpu_s / result.ours.cpu_s
            result.met = None if peer.target is None else result.ratio >= peer.target
    if task.limit_s is not None:
        results.insert(0, _limit_result(task.key, work, costs[ours], task.limit_s))
    return results


def _scan(peer: Peer, pids: list[int], contenders: Contenders) -> Round:
    if isinstance(peer.work, tuple):
        return _run([*peer.work, ",".join(map(str, pids))])
    answer: Round = contenders.get(peer.contender).call("scan", work=peer.work, pids=pids)
    return answer


def _run(command: list[str]) -> Round:
    """Runs a command and returns its CPU time as the kernel reports it."""
    if shutil.which(command[0]) is None:
        raise ContenderError(f"there is no command {command[0]}")
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    with process.stdout as out:
        lines = sum(part.count(b"\n") for part in iter(lambda: out.read(1 << 20), b""))
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return {"cpu_s": used.ru_utime + used.ru_stime, "wall_s": time.perf_counter() - start, "count": lines}


def _best(rounds: list[Round]) -> Cost:
    best = min(rounds, key=lambda one: one["cpu_s"])
    return Cost(best["cpu_s"], best["wall_s"], int(best["count"]), [round(one["cpu_s"], 9) for one in rounds])


def _limit_result(key: str, work: str, ours: Cost, limit_s: float) -> ScanResult:
    """Compares holdfast's CPU time with a limit, as a ratio: at least 1 is enough."""
    ratio = limit_s / ours.cpu_s
    theirs = Cost(limit_s, limit_s, 0, [])
    return ScanResult(key=key, work=work, peer=LIMIT, target=1.0, ours=ours, theirs=theirs, ratio=ratio, met=ratio >= 1)
