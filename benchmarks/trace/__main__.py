"""Compares the CPU time of programs with and without `holdfast trace`, and under other tracers.

Prints a table of ratios to the untraced program, and saves it as JSON, Markdown and a plot. Every contender takes part
in every round; each number is the best of all rounds. No result makes the benchmark fail.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from benchmarks.common import report as reports
from holdfast.process.fdtrace.attach import record_attached
from holdfast.process.fdtrace.image import read_folder
from holdfast.process.fdtrace.log_format import EBADF, TIME_HOOKS
from holdfast.process.fdtrace.recording import TraceOptions, environment

HEADS = ("work", "untraced", "traced by", "CPU", "ratio", "target", "met")
_WORKLOAD = str(Path(__file__).with_name("workload.py"))
_LIMIT_S = 900


class Task(NamedTuple):
    """A workload, how often it is repeated, the most that tracing may cost, and the peers: name -> rounds."""

    key: str
    what: str
    count: int
    quick: int
    target: float
    peers: dict[str, int]


TASKS = (
    Task(
        "loader",
        "torch DataLoader, 2 workers, re-created 50 times, 600 files an epoch",
        50,
        2,
        1.03,
        {"untraced again": 7, "strace -f": 1, "memray --follow-fork": 1},
    ),
    Task("files", "20,000 small files read", 20_000, 200, 1.06, {"audit hook": 3, "strace -f": 1}),
    Task(
        "deep",
        "open and close, 20 frames deep, 200,000 times",
        200_000,
        500,
        1.2,
        {"audit hook": 3, "wrapped calls": 3},
    ),
    Task("pipe", "pipe and two closes, 100,000 times", 100_000, 500, 1.15, {"wrapped calls": 3}),
)
LIMITS = ("hooks", "memory", "log", "attach")


@dataclass(slots=True, kw_only=True)
class TraceResult(reports.Result):
    """`ratio` is the traced CPU time by the untraced; it must not exceed `target`."""

    unit: str = ""

    def ratio_text(self) -> str:
        if self.ratio is None:
            return ""
        return f"{self.ratio:.3g} {self.unit}" if self.unit else f"{self.ratio:.3f}"

    def target_text(self) -> str:
        return "" if self.target is None else f"≤ {self.target:g} {self.unit}".rstrip()


def main() -> None:
    keys = [task.key for task in TASKS] + list(LIMITS)
    arguments = reports.parse_options("trace", __doc__, keys, rounds=7)
    report = reports.new_report(arguments, Path("/dev/shm"))
    results: list[TraceResult] = []
    with ExitStack() as stack:
        small = reports.temporary_folder(stack, None)
        for number in range(60 if arguments.quick else 2_000):
            (small / f"{number:05}").write_bytes(os.urandom(2_048))
        for task in TASKS:
            if task.key in arguments.only:
                results += _measure(task, small, arguments.rounds, quick=arguments.quick)
        results += _measure_limits(arguments.only, small, quick=arguments.quick)
    report["machine"]["load_average"].append(reports.load_average())
    report["versions"] = _versions()
    report["rows"] = [result.as_dict() for result in results]
    lines = sorted({f"skipped: {result.skipped}" for result in results if result.skipped}) + reports.machine_lines(
        report
    )
    cells = [line[1:] for line in reports.result_cells(results, lambda result: _seconds(result.theirs), _against)]
    print("\n".join(["", reports.text_table(HEADS, cells), "", *lines]))
    if arguments.out is not None:
        sections = [
            "# What tracing costs",
            "CPU time of the program and its children, traced by its untraced CPU time. Each number is the best of "
            f"{report['rounds']} rounds, peers fewer. Made by `python -m benchmarks.trace`.",
            reports.markdown_table(HEADS, cells),
            reports.bullets(lines),
        ]
        reports.save_results(arguments.out, report, sections)


def _against(result: TraceResult) -> tuple[str, str, str, str]:
    if result.skipped:
        return "skipped", "", "", ""
    return _seconds(result.ours), result.ratio_text(), result.target_text(), result.met_text()


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} s"


def _versions() -> dict[str, str]:
    found = {"torch": metadata.version("torch")} if importlib.util.find_spec("torch") else {}
    if importlib.util.find_spec("memray"):
        found["memray"] = metadata.version("memray")
    if shutil.which("strace"):
        said = subprocess.run(["strace", "--version"], capture_output=True, text=True, check=False).stdout
        found["strace"] = said.split()[3] if len(said.split()) > 3 else "?"
    return found


# ---- CPU time


def _measure(task: Task, small: Path, rounds: int, *, quick: bool) -> list[TraceResult]:
    count = task.quick if quick else task.count
    reports.log(f"{task.what}, rounds: {rounds}")
    ways: dict[str, tuple[int, Callable[[], float]]] = {
        "untraced": (rounds, lambda: _run(task.key, count, small)),
        "holdfast": (rounds, lambda: _run_traced(task.key, count, small)),
    }
    skipped = {}
    for peer, maximum in task.peers.items():
        run = _peer(peer, task.key, count, small)
        if run is None:
            skipped[peer] = f"{peer.split()[0]} is not installed"
        else:
            ways[peer] = (min(maximum, rounds), run)
    best = dict.fromkeys(ways, float("inf"))
    for number in range(rounds):
        for name, (maximum, run) in list(ways.items())[:: 1 if number % 2 == 0 else -1]:
            if number < maximum:
                best[name] = min(best[name], run())
    base = best["untraced"]
    ours = TraceResult(
        key=task.key, work=task.what, peer="holdfast", target=task.target, ours=best["holdfast"], theirs=base
    )
    ours.ratio = best["holdfast"] / base
    ours.met = ours.ratio <= task.target
    results = [ours]
    for peer in task.peers:
        result = TraceResult(key=task.key, work=task.what, peer=peer, theirs=base, skipped=skipped.get(peer, ""))
        if peer in best:
            result.ours, result.ratio = best[peer], best[peer] / base
        results.append(result)
    return results


def _peer(peer: str, work: str, count: int, small: Path) -> Callable[[], float] | None:
    if peer == "strace -f":
        if not shutil.which("strace"):
            return None
        return lambda: _run(work, count, small, before=["strace", "-f", "-qq", "-e", "trace=%desc", "-o", os.devnull])
    if peer.startswith("memray"):
        if importlib.util.find_spec("memray") is None:
            return None
        return lambda: _run_memray(work, count, small)
    if peer == "untraced again":  # shows how far the machine's noise alone goes
        return lambda: _run(work, count, small)
    mode = "audit" if peer == "audit hook" else "wrap"
    return lambda: _run(work, count, small, mode=mode)


def _run(
    work: str,
    count: int,
    small: Path,
    *,
    before: list[str] | None = None,
    mode: str = "",
    env: dict[str, str] | None = None,
) -> float:
    """Runs the workload and returns the CPU time of it and its children."""
    command = [*(before or []), sys.executable, _WORKLOAD, work, str(count), str(small), *filter(None, [mode])]
    start = _children_s()
    subprocess.run(command, env=env, check=True, timeout=_LIMIT_S, stdout=subprocess.DEVNULL)
    return _children_s() - start


def _peak_memory(work: str, count: int, small: Path, env: dict[str, str] | None) -> int:
    """Returns the most bytes that the program's first process had in memory."""
    command = [sys.executable, _WORKLOAD, work, str(count), str(small)]
    done = subprocess.run(command, env=env, check=True, timeout=_LIMIT_S, stdout=subprocess.PIPE)
    return 1024 * int(done.stdout.split()[-1])


