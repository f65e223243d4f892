"""The rounds of a victim: one for every line that it reads, as its own test asks for them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

# What a leaking round makes stays reachable from here.
KEPT: list[Any] = []


def serve(leak: Callable[[], object], honest: Callable[[], object]) -> None:
    """Says `ready`, then `done N` after each round; ends with its input. The first argument says which of the two."""
    work = {"leak": leak, "honest": honest}[sys.argv[1]]
    print("ready", flush=True)
    for number, _ in enumerate(sys.stdin, 1):
        work()
        print("done", number, flush=True)
