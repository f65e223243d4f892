"""Looking at processes, side by side: holdfast, lsof and psutil, at the same trees of real processes.

Prints a table of ratios of CPU time, and saves it as JSON, Markdown and a plot. Every side has a turn in every round; a
number is the best of all rounds. Nothing here fails because it was slow.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from look_measure import HERE, Child, Tree, limit_outcome, measure_row, possible, running
from look_rows import KEYS, ROWS, Outcome, Row
from look_table import markdown_table, save_plot, text_table
from machine import load_average, machine_facts

TREES = {"work": Tree("work", 6_667, 3), "large": Tree("work", 20_000, 3), "leak": Tree("leak", 20_000, 3)}
QUICK_TREES = {"work": Tree("work", 200, 3), "large": Tree("work", 300, 3), "leak": Tree("leak", 300, 3)}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="a number is the best of so many (7)")
    parser.add_argument("--only", default=",".join(KEYS), metavar="look,count", help="these rows of the table only")
    parser.add_argument("--quick", action="store_true", help="few descriptors: shows that it works, not how fast")
    parser.add_argument("--out", type=Path, help="where to save; of a whole run benchmarks/results")
    arguments = parser.parse_args()
    arguments.only = arguments.only.split(",")
    if unknown := set(arguments.only) - set(KEYS):
        parser.error(f"wanted some of {', '.join(KEYS)}, got {', '.join(sorted(unknown))}")
    if arguments.rounds < 1:
        parser.error(f"wanted at least one round, got {arguments.rounds}")
    if arguments.out is None and not arguments.quick and set(arguments.only) == set(KEYS):
        arguments.out = HERE / "results"  # a part of a run must not replace the results of a whole one
    return arguments


def main() -> None:
    arguments = parse_arguments()
    busy = [load_average()]
    trees = {name: possible(tree) for name, tree in (QUICK_TREES if arguments.quick else TREES).items()}
    results: list[Outcome] = []
    with ExitStack() as stack:
        sides: dict[str, Child] = {}
        for name in ("holdfast", "psutil"):
            if find_spec(name) is not None:
                sides[name] = Child("look_side.py", name)
                stack.callback(sides[name].close)
        for name, tree in trees.items():
            rows = [row for row in ROWS if row.tree == name and row.key in arguments.only]
            if rows:
                with running(tree) as pids:
                    for row in rows:
                        results += measure(row, tree, pids, arguments.rounds, sides)
    busy.append(load_average())
    report = {
        "benchmark": "look",
        "quick": arguments.quick,
        "rounds": arguments.rounds,
        "machine": {**machine_facts(HERE), "load_average": busy},
        "versions": _versions(),
        "trees": trees,
        "rows": [result.as_dict() for result in results],
    }
    lines = _summary(report)
    print("\n".join(["", text_table(results), "", *lines]))
    if arguments.out is not None:
        save(arguments.out, report, results, lines)


def measure(row: Row, tree: Tree, pids: list[int], rounds: int, sides: dict[str, Child]) -> list[Outcome]:
    if row.one:
        tree, pids = tree._replace(processes=1), pids[:1]
    work = f"{row.what}: {tree.told()}"
    print(f"{work}, rounds: {rounds}", file=sys.stderr, flush=True)
    results = measure_row(row, pids, rounds, sides, work)
    if row.limit_s is not None and results[0].ours is not None:
        results.insert(0, limit_outcome(row, work, results[0].ours))
    return results


def _versions() -> dict[str, str]:
    found = {}
    for name in ("holdfast", "psutil"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _summary(report: dict[str, Any]) -> list[str]:
    machine = report["machine"]
    lines = [
        "work: of ten descriptors four are pipes between the processes, two what finished torch iterators leave (one "
        "self-pair : one HUP : one ERR), two files, two sockets; leak: eight are what finished iterators leave"
    ]
    lines += sorted({f"skipped: {row['skipped']}" for row in report["rows"] if "skipped" in row})
    versions = ", ".join(f"{name} {number}" for name, number in sorted(report["versions"].items()))
    lines.append(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}, Python {machine['python']}, {versions}"
    )
    if max(machine["load_average"]) > machine["cores"]:
        lines.append(f"The machine was busy (load {machine['load_average']}): take the numbers with care.")
    if report["quick"]:
        lines.append("A quick run: it shows that the benchmark works, not how fast anything is.")
    return lines


def save(folder: Path, report: dict[str, Any], results: list[Outcome], lines: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "look.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    page = [
        "# Looking at processes, side by side",
        "CPU time of one look at the same processes; lsof is told their pids. Each number is the best of "
        f"{report['rounds']} rounds. Made by `benchmarks/look.py`.",
        markdown_table(results),
        "\n".join(f"- {line}" for line in lines),
        "![measured against wanted](look.png)",
    ]
    (folder / "look.md").write_text("\n\n".join(page) + "\n")
    machine = report["machine"]
    caption = f"{machine['cpu']}, {machine['cores']} cores; CPU time, best of {report['rounds']} rounds"
    save_plot(results, folder / "look.png", caption)


if __name__ == "__main__":
    main()
