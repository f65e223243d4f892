"""Measures what `hold.Guard` costs a worker: in a loop of 1 ms jobs, while it only samples, and for each call.

Prints a table, and saves it as JSON, Markdown and a plot. Every contender takes part in every round; each number is the
best of all rounds. No result makes the benchmark fail.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from benchmarks.common import report as reports
from holdfast.procfs.processes import read_cpu_s, read_parents
from holdfast.procfs.procfs import REAL

HEADS = ("work", "without", "with", "CPU", "cost", "target", "met")
_WORKLOAD = str(Path(__file__).with_name("workload.py"))
_LIMIT_S = 300


class Task(NamedTuple):
    """A workload with this many open descriptors. `target` is the most that the guard may cost, in percent."""

    key: str
    what: str
    work: str
    fds: int
    count: int
    quick: int
    target: float
    peers: tuple[str, ...]


TASKS = (
    Task("jobs", "10 jobs of 1 ms", "jobs", 0, 3_000, 50, 1.0, ("nothing", "psutil after each job")),
    Task(
        "jobs_many",
        "10 jobs of 1 ms, 15,000 descriptors open",
        "jobs",
        15_000,
        3_000,
        50,
        1.0,
        ("psutil after each job",),
    ),
    Task("idle", "sampling every second", "idle", 0, 20, 2, 0.2, ("psutil every second",)),
    Task(
        "idle_many",
        "sampling every second, 15,000 descriptors open",
        "idle",
        15_000,
        20,
        2,
        0.2,
        ("psutil every second",),
    ),
)
CALLS = ("calls", "calls_many")
OUTSIDE = {
    "supervise": "holdfast supervise, one worker with a Guard: supervisor and reaper",
    "watch": "holdfast watch, that worker, a sample every 5 s",
}
MANY = "watch_many"
_MANY_TARGETS = 100
_MANY_PERCENT = 1.0
_WORKER = """
import time, holdfast as hold
with hold.Guard("bench") as guard:
    while not guard.draining:
        guard.ok()
        time.sleep(0.1)
