"""A memory file for every message; the twin writes into the same few again and again."""

from __future__ import annotations

import os

from rounds import KEPT, serve

POOL = 6


def leak() -> None:
    for _ in range(4):
        KEPT.append(os.memfd_create("message"))


def honest() -> None:
    if len(KEPT) < POOL:
        KEPT.append(os.memfd_create("message"))
    os.pwrite(KEPT[0], b"text", 0)


serve(leak, honest)
