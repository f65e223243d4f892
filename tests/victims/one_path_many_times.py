"""One file, opened again for every item; the twin shares a bounded pool of handles."""

from __future__ import annotations

from pathlib import Path

from rounds import KEPT, serve

PATH = Path(__file__)
POOL = 6


def leak() -> None:
    for _ in range(4):
        KEPT.append(PATH.open())


def honest() -> None:
    if len(KEPT) < POOL:
        KEPT.append(PATH.open())
    KEPT[0].seek(0)


serve(leak, honest)
