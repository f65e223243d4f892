"""Compares reading with tf.data, and with torch's DataLoader over what people put into it, on the same files.

Prints a table of ratios, and saves it as JSON, Markdown and plots. Every contender is a process that stays for the
whole run and takes part in every round; each number is the best of all rounds. No result makes the benchmark fail.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.common import report as reports
from benchmarks.common.contenders import ContenderError, Contenders
from benchmarks.common.workload import data_folder
from benchmarks.read.data import FULL, QUICK
from benchmarks.read.measure import Bench, LeakCounts, ReadResult, Speed, measure_leaks, measure_task
from benchmarks.read.tasks import LEAKS_ROW, ROWS, TASKS

HEADS = ("row", "work", "holdfast", "peer", "its speed", "ratio", "CPU ratio", "target", "met")
LEAK_HEADS = ("scenario", "loaders", "torch: descriptors", "holdfast: descriptors", "torch: RSS", "holdfast: RSS")


def main() -> None:
    arguments = reports.parse_options(
        "read", __doc__, ROWS, data="folder for the data files (the system's temporary folder)"
    )
    folder = data_folder("read", arguments.data)
    report = reports.new_report(arguments, folder)
    with Contenders("read") as contenders:
        bench = Bench(contenders, QUICK if arguments.quick else FULL, arguments.rounds, folder, reports.log)
        results, leaks = run(bench, arguments.only)
    report["machine"]["load_average"].append(reports.load_average())
    report["versions"] = contenders.versions
    report["data"] = {kind: {"records": data.records, "bytes": data.bytes} for kind, data in bench.data.items()}
    report["rows"] = [result.as_dict() for result in results]
    report["leaks"] = [asdict(one) for one in leaks]
    lines = _summary(report, results, contenders)
    print("\n\n".join(["", *_tables(results, leaks, reports.text_table), "\n".join(lines)]))
    if arguments.out is not None:
        save(arguments.out, report, results, leaks, lines)


def run(bench: Bench, rows: list[str]) -> tuple[list[ReadResult], list[LeakCounts]]:
    results: list[ReadResult] = []
    leaks: list[LeakCounts] = []
    try:
        for task in TASKS:
            if task.row in rows:
                results += measure_task(bench, task)
        if LEAKS_ROW in rows:
            leaks = measure_leaks(bench)
    except ContenderError as error:
        sys.exit(f"benchmarks.read: {error}")
    return results, leaks


# ---- tables ------------------------------------------------------------------------------------------------


def _tables(results: list[ReadResult], leaks: list[LeakCounts], draw: Callable[..., str]) -> list[str]:
    tables = []
    if results:
        tables.append(draw(HEADS, reports.result_cells(results, lambda result: _speed(result.ours), _against)))
    if leaks:
        tables.append(draw(LEAK_HEADS, _leak_cells(leaks)))
    return tables


def _against(result: ReadResult) -> tuple[str, ...]:
    theirs = "skipped" if result.theirs is None else _speed(result.theirs)
    cpu = "" if result.cpu_ratio is None else reports.times(result.cpu_ratio)
    return theirs, result.ratio_text(), cpu, result.target_text(), result.met_text()


def _speed(speed: Speed | None) -> str:
    if speed is None:
        return "skipped"
    if speed.descriptors_grown is not None:
        return f"{1000 * speed.seconds:.1f} ms, {speed.descriptors_grown:+} descriptors"
    rate = speed.records_per_s
    count = f"{rate / 1e6:.2f} M" if rate >= 1e6 else f"{rate / 1e3:.1f} k" if rate >= 1e4 else f"{rate:,.0f}"
    return f"{count} samples/s" + ("" if speed.cpu_s is None else f", {speed.cpu_s:.2f} s CPU")


def _leak_cells(leaks: list[LeakCounts]) -> list[tuple[str, ...]]:
    cells = []
    for torch, ours in zip(leaks[::2], leaks[1::2], strict=True):
        grown = [f"{one.descriptors_grown:+}" for one in (torch, ours)]
        memory = [f"{one.rss_grown_bytes / 1e6:+.1f} MB" for one in (torch, ours)]
        cells.append((torch.scenario.replace("_", " "), str(len(torch.descriptors) - 1), *grown, *memory))
    return cells


def _summary(report: dict[str, Any], results: list[ReadResult], contenders: Contenders) -> list[str]:
    lines = [
        f"{kind} data: {data['records']:,} samples, {data['bytes'] / 1e6:,.0f} MB"
        for kind, data in report["data"].items()
    ]
    reasons = {*contenders.missing.values(), *(result.skipped for result in results)} - {""}
    return [*lines, *(f"skipped: {reason}" for reason in sorted(reasons)), *reports.machine_lines(report)]


# ---- saved -------------------------------------------------------------------------------------------------


def save(
    folder: Path, report: dict[str, Any], results: list[ReadResult], leaks: list[LeakCounts], lines: list[str]
) -> None:
    from benchmarks.common.plot import plot_results  # matplotlib: only after everything was measured

    folder.mkdir(parents=True, exist_ok=True)
    sections = [
        "# Reading compared with its peers",
        f"Each number is the best of {report['rounds']} rounds; CPU time is that of all processes of a contender. "
        "Made by `python -m benchmarks.read`.",
    ]
    tables = _tables(results, leaks, reports.markdown_table)
    if results:
        plot_results(report, folder / "read.png")
        sections += [tables.pop(0), "![times faster than each peer](read.png)"]
    if leaks:
        machine = report["machine"]
        _plot_leaks(leaks, folder / "read_leaks.png", f"{machine['cpu']}, {machine['cores']} cores")
        sections += [tables.pop(0), "![what loaders leak](read_leaks.png)"]
    reports.save_report(folder, report, [*sections, reports.bullets(lines)])


def _plot_leaks(leaks: list[LeakCounts], path: Path, caption: str) -> None:
    from matplotlib.figure import Figure

    from benchmarks.common.plot import AHEAD, BEHIND, INK, PALE, light_grid

    scenarios = list(dict.fromkeys(one.scenario for one in leaks))
    figure = Figure(figsize=(11, 5), dpi=100, layout="constrained")
    axes = figure.subplots(2, len(scenarios), sharex=True, sharey="row", squeeze=False)
    figure.suptitle("What loaders leak", color=INK, weight="bold", size=13)
    for one in leaks:
        column = scenarios.index(one.scenario)
        style = {"color": AHEAD if one.loader == "holdfast" else BEHIND, "linewidth": 1.8}
        name = "holdfast.torch.DataLoader" if one.loader == "holdfast" else "torch DataLoader"
        axes[0][column].plot([n - one.descriptors[0] for n in one.descriptors], label=name, **style)
        axes[1][column].plot([(n - one.rss_bytes[0]) / 1e6 for n in one.rss_bytes], **style)
        axes[0][column].set_title(one.scenario.replace("_", " "), size=10, color=INK)
    for axis in axes.flat:
        light_grid(axis)
        axis.tick_params(labelsize=8, colors=PALE, length=0)
    axes[0][0].set_ylabel("descriptors grown", size=9, color=INK)
    axes[1][0].set_ylabel("RSS grown, MB", size=9, color=INK)
    handles = axes[0][0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper right", fontsize=8, frameon=False, ncols=2)
    figure.supxlabel(f"loaders so far, 2 workers each\n{caption}", size=8, color=PALE)
    figure.savefig(path)


if __name__ == "__main__":
    main()
