"""What all benchmarks share around their measurements: options, results and their targets, tables, saved files."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results"

Line = Sequence[str]


# ---- options -----------------------------------------------------------------------------------------------


def parse_options(
    name: str, about: str | None, rows: Sequence[str], *, rounds: int = 5, data: str = "", peers: Sequence[str] = ()
) -> argparse.Namespace:
    """Parses the options; `only` and `peers` become lists. `data`, the help of --data, and `peers` are for some."""
    parser = argparse.ArgumentParser(f"python -m benchmarks.{name}", description=(about or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=rounds, help=f"each number is the best of this many ({rounds})")
    parser.add_argument("--only", metavar=",".join(rows[:2]), help="measure only these rows of the table")
    parser.add_argument("--quick", action="store_true", help="little data: shows that it works, not how fast it is")
    parser.add_argument("--out", type=Path, help="folder for the results (benchmarks/results if all rows are measured)")
    if data:
        parser.add_argument("--data", type=Path, help=data)
    if peers:
        parser.add_argument("--peers", metavar=",".join(peers[:2]), help=f"only these peers, of {', '.join(peers)}")
    arguments = parser.parse_args(namespace=argparse.Namespace(name=name))
    arguments.only = _chosen(parser, "rows", rows, arguments.only)
    arguments.peers = _chosen(parser, "peers", peers, getattr(arguments, "peers", None))
    if arguments.rounds < 1:
        parser.error(f"expected at least one round, got {arguments.rounds}")
    complete = not arguments.quick and (set(arguments.only), set(arguments.peers)) == (set(rows), set(peers))
    if arguments.out is None and complete:
        arguments.out = RESULTS  # an incomplete run must not replace the results of a complete one
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that children and files are cleaned up then, too
    return arguments


def _chosen(parser: argparse.ArgumentParser, what: str, all_of: Sequence[str], given: str | None) -> list[str]:
    chosen = list(all_of) if given is None else given.split(",")
    if unknown := set(chosen) - set(all_of):
        parser.error(f"expected some of the {what} {', '.join(all_of)}, got {', '.join(sorted(unknown))}")
    return chosen


def log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def temporary_folder(stack: ExitStack, parent: Path | None) -> Path:
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=parent)))


# ---- results and their targets -----------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Result:
    """One line of a table: holdfast against one peer. `target` is the least ratio that is enough; None: for context."""

    row: str = ""
    key: str
    work: str
    peer: str
    target: float | None = None
    ours: Any = None
    theirs: Any = None
    ratio: float | None = None
    met: bool | None = None
    skipped: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value not in (None, "", {})}

    def ratio_text(self) -> str:
        return "" if self.ratio is None else times(self.ratio)

    def target_text(self) -> str:
        return "" if self.target is None else f"≥ {self.target:g}×"

    def met_text(self) -> str:
        return "" if self.met is None else "yes" if self.met else "NO"


def times(ratio: float) -> str:
    return f"{ratio:,.0f}×" if ratio >= 100 else f"{ratio:.1f}×" if ratio >= 10 else f"{ratio:.2f}×"


# ---- tables ------------------------------------------------------------------------------------------------


def result_cells(results: Sequence[Any], ours: Callable[[Any], str], rest: Callable[[Any], Line]) -> list[Line]:
    """Row, work, holdfast's number, peer, `rest`. What a line has in common with the one before is left blank."""
    cells: list[Line] = []
    last = ("", "")
    for result in results:
        first, number = result.key != last[0], ours(result)
        shown = number if first or number != last[1] else ""
        cells.append((result.row if first else "", result.work if first else "", shown, result.peer, *rest(result)))
        last = result.key, number
    return cells


def text_table(heads: Line, cells: Sequence[Line]) -> str:
    lines = [heads, *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    drawn = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    drawn.insert(1, "  ".join("─" * width for width in widths))
    return "\n".join(line.rstrip() for line in drawn)


def markdown_table(heads: Line, cells: Sequence[Line]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, ("---",) * len(heads), *cells])


# ---- the report and its machine ----------------------------------------------------------------------------


def new_report(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Begins a report. It names the machine that the data in `folder` are on, but no host, user or path."""
    return {
        "benchmark": arguments.name,
        "quick": arguments.quick,
        "rounds": arguments.rounds,
        "machine": {**machine_facts(folder), "load_average": [load_average()]},
    }


def machine_facts(folder: Path) -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "filesystem": _filesystem(folder),
    }


def load_average() -> float:
    return round(os.getloadavg()[0], 2)


def machine_lines(report: dict[str, Any]) -> list[str]:
    """Describes the machine, and says why the numbers may be unreliable."""
    machine = report["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(report["versions"].items()))
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}, {machine['filesystem']}, "
        f"Python {machine['python']}, {versions}"
    ]
    if max(machine["load_average"]) > 2 * machine["cores"]:
        lines.append(f"The machine was busy (load {machine['load_average']}): take the numbers with care.")
    if report["quick"]:
        lines.append("A quick run: it shows that the benchmark works, not how fast anything is.")
    return lines


def caption(report: dict[str, Any]) -> str:
    machine = report["machine"]
    return f"{machine['cpu']}, {machine['cores']} cores; best of {report['rounds']} rounds"


def save_report(folder: Path, report: dict[str, Any], sections: Sequence[str]) -> None:
    """Writes NAME.json, and the sections as NAME.md."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / report["benchmark"]
    path.with_suffix(".json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    path.with_suffix(".md").write_text("\n\n".join(sections) + "\n")


def save_results(folder: Path, report: dict[str, Any], sections: Sequence[str]) -> None:
    """Saves the report, and with it the plot NAME.png of its rows."""
    from benchmarks.common.plot import plot_results  # matplotlib: only after everything was measured

    image = f"{report['benchmark']}.png"
    save_report(folder, report, [*sections, f"![times faster than each peer]({image})"])
    plot_results(report, folder / image)


def bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _filesystem(folder: Path) -> str:
    """The type of the mount that holds the folder, from lines such as `/dev/vda / ext4 rw 0 0`."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    resolved = folder.resolve()
    holding = [(len(point), kind) for point, kind in mounts if resolved.is_relative_to(point)]
    return max(holding)[1] if holding else "unknown"