"""
_CALL_NAMES = {
    "ok": "guard.ok()",
    "step": "guard.step()",
    "job": "with guard.job(…)",
    "draining": "guard.draining",
    "count": "sample: count the descriptors",
    "rss": "sample: resident memory",
    "threads": "sample: threads",
    "profile": "scan all descriptors: kinds and dead pipes",
    "classify": "classify: trend, jobs, verdict",
}


@dataclass(slots=True, kw_only=True)
class GuardResult(reports.Result):
    """`ratio` is the cost in `unit`; it must not exceed `target`."""

    unit: str = "%"

    def ratio_text(self) -> str:
        return "" if self.ratio is None else f"{self.ratio:.3g} {self.unit}"

    def target_text(self) -> str:
        return "" if self.target is None else f"≤ {self.target:g} {self.unit}"


def main() -> None:
    keys = [task.key for task in TASKS] + [*CALLS, *OUTSIDE, MANY]
    arguments = reports.parse_options("guard", __doc__, keys, rounds=5)
    report = reports.new_report(arguments, Path("/tmp"))
    results: list[GuardResult] = []
    for task in TASKS:
        if task.key in arguments.only:
            measure = _measure_jobs if task.work == "jobs" else _measure_idle
            results += measure(task, arguments.rounds, quick=arguments.quick)
    for key in CALLS:
        if key in arguments.only:
            results += _measure_calls(key, quick=arguments.quick)
    if set(OUTSIDE) & set(arguments.only):
        results += [one for one in _measure_outside(3 if arguments.quick else 60) if one.key in arguments.only]
    if MANY in arguments.only:
        results += _measure_many(3 if arguments.quick else 60)
    report["machine"]["load_average"].append(reports.load_average())
    report["versions"] = {"psutil": metadata.version("psutil")} if importlib.util.find_spec("psutil") else {}
    report["rows"] = [result.as_dict() for result in results]
    lines = reports.machine_lines(report)
    cells = [line[1:] for line in reports.result_cells(results, lambda result: _seconds(result.theirs), _against)]
    print("\n".join(["", reports.text_table(HEADS, cells), "", *lines]))
    if arguments.out is not None:
        sections = [
            "# What a Guard costs",
            "CPU time of all threads of the worker. Jobs run with and without the guard in turns of 10; the cost is "
            "what the guard and its thread add to the median pair of turns, and the median of "
            f"{report['rounds']} rounds. For sampling, it is the part of one core, the best of two rounds. Made by "
            "`python -m benchmarks.guard`.",
            reports.markdown_table(HEADS, cells),
            reports.bullets(lines),
        ]
        reports.save_results(arguments.out, report, sections)


def _against(result: GuardResult) -> tuple[str, str, str, str]:
    if result.skipped:
        return "skipped", "", "", ""
    return _seconds(result.ours), result.ratio_text(), result.target_text(), result.met_text()


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3f} s"


def _run(work: str, count: int, watched: str, fds: int, rounds: int = 0) -> dict[str, float]:
    maximum = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    fds = fds if maximum < 0 else min(fds, maximum - 300)
    command = [sys.executable, _WORKLOAD, work, str(count), watched, str(fds), str(rounds)]
    done = subprocess.run(command, check=True, timeout=_LIMIT_S, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout))


def _measure_jobs(task: Task, rounds: int, *, quick: bool) -> list[GuardResult]:
    """Compares jobs with and without the guard in one process, and adds what its thread takes."""
    reports.log(f"{task.what}, rounds: {rounds}")
    of_a_job = int(_run("calibrate", 0, "none", 0)["rounds"])
    count = task.quick if quick else task.count
    ways = {"hold.Guard": "guard"} | {peer: _watched(peer) for peer in task.peers}
    skipped = _without_psutil(ways)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, watched in ways.items():
            if number == 0 or watched != "psutil":  # with many descriptors it takes minutes
                found[name].append(_run(task.work, count, watched, task.fds, of_a_job))
    results = []
    for peer in ("hold.Guard", *task.peers):
        result = GuardResult(key=task.key, work=task.what, peer=peer, skipped=skipped.get(peer, ""))
        if peer in found:
            middle = sorted(found[peer], key=lambda one: one["ratio"])[len(found[peer]) // 2]
            result.theirs, result.ours = middle["plain_s"], middle["plain_s"] * middle["ratio"]
            result.ratio = 100 * (middle["ratio"] - 1)
        results.append(result)
    return _with_target(results, task.target)


def _measure_idle(task: Task, rounds: int, *, quick: bool) -> list[GuardResult]:
    ways = {"hold.Guard": "guard"} | {peer: _watched(peer) for peer in task.peers}
    skipped = _without_psutil(ways)
    seconds = task.quick if quick else task.count
    reports.log(f"{task.what}, rounds: 2")
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(min(rounds, 2)):
        for name, watched in ways.items():
            best[name] = min(best[name], _run(task.work, seconds, watched, task.fds)["cpu_s"])
    results = []
    for peer in ("hold.Guard", *task.peers):
        ours = GuardResult(key=task.key, work=task.what, peer=peer, skipped=skipped.get(peer, ""), unit="% of a core")
        if peer in best:
            ours.ours, ours.ratio = best[peer], 100 * best[peer] / seconds
        results.append(ours)
    return _with_target(results, task.target)


def _with_target(results: list[GuardResult], target: float) -> list[GuardResult]:
    first = results[0]
    first.target = target
    first.met = first.ratio is not None and first.ratio <= target
    return results


def _watched(peer: str) -> str:
    return "psutil" if peer.startswith("psutil") else "none"


def _without_psutil(ways: dict[str, str]) -> dict[str, str]:
    """Removes the contenders that need psutil, if it is not installed, and says so."""
    if importlib.util.find_spec("psutil"):
        return {}
    gone = {peer: "psutil is not installed" for peer, watched in ways.items() if watched == "psutil"}
    for peer in gone:
        del ways[peer]
    return gone


def _measure_calls(key: str, *, quick: bool) -> list[GuardResult]:
    fds = 15_000 if key == "calls_many" else 0
    reports.log(f"single calls, {fds:,} descriptors open")
    found = _run("calls", 100 if quick else 20_000, "guard", fds)
    where = f", {fds:,} descriptors open" if fds else ""
    return [
        GuardResult(
            key=f"{key}_{name}", work=f"{_CALL_NAMES[name]}{where}", peer="hold.Guard", ratio=1e6 * seconds, unit="µs"
        )
        for name, seconds in found.items()
    ]


def _measure_outside(seconds: int) -> list[GuardResult]:
    """Measures the processes that look at a worker from outside, once they have started."""
    reports.log(f"supervise and watch, for {seconds} s")
    holdfast = [sys.executable, "-m", "holdfast"]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    supervised = [*holdfast, "supervise", "-q", "--", sys.executable, "-c", _WORKER]
    with subprocess.Popen(supervised, **quiet) as supervisor:
        watched = [*holdfast, "watch", "-q", str(supervisor.pid)]
        with subprocess.Popen(watched, **quiet) as watch:
            time.sleep(5)
            reapers = [pid for pid, parent in read_parents(REAL).items() if parent == supervisor.pid]
            groups = {"supervise": [supervisor.pid, *reapers], "watch": [watch.pid]}
            before = {key: _cpu_s(pids) for key, pids in groups.items()}
            time.sleep(seconds)
            used = {key: _cpu_s(pids) - before[key] for key, pids in groups.items()}
            watch.terminate()
        supervisor.terminate()
    return [
        GuardResult(
            key=key,
            work=OUTSIDE[key],
            peer="holdfast",
            ours=used[key],
            ratio=100 * used[key] / seconds,
            unit="% of a core",
        )
        for key in OUTSIDE
    ]


def _measure_many(seconds: int) -> list[GuardResult]:
    """Measures a watch on many processes that --name finds."""
    reports.log(f"watch on {_MANY_TARGETS} processes, for {seconds} s")
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    name = f"holdfast-benchmark-{time.monotonic_ns()}"
    with contextlib.ExitStack() as stack:
        for _ in range(_MANY_TARGETS):
            one = stack.enter_context(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e6)", name]))
            stack.callback(one.kill)
        watched = [sys.executable, "-m", "holdfast", "watch", "-q", "--name", name]
        watch = stack.enter_context(subprocess.Popen(watched, **quiet))
        stack.callback(watch.terminate)
        time.sleep(min(seconds, 20))  # the first round inspects all of them
        before = _cpu_s([watch.pid])
        time.sleep(seconds)
        used = _cpu_s([watch.pid]) - before
    work = f"holdfast watch --name, {_MANY_TARGETS} processes, a sample every 5 s"
    result = GuardResult(
        key=MANY, work=work, peer="holdfast", ours=used, ratio=100 * used / seconds, unit="% of a core"
    )
    return _with_target([result], _MANY_PERCENT)


def _cpu_s(pids: list[int]) -> float:
    return sum(read_cpu_s(REAL, pid) for pid in pids)


if __name__ == "__main__":
    main()
