"""Compares limits(memory=…) with the growth of RSS: one epoch in a fresh process for every case.

The growth of a case is the highest RSS during the epoch minus the RSS right before it, when everything is imported and
one sample has been read the same way. Where functions run in processes, it is the PSS of the reading process and of
what it shares with the workers; `workers` is the memory of their own, minus what they have when that sample is read.

`refused`: holdfast raised an error that says how much more memory is needed. Where batches alone need more than
memory=, they take it, because every worker gets one; the last column then says so.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import holdfast as hold
from benchmarks.common import report as reports
from benchmarks.common.processes import descendants, memory_bytes, reset_peak_memory
from benchmarks.common.workload import small_columns

ALLOWED = 1.25
SAMPLE_S = 0.002
SLOW_S = 0.004
WORKERS = 2
PIXELS = 320  # width and height of what the function makes of an image
HEADS = (
    "data",
    "shuffle",
    "prefetch",
    "functions",
    "consumer",
    "memory=",
    "before",
    "growth",
    "workers",
    "of the limit",
    "met",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """`rows` samples in `shards` files; a batch of `batch` of them; read within `memory_mb`.

    window:  the shuffle window, where they are shuffled
    decoded: functions turn each image into three times as many bytes, as decoding does; else they get batches
    """

    format: str
    rows: int
    shards: int
    batch: int
    memory_mb: int
    window: str = "256MB"
    decoded: bool = True


DATA = {
    "examples": Data(format="tfrecord", rows=240_000, shards=8, batch=256, memory_mb=50),
    "labels": Data(format="tfrecord", rows=1_200_000, shards=8, batch=1024, memory_mb=50),
    "packed": Data(format="tfrecord.gz", rows=160_000, shards=16, batch=256, memory_mb=50, window="8MB"),
    "images": Data(format="tfrecord", rows=1_024, shards=4, batch=16, memory_mb=60),
    "albums": Data(format="tfrecord", rows=1_024, shards=4, batch=160, memory_mb=60, decoded=False),
    "hdf5": Data(format="h5", rows=24_000, shards=4, batch=256, memory_mb=60),
    "tar": Data(format="tar", rows=1_024, shards=4, batch=16, memory_mb=60),
    "files": Data(format="jpg", rows=1_024, shards=1, batch=16, memory_mb=60),
}
WITH_IMAGES = ("images", "albums", "tar", "files")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    data: str
    window: str | None  # None: not shuffled
    prefetch_mb: int
    where: str | None  # where the function runs; None: there is no function
    slow: bool

    @property
    def cells(self) -> tuple[str, ...]:
        return (
            self.data,
            self.window or "no",
            f"{self.prefetch_mb} MB" if self.prefetch_mb else "no",
            self.where or "none",
            "slow" if self.slow else "fast",
            f"{DATA[self.data].memory_mb} MB",
        )


def all_cases() -> list[Case]:
    """All combinations; slow consumers only where batches are prefetched for them."""
    return [
        Case(data=data, window=window, prefetch_mb=prefetch, where=where, slow=slow)
        for data in DATA
        for window in (None, DATA[data].window)
        for prefetch in (0, 20)
        for where in (None, "inline", "threads", "processes")
        for slow in ((False, True) if prefetch else (False,))
    ]


# ---- the data ----------------------------------------------------------------------------------------------


def make_data(folder: Path, name: str, log: Callable[[str], None]) -> None:
    """Makes a data set, and a second one of one sample."""
    home = folder / name
    if home.exists():
        return
    log(f"making {name}")
    partial = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder))
    data = DATA[name]
    for shard in range(data.shards):
        _make(partial / "all", name, shard, data.rows // data.shards)
    _make(partial / "one", name, 0, 1)
    partial.rename(home)


def _make(home: Path, name: str, shard: int, rows: int) -> None:
    home.mkdir(parents=True, exist_ok=True)
    form = DATA[name].format
    rng = np.random.default_rng(shard)
    if form == "jpg":
        for row in range(rows):
            (home / f"{row:05}.jpg").write_bytes(rng.bytes(100_000))
        return
    path = home / f"part-{shard:02}.{form}"
    if form == "h5":
        import h5py

        with h5py.File(path, "w") as file:
            file.create_dataset("values", data=rng.random((rows, 1024), np.float32), chunks=(min(64, rows), 1024))
            file.create_dataset("label", data=rng.integers(0, 1000, rows))
        return
    columns = _columns(name, rows, shard)
    from holdfast.data.formats.tar.writer import TarWriter

    writer = TarWriter if form == "tar" else hold.TFRecordWriter
    with writer(path, _schema(name)) as out:
        out.extend(columns)


def _schema(name: str) -> Any:
    if name in WITH_IMAGES:
        return {"jpg": hold.Bytes(), "label": hold.Int64()}
    if name == "labels":
        return {"label": hold.Int64(), "weight": hold.Float32()}
    return {"id": hold.Bytes(), "label": hold.Int64(), "weight": hold.Float32(), "embed": hold.Float32(64)}


def _columns(name: str, rows: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    if name in WITH_IMAGES:
        return {"jpg": [rng.bytes(100_000) for _ in range(rows)], "label": rng.integers(0, 1000, rows)}
    columns = small_columns(rows, seed)
    return {key: columns[key] for key in _schema(name)}


# ---- in the child ------------------------------------------------------------------------------------------


def image_of(sample: dict[str, Any]) -> dict[str, Any]:
    """Returns as many bytes as decoding would, without measuring a codec."""
    data = np.frombuffer(sample["jpg"] if "jpg" in sample else sample["data"], np.uint8)
    return {"image": np.resize(data, (PIXELS, PIXELS, 3))}


def doubled(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: column * 2 if isinstance(column, np.ndarray) else column for name, column in batch.items()}


def dataset_of(folder: Path, case: Case, part: str) -> hold.Dataset:
    data = DATA[case.data]
    home = folder / case.data / part
    ds = hold.read(home if data.format == "jpg" else str(home / "*"))
    if case.window:
        ds = ds.shuffle(seed=1, window=case.window)
    if case.where and case.data in WITH_IMAGES and data.decoded:
        ds = ds.map(image_of, WORKERS if case.where != "inline" else 0, case.where).batch(data.batch)
    elif case.where:
        ds = ds.batch(data.batch).map(doubled, WORKERS if case.where != "inline" else 0, case.where)
    else:
        ds = ds.batch(data.batch)
    ds = ds.limits(memory=f"{data.memory_mb}MB")
    return ds.prefetch(f"{case.prefetch_mb}MB") if case.prefetch_mb else ds


class Pss(NamedTuple):
    """`own`: of this process, with what it shares with its workers. `workers`: the workers' own memory."""

    own: int
    workers: int


