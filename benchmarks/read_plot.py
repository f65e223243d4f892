"""The results of benchmarks/read.py as pictures."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from bars import CONTEXT, INK, MET, MISSED, PALE, Bar, save_bars
from grid import times
from read_leaks import Lives
from read_measure import Result


def save_plot(results: list[Result], path: Path, caption: str) -> None:
    judged = [
        Bar(_name(result), result.ratio / result.wanted, _told(result), MET if result.met else MISSED)
        for result in results
        if result.ratio is not None and result.wanted is not None
    ]
    context = [
        Bar(_name(result), result.ratio, times(result.ratio), CONTEXT)
        for result in results
        if result.ratio is not None and result.wanted is None
    ]
    save_bars(judged, context, title="Reading: holdfast against what was wanted of it", caption=caption, path=path)


def _name(result: Result) -> str:
    return f"{result.key}  ·  {result.peer}"


def _told(result: Result) -> str:
    told = f"{times(result.ratio or 0)}   (≥ {result.wanted:g}×)"
    if result.cpu_wanted is not None:
        told += f", CPU {times(result.cpu_ratio or 0)}"
    return told


def save_leak_plot(lives: list[Lives], path: Path, caption: str) -> None:
    scenarios = list(dict.fromkeys(one.scenario for one in lives))
    figure = Figure(figsize=(11, 5), dpi=100, layout="constrained")
    axes = figure.subplots(2, len(scenarios), sharex=True, sharey="row", squeeze=False)
    figure.suptitle("What loaders leave behind", color=INK, weight="bold", size=13)
    for one in lives:
        column = scenarios.index(one.scenario)
        style = {"color": MET if one.loader == "holdfast" else MISSED, "linewidth": 1.8}
        name = "holdfast.torch.DataLoader" if one.loader == "holdfast" else "torch DataLoader"
        first = one.rss_bytes[0]
        axes[0][column].plot([n - one.descriptors[0] for n in one.descriptors], label=name, **style)
        axes[1][column].plot([(n - first) / 1e6 for n in one.rss_bytes], **style)
        axes[0][column].set_title(one.scenario.replace("_", " "), size=10, color=INK)
    for axis in axes.flat:
        axis.grid(color="#e3e7eb", linewidth=0.8)
        axis.tick_params(labelsize=8, colors=PALE, length=0)
        for spine in axis.spines.values():
            spine.set_visible(False)
    axes[0][0].set_ylabel("descriptors grown", size=9, color=INK)
    axes[1][0].set_ylabel("RSS grown, MB", size=9, color=INK)
    named = axes[0][0].get_legend_handles_labels()
    figure.legend(*named, loc="outside upper right", fontsize=8, frameon=False, ncols=2)
    figure.supxlabel(f"loaders made so far, 2 workers each\n{caption}", size=8, color=PALE)
    figure.savefig(path)