def _run_traced(work: str, count: int, small: Path) -> float:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        return _run(work, count, small, env=environment(Path(folder), TraceOptions(), os.environ))


def _run_memray(work: str, count: int, small: Path) -> float:
    with tempfile.TemporaryDirectory() as folder:
        output = [sys.executable, "-m", "memray", "run", "-q", "--follow-fork", "-o", f"{folder}/out.bin"]
        start = _children_s()
        command = [*output, _WORKLOAD, work, str(count), str(small)]
        subprocess.run(command, check=True, timeout=_LIMIT_S, stdout=subprocess.DEVNULL)
        return _children_s() - start


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# ---- time in the hooks, memory, size of the log, time to attach


def _measure_limits(keys: list[str], small: Path, *, quick: bool) -> list[TraceResult]:
    results = []
    if "hooks" in keys:
        share = _hook_share(2 if quick else 50, small)
        results.append(_limit("hooks", "time in the hooks, DataLoader of above", share, 1.5, "% of CPU"))
    if "memory" in keys:
        results.append(_limit("memory", "memory, 20,000 small files read", _memory(small), 8, "MB"))
    if "log" in keys:
        results.append(_limit("log", "logs of 63 processes", _log_size(), 10, "MB"))
    if "attach" in keys and shutil.which("gdb"):
        results.append(_limit("attach", "attach to a process with torch loaded", _attach_time(), 1, "s"))
    return results


def _limit(key: str, work: str, value: float, target: float, unit: str) -> TraceResult:
    return TraceResult(key=key, work=work, peer="holdfast", target=target, ratio=value, unit=unit, met=value <= target)


def _hook_share(count: int, small: Path) -> float:
    """Returns the percentage of CPU time in the hooks."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        env = environment(Path(folder), TraceOptions(), os.environ)
        env["HOLDFAST_FDTRACE_OPTIONS"] = str(EBADF | TIME_HOOKS)
        cpu = _run("loader", count, small, env=env)
        images, _ = read_folder(folder)
    return 100 * sum(image.header.counts["hook_ns"] for image in images.values()) / 1e9 / cpu


def _memory(small: Path) -> float:
    """Returns how many MB more a traced process needs; the ring of events is full by then."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        env = environment(Path(folder), TraceOptions(owners=False), os.environ)
        traced = min(_peak_memory("files", 20_000, small, env) for _ in range(3))
    return (traced - min(_peak_memory("files", 20_000, small, None) for _ in range(3))) / 1e6


def _log_size() -> float:
    child = "[open(os.devnull) for _ in range(50)]; os._exit(0)"
    program = f"import os\nfor _ in range(62):\n    if not os.fork():\n        {child}\n    os.wait()"
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        env = environment(Path(folder), TraceOptions(), os.environ)
        subprocess.run([sys.executable, "-c", program], env=env, check=True, timeout=_LIMIT_S)
        return sum(path.stat().st_blocks * 512 for path in Path(folder).iterdir()) / 1e6


def _attach_time() -> float:
    program = "import torch, time; print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            start = time.monotonic()
            record_attached(process.pid, TraceOptions(owners=False), for_s=0.0)
            return time.monotonic() - start
        finally:
            process.kill()


if __name__ == "__main__":
    main()
