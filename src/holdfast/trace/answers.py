"""What a process that listens answers."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import Any

from ..proc.snapshot import take_snapshot
from .owners import open_fds, owners_summary
from .wire import WireError

MOST_GROUPS = 200
MOST_WITHIN_S = 10.0
WITHIN_S = 3.0


def answer(request: Any, name: str, own: Collection[int]) -> dict[str, Any]:
    """`own` are the descriptors that answering takes: nobody asks about them. WireError: it cannot be answered."""
    asked = request.get("ask") if isinstance(request, dict) else None
    if not isinstance(asked, str) or asked not in _ANSWERS:
        raise WireError(f"expected an object with 'ask' of {', '.join(_ANSWERS)}")
    return {"pid": os.getpid(), "name": name, **_ANSWERS[asked](request, own)}


def _hello(request: dict[str, Any], own: Collection[int]) -> dict[str, Any]:
    return {"asks": list(_ANSWERS)}


def _owners(request: dict[str, Any], own: Collection[int]) -> dict[str, Any]:
    fds, most = request.get("fds"), request.get("most", MOST_GROUPS)
    if fds is not None and not (isinstance(fds, list) and all(type(fd) is int for fd in fds)):
        raise WireError("expected 'fds' to be a list of numbers")
    if type(most) is not int or most < 1:
        raise WireError("expected 'most' to be a number of at least 1")
    within_s = request.get("within_s", WITHIN_S)
    if type(within_s) not in (int, float) or not 0 < within_s <= MOST_WITHIN_S:
        raise WireError(f"expected 'within_s' between 0 and {MOST_WITHIN_S:g}")
    asked = [fd for fd in (open_fds() if fds is None else fds) if fd not in own and (fds is not None or fd > 2)]
    groups = owners_summary(asked, within_s=within_s)
    return {"groups": [asdict(group) for group in groups[: min(most, MOST_GROUPS)]]}


def _snapshot(request: dict[str, Any], own: Collection[int]) -> dict[str, Any]:
    look = take_snapshot(tree=False).root
    return {
        "fds": look.fd_count,
        "kinds": look.kinds,
        "limits": {
            limit.name: {"used": limit.used, "soft": _finite(limit.soft), "hard": _finite(limit.hard)}
            for limit in look.limits
        },
        "threads": look.process.threads,
        "rss_bytes": look.process.rss_bytes,
        "uptime_s": look.process.uptime_s,
    }


def _finite(number: float | None) -> float | None:
    return None if number is None or math.isinf(number) else number


_ANSWERS: dict[str, Callable[[dict[str, Any], Collection[int]], dict[str, Any]]] = {
    "hello": _hello,
    "owners": _owners,
    "snapshot": _snapshot,
}
