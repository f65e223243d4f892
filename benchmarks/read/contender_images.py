"""Other decoders and loaders of images, in an environment of their own: cv2 and simplejpeg on threads, in grain and in
SPDL, and DALI on the CPU.

They have the encoded images in memory from the start, where holdfast reads and checks its files in every pass. None of
them antialiases, which is faster.
"""

from __future__ import annotations

import functools
import importlib.metadata
import random
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cv2
import numpy as np
import simplejpeg

from benchmarks.common.contenders import Job, serve
from benchmarks.read.data import random_box
from benchmarks.read.operations import Batches, operations
from benchmarks.read.tasks import BATCH, MEAN, SIDE, STD, WORKERS

cv2.setNumThreads(1)  # the threads are busy with other images
ROWS = BATCH["photos"]
_SCALE = np.float32(1) / (np.float32(STD) * 255)
_SHIFT = -np.float32(MEAN) / np.float32(STD)
_rng = random.Random(7)


@functools.cache
def _encoded(files: tuple[str, ...]) -> list[bytes]:
    images = []
    for path in files:
        with open(path, "rb") as file:
            while header := file.read(12):
                record = file.read(struct.unpack("<Q", header[:8])[0])
                file.read(4)
                images.append(record[record.index(b"\xff\xd8\xff") : record.rindex(b"\xff\xd9") + 2])
    return images


def _images(job: Job) -> list[bytes]:
    images = list(_encoded(tuple(job["files"])))
    _rng.shuffle(images)
    return images


def _by_cv2(data: bytes) -> Any:
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)


def _by_simplejpeg(data: bytes) -> Any:
    return simplejpeg.decode_jpeg(data, fastdct=True, fastupsample=True)


def _resized(pixels: Any, is_random: bool, out: Any = None) -> Any:
    if is_random:
        left, top, right, bottom = random_box(_rng, pixels.shape[1], pixels.shape[0])
        pixels = pixels[top:bottom, left:right]
    levels = cv2.resize(pixels, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
    floats = np.multiply(levels, _SCALE, out=out, dtype=np.float32)
    floats += _SHIFT
    return floats


# ---- a pool of threads -------------------------------------------------------------------------------------


def _pool(job: Job, decode: Callable[[bytes], Any], is_random: bool) -> Batches:
    """Every thread decodes into the batch; two batches are under way."""
    images = _images(job)
    chunks = [images[at : at + ROWS] for at in range(0, len(images), ROWS)]

    def begin(chunk: list[bytes]) -> tuple[Any, Any]:
        batch = np.empty((len(chunk), SIDE, SIDE, 3), np.float32)

        def one(row: int) -> None:
            _resized(decode(chunk[row]), is_random, batch[row])

        return batch, pool.map(one, range(len(chunk)))

    with ThreadPoolExecutor(WORKERS) as pool:
        under_way = [begin(chunk) for chunk in chunks[:2]]
        for number in range(len(chunks)):
            batch, done = under_way.pop(0)
            if number + 2 < len(chunks):
                under_way.append(begin(chunks[number + 2]))
            list(done)
            yield {"image": batch, "label": np.zeros(len(batch), np.int64)}


def pool_cv2_resize(job: Job) -> Batches:
    return _pool(job, _by_cv2, False)


def pool_cv2_crop(job: Job) -> Batches:
    return _pool(job, _by_cv2, True)


def pool_simplejpeg_resize(job: Job) -> Batches:
    return _pool(job, _by_simplejpeg, False)


def pool_simplejpeg_crop(job: Job) -> Batches:
    return _pool(job, _by_simplejpeg, True)


# ---- loaders -----------------------------------------------------------------------------------------------


def _grain(job: Job, is_random: bool) -> Batches:
    import grain

    def one(data: bytes) -> Any:
        return {"image": _resized(_by_simplejpeg(data), is_random), "label": 0}

    dataset = grain.MapDataset.source(_images(job)).map(one).batch(ROWS)
    return iter(dataset.to_iter_dataset(grain.ReadOptions(num_threads=WORKERS, prefetch_buffer_size=2 * WORKERS)))


def grain_resize(job: Job) -> Batches:
    return _grain(job, False)


def grain_crop(job: Job) -> Batches:
    return _grain(job, True)


def _spdl(job: Job, is_random: bool) -> Batches:
    from spdl.pipeline import PipelineBuilder

    def one(data: bytes) -> Any:
        return _resized(_by_simplejpeg(data), is_random)

    def join(rows: list[Any]) -> dict[str, Any]:
        return {"image": np.stack(rows), "label": np.zeros(len(rows), np.int64)}

    builder = PipelineBuilder().add_source(_images(job)).pipe(one, concurrency=WORKERS)
    pipeline = builder.aggregate(ROWS).pipe(join).add_sink(2).build(num_threads=WORKERS + 1)
    with pipeline.auto_stop():
        yield from pipeline


def spdl_resize(job: Job) -> Batches:
    return _spdl(job, False)


def spdl_crop(job: Job) -> Batches:
    return _spdl(job, True)


@functools.cache
def _dali_pipeline(files: tuple[str, ...], is_random: bool) -> Any:
    """Never ends: what it prefetches at the end of a pass is the begin of the next."""
    from nvidia.dali import fn, pipeline_def, types

    def chunks() -> Iterator[list[Any]]:
        while True:
            images = _images({"files": files})
            for at in range(0, len(images), ROWS):
                yield [np.frombuffer(one, np.uint8) for one in images[at : at + ROWS]]

    @pipeline_def(batch_size=ROWS, num_threads=WORKERS, device_id=None, prefetch_queue_depth=2)
    def pipeline() -> Any:
        data = fn.external_source(source=chunks(), no_copy=True)
        if is_random:
            area = {"random_area": (0.08, 1.0), "random_aspect_ratio": (3 / 4, 4 / 3)}
            decoded = fn.decoders.image_random_crop(data, device="cpu", **area)
        else:
            decoded = fn.decoders.image(data, device="cpu")
        resized = fn.resize(decoded, size=(SIDE, SIDE), interp_type=types.INTERP_LINEAR, antialias=False)
        scale = {"mean": [255 * one for one in MEAN], "std": [255 * one for one in STD]}
        return fn.crop_mirror_normalize(resized, dtype=types.FLOAT, output_layout="HWC", **scale)

    made = pipeline()
    made.build()
    return made


def _dali(job: Job, is_random: bool) -> Batches:
    files = tuple(job["files"])
    pipeline = _dali_pipeline(files, is_random)
    for _ in range(-(-len(_encoded(files)) // ROWS)):
        (batch,) = pipeline.run()
        yield {"image": batch.as_array(), "label": np.zeros(len(batch), np.int64)}


def dali_resize(job: Job) -> Batches:
    return _dali(job, False)


def dali_crop(job: Job) -> Batches:
    return _dali(job, True)


def facts() -> dict[str, Any]:
    packages = ("opencv-python-headless", "simplejpeg", "grain", "spdl", "nvidia-dali-cuda120")
    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"versions": found}


PIPELINES = (
    pool_cv2_resize,
    pool_cv2_crop,
    pool_simplejpeg_resize,
    pool_simplejpeg_crop,
    grain_resize,
    grain_crop,
    spdl_resize,
    spdl_crop,
    dali_resize,
    dali_crop,
)

if __name__ == "__main__":
    serve(operations(*PIPELINES), facts)
