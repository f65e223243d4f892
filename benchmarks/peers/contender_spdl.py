"""SPDL, which has no format: gathers rows of memory-mapped .npy files, and decodes .jpg files with simplejpeg."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
from spdl.pipeline import PipelineBuilder

from benchmarks.common.contenders import Job
from benchmarks.peers import images
from benchmarks.peers.data import IMAGE_BATCH, SIDE, SMALL_BATCH, jpeg_paths, random_box, small_columns, source
from benchmarks.peers.operations import Batches, serve

_listed = functools.cache(lambda folder: list(enumerate(jpeg_paths({"files": [folder]}))))


def small(job: Job) -> Batches:
    ids, emb = small_columns(job)
    order = np.random.default_rng().permutation(len(ids))
    places = [order[first : first + SMALL_BATCH] for first in range(0, len(order), SMALL_BATCH)]
    gather = PipelineBuilder().add_source(places).pipe(lambda rows: {"id": ids[rows], "emb": emb[rows]}, concurrency=2)
    return _run(gather)


def pictures(job: Job) -> Batches:
    decode = _cropped if job["pipeline"] == "cropped" else _resized
    files: list[tuple[int, Path]] = list(_listed(str(source(job))))
    random.shuffle(files)
    builder = PipelineBuilder().add_source(files)
    builder = builder.pipe(lambda file: (file[0], decode(file[1].read_bytes())), concurrency=2)
    return _run(builder.aggregate(IMAGE_BATCH).pipe(_stacked))


def _resized(data: bytes) -> Any:
    return cv2.resize(simplejpeg.decode_jpeg(data, min_height=SIDE, min_width=SIDE), (SIDE, SIDE))


def _cropped(data: bytes) -> Any:
    """Decodes at the smallest scale at which the box has enough pixels."""
    height, width = simplejpeg.decode_jpeg_header(data)[:2]
    box = np.array(random_box(height, width))
    least = [min(whole, whole * SIDE // part) for whole, part in ((height, box[2]), (width, box[3]))]
    pixels = simplejpeg.decode_jpeg(data, min_height=least[0], min_width=least[1])
    top, left, high, wide = (box * pixels.shape[0] / height).round().astype(int)
    return cv2.resize(pixels[top : top + high, left : left + wide], (SIDE, SIDE))


def _stacked(samples: list[tuple[int, Any]]) -> dict[str, Any]:
    ids, pixels = zip(*samples, strict=True)
    return images.batch(ids, pixels)


def _run(builder: Any) -> Iterable[dict[str, Any]]:
    pipeline = builder.add_sink(8).build(num_threads=2)
    with pipeline.auto_stop():
        yield from pipeline


if __name__ == "__main__":
    serve(("spdl", "simplejpeg"), small, pictures)
