"""Opens the same file again for every item; the clean one shares a bounded pool of handles."""

from __future__ import annotations

from pathlib import Path

from leak_rounds import KEPT, serve

PATH = Path(__file__)
POOL = 6


def leak() -> None:
    for _ in range(4):
        KEPT.append(PATH.open())


def clean() -> None:
    if len(KEPT) < POOL:
        KEPT.append(PATH.open())
    KEPT[0].seek(0)


serve(leak, clean)
