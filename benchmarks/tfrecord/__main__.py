"""Compares reading and writing TFRecord files with TensorFlow, PyPI's tfrecord and plain reads.

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
from benchmarks.tfrecord.measure import Bench, Speed, TFRecordResult, measure_memory, measure_task
from benchmarks.tfrecord.tasks import FULL, MEMORY_TASKS, QUICK, ROWS, TASKS, Sizes

TMPFS = Path("/dev/shm")
HEADS = ("row", "work", "holdfast", "peer", "its speed", "ratio", "target", "met")


def main() -> None:
    arguments = reports.parse_options("tfrecord", __doc__, ROWS)
    sizes = QUICK if arguments.quick else FULL
    with ExitStack() as stack:
        contenders = stack.enter_context(Contenders("tfrecord"))
        folders = {"disk": reports.temporary_folder(stack, None)}
        if TMPFS.is_dir():
            folders["tmpfs"] = reports.temporary_folder(stack, TMPFS)
        _check_space(folders["disk"], sizes)
        report = reports.new_report(arguments, folders["disk"])
        bench = Bench(contenders, sizes, arguments.rounds, folders, reports.log)
        results = run(bench, arguments.only)
    report["machine"]["load_average"].append(reports.load_average())
    report["versions"] = contenders.versions
    report |= {name: contenders.facts["holdfast"][name] for name in ("codec", "crc32c")}
    report["data"] = _data_facts(bench)
    report["rows"] = [result.as_dict() for result in results]
    lines = _summary(report, results, contenders)
    cells = reports.result_cells(results, _ours, _against)
    print("\n".join(["", reports.text_table(HEADS, cells), "", *lines]))
    if arguments.out is not None:
        save(arguments.out, report, reports.markdown_table(HEADS, cells), lines)


def run(bench: Bench, rows: list[str]) -> list[TFRecordResult]:
    results = []
    try:
        bench.contenders.get("holdfast")
        for task in TASKS:
            if task.row in rows:
                results += measure_task(bench, task)
        if MEMORY_TASKS[0].row in rows:
            results += measure_memory(bench, MEMORY_TASKS)
    except ContenderError as error:
        sys.exit(f"benchmarks.tfrecord: {error}")
    return results


def _check_space(folder: Path, sizes: Sizes) -> None:
    needed = sizes.small_rows * 400 + sizes.big_rows * 100_100 + int(1.2 * sizes.memory_bytes)
    free = shutil.disk_usage(folder).free
    if free < needed:
        sys.exit(
            f"benchmarks.tfrecord: expected {needed / 1e9:.1f} GB free for temporary files, got {free / 1e9:.1f} GB; "
            "set TMPDIR to another folder"
        )


# ---- the table ---------------------------------------------------------------------------------------------


def _ours(result: TFRecordResult) -> str:
    if result.growth_bytes is not None:
        return result.ratio_text()
    return _speed(result.ours) if result.ours else ""


def _against(result: TFRecordResult) -> tuple[str, str, str, str]:
    if result.growth_bytes is not None:
        return "", "", result.target_text(), result.met_text()
    theirs = _speed(result.theirs) if result.theirs else "skipped"
    return theirs, result.ratio_text(), result.target_text(), result.met_text()


def _speed(speed: Speed) -> str:
    rate = speed.records_per_s
    count = f"{rate / 1e6:.2f} M" if rate >= 1e6 else f"{rate / 1e3:.1f} k"
    return f"{count} rec/s, {speed.bytes_per_s / 1e9:.2f} GB/s"


# ---- below and around the table ----------------------------------------------------------------------------


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


def _summary(report: dict[str, Any], results: list[TFRecordResult], contenders: Contenders) -> list[str]:
    lines = [f"{result.work}: {result.note}" for result in results if result.note]
    lines += [
        f"{kind} data: {data['records']:,} records in {data['files']} files, {data['bytes'] / 1e6:,.0f} MB; "
        f"an Example is {data['mean_example_bytes']:,.1f} bytes on average"
        for kind, data in report["data"].items()
    ]
    lines += [f"skipped: {reason}" for reason in contenders.missing.values()]
    return [*lines, f"codec in {report['codec']}, crc32c by {report['crc32c']}", *reports.machine_lines(report)]


def save(folder: Path, report: dict[str, Any], table: str, lines: list[str]) -> None:
    sections = [
        "# TFRecord compared with its peers",
        f"One process, every CRC checked; each number is the best of {report['rounds']} rounds. "
        "Made by `python -m benchmarks.tfrecord`.",
        table,
        reports.bullets(lines),
    ]
    reports.save_results(folder, report, sections)


if __name__ == "__main__":
    main()
