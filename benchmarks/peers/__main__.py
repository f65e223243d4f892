"""Compares reading with other loaders, each in its own format and its own environment.

Installs a peer when it is first needed. Prints a table of ratios, and saves it as JSON, Markdown and a plot. Every
contender is a process that stays for the whole run and takes part in every round; each number is the best of all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.common import environments
from benchmarks.common import report as reports
from benchmarks.common.contenders import ContenderError, Contenders
from benchmarks.common.workload import data_folder, made_once
from benchmarks.peers.data import MAKERS, VERSION
from benchmarks.peers.tasks import CONTENDERS, ROWS, TASKS
from benchmarks.read.data import DataSet, total_bytes
from benchmarks.read.measure import Bench, ReadResult, Speed, measure_task
from benchmarks.read.tasks import Peer, Task

HEADS = ("row", "work", "holdfast", "peer", "its speed", "ratio", "CPU ratio")
LEVELS = {"resized": 1.5, "cropped": 8.0}  # by which the mean colours of two decoders may differ, of 255


@dataclass(frozen=True, slots=True)
class Sizes:
    rows: dict[str, int]
    round_s: float
    epochs: int = 0


FULL = Sizes({"small": 400_000, "images": 2_000, "rows": 40_000, "rows-gzip": 40_000}, 0.5)
QUICK = Sizes({"small": 4_096, "images": 64, "rows": 1_024, "rows-gzip": 1_024}, 0.0)


class PeersBench(Bench):
    def files(self, kind: str) -> DataSet:
        if kind not in self.data:
            rows = self.sizes.rows[kind]
            home = made_once(self.folder / f"{kind}-{rows}-v{VERSION}", lambda home: MAKERS[kind](home, rows))
            self.data[kind] = DataSet([str(home)], rows, total_bytes(home))
        return self.data[kind]

    def check_sums(self, task: Task, peer: Peer, got: dict[str, Any]) -> None:
        expected = self.expected_sums.setdefault(task.key, got) | {"records": self.files(task.data).records}
        allowed = LEVELS.get(task.pipeline, 0.0)
        differ = np.abs(np.subtract(got.get("colours", 0), expected.get("colours", 0))).max() > allowed
        if differ or any(got.get(name) != amount for name, amount in expected.items() if name != "colours"):
            raise ContenderError(f"{peer.name} does not read the same: expected {expected}, got {got}")


def main() -> None:
    about = "folder for the data files (the system's temporary folder)"
    arguments = reports.parse_options("peers", __doc__, ROWS, rounds=3, data=about, peers=CONTENDERS)
    folder = data_folder("peers", arguments.data)
    report = reports.new_report(arguments, folder)
    with Contenders("peers") as contenders:
        bench = PeersBench(contenders, QUICK if arguments.quick else FULL, arguments.rounds, folder, reports.log)
        tasks = [_among(task, arguments.peers) for task in TASKS if task.row in arguments.only]
        for name in dict.fromkeys(peer.contender for task in tasks for peer in task.peers):
            _install(name, contenders)
        results = [result for task in tasks for result in measure_task(bench, task)]
    report["machine"]["load_average"].append(reports.load_average())
    report["versions"] = contenders.versions
    report["data"] = {kind: {"records": data.records, "bytes": data.bytes} for kind, data in bench.data.items()}
    report["rows"] = [result.as_dict() for result in results]
    lines = _summary(report, results)
    print("\n\n".join(["", _table(results, reports.text_table), "\n".join(lines)]))
    if arguments.out is not None:
        title = "# Other loaders, each in its own format"
        made = f"Each number is the best of {report['rounds']} rounds. Made by `make bench-peers`."
        sections = [title, made, _table(results, reports.markdown_table), reports.bullets(lines)]
        reports.save_results(arguments.out, report, sections)


def _among(task: Task, names: list[str]) -> Task:
    return replace(task, peers=tuple(peer for peer in task.peers if peer.contender in names))


def _install(name: str, contenders: Contenders) -> None:
    if environments.has_requirements(name):
        try:
            environments.install(name)
        except environments.NotInstalledError as error:
            contenders.missing[name] = str(error)


def _table(results: list[ReadResult], draw: Callable[..., str]) -> str:
    return draw(HEADS, reports.result_cells(results, lambda result: _speed(result.ours), _against))


def _against(result: ReadResult) -> tuple[str, ...]:
    cpu = "" if result.cpu_ratio is None else reports.times(result.cpu_ratio)
    return result.skipped or _speed(result.theirs), result.ratio_text(), cpu


def _speed(speed: Speed | None) -> str:
    return "" if speed is None else f"{speed.records_per_s:,.0f} samples/s, {speed.cpu_s:.2f} s CPU"


def _summary(report: dict[str, Any], results: list[ReadResult]) -> list[str]:
    data = [f"{kind}: {one['records']:,} samples" for kind, one in report["data"].items()]
    return [", ".join(data), *reports.machine_lines(report)]


if __name__ == "__main__":
    main()
