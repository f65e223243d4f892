"""Keeps rotated log files open; the clean one reopens the log and closes the old file."""

from __future__ import annotations

import tempfile
from pathlib import Path

from leak_rounds import KEPT, serve


def _rotate() -> None:
    LOG.unlink(missing_ok=True)
    KEPT.append(LOG.open("w"))


def leak() -> None:
    for _ in range(4):
        _rotate()


def clean() -> None:
    _rotate()
    if len(KEPT) > 1:
        KEPT.pop(0).close()


with tempfile.TemporaryDirectory() as name:
    LOG = Path(name) / "worker.log"
    serve(leak, clean)
