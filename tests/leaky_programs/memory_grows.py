"""Keeps the results of every job; the clean one keeps those of the last eight."""

from __future__ import annotations

from collections import deque

from leak_rounds import KEPT, serve

recent: deque[bytearray] = deque(maxlen=8)


def _result() -> bytearray:
    return bytearray(b"x") * (4 << 20)


def leak() -> None:
    KEPT.append(_result())


def clean() -> None:
    recent.append(_result())


serve(leak, clean)
