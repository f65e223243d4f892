"""Measures many small shards: the first batch, a shuffled epoch and memory, each in a fresh process, beside tf.data.

Every data set has 400,000 samples or more, in shards of 40; the same samples in 100 shards show what the number of
shards costs. "cold" is the first start, which opens every shard and stores an index; "warm" a later one. Memory is the
growth of the highest RSS over what the process had with everything imported. Each number is the best of all rounds.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import holdfast as hold
from benchmarks.common import report as reports
from benchmarks.common.processes import memory_bytes, reset_peak_memory
from benchmarks.common.workload import EMBED, small_columns
from benchmarks.read.data import data_folder

ROWS = ("100", "10000", "100000", "files", "million", "parts")
EACH = 40  # samples a shard
BATCH = 256
HEADS = ("data", "contender", "cold: first batch", "warm: first batch", "read again", "shuffled epoch", "memory")
SCHEMA: dict[str, Any] = {
    "id": hold.Bytes(),
    "label": hold.Int64(),
    "weight": hold.Float32(),
    "embed": hold.Float32(EMBED),
}
TITLES = {
    "100": "400,000 samples in 100 shards",
    "10000": "400,000 samples in 10,000 shards",
    "100000": "4,000,000 samples in 100,000 shards",
    "files": "100,000 image files of 1 kB in 100 folders",
    "parts": "200,000 samples in the 10,000 parts of a dataset directory",
}


# ---- data


def _make(row: str, home: Path, quick: bool) -> None:
    if row == "files":
        for number in range(1_000 if quick else 100_000):
            folder = home / f"class-{number % 100:02}"
            folder.mkdir(exist_ok=True)
            (folder / f"{number:06}.jpg").write_bytes(number.to_bytes(4, "little") * 256)
    elif row == "parts":
        out = hold.write(home / "run.hold", SCHEMA)
        for task in range(100 if quick else 10_000):
            with out.part(f"{task:05}") as part:
                part.extend(small_columns(20, task))
    else:
        shards = int(row) // (100 if quick else 1)
        samples = EACH if row != "100" else 4000 // (100 if quick else 1)
        for first in range(0, shards, 100):
            _write_shards(home, first, min(first + 100, shards), samples)


def _write_shards(home: Path, first: int, stop: int, samples: int) -> None:
    """Writes one file and cuts it into shards: their writer would sync each of them to disk."""
    whole = home / "whole.tmp"
    with hold.TFRecordWriter(whole, SCHEMA) as writer:
        writer.extend(small_columns((stop - first) * samples, first))
    with hold.Records(whole, cache=False) as records:
        ends = records._offsets[::samples].tolist()
    data = whole.read_bytes()
    whole.unlink()
    for number, (begin, end) in enumerate(pairwise(ends), first):
        (home / f"train-{number:06}.tfrecord").write_bytes(data[begin:end])


def _data(folder: Path, row: str, quick: bool) -> Path:
    home = folder / f"shards-{row}{'-quick' * quick}-v1"
    if not home.exists():
        reports.log(f"making the data of {TITLES[row]}")
        partial = Path(tempfile.mkdtemp(prefix="shards-", dir=folder))
        try:
            _make(row, partial, quick)
            partial.rename(home)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return home / "run.hold" if row == "parts" else home


# ---- one start, in a process of its own


def _start(row: str, contender: str, what: str) -> dict[str, float]:
    make = _holdfast if contender == "holdfast" else _tensorflow
    begin = make(row, what)
    before = memory_bytes("VmRSS")
    reset_peak_memory()
    found: dict[str, float] = {}
    for name in ("first_s", "again_s"):
        start = time.perf_counter()
        batches = begin()
        next(batches)
        found[name] = time.perf_counter() - start
        found["growth_bytes"] = memory_bytes("VmHWM") - before
        del batches
    if row in ("100", "10000") and os.environ.get("HOLDFAST_BENCH_EPOCH"):
        found["epoch_s"] = min(_seconds(begin) for _ in range(2))
        found["epoch_growth_bytes"] = memory_bytes("VmHWM") - before
    return found


def _seconds(begin: Callable[[], Iterator[Any]]) -> float:
    """Returns the seconds of a pass behind its first batch."""
    batches = begin()
    next(batches)
    start = time.perf_counter()
    for _ in batches:
        pass
    return time.perf_counter() - start


def _holdfast(row: str, what: str) -> Callable[[], Iterator[Any]]:
    from holdfast.data.loader import iterator  # noqa: F401 - imported before the clock starts

    schema = {"image": hold.Bytes(key="data")} if row == "files" else SCHEMA
    return lambda: iter(hold.read(what, schema).shuffle(seed=1).batch(BATCH))


def _tensorflow(row: str, what: str) -> Callable[[], Iterator[Any]]:
    import tensorflow as tf

    kinds = {"id": tf.string, "label": tf.int64, "weight": tf.float32}
    features = {name: tf.io.FixedLenFeature([], kind) for name, kind in kinds.items()}
    features["embed"] = tf.io.FixedLenFeature([EMBED], tf.float32)

    def begin() -> Iterator[Any]:
        names = sorted(str(path) for path in Path(what).iterdir())
        files = tf.data.Dataset.from_tensor_slices(names).shuffle(len(names))
        rows = files.interleave(tf.data.TFRecordDataset, cycle_length=8, num_parallel_calls=tf.data.AUTOTUNE)
        batches = rows.shuffle(8192).batch(BATCH).map(lambda some: tf.io.parse_example(some, features))
        return iter(batches.prefetch(tf.data.AUTOTUNE))

    next(iter(tf.data.Dataset.range(1)))  # TensorFlow itself has started
    return begin


def _million(quick: bool) -> dict[str, float]:
    """Plans shards whose index is made, as no machine has a million files at hand."""
    from holdfast.data.formats.folder_index import Entry, FileKey, save
    from holdfast.data.inputs import SourceSpec
    from holdfast.data.loader.order.sharding import BatchPlan, ShardSpec, plan_steps
    from holdfast.data.loader.order.shuffle import SampleOrder
    from holdfast.data.loader.sources import catalog as catalogs

    n = 10_000 if quick else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        specs = []
        for number in range(n):
            key = FileKey(13_400, 10**18 + number, number, 10**18)
            specs.append(SourceSpec(f"{folder}/train-{number:07}.tfrecord", key=key))
        digest = catalogs.digest_of(SCHEMA, is_given=True)
        blocks = np.array([[0], [EACH], [13_400]])
        entries = (
            Entry(os.path.basename(one.path), one.key, EACH, 23, (digest,), blocks)  # type: ignore[arg-type]
            for one in specs
        )
        save(folder, entries)
        before = memory_bytes("VmRSS")
        reset_peak_memory()
        start = time.perf_counter()
        catalog = catalogs.Catalog(specs, SCHEMA)
        order = SampleOrder(catalog.blocks, seed=1)
        next(plan_steps(order, BatchPlan(batch=BATCH), ShardSpec(rank=3, world=64)))
        plan_s = time.perf_counter() - start
        growth_bytes = memory_bytes("VmHWM") - before
        start = time.perf_counter()
        order = SampleOrder(catalog.blocks, seed=1, epoch=1)
        next(plan_steps(order, BatchPlan(batch=BATCH), ShardSpec(rank=5, world=64)))
        return {"plan_s": plan_s, "growth_bytes": growth_bytes, "rank_s": time.perf_counter() - start}


# ---- the parent


def _child(cache: Path, *arguments: str, epoch: bool = False) -> dict[str, float]:
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(cache),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    environment |= {"HOLDFAST_BENCH_EPOCH": "1"} if epoch else {}
    command = [sys.executable, "-m", "benchmarks.read.shards", "--case", *arguments]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _measure(row: str, contender: str, what: Path, rounds: int) -> dict[str, float]:
    each = []
    for _ in range(rounds):
        cache = Path(tempfile.mkdtemp(prefix="holdfast-bench-cache-"))
        try:
            cold = _child(cache, row, contender, str(what))
            warm = _child(cache, row, contender, str(what), epoch=True)
        finally:
            shutil.rmtree(cache, ignore_errors=True)
        each.append({"cold_s": cold["first_s"], "cold_growth_bytes": cold["growth_bytes"], **warm})
    return {name: min(one[name] for one in each) for name in each[0]}


def _cells(result: dict[str, Any]) -> tuple[str, ...]:
    def seconds(name: str) -> str:
        return f"{result[name]:.2f} s" if name in result else ""

    if "plan_s" in result:
        text = f"plan {seconds('plan_s')}, a rank's start {1000 * result['rank_s']:.0f} ms"
        return result["data"], "holdfast", "", text, "", "", f"+{result['growth_bytes'] / 1e6:.0f} MB"
    grown = max(result["growth_bytes"], result["cold_growth_bytes"])
    memory = f"+{grown / 1e6:.0f} MB to the first batch"
    if "epoch_growth_bytes" in result:
        memory += f", +{result['epoch_growth_bytes'] / 1e6:.0f} MB in an epoch"
    times = (seconds("cold_s"), seconds("first_s"), seconds("again_s"), seconds("epoch_s"))
    return (result["data"], result["contender"], *times, memory)


def main() -> None:
    if sys.argv[1:2] == ["--case"]:
        row, *rest = sys.argv[2:]
        print(json.dumps(_million(rest == ["quick"]) if row == "million" else _start(row, *rest)))
        return
    arguments = reports.parse_options("read.shards", __doc__, ROWS, rounds=3, data="folder for the data files")
    folder = data_folder(arguments.data)
    report = reports.new_report(arguments, folder) | {"benchmark": "read_shards"}
    results: list[dict[str, Any]] = []
    for row in arguments.only:
        if row == "million":
            reports.log("planning a million shards")
            cache = Path(tempfile.mkdtemp(prefix="holdfast-bench-cache-"))
            found = _child(cache, "million", *["quick"] * arguments.quick)
            shutil.rmtree(cache)
            results.append({"data": "1,000,000 shards whose index is made", "contender": "holdfast", **found})
            continue
        what = _data(folder, row, arguments.quick)
        has_tensorflow = importlib.util.find_spec("tensorflow") and row not in ("files", "parts")
        for contender in ("holdfast", *["tf.data"] * bool(has_tensorflow)):
            reports.log(f"{TITLES[row]}: {contender}")
            found = _measure(row, contender, what, arguments.rounds)
            results.append({"data": TITLES[row], "contender": contender, **found})
    report["machine"]["load_average"].append(reports.load_average())
    report["versions"] = {"holdfast": hold.__version__, "numpy": np.__version__}
    report["rows"] = results
    cells = [_cells(result) for result in results]
    lines = reports.machine_lines(report)
    print(f"\n{reports.text_table(HEADS, cells)}\n\n" + "\n".join(lines))
    if arguments.out is not None:
        about = " ".join((__doc__ or "").split("\n\n")[1].split())
        sections = ["# Many small shards", f"{about} Made by `python -m benchmarks.read.shards`."]
        reports.save_report(
            arguments.out, report, [*sections, reports.markdown_table(HEADS, cells), reports.bullets(lines)]
        )


if __name__ == "__main__":
    main()
