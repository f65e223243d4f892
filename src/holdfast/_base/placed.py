"""Bytes to a place in a file."""

from __future__ import annotations

import os
from typing import Any


def write_all(fd: int, data: Any, offset: int) -> None:
    """All of them, however few are taken at a time."""
    view = memoryview(data)
    while view:
        n = os.pwrite(fd, view, offset)
        view, offset = view[n:], offset + n
