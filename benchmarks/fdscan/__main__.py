"""Compares scans of process trees with lsof and psutil, by CPU time.

Prints a table of ratios, and saves it as JSON, Markdown and a plot. Every contender takes part in every round; each
number is the best of all rounds. No result makes the benchmark fail.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.common import report as reports
from benchmarks.common.contenders import ContenderError, Contenders
from benchmarks.fdscan.measure import (
    KEYS,
    LIMIT,
    TASKS,
    Cost,
    ScanResult,
    Task,
    Tree,
    duration,
    measure_task,
    possible,
    running,
)

TREES = {"work": Tree("work", 6_667, 3), "large": Tree("work", 20_000, 3), "leak": Tree("leak", 20_000, 3)}
QUICK_TREES = {"work": Tree("work", 200, 3), "large": Tree("work", 300, 3), "leak": Tree("leak", 300, 3)}
HEADS = ("work", "holdfast CPU · wall", "peer", "its CPU · wall", "ratio (CPU)", "target", "met")


def main() -> None:
    arguments = reports.parse_options("fdscan", __doc__, KEYS, rounds=7)
    trees = {name: possible(tree) for name, tree in (QUICK_TREES if arguments.quick else TREES).items()}
    report = reports.new_report(arguments, Path())
    with Contenders("fdscan") as contenders:
        results = run(trees, arguments.only, arguments.rounds, contenders)
    report["machine"]["load_average"].append(reports.load_average())
    report["versions"] = contenders.versions
    report["trees"] = trees
    report["rows"] = [result.as_dict() for result in results]
    lines = _summary(report)
    cells = [line[1:] for line in reports.result_cells(results, lambda result: _cost(result.ours), _against)]
    print("\n".join(["", reports.text_table(HEADS, cells), "", *lines]))
    if arguments.out is not None:
        save(arguments.out, report, reports.markdown_table(HEADS, cells), lines)


def run(trees: dict[str, Tree], keys: list[str], rounds: int, contenders: Contenders) -> list[ScanResult]:
    results: list[ScanResult] = []
    try:
        for name, tree in trees.items():
            tasks = [task for task in TASKS if task.tree == name and task.key in keys]
            if tasks:
                with running(tree) as pids:
                    for task in tasks:
                        results += _measure(task, tree, pids, rounds, contenders)
    except ContenderError as error:
        sys.exit(f"benchmarks.fdscan: {error}")
    return results


def _measure(task: Task, tree: Tree, pids: list[int], rounds: int, contenders: Contenders) -> list[ScanResult]:
    if task.one:
        tree, pids = tree._replace(processes=1), pids[:1]
    work = f"{task.what}: {tree.text()}"
    reports.log(f"{work}, rounds: {rounds}")
    return measure_task(task, work, pids, rounds, contenders)


# ---- the table and what is around it -----------------------------------------------------------------------


def _against(result: ScanResult) -> tuple[str, str, str, str]:
    if result.theirs is None:
        return "skipped", "", "", ""
    cost = "" if result.peer == LIMIT else _cost(result.theirs)
    return cost, result.ratio_text(), result.target_text(), result.met_text()


def _cost(cost: Cost) -> str:
    return f"{duration(cost.cpu_s)} · {duration(cost.wall_s)}"


def _summary(report: dict[str, Any]) -> list[str]:
    lines = [
        "work: of ten descriptors four are pipes between the processes, two are what finished torch iterators leak "
        "(pipes with both ends in one process, and ends without a peer), two files, two sockets; leak: eight are what "
        "torch iterators leak"
    ]
    lines += sorted({f"skipped: {row['skipped']}" for row in report["rows"] if "skipped" in row})
    return lines + reports.machine_lines(report)


def save(folder: Path, report: dict[str, Any], table: str, lines: list[str]) -> None:
    sections = [
        "# Scans of processes compared with lsof and psutil",
        "CPU time of one scan of the same processes; lsof gets their pids. Each number is the best of "
        f"{report['rounds']} rounds. Made by `python -m benchmarks.fdscan`.",
        table,
        reports.bullets(lines),
    ]
    reports.save_results(folder, report, sections)


if __name__ == "__main__":
    main()
