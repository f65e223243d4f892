"""What is here and was not before, in words."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator
from contextlib import contextmanager

from ..proc.descriptors import Kind
from ..trace.owners import find_paths
from ..trace.paths import OwnerGroup, OwnerPath, group_paths
from .imports import ImportWatch
from .picture import KINDS, Thing, take_picture, without_strangers

STEP_S = 0.01
_MOST_LINES = 20
_MOST_GROUPS = 10
_MOST_LOOKED_AT = 500
_OWNERS_S = 5.0
_FD = "fd"


def check_kinds(kinds: Iterable[str] | None) -> frozenset[str]:
    """`fd` stands for all kinds of descriptors; None for everything. ValueError names the wrong one."""
    if kinds is None:
        return KINDS
    wanted = {kinds} if isinstance(kinds, str) else {str(kind) for kind in kinds}
    if wrong := sorted(wanted - KINDS - {_FD}):
        raise ValueError(f"expected kinds of {', '.join(sorted({*KINDS, _FD}))}, got {wrong[0]!r}")
    return frozenset(wanted - {_FD} | ({str(kind) for kind in Kind} if _FD in wanted else set()))


class Check:
    """A picture from before, to be compared with what is there later. Imports in between are watched."""

    def __init__(self, kinds: Iterable[str] | None = None) -> None:
        self.forgiven: set[Hashable] = set()
        self._kinds = check_kinds(kinds)
        self._watch = ImportWatch()
        self._before = frozenset(take_picture())
        self._watch.__enter__()

    def stop(self) -> None:
        """No more imports are watched. Safe to call twice."""
        self._watch.__exit__()

    @contextmanager
    def forgiving(self) -> Iterator[None]:
        """What appears within the block is not this one's to give back."""
        before = take_picture()
        try:
            yield
        finally:
            self.forgiven |= take_picture().keys() - before.keys()

    def left(self, collect: bool = False) -> list[Thing]:
        """What would be a leak if it stayed."""
        if collect:
            gc.collect()
        known = self._before | self._watch.opened | self.forgiven
        return [thing for key, thing in take_picture().items() if key not in known and thing.kind in self._kinds]

    def waits(self, most: int, within_s: float, collect: bool) -> Iterator[float]:
        """How long to wait before each next look, as long as there is something that may still go."""
        if len(self.left()) <= most or (collect and len(self.left(collect=True)) <= most):
            return
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            yield STEP_S
            if len(self.left()) <= most:
                return

    def over(self, most: int) -> list[Thing]:
        """All that is left, if it is more than that and not another process's doing."""
        things = self.left()
        if len(things) <= most:
            return []
        certain = sorted(without_strangers(dict(enumerate(things))).values())
        return certain if len(certain) > most else []


def tell(things: Collection[Thing], allowed: int = 0) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The text, and each thing with its kind. With the paths to what holds the descriptors."""
    counts = Counter(thing.kind for thing in things)
    head = ", ".join(f"{count:,} {kind}" for kind, count in counts.most_common())
    lines = [f"left behind: {head}" + (f" (allowed: {allowed:,})" if allowed else "")]
    lines += [f"  {thing.kind}: {thing.what}" for thing in list(things)[:_MOST_LINES]]
    if len(things) > _MOST_LINES:
        lines.append(f"  … and {len(things) - _MOST_LINES:,} more")
    lines += [f"  held by {line}" for line in _holders(things)]
    return "\n".join(lines), tuple((thing.kind, thing.what) for thing in things)


def _holders(things: Iterable[Thing]) -> list[str]:
    fds = [thing.fd for thing in things if thing.fd is not None][:_MOST_LOOKED_AT]
    if not fds:
        return []
    paths: list[OwnerPath] = find_paths(fds, within_s=_OWNERS_S)
    groups: list[OwnerGroup] = group_paths(paths)
    return [str(group.example) if group.count == 1 else str(group) for group in groups[:_MOST_GROUPS]]
