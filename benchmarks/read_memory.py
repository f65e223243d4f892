"""How far limits(memory=…) holds in RSS: one epoch in a fresh process for every case, over what it began with.

The growth of a case is the highest RSS during the epoch less the RSS right before it, with everything imported: one
sample was read the same way before. Of worker processes it is the PSS of all processes, less what they take while that
one sample is read.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import holdfast as hold
from grid import text_grid
from workload import small_columns

ALLOWED = 1.25
SAMPLE_S = 0.002
SLOW_S = 0.004
PIXELS = 320  # of a side of what the function makes of an image
HEADS = ("data", "shuffle", "prefetch", "functions", "consumer", "memory=", "growth of RSS", "of the bound", "met")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """`rows` samples in `shards` files; a batch of `batch` of them; read within `memory_mb`."""

    format: str
    rows: int
    shards: int
    batch: int
    memory_mb: int


DATA = {
    "examples": Data(format="tfrecord", rows=400_000, shards=8, batch=256, memory_mb=50),
    "labels": Data(format="tfrecord", rows=1_600_000, shards=8, batch=1024, memory_mb=50),
    "packed": Data(format="tfrecord.gz", rows=320_000, shards=32, batch=256, memory_mb=50),
    "images": Data(format="tfrecord", rows=1_600, shards=4, batch=32, memory_mb=60),
    "hdf5": Data(format="h5", rows=40_000, shards=4, batch=256, memory_mb=60),
    "tar": Data(format="tar", rows=1_600, shards=4, batch=32, memory_mb=60),
    "files": Data(format="jpg", rows=1_600, shards=1, batch=32, memory_mb=60),
}
WITH_IMAGES = ("images", "tar", "files")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    data: str
    window: str | None  # None: not shuffled
    prefetch_mb: int
    where: str | None  # the function's place; None: there is none
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
    """Every combination, but that consumers differ only where batches are made while they work."""
    return [
        Case(data=data, window=window, prefetch_mb=prefetch, where=where, slow=slow)
        for data in DATA
        for window in (None, "24MB", "256MB")
        for prefetch in (0, 20)
        for where in (None, "inline", "threads", "processes")
        for slow in ((False, True) if prefetch or where in ("threads", "processes") else (False,))
    ]


# ---- the data ----------------------------------------------------------------------------------------------


def make_data(folder: Path, name: str, say: Say) -> None:
    """A set, and one sample of its kind in a file of its own."""
    home = folder / name
    if home.exists():
        return
    say(f"making {name}")
    begun = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder))
    data = DATA[name]
    for shard in range(data.shards):
        _make(begun / "all", name, shard, data.rows // data.shards)
    _make(begun / "one", name, 0, 1)
    begun.rename(home)


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
    from holdfast.formats.tar.writer import TarWriter

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
    """As much as decoding gives: no codec is to be measured."""
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
    if case.where and case.data in WITH_IMAGES:
        ds = ds.map(image_of, 2 if case.where != "inline" else 0, case.where).batch(data.batch)
    elif case.where:
        ds = ds.batch(data.batch).map(doubled, 2 if case.where != "inline" else 0, case.where)
    else:
        ds = ds.batch(data.batch)
    ds = ds.limits(memory=f"{data.memory_mb}MB")
    return ds.prefetch(f"{case.prefetch_mb}MB") if case.prefetch_mb else ds


def rss_bytes(field: str) -> int:
    """From /proc/self/status: `VmHWM:     12345 kB`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def pss_bytes() -> int:
    """Of this process and all below it."""
    return sum(_pss_of(pid) for pid in _tree(os.getpid()))


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in task.read_text().split():
                yield from _tree(int(child))
        except OSError:
            continue


def _pss_of(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0


class Peak:
    """The highest PSS, by a thread that looks every few milliseconds."""

    def __init__(self) -> None:
        self.bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._over.is_set():
            self.bytes = max(self.bytes, pss_bytes())
            self._over.wait(SAMPLE_S)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def run_case(folder: Path, case: Case) -> dict[str, Any]:
    many = case.where == "processes"
    start = 0
    with dataset_of(folder, case, "one").iterate() as it:
        for _ in it:
            start = pss_bytes()
    ds = dataset_of(folder, case, "all").plan()
    samples = 0
    if not many:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from here
        start = rss_bytes("VmRSS")
    with Peak() if many else threading.Lock() as peak, ds.iterate() as it:
        for batch in it:
            samples += len(next(iter(batch.values())))
            if case.slow:
                time.sleep(SLOW_S)
        told = it.stats().memory_most_bytes
    growth = (peak.bytes if many else rss_bytes("VmHWM")) - start
    return {"growth_bytes": growth, "samples": samples, "told_bytes": told}


# ---- the whole -----------------------------------------------------------------------------------------------


def measure(folder: Path, case: Case, rounds: int) -> dict[str, Any]:
    """The largest growth of all rounds."""
    found: list[dict[str, Any]] = []
    for _ in range(rounds):
        child = subprocess.run(
            [sys.executable, __file__, "--child", json.dumps(asdict(case)), "--data", str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )
        if child.returncode:
            return {"error": child.stderr.strip().splitlines()[-1][-160:]}
        found.append(json.loads(child.stdout))
    worst = max(found, key=lambda one: one["growth_bytes"])
    if any(one["samples"] != DATA[case.data].rows for one in found):
        return {"error": f"read {worst['samples']:,} samples of {DATA[case.data].rows:,}"}
    return worst


def cells_of(case: Case, found: dict[str, Any]) -> tuple[str, ...]:
    if "error" in found:
        return (*case.cells, found["error"], "", "NO")
    part = found["growth_bytes"] / (DATA[case.data].memory_mb * 1e6)
    met = "yes" if part <= ALLOWED else "NO"
    return (*case.cells, f"{found['growth_bytes'] / 1e6:.1f} MB", f"{part:.2f}", met)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="the largest growth of so many runs counts (3)")
    parser.add_argument("--only", metavar="TEXT", help="cases with all these words in their row, joined by commas")
    parser.add_argument("--data", type=Path, help="where the data (1 GB) are made, once, and stay")
    parser.add_argument("--out", type=Path, help="where to save; of a whole run benchmarks/results")
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
        make_data(folder, name, lambda text: print(text, file=sys.stderr, flush=True))
    lines = []
    for case in cases:
        lines.append(cells_of(case, measure(folder, case, arguments.rounds)))
        print("  ".join(lines[-1]), file=sys.stderr, flush=True)
    print(text_grid(HEADS, lines))


if __name__ == "__main__":
    main()
