"""Implements the codec in pure Python and numpy, with the interface of `_codec`, for use without a compiler."""

from __future__ import annotations

from .decoder import Decoder
from .encoder import Encoder
from .gather import Gatherer, copy_checked, pieces
from .tfrecord_frames import crc32c, crc_kind, find_end, find_header, frame, records, scan, scan_file, walk_heap

__all__ = [
    "Decoder",
    "Encoder",
    "Gatherer",
    "copy_checked",
    "crc32c",
    "crc_kind",
    "find_end",
    "find_header",
    "frame",
    "pieces",
    "records",
    "scan",
    "scan_file",
    "walk_heap",
]
