"""Decoding by OpenCV, for peers that leave it to the user. It does not antialias, which makes it faster."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import cv2
import numpy as np

from benchmarks.common.contenders import Job
from benchmarks.peers.data import SIDE, random_box

cv2.setNumThreads(1)  # the loaders have threads or workers of their own


def decoder(job: Job) -> Callable[[Any], Any]:
    return cropped if job["pipeline"] == "cropped" else resized


def resized(data: Any) -> Any:
    return _fitted(_decoded(data))


def cropped(data: Any) -> Any:
    pixels = _decoded(data)
    top, left, height, width = random_box(*pixels.shape[:2])
    return _fitted(pixels[top : top + height, left : left + width])


def _decoded(data: Any) -> Any:
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)


def _fitted(pixels: Any) -> Any:
    return cv2.resize(pixels, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)


def batch(ids: Any, pixels: Iterable[Any]) -> dict[str, Any]:
    return {"id": np.asarray(ids), "image": np.stack(list(pixels), dtype=np.float32, casting="safe")}
