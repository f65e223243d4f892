"""Trees of real processes, the sides that look at them, and rounds in which every side has its turn."""

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
from pathlib import Path
from typing import Any, NamedTuple

from look_rows import Cost, Outcome, Peer, Row
from look_tree import SPARE

HERE = Path(__file__).resolve().parent


class Missing(Exception):
    """A side cannot take part, and why."""


class Child:
    """A program beside this one that is asked and answers in JSON lines."""

    def __init__(self, script: str, *arguments: str) -> None:
        command = [sys.executable, str(HERE / script), *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.name = " ".join((script, *arguments))

    def hear(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Missing(f"{self.name} ended with code {self._process.wait()}")
        return json.loads(line)

    def ask(self, job: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return self.hear()

    def close(self) -> None:
        self._process.communicate(timeout=60)


class Tree(NamedTuple):
    """`mix` is one that look_tree.py knows; so many descriptors in each of so many processes."""

    mix: str
    number: int
    processes: int

    def told(self) -> str:
        many = "process" if self.processes == 1 else "processes"
        return f"{self.number * self.processes:,} descriptors in {self.processes} {many} ({self.mix})"


def possible(tree: Tree) -> Tree:
    """As wanted, or with as many as the hard limit lets a process have."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return tree if most < 0 else tree._replace(number=min(tree.number, most - SPARE))


@contextmanager
def running(tree: Tree) -> Iterator[list[int]]:
    """The processes' pids, the parent's first."""
    child = Child("look_tree.py", *map(str, tree))
    try:
        yield child.hear()
    finally:
        child.close()


def measure_row(row: Row, pids: list[int], rounds: int, sides: dict[str, Child], work: str) -> list[Outcome]:
    ours = Peer("holdfast", row.work)
    turns: dict[Peer, list[dict[str, float]]] = {ours: []}
    missing: dict[Peer, str] = {}
    for number in range(rounds + 1):
        # Back and forth: none always follows the same other. The first round warms all sides up.
        order = [ours, *row.peers]
        for peer in order if number % 2 else reversed(order):
            try:
                turn = _turn(peer, "holdfast" if peer is ours else "psutil", pids, sides)
            except Missing as error:
                missing[peer] = str(error)
                continue
            if number:
                turns.setdefault(peer, []).append(turn)
    return [_outcome(row, work, peer, _best(turns[ours]), turns.get(peer), missing.get(peer, "")) for peer in row.peers]


def _turn(peer: Peer, side: str, pids: list[int], sides: dict[str, Child]) -> dict[str, float]:
    if isinstance(peer.work, tuple):
        return _run([*peer.work, ",".join(map(str, pids))])
    if side not in sides:
        raise Missing(f"{side} is not installed")
    answer: dict[str, float] = sides[side].ask({"work": peer.work, "pids": pids})
    return answer


def _run(command: list[str]) -> dict[str, float]:
    """A command's CPU time, by what the kernel says of it as it ends."""
    if shutil.which(command[0]) is None:
        raise Missing(f"there is no command {command[0]}")
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    with process.stdout as out:
        lines = sum(part.count(b"\n") for part in iter(lambda: out.read(1 << 20), b""))
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return {"cpu_s": used.ru_utime + used.ru_stime, "wall_s": time.perf_counter() - start, "count": lines}


def _best(turns: list[dict[str, float]]) -> Cost:
    best = min(turns, key=lambda turn: turn["cpu_s"])
    return Cost(best["cpu_s"], best["wall_s"], int(best["count"]), [round(turn["cpu_s"], 9) for turn in turns])


def _outcome(
    row: Row, work: str, peer: Peer, ours: Cost, turns: list[dict[str, float]] | None, missing: str
) -> Outcome:
    result = Outcome(row.key, work, peer.name, peer.wanted, ours=ours)
    if not turns:
        result.skipped = missing
        return result
    result.theirs = _best(turns)
    result.ratio = result.theirs.cpu_s / ours.cpu_s
    result.met = None if peer.wanted is None else result.ratio >= peer.wanted
    return result


def limit_outcome(row: Row, work: str, ours: Cost) -> Outcome:
    """Our CPU time against a bound, as a ratio too: at least 1 is enough."""
    limit_s = row.limit_s or 0.0
    result = Outcome(row.key, work, "a bound", 1.0, ours=ours)
    result.theirs = Cost(limit_s, limit_s, 0, [])
    result.ratio = limit_s / ours.cpu_s
    result.met = result.ratio >= 1
    return result
