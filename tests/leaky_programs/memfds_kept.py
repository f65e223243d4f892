"""Creates a memory file for every message; the clean one reuses a few."""

from __future__ import annotations

import os

from leak_rounds import KEPT, serve

POOL = 6


def leak() -> None:
    for _ in range(4):
        KEPT.append(os.memfd_create("message"))


def clean() -> None:
    if len(KEPT) < POOL:
        KEPT.append(os.memfd_create("message"))
    os.pwrite(KEPT[0], b"text", 0)


serve(leak, clean)
