"""Opens a file for every item and keeps it, as a list of `Image.open` does; the clean one keeps the last few."""

from __future__ import annotations

import tempfile
from pathlib import Path

from leak_rounds import KEPT, serve

POOL = 6


def _open(folder: Path) -> None:
    path = folder / f"{len(list(folder.iterdir()))}.txt"
    path.write_text("an item")
    KEPT.append(path.open())


def leak() -> None:
    for _ in range(4):
        _open(FOLDER)


def clean() -> None:
    _open(FOLDER)
    if len(KEPT) > POOL:
        KEPT.pop(0).close()


with tempfile.TemporaryDirectory() as name:
    FOLDER = Path(name)
    serve(leak, clean)
