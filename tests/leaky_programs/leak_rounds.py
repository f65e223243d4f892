"""Runs one round of a leaky program for every line on stdin."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

# Keeps what a leaking round creates reachable.
KEPT: list[Any] = []


def serve(leak: Callable[[], object], clean: Callable[[], object]) -> None:
    """Prints `ready`, then `done N` after each round, until stdin ends. The first argument selects the function."""
    work = {"leak": leak, "clean": clean}[sys.argv[1]]
    print("ready", flush=True)
    for number, _ in enumerate(sys.stdin, 1):
        work()
        print("done", number, flush=True)
