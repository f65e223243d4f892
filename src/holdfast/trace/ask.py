"""Asking a process that listens."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from typing import Any

from .meeting import peer_uid, places_of
from .owners import spread
from .paths import Held, OwnerGroup, OwnerPath
from .wire import MOST_ANSWER_BYTES, WireError, receive, send

WITHIN_S = 8.0
_MOST_FDS = 5_000  # as many as fit into a request


def ask(pid: int, request: dict[str, Any], *, within_s: float = WITHIN_S) -> dict[str, Any] | None:
    """Its answer; None if it does not listen to this user, is too slow, or says what was not agreed on."""
    deadline = time.monotonic() + within_s
    for place in places_of(pid):
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(within_s)
                connection.connect(str(place))
                _must_be_own(connection)
                send(connection, request, deadline - time.monotonic())
                said = receive(connection, MOST_ANSWER_BYTES, deadline - time.monotonic())
        except (OSError, WireError):
            continue
        if isinstance(said, dict) and "error" not in said:
            return said
    return None


def _must_be_own(connection: socket.socket) -> None:
    if peer_uid(connection) != os.getuid():
        raise WireError("expected a process of this user")


def ask_owners(pid: int, fds: Iterable[int] | None = None, *, within_s: float = WITHIN_S) -> list[OwnerGroup] | None:
    """How a process holds these of its descriptors (by default all), the commonest way first; None: no answer.

    Of very many some are asked about, evenly spread, and the counts are estimates.
    """
    numbers = None if fds is None else sorted(set(fds))
    request: dict[str, Any] = {"ask": "owners", "within_s": max(0.1, min(within_s / 2, 5.0))}
    if numbers is not None:
        request["fds"] = spread(numbers, _MOST_FDS)
    said = ask(pid, request, within_s=within_s)
    if said is None:
        return None
    scale = len(numbers) / len(request["fds"]) if numbers else 1.0
    try:
        return [_group(row, scale) for row in said["groups"]]
    except (KeyError, TypeError, ValueError):
        return None


def _group(row: dict[str, Any], scale: float) -> OwnerGroup:
    path = row["example"]
    example = OwnerPath(int(path["fd"]), Held(path["held"]), path["root"], tuple(path["steps"]), path["owner"])
    count = round(int(row["count"]) * scale)
    return OwnerGroup(str(row["shape"]), Held(row["held"]), count, example, bool(row["exact"]) and scale == 1.0)
