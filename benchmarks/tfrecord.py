"""TFRecord, side by side: holdfast, TensorFlow, PyPI's tfrecord and plain reading, on the same files.

Prints a table of ratios, and saves it as JSON, Markdown and a plot. Every side is a process of its own that
stays for the whole run and has a turn in every round; a number is the best of all rounds. Nothing here fails
because it was slow.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from machine import load_average, machine_facts
from measure import Bench, Result, measure_memory, measure_task
from options import options_of, parsed
from rows import MEMORY_TASKS, ROWS, TASKS
from sides import SideError, Sides
from table import markdown_table, notes, text_table
from workload import FULL, QUICK, Sizes

TMPFS = Path("/dev/shm")


def main() -> None:
    arguments = parsed(options_of(__doc__), ROWS)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the large files go in that case, too
    sizes = QUICK if arguments.quick else FULL
    busy = [load_average()]
    with ExitStack() as stack:
        sides = stack.enter_context(Sides())
        folders = {"disk": _folder(stack, None)}
        if TMPFS.is_dir():
            folders["tmpfs"] = _folder(stack, TMPFS)
        _check_space(folders["disk"], sizes)
        machine = machine_facts(folders["disk"])
        bench = Bench(sides, sizes, arguments.rounds, folders, tell)
        results = run(bench, arguments.only)
    busy.append(load_average())
    report = {
        "benchmark": "tfrecord",
        "quick": arguments.quick,
        "rounds": arguments.rounds,
        "machine": {**machine, "load_average": busy},
        **_side_facts(sides),
        "data": _data_facts(bench),
        "rows": [result.as_dict() for result in results],
    }
    lines = _summary(report, results, sides)
    print("\n".join(["", text_table(results), "", *lines]))
    if arguments.out is not None:
        save(arguments.out, report, results, lines)


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def run(bench: Bench, rows: list[str]) -> list[Result]:
    results = []
    try:
        for task in TASKS:
            if task.row in rows:
                results += measure_task(bench, task)
        if MEMORY_TASKS[0].row in rows:
            results += measure_memory(bench, MEMORY_TASKS)
    except SideError as error:
        sys.exit(f"benchmarks/tfrecord.py: {error}")
    return results


def _folder(stack: ExitStack, parent: Path | None) -> Path:
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=parent)))


def _check_space(folder: Path, sizes: Sizes) -> None:
    wanted = sizes.small_rows * 400 + sizes.big_rows * 100_100 + int(1.2 * sizes.memory_bytes)
    free = shutil.disk_usage(folder).free
    if free < wanted:
        sys.exit(
            f"benchmarks/tfrecord.py: wanted {wanted / 1e9:.1f} GB free for temporary files, there are "
            f"{free / 1e9:.1f} GB; TMPDIR names another folder"
        )


# ---- what is told besides the table ------------------------------------------------------------------------


def _side_facts(sides: Sides) -> dict[str, Any]:
    facts: dict[str, Any] = {"versions": {}}
    for told in sides.facts.values():
        facts["versions"] = told["versions"] | facts["versions"]  # holdfast came first: its numpy is told
        facts |= {name: value for name, value in told.items() if name != "versions"}
    return facts


def _data_facts(bench: Bench) -> dict[str, Any]:
    return {
        kind: {
            "files": len(data.files),
            "records": data.records,
            "bytes": data.bytes,
            "mean_example_bytes": round(data.mean_example_bytes, 2),
        }
        for kind, data in bench.data.items()
    }


def _summary(report: dict[str, Any], results: list[Result], sides: Sides) -> list[str]:
    machine = report["machine"]
    lines = [*notes(results)]
    lines += [
        f"{kind} data: {data['records']:,} records in {data['files']} files, {data['bytes'] / 1e6:,.0f} MB; "
        f"an Example is {data['mean_example_bytes']:,.1f} bytes on average"
        for kind, data in report["data"].items()
    ]
    lines += [f"skipped: {reason}" for reason in sides.missing.values()]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(report["versions"].items()))
    lines.append(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}, {machine['filesystem']}, "
        f"Python {machine['python']}, {versions}"
    )
    lines.append(f"codec in {report.get('codec', 'unknown')}, crc32c by {report.get('crc32c', 'unknown')}")
    if max(machine["load_average"]) > machine["cores"]:
        lines.append(f"The machine was busy (load {machine['load_average']}): take the numbers with care.")
    if report["quick"]:
        lines.append("A quick run: it shows that the benchmark works, not how fast anything is.")
    return lines


def save(folder: Path, report: dict[str, Any], results: list[Result], lines: list[str]) -> None:
    from plot import save_plot  # matplotlib: only here, and after everything was measured

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tfrecord.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    told = "\n".join(f"- {line}" for line in lines)
    page = [
        "# TFRecord, side by side",
        "One process, every CRC checked; each number is the best of "
        f"{report['rounds']} rounds. Made by `benchmarks/tfrecord.py`.",
        markdown_table(results),
        told,
        "![measured against wanted](tfrecord.png)",
    ]
    (folder / "tfrecord.md").write_text("\n\n".join(page) + "\n")
    machine = report["machine"]
    caption = f"{machine['cpu']}, {machine['cores']} cores; best of {report['rounds']} rounds"
    save_plot(results, folder / "tfrecord.png", caption)


if __name__ == "__main__":
    main()
