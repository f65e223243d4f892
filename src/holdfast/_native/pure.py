"""The codec in pure Python and numpy: for where nothing could be compiled. The same face as `_codec`."""

from __future__ import annotations

from .pure_copy import copy_checked
from .pure_crc import crc32c, crc_kind
from .pure_decode import Decoder
from .pure_encode import Encoder
from .pure_frame import find_end, find_header, frame, records, scan, scan_file, walk_heap
from .pure_gather import Gatherer
from .pure_pieces import pieces

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
