"""Compares writing with cat, h5py in one process, and a queue to a process with h5py.

Prints a table of ratios, and saves it as JSON, Markdown and a plot. Every contender is a process that stays for the
whole run and takes part in every round; each number is the best of all rounds. No result makes the benchmark fail.
"""

from __future__ import annotations

import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.common import report as reports
from benchmarks.common.contenders import ContenderError, Contenders
from benchmarks.write.measure import Bench, Speed, WriteResult, measure_commits, measure_counts, measure_task
from benchmarks.write.tasks import (
    BLOCK_BYTES,
    COMMIT_ROW,
    COUNT_ROW,
    FEW_ROUNDS,
    FULL,
    PRODUCERS,
    QUICK,
    ROWS,
    TASKS,
    Sizes,
)

TMPFS = Path("/dev/shm")
HEADS = ("row", "work", "holdfast", "peer", "its speed", "ratio", "CPU ratio", "target", "met", "")


def main() -> None:
    arguments = reports.parse_options(
        "write", __doc__, ROWS, data="folder on the disk to measure (the system's temporary folder)"
    )
    sizes = QUICK if arguments.quick else FULL
    with ExitStack() as stack:
        folders = {"disk": reports.temporary_folder(stack, arguments.data)}
        if _has_space(TMPFS, _max_bytes(sizes)):
            folders["tmpfs"] = reports.temporary_folder(stack, TMPFS)
        contenders = stack.enter_context(Contenders("write"))
        report = reports.new_report(arguments, folders["disk"])
        bench = Bench(contenders, sizes, arguments.rounds, folders, reports.log)
        results = run(bench, arguments.only)
    report["machine"]["load_average"].append(reports.load_average())
    report["commits"] = sizes.commits
    report["versions"] = contenders.versions
    report["data"] = bench.data
    report["rows"] = [result.as_dict() for result in results]
    lines = _summary(report, results)
    cells = reports.result_cells(results, lambda result: _speed(result.ours), _against)
    print("\n".join(["", reports.text_table(HEADS, cells), "", *lines]))
    if arguments.out is not None:
        save(arguments.out, report, reports.markdown_table(HEADS, cells), lines)


def run(bench: Bench, rows: list[str]) -> list[WriteResult]:
    results: list[WriteResult] = []
    try:
        for task in TASKS:
            if task.row in rows:
                results += measure_task(bench, task)
        if COMMIT_ROW in rows:
            results += measure_commits(bench)
        if COUNT_ROW in rows:
            results += measure_counts(bench)
    except ContenderError as error:
        sys.exit(f"benchmarks.write: {error}")
    return results


def _max_bytes(sizes: Sizes) -> int:
    """An upper bound at any time: parts and two files made of them, or a journal and its parts."""
    consolidated = 3 * sizes.parts * sizes.part_blocks
    return BLOCK_BYTES * max(consolidated, 3 * PRODUCERS * max(sizes.central_blocks.values()))


def _has_space(tmpfs: Path, nbytes: int) -> bool:
    """Checks its own limit, and for twice as much memory: the contenders need some, too."""
    if not tmpfs.is_dir() or shutil.disk_usage(tmpfs).free < nbytes:
        return False
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), 0)
    return available > 2 * nbytes


# ---- the table and what is around it -----------------------------------------------------------------------


def _against(result: WriteResult) -> tuple[str, ...]:
    theirs = "skipped" if result.skipped else _speed(result.theirs)
    cpu = "" if result.cpu_ratio is None else reports.times(result.cpu_ratio)
    note = result.more.get("note", "")
    return theirs, result.ratio_text(), cpu, result.target_text(), result.met_text(), note


def _speed(speed: Speed | str | None) -> str:
    if speed is None or isinstance(speed, str):
        return speed or ""
    rate = "" if speed.bytes_per_s is None else f"{speed.bytes_per_s / 1e6:,.0f} MB/s, "
    return f"{rate}{speed.cpu_s or 0:.2f} s CPU"


def _summary(report: dict[str, Any], results: list[WriteResult]) -> list[str]:
    lines = [f"{key}: {data['records']:,} rows, {data['bytes'] / 1e6:,.0f} MB" for key, data in report["data"].items()]
    lines.append(
        "chunks and blocks of 256 KiB; on tmpfs unless it says otherwise; a consolidated file, a committed part and "
        "`cat, then fsync` are synced, the others are not"
    )
    lines += sorted({f"skipped: {result.skipped}" for result in results if result.skipped})
    return lines + reports.machine_lines(report)


def save(folder: Path, report: dict[str, Any], table: str, lines: list[str]) -> None:
    sections = [
        "# Writing compared with its peers",
        f"Each speed is the best of {report['rounds']} rounds; of {min(FEW_ROUNDS, report['rounds'])} for numpy slabs "
        "and what they are compared with. CPU time is that of all processes of a contender. Commits are medians of "
        f"{report['commits']}, descriptors are counted. Made by `python -m benchmarks.write`.",
        table,
        reports.bullets(lines),
    ]
    reports.save_results(folder, report, sections)


if __name__ == "__main__":
    main()
