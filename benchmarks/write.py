"""Writing, side by side: holdfast, cat, h5py in one process, and a queue to a process with h5py.

Prints a table of ratios, and saves it as JSON, Markdown and a plot. Every side is a process that stays for the whole
run and has a turn in every round; a number is the best of all rounds. Nothing here fails because it was slow.
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

from machine import load_average, machine_facts, machine_lines
from options import options_of, parsed
from sides import SideError, Sides
from write_commit import measure_commits
from write_counts import measure_counts
from write_measure import Bench, measure_task
from write_pass import BLOCK_BYTES
from write_rows import COMMIT_ROW, COUNT_ROW, FEW_ROUNDS, FULL, PRODUCERS, QUICK, ROWS, TASKS, Result, Sizes
from write_table import markdown_table, save_plot, text_table

TMPFS = Path("/dev/shm")


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--data", type=Path, help="a folder on the disk to measure (the system's for temporary files)")
    arguments = parsed(parser, ROWS)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the files go in that case, too
    sizes = QUICK if arguments.quick else FULL
    busy = [load_average()]
    with ExitStack() as stack:
        folders = {"disk": _folder(stack, arguments.data)}
        if _has_room(TMPFS, _most_bytes(sizes)):
            folders["tmpfs"] = _folder(stack, TMPFS)
        sides = stack.enter_context(Sides())
        machine = machine_facts(folders["disk"])
        bench = Bench(sides, sizes, arguments.rounds, folders, tell)
        results = run(bench, arguments.only)
    busy.append(load_average())
    report = {
        "benchmark": "write",
        "quick": arguments.quick,
        "rounds": arguments.rounds,
        "commits": sizes.commits,
        "machine": {**machine, "load_average": busy},
        "versions": {name: told for facts in sides.facts.values() for name, told in facts["versions"].items()},
        "data": bench.data,
        "rows": [result.as_dict() for result in results],
    }
    lines = _summary(report, results)
    print("\n".join(["", text_table(results), "", *lines]))
    if arguments.out is not None:
        save(arguments.out, report, results, lines)


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def run(bench: Bench, rows: list[str]) -> list[Result]:
    results: list[Result] = []
    try:
        for task in TASKS:
            if task.row in rows:
                results += measure_task(bench, task)
        if COMMIT_ROW in rows:
            results += measure_commits(bench)
        if COUNT_ROW in rows:
            results += measure_counts(bench)
    except SideError as error:
        sys.exit(f"benchmarks/write.py: {error}")
    return results


def _folder(stack: ExitStack, parent: Path | None) -> Path:
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=parent)))


def _most_bytes(sizes: Sizes) -> int:
    """At once, by far: parts and two files made of them, or a journal and its parts."""
    consolidated = 3 * sizes.parts * sizes.part_blocks
    return BLOCK_BYTES * max(consolidated, 3 * PRODUCERS * max(sizes.central_blocks.values()))


def _has_room(tmpfs: Path, nbytes: int) -> bool:
    """Its own limit, and twice as much memory: the sides need some, too."""
    if not tmpfs.is_dir() or shutil.disk_usage(tmpfs).free < nbytes:
        return False
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), 0)
    return available > 2 * nbytes


def _summary(report: dict[str, Any], results: list[Result]) -> list[str]:
    lines = [f"{key}: {data['records']:,} rows, {data['bytes'] / 1e6:,.0f} MB" for key, data in report["data"].items()]
    lines.append(
        "chunks and blocks of 256 KiB; on tmpfs unless it says otherwise; a consolidated file, a committed part and "
        "`cat, then fsync` are synced, the others are not"
    )
    lines += sorted({f"skipped: {result.skipped}" for result in results if result.skipped})
    return lines + machine_lines(report)


def save(folder: Path, report: dict[str, Any], results: list[Result], lines: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "write.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    page = [
        "# Writing, side by side",
        f"Each speed is the best of {report['rounds']} rounds, of numpy slabs and what they are compared with of "
        f"{min(FEW_ROUNDS, report['rounds'])}; CPU time is that of all processes of a side. Commits are medians of "
        f"{report['commits']}, descriptors are counted. Made by `benchmarks/write.py`.",
        markdown_table(results),
        "\n".join(f"- {line}" for line in lines),
        "![measured against wanted](write.png)",
    ]
    (folder / "write.md").write_text("\n\n".join(page) + "\n")
    machine = report["machine"]
    caption = f"{machine['cpu']}, {machine['cores']} cores; best of {report['rounds']} rounds"
    save_plot(results, folder / "write.png", caption)


if __name__ == "__main__":
    main()
