"""Reading, side by side: holdfast, tf.data, and torch's DataLoader over what people put into it, on the same files.

Prints a table of ratios, and saves it as JSON, Markdown and plots. Every side is a process of its own that stays for
the whole run and has a turn in every round; a number is the best of all rounds. Nothing here fails because it was slow.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from machine import load_average, machine_facts, machine_lines
from options import options_of, parsed
from read_data import FULL, QUICK, data_folder
from read_leaks import Lives, leak_table, measure_leaks
from read_measure import Bench, Result, measure_task
from read_rows import LEAKS_ROW, ROWS, TASKS
from read_sides import ReadSides, SideError, versions
from read_table import markdown_table, text_table


def parse_arguments() -> argparse.Namespace:
    parser = options_of(__doc__)
    parser.add_argument("--data", type=Path, help="where the data files are kept (the system's temporary folder)")
    return parsed(parser, ROWS)


def main() -> None:
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the sides end in that case, too
    folder = data_folder(arguments.data)
    busy = [load_average()]
    with ReadSides() as sides:
        bench = Bench(sides, QUICK if arguments.quick else FULL, arguments.rounds, folder, tell)
        results, lives = run(bench, arguments.only)
    busy.append(load_average())
    report = {
        "benchmark": "read",
        "quick": arguments.quick,
        "rounds": arguments.rounds,
        "machine": {**machine_facts(folder), "load_average": busy},
        "versions": versions(sides),
        "data": {kind: {"records": data.records, "bytes": data.bytes} for kind, data in bench.data.items()},
        "rows": [result.as_dict() for result in results],
        "leaks": [asdict(one) for one in lives],
    }
    lines = _summary(report, results, sides)
    parts = [text_table(results)] if results else []
    parts += [leak_table(lives)] if lives else []
    print("\n\n".join(["", *parts, "\n".join(lines)]))
    if arguments.out is not None:
        save(arguments.out, report, results, lives, lines)


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def run(bench: Bench, rows: list[str]) -> tuple[list[Result], list[Lives]]:
    results: list[Result] = []
    lives: list[Lives] = []
    try:
        for task in TASKS:
            if task.row in rows:
                results += measure_task(bench, task)
        if LEAKS_ROW in rows:
            lives = measure_leaks(bench)
    except SideError as error:
        sys.exit(f"benchmarks/read.py: {error}")
    return results, lives


def _summary(report: dict[str, Any], results: list[Result], sides: ReadSides) -> list[str]:
    lines = [
        f"{kind} data: {data['records']:,} samples, {data['bytes'] / 1e6:,.0f} MB"
        for kind, data in report["data"].items()
    ]
    lines += [f"skipped: {reason}" for reason in {*sides.missing.values(), *(r.skipped for r in results)} if reason]
    return lines + machine_lines(report)


def save(folder: Path, report: dict[str, Any], results: list[Result], lives: list[Lives], lines: list[str]) -> None:
    from read_plot import save_leak_plot, save_plot  # matplotlib: only here, and after everything was measured

    folder.mkdir(parents=True, exist_ok=True)
    machine = report["machine"]
    caption = f"{machine['cpu']}, {machine['cores']} cores; best of {report['rounds']} rounds"
    (folder / "read.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    page = [
        "# Reading, side by side",
        f"Each number is the best of {report['rounds']} rounds; CPU time is that of all processes of a side. "
        "Made by `benchmarks/read.py`.",
    ]
    if results:
        save_plot(results, folder / "read.png", caption)
        page += [markdown_table(results), "![measured against wanted](read.png)"]
    if lives:
        save_leak_plot(lives, folder / "read_leaks.png", f"{machine['cpu']}, {machine['cores']} cores")
        page += [leak_table(lives, markdown=True), "![what loaders leave behind](read_leaks.png)"]
    page.append("\n".join(f"- {line}" for line in lines))
    (folder / "read.md").write_text("\n\n".join(page) + "\n")


if __name__ == "__main__":
    main()
