"""The files that benchmarks/read.py reads. Made once, kept in the system's folder for temporary files.

A set is made under another name and renamed when it is whole; the name has the sizes in it, so that a run with
others makes its own.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import holdfast as hold
from read_images import picture
from read_rows import CHUNK_ROWS, INTERLEAVED, Data
from workload import EMBED, small_columns

VERSION = 1  # other data under the same sizes: count it up
CLASSES = 10
ROW_FLOATS = 1024
STAMP = "made.json"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much work a run is."""

    examples: int
    images: int
    files: int
    short: int
    hdf5_rows: int
    epochs: int
    leak_lives: int
    turn_s: float  # a turn takes at least this long, in as many passes as it needs


FULL = Sizes(400_000, 800, 50_000, 16_000, 40_000, epochs=20, leak_lives=25, turn_s=0.3)
QUICK = Sizes(4_000, 32, 200, 1_600, 640, epochs=2, leak_lives=3, turn_s=0.0)


@dataclass(frozen=True, slots=True)
class DataSet:
    files: list[str]  # of the small files their folder
    records: int
    bytes: int


def data_folder(given: Path | None = None) -> Path:
    """Other users' files under a name that can be guessed are not taken for ours."""
    folder = given or Path(tempfile.gettempdir()) / f"holdfast-bench-read-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise SystemExit(f"{folder}: wanted a folder of user {os.getuid()}, it belongs to {folder.stat().st_uid}")
    return folder


def data_set(folder: Path, kind: Data, sizes: Sizes, say: Callable[[str], None]) -> DataSet:
    rows = _rows(kind, sizes)
    home = folder / f"{kind}-{rows}-v{VERSION}"
    if not (home / STAMP).exists():
        say(f"making {rows:,} samples of {kind} data")
        begun = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=folder))
        try:
            _MAKERS[kind](kind, rows, begun)
            made = DataSet(_names(kind, begun), rows, _weight(begun))
            (begun / STAMP).write_text(json.dumps(asdict(made)))
            begun.rename(home)
        finally:
            shutil.rmtree(begun, ignore_errors=True)
    made = DataSet(**json.loads((home / STAMP).read_text()))
    return DataSet([str(home / name) for name in made.files], made.records, made.bytes)


def _rows(kind: Data, sizes: Sizes) -> int:
    if kind in ("png", "jpeg"):
        return sizes.images
    return {"examples": sizes.examples, "files": sizes.files, "short": sizes.short, "hdf5": sizes.hdf5_rows}[kind]


def _names(kind: Data, home: Path) -> list[str]:
    return ["images"] if kind == "files" else sorted(path.name for path in home.iterdir())


def _weight(home: Path) -> int:
    return sum(path.stat().st_size for path in home.rglob("*") if path.is_file())


# ---- one maker a kind --------------------------------------------------------------------------------------


def _make_examples(kind: str, rows: int, home: Path) -> None:
    schema = {"id": hold.Bytes(), "label": hold.Int64(), "weight": hold.Float32(), "embed": hold.Float32(EMBED)}
    for shard in range(INTERLEAVED):
        with hold.TFRecordWriter(home / f"part-{shard}.tfrecord", schema) as writer:
            writer.extend(small_columns(rows // INTERLEAVED, 1000 + shard))


def _make_images(kind: str, rows: int, home: Path) -> None:
    rng = np.random.default_rng(7)
    for shard in range(INTERLEAVED):
        with hold.TFRecordWriter(
            home / f"part-{shard}.tfrecord", {"image": hold.Bytes(), "label": hold.Int64()}
        ) as out:
            for place in range(rows // INTERLEAVED):
                image = picture(kind, shard * rows + place)
                out.extend({"image": [image], "label": rng.integers(0, 1000, 1)})


def _make_files(kind: str, rows: int, home: Path) -> None:
    for name in range(CLASSES):
        (home / "images" / f"class-{name}").mkdir(parents=True)
    for number in range(rows):
        path = home / "images" / f"class-{number % CLASSES}" / f"{number:06}.jpg"
        path.write_bytes(picture(kind, number))


def _make_hdf5(kind: str, rows: int, home: Path) -> None:
    import h5py

    rng = np.random.default_rng(11)
    with h5py.File(home / "rows.h5", "x") as file:
        values = file.create_dataset("values", (rows, ROW_FLOATS), np.float32, chunks=(CHUNK_ROWS, ROW_FLOATS))
        for start in range(0, rows, 4096):
            stop = min(start + 4096, rows)
            values[start:stop] = rng.random((stop - start, ROW_FLOATS), np.float32)
        file.create_dataset("label", data=rng.integers(0, 1000, rows))


_MAKERS: dict[Data, Callable[[str, int, Path], Any]] = {
    "examples": _make_examples,
    "short": _make_examples,
    "png": _make_images,
    "jpeg": _make_images,
    "files": _make_files,
    "hdf5": _make_hdf5,
}
