"""The files that are read, made once and kept in the system's temporary folder, and the images in them.

A data set is written under another name and renamed when it is complete. Its name includes its size.
"""

from __future__ import annotations

import io
import json
import math
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from benchmarks.common.workload import EMBED, made_once, small_columns
from benchmarks.read.tasks import CHUNK_ROWS, INTERLEAVED, PACKED, Data

VERSION = 1  # increase it when the data change at the same sizes
CLASSES = 10
ROW_FLOATS = 1024
STAMP = "made.json"
SOFT = 16  # pixels from one hue to the next


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much work a run is."""

    examples: int
    images: int
    files: int
    short: int
    hdf5_rows: int
    epochs: int
    leak_loaders: int
    round_s: float  # a round takes at least this long, in as many passes as it needs


FULL = Sizes(400_000, 800, 50_000, 16_000, 40_000, epochs=20, leak_loaders=25, round_s=0.3)
QUICK = Sizes(4_000, 32, 200, 1_600, 640, epochs=2, leak_loaders=3, round_s=0.0)


@dataclass(frozen=True, slots=True)
class DataSet:
    files: list[str]  # for the small files, their folder
    records: int
    bytes: int


def data_set(folder: Path, kind: Data, sizes: Sizes, log: Callable[[str], None]) -> DataSet:
    rows = _rows(kind, sizes)

    def make(home: Path) -> None:
        log(f"making {rows:,} samples of {kind} data")
        _MAKERS[kind](kind, rows, home)
        made = DataSet(_names(kind, home), rows, total_bytes(home))
        (home / STAMP).write_text(json.dumps(asdict(made)))

    home = made_once(folder / f"{kind}-{rows}-v{VERSION}", make)
    made = DataSet(**json.loads((home / STAMP).read_text()))
    return DataSet([str(home / name) for name in made.files], made.records, made.bytes)


def _rows(kind: Data, sizes: Sizes) -> int:
    if kind in ("png", "jpeg", "photos"):
        return sizes.images
    rows = {"examples": sizes.examples, "files": sizes.files, "short": sizes.short}
    return rows.get(kind, sizes.hdf5_rows)


def _names(kind: Data, home: Path) -> list[str]:
    return ["images"] if kind == "files" else sorted(path.name for path in home.iterdir())


def total_bytes(home: Path) -> int:
    return sum(path.stat().st_size for path in home.rglob("*") if path.is_file())


# ---- one maker for each kind -------------------------------------------------------------------------------


def _make_examples(kind: str, rows: int, home: Path) -> None:
    import holdfast as hold  # here: contenders that are not holdfast import `decode` from this module

    schema = {"id": hold.Bytes(), "label": hold.Int64(), "weight": hold.Float32(), "embed": hold.Float32(EMBED)}
    for shard in range(INTERLEAVED):
        with hold.TFRecordWriter(home / f"part-{shard}.tfrecord", schema) as writer:
            writer.extend(small_columns(rows // INTERLEAVED, 1000 + shard))


def _make_images(kind: str, rows: int, home: Path) -> None:
    import holdfast as hold

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

    packing: dict[str, Any] = {}
    if kind != "hdf5":
        import hdf5plugin

        packings = {"hdf5-gzip": {"compression": "gzip"}, "hdf5-lz4": hdf5plugin.LZ4(), "hdf5-zstd": hdf5plugin.Zstd()}
        packing = {**packings[kind], "shuffle": True}
    rng = np.random.default_rng(11)
    with h5py.File(home / "rows.h5", "x") as file:
        shape, chunks = (rows, ROW_FLOATS), (CHUNK_ROWS, ROW_FLOATS)
        values = file.create_dataset("values", shape, np.float32, chunks=chunks, **packing)
        for start in range(0, rows, 4096):
            stop = min(start + 4096, rows)
            numbers = rng.random((stop - start, ROW_FLOATS), np.float32)
            values[start:stop] = np.round(numbers * 1000) / 1024 if packing else numbers  # measured to three digits
        file.create_dataset("label", data=rng.integers(0, 1000, rows))


_MAKERS: dict[Data, Callable[[str, int, Path], Any]] = {
    "examples": _make_examples,
    "short": _make_examples,
    "png": _make_images,
    "jpeg": _make_images,
    "files": _make_files,
    **dict.fromkeys(("hdf5", *PACKED), _make_hdf5),
    "photos": _make_images,
}


# ---- images ------------------------------------------------------------------------------------------------


class ImageKind(NamedTuple):
    side: int  # pixels; the height
    noise: int
    format: str
    quality: dict[str, int]
    width: int = 0  # as high as wide


IMAGE_KINDS = {
    "png": ImageKind(224, 10, "PNG", {"compress_level": 6}),
    "jpeg": ImageKind(400, 32, "JPEG", {"quality": 92}),
    "files": ImageKind(80, 16, "JPEG", {"quality": 90}),
    "photos": ImageKind(400, 16, "JPEG", {"quality": 90}, width=500),
}


def picture(kind: str, seed: int) -> bytes:
    """Soft shapes with noise on top, which compress about as well as photographs."""
    image = IMAGE_KINDS[kind]
    rng = np.random.default_rng(seed)
    width = image.width or image.side
    hues = rng.integers(0, 256, (image.side // SOFT, width // SOFT, 3), np.uint8)
    soft = np.asarray(Image.fromarray(hues).resize((width, image.side), Image.Resampling.BICUBIC), np.int16)
    noise = rng.integers(-image.noise, image.noise + 1, soft.shape, np.int16)
    pixels = np.clip(soft + noise, 0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, image.format, **image.quality)
    return out.getvalue()


def decode(data: Any) -> Any:
    """Decodes with Pillow, as most programs do."""
    with Image.open(io.BytesIO(data)) as opened:
        return np.asarray(opened if opened.mode == "RGB" else opened.convert("RGB"))  # convert() would copy it


def random_box(rng: random.Random, width: int, height: int) -> tuple[int, int, int, int]:
    """Draws (left, top, right, bottom) as torchvision's RandomResizedCrop does."""
    for _ in range(10):
        area, ratio = width * height * rng.uniform(0.08, 1), math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = rng.randint(0, width - w), rng.randint(0, height - h)
            return left, top, left + w, top + h
    return 0, 0, width, height