def pss_bytes() -> Pss:
    this, *below = [_pss_of(pid) for pid in (os.getpid(), *descendants(os.getpid()))]
    shared = sum(one.get("Pss_Shmem", 0) for one in (this, *below))
    own, *others = [one.get("Pss_Anon", 0) + one.get("Pss_File", 0) for one in (this, *below)]
    return Pss(own + shared, sum(others))


def _pss_of(pid: int) -> dict[str, int]:
    try:
        lines = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]]
    except OSError:
        return {}
    return {name.rstrip(":"): int(value) * 1024 for name, value, *_ in lines}


class Peak:
    """Keeps the highest PSS, which a thread reads every few milliseconds."""

    def __init__(self) -> None:
        self.highest = Pss(0, 0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def _sample(self) -> None:
        while not self._over.is_set():
            self.highest = Pss(*map(max, self.highest, pss_bytes()))
            self._over.wait(SAMPLE_S)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def run_case(folder: Path, case: Case) -> dict[str, Any]:
    many = case.where == "processes"
    before = Pss(0, 0)
    with dataset_of(folder, case, "one").iterate() as it:
        for _ in it:
            before = pss_bytes()
    ds = dataset_of(folder, case, "all").plan()
    ctypes.CDLL(None).malloc_trim(0)  # free memory of the heap would hide as much growth
    reset_peak_memory()
    start = pss_bytes().own if many else memory_bytes("VmRSS")
    samples = 0
    with Peak() if many else nullcontext() as peak, ds.iterate() as it:
        for batch in it:
            samples += len(next(iter(batch.values())))
            if case.slow:
                time.sleep(SLOW_S)
    highest = peak.highest.own if peak else memory_bytes("VmHWM")
    workers = peak.highest.workers - before.workers if peak else 0
    return {"growth_bytes": highest - start, "workers_bytes": workers, "samples": samples}


# ---- in the parent -----------------------------------------------------------------------------------------


def measure(folder: Path, case: Case, rounds: int) -> dict[str, Any]:
    """Returns the round with the largest growth."""
    found: list[dict[str, Any]] = []
    for _ in range(rounds):
        child = subprocess.run(
            [
                sys.executable,
                "-m",
                "benchmarks.read.memory",
                "--child",
                json.dumps(asdict(case)),
                "--data",
                str(folder),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if child.returncode:
            return {"error": child.stderr.strip().splitlines()[-1]}
        found.append(json.loads(child.stdout))
    worst = max(found, key=lambda one: one["growth_bytes"])
    if any(one["samples"] != DATA[case.data].rows for one in found):
        return {"error": f"read {worst['samples']:,} samples of {DATA[case.data].rows:,}"}
    return worst


def cells_of(case: Case, found: dict[str, Any], before: dict[str, Any] | None) -> tuple[str, ...]:
    cells = (*case.cells, _growth(before), _growth(found))
    if "error" in found:
        return (*cells, "", "", "" if found["error"].startswith("holdfast.errors.") else found["error"])
    part = _part(case, found)
    need = _need_mb(case)
    if part <= ALLOWED:
        met = "yes"
    else:
        met = "NO" if need <= DATA[case.data].memory_mb else f"no: the batches alone need {need:.0f} MB"
    workers = f"{found['workers_bytes'] / 1e6:.1f} MB" if found["workers_bytes"] else ""
    return (*cells, workers, f"{part:.2f}", met)


def _need_mb(case: Case) -> float:
    """What limits() documents that batches need: three, three more for every worker, and those prefetched."""
    data = DATA[case.data]
    made = data.decoded and case.where is not None
    row_bytes = (
        (3 * PIXELS**2 if made else 100_000) if case.data in WITH_IMAGES else 4096 if data.format == "h5" else 335
    )
    workers = {None: 0, "inline": 1}.get(case.where, WORKERS)
    return case.prefetch_mb + 3 * (1 + workers) * data.batch * row_bytes / 1e6


def _growth(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    return "refused" if "error" in found else f"{found['growth_bytes'] / 1e6:.1f} MB"


def save_plot(results: dict[Case, dict[str, Any]], before: dict[str, Any], path: Path, caption: str) -> None:
    from matplotlib.figure import Figure

    from benchmarks.common.plot import AHEAD, CONTEXT, INK, PALE, light_grid

    figure = Figure(figsize=(11, 5), dpi=100, layout="constrained")
    axes = figure.subplots()
    names = list(DATA)
    for key, found in before.items():
        if "error" not in found:
            case = Case(**json.loads(key))
            place = names.index(case.data) - 0.15
            axes.plot(place, _part(case, found), "o", color=CONTEXT, label="before", alpha=0.6)
    for case, found in results.items():
        if "error" not in found:
            place = names.index(case.data) + (0.15 if before else 0)
            axes.plot(place, _part(case, found), "o", color=AHEAD, label="now", alpha=0.6)
    axes.axhline(1, color=INK, linewidth=1.4)
    axes.axhline(ALLOWED, color=INK, linewidth=1, linestyle=":")
    axes.set_ylim(0)
    axes.set_xticks(range(len(names)), names, color=INK)
    axes.set_ylabel("growth of RSS ÷ limits(memory=…)", color=INK)
    axes.set_title("Memory that one epoch takes, compared with its limit", color=INK, weight="bold", loc="left")
    light_grid(axes, axis="y")
    handles, labels = axes.get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    axes.legend(named.values(), named.keys(), frameon=False)
    figure.supxlabel(caption, size=8, color=PALE)
    figure.savefig(path)


def _part(case: Case, found: dict[str, Any]) -> float:
    return float(found["growth_bytes"] / (DATA[case.data].memory_mb * 1e6))


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.read.memory", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="each growth is the largest of this many runs (3)")
    parser.add_argument(
        "--only", metavar="WORDS", help="measure only the cases with all these comma-separated words in their row"
    )
    parser.add_argument("--data", type=Path, help="folder where the data (0.7 GB) are made once and stay")
    parser.add_argument(
        "--out", type=Path, help="folder for the results (benchmarks/results if all cases are measured)"
    )
    parser.add_argument("--before", type=Path, help="read_memory.json of another run, to show beside this one")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = arguments.data or Path(tempfile.gettempdir()) / f"holdfast-bench-memory-{os.getuid()}"
    if arguments.child:
        print(json.dumps(run_case(folder, Case(**json.loads(arguments.child)))))
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    words = arguments.only.split(",") if arguments.only else []
    cases = [case for case in all_cases() if all(word in case.cells for word in words)]
    for name in dict.fromkeys(case.data for case in cases):
        make_data(folder, name, reports.log)
    before = json.loads(arguments.before.read_text())["cases"] if arguments.before else {}
    results, lines = {}, []
    for case in cases:
        results[case] = measure(folder, case, arguments.rounds)
        lines.append(cells_of(case, results[case], before.get(json.dumps(asdict(case)))))
        reports.log("  ".join(lines[-1]))
    print(reports.text_table(HEADS, lines))
    out = arguments.out or (None if words else reports.RESULTS)
    if out is not None:
        report = {
            "machine": {**reports.machine_facts(folder), "load_average": [reports.load_average()]},
            "versions": {"holdfast": hold.__version__, "numpy": np.__version__},
            "quick": False,
            "cases": {json.dumps(asdict(case)): found for case, found in results.items()},
        }
        save(out, report, lines, results, before)


def save(out: Path, report: dict[str, Any], lines: list[Any], results: Any, before: dict[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    machine = reports.machine_lines(report)[0]
    (out / "read_memory.json").write_text(json.dumps(report, indent=1) + "\n")
    head = f"# limits(memory=…) in RSS\n\n{(__doc__ or '').strip()}\n\n{machine}\n\n"
    (out / "read_memory.md").write_text(head + reports.markdown_table(HEADS, lines) + "\n")
    save_plot(results, before, out / "read_memory.png", machine)


if __name__ == "__main__":
    main()
