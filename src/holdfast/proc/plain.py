"""A look as plain dicts, lists, numbers and text: what JSON can carry.

None is unknown. No limit at all is None as well, beside `"unlimited": true`: JSON has no infinity.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .descriptors import Descriptor
from .fate import Fate
from .limit import Limit
from .pipes import PipeEnd
from .unix import SocketEnd

if TYPE_CHECKING:
    from .snapshot import ProcessLook, Snapshot

# A path is told with at most so many of its descriptors' numbers.
_MOST_FDS = 100


def plain_snapshot(snapshot: Snapshot, descriptors: bool) -> dict[str, Any]:
    tightest = snapshot.tightest
    return {
        "pid": snapshot.root.process.pid,
        "fd_count": snapshot.fd_count,
        "kinds": _by_name(snapshot.kinds),
        "whole_tree": snapshot.whole_tree,
        "tightest": None if tightest is None else plain_limit(tightest),
        "shared": [plain_limit(limit) for limit in snapshot.shared],
        "processes": [plain_look(look, descriptors) for look in snapshot.processes],
    }


def plain_look(look: ProcessLook, descriptors: bool) -> dict[str, Any]:
    plain = {
        **asdict(look.process),
        "children": look.children,
        "fd_count": look.fd_count,
        "kinds": None if look.descriptors is None else _by_name(look.kinds),
        "path_groups": [
            {"path": group.path, "kind": str(group.kind), "count": len(group.fds), "fds": list(group.fds[:_MOST_FDS])}
            for group in look.path_groups
        ],
        "pipe_ends": _fates(look.ends),
        "socket_ends": _fates(look.socket_ends),
        "limits": [plain_limit(limit) for limit in look.limits],
    }
    if descriptors:
        ends: dict[int, PipeEnd | SocketEnd] = {end.fd: end for end in look.ends}
        ends.update((end.fd, end) for end in look.socket_ends)
        plain["descriptors"] = (
            None if look.descriptors is None else [_descriptor(one, ends.get(one.fd)) for one in look.descriptors]
        )
    return plain


def plain_limit(limit: Limit) -> dict[str, Any]:
    return {
        "name": limit.name,
        "used": limit.used,
        "soft": _finite(limit.soft),
        "hard": _finite(limit.hard),
        "headroom": _finite(limit.headroom),
        "ratio": limit.ratio,
        "unlimited": limit.soft == math.inf,
    }


def _finite(number: float | None) -> float | None:
    return None if number is None or math.isinf(number) else number


def _by_name(kinds: dict[Any, int]) -> dict[str, int]:
    return {str(kind): times for kind, times in kinds.items()}


def _fates(ends: Iterable[PipeEnd | SocketEnd]) -> dict[str, int]:
    counted = Counter(end.fate for end in ends)
    return {str(fate): counted[fate] for fate in Fate}


def _descriptor(one: Descriptor, end: PipeEnd | SocketEnd | None) -> dict[str, Any]:
    plain: dict[str, Any] = {"fd": one.fd, "kind": str(one.kind), "target": one.target}
    if one.inode is not None:
        plain["inode"] = one.inode
    if one.socket is not None:
        plain["socket"] = one.socket._asdict()
    if end is not None:
        plain |= {"fate": str(end.fate), "peers": list(end.peers)}
        if isinstance(end, PipeEnd):
            plain["access"] = end.access
    return plain
