"""Plots what a process holds over thousands of loaders, from the file that `soak_read.py --save` wrote.

python tools/soak_plot.py benchmarks/results/soak_read.json benchmarks/results/soak_read.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

TITLES = {
    "read": "hold.read, 2 worker processes",
    "threads": "hold.read, 2 threads",
    "torch": "holdfast.torch.DataLoader, 2 workers",
}
ROWS = {"descriptors": "descriptors", "threads": "threads", "rss_bytes": "RSS, MB"}
INK, PALE, LINE = "#20262e", "#6b7580", "#1f7a4d"


def save_plot(found: dict[str, Any], path: Path) -> None:
    kinds = [kind for kind in TITLES if found.get(kind, {}).get("churn")]
    figure = Figure(figsize=(11, 6), dpi=100, layout="constrained")
    axes = figure.subplots(len(ROWS), len(kinds), sharex="col", squeeze=False)
    figure.suptitle("One process, thousands of loaders, ended in all the usual ways", color=INK, weight="bold", size=13)
    for column, kind in enumerate(kinds):
        samples = found[kind]["churn"]["samples"]
        axes[0][column].set_title(TITLES[kind], size=10, color=INK)
        for row, name in enumerate(ROWS):
            axis = axes[row][column]
            scale = 1e-6 if name == "rss_bytes" else 1
            axis.plot([one["loaders"] for one in samples], [one[name] * scale for one in samples], color=LINE)
            axis.set_ylim(0, max(one[name] for one in samples) * scale * 1.3)
            axis.grid(color="#e3e7eb", linewidth=0.8)
            axis.tick_params(labelsize=8, colors=PALE, length=0)
            for spine in axis.spines.values():
                spine.set_visible(False)
        axes[-1][column].set_xlabel("loaders so far", size=8, color=PALE)
    for row, title in enumerate(ROWS.values()):
        axes[row][0].set_ylabel(title, size=9, color=INK)
    figure.savefig(path)


if __name__ == "__main__":
    save_plot(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
