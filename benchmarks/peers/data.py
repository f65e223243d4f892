"""The samples, made once as plain files (.npy, .jpg), as TFRecord and as HDF5. A peer converts them to its own format.

Contenders import this module in their own environments, which have numpy, but neither holdfast nor Pillow.
"""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.contenders import Job
from benchmarks.common.workload import made_once

VERSION = 1  # increase it when the data change at the same sizes
SHARDS = 8
EMBED = 64
ROW_BYTES = 4096
CHUNK_ROWS = 64
WIDTH, HEIGHT, SIDE = 500, 400, 224
SMALL_BATCH, IMAGE_BATCH = 256, 32
SMALL = np.dtype([("id", np.int64), ("emb", np.float32, EMBED)])

# How many samples a peer shuffles among, where it does not shuffle all. holdfast's windows are at least as large.
SHUFFLE = {"small": 8192, "images": 256, "rows": 8192, "rows-gzip": 8192}
WINDOW = {"small": "64MB", "images": "64MB", "rows": "64MB", "rows-gzip": "64MB"}


# ---- for contenders ----------------------------------------------------------------------------------------


def source(job: Job) -> Path:
    return Path(job["files"][0])


def own_format(job: Job, name: str, write: Callable[[Path], Any]) -> Path:
    """Returns the folder with the samples in a peer's format, which `write` fills the first time."""
    return made_once(source(job) / "formats" / name, write)


def small_columns(job: Job) -> tuple[Any, Any]:
    """id and emb, memory-mapped."""
    return np.load(source(job) / "id.npy", mmap_mode="r"), np.load(source(job) / "emb.npy", mmap_mode="r")


def small_rows(job: Job) -> Any:
    """The same as an array of pairs, whose bytes a peer can store."""
    ids, emb = small_columns(job)
    rows = np.empty(len(ids), SMALL)
    rows["id"], rows["emb"] = ids, emb
    return rows


def columns(rows: Any) -> dict[str, Any]:
    return {name: np.ascontiguousarray(rows[name]) for name in SMALL.names}


def jpeg_paths(job: Job) -> list[Path]:
    """The place of a file in this list is its id."""
    return sorted((source(job) / "images").iterdir())


def random_box(height: int, width: int) -> tuple[int, int, int, int]:
    """Returns top, left, height and width: 8 to 100 % of the area, 3:4 to 4:3."""
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if wide <= width and high <= height:
            return random.randint(0, height - high), random.randint(0, width - wide), high, wide
    wide = min(width, round(height * 4 / 3))
    return 0, (width - wide) // 2, height, wide


# ---- makers ------------------------------------------------------------------------------------------------


def make_small(home: Path, rows: int) -> None:
    import holdfast as hold

    rng = np.random.default_rng(1)
    columns = {"id": rng.permutation(rows), "emb": rng.random((rows, EMBED), np.float32)}
    for name, column in columns.items():
        np.save(home / f"{name}.npy", column)
    for shard in range(SHARDS):
        schema = {"id": hold.Int64(), "emb": hold.Float32(EMBED)}
        with hold.TFRecordWriter(home / f"part-{shard}.tfrecord", schema) as writer:
            writer.extend({name: column[shard::SHARDS] for name, column in columns.items()})


def make_images(home: Path, rows: int) -> None:
    import holdfast as hold

    (home / "images").mkdir()
    files = [picture(number) for number in range(rows)]
    for number, data in enumerate(files):
        (home / "images" / f"{number:06}.jpg").write_bytes(data)
    for shard in range(SHARDS):
        schema = {"id": hold.Int64(), "image": hold.Bytes()}
        with hold.TFRecordWriter(home / f"part-{shard}.tfrecord", schema) as writer:
            writer.extend({"id": np.arange(rows)[shard::SHARDS], "image": files[shard::SHARDS]})


def make_rows(home: Path, rows: int, compression: str | None = None) -> None:
    """Readings of a noisy sensor, which gzip makes 30 % smaller."""
    import h5py

    rng = np.random.default_rng(2)
    chunks = (CHUNK_ROWS, ROW_BYTES)
    with h5py.File(home / "rows.h5", "x") as file:
        values = file.create_dataset("values", (rows, ROW_BYTES), "uint8", chunks=chunks, compression=compression)
        for first in range(0, rows, CHUNK_ROWS):
            values[first : first + CHUNK_ROWS] = rng.normal(128, 10, chunks).round()
        file.create_dataset("id", data=rng.permutation(rows))


def make_gzip_rows(home: Path, rows: int) -> None:
    make_rows(home, rows, "gzip")


def picture(seed: int) -> bytes:
    """Soft hues, mostly blue, with ellipses and some noise: about 50 kB as a JPEG."""
    from PIL import Image, ImageDraw

    rng = np.random.default_rng(seed)
    hues = rng.integers((0, 40, 100), (160, 200, 256), (HEIGHT // 40, WIDTH // 40, 3)).astype(np.uint8)
    image = Image.fromarray(hues).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(image)
    for _ in range(12):
        x, y, size = rng.integers(0, (WIDTH, HEIGHT, 120)).tolist()
        draw.ellipse((x, y, x + size, y + size * 2 // 3), fill=tuple(rng.integers(0, 256, 3).tolist()))
    noise = rng.normal(0, 5.3, (HEIGHT, WIDTH, 1))
    out = io.BytesIO()
    Image.fromarray(np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8)).save(out, "JPEG", quality=88)
    return out.getvalue()


MAKERS: dict[str, Callable[[Path, int], None]] = {
    "small": make_small,
    "images": make_images,
    "rows": make_rows,
    "rows-gzip": make_gzip_rows,
}
