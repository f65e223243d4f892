"""Compares the sites of two recordings of a program, although the lines of its files may have moved between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from .sites import Site
from .trace_file import SourceFrame

NEW, GREW, SHRANK, GONE, SAME = "new", "grew", "shrank", "gone", "same"
_ORDER = {NEW: 0, GREW: 1, SHRANK: 2, GONE: 3, SAME: 4}


@dataclass(frozen=True)
class SiteChange:
    """A site before and after. It is new or gone if it has open descriptors in one recording only."""

    frame: SourceFrame  # where it is now, or where it was if it is gone
    live_before: int
    live_after: int
    per_minute_before: float
    per_minute_after: float

    @property
    def change(self) -> str:
        if self.live_before == self.live_after:
            return SAME
        if not self.live_before:
            return NEW
        if not self.live_after:
            return GONE
        return GREW if self.live_after > self.live_before else SHRANK


def compare(before: Iterable[Site], after: Iterable[Site]) -> list[SiteChange]:
    """Pairs sites that have the same file, function and text of the line; the largest change comes first."""
    pairs: dict[tuple[str, ...], tuple[list[Site], list[Site]]] = defaultdict(lambda: ([], []))
    for side, sites in enumerate((before, after)):
        for site in sites:
            frame = site.frame
            # Without the text of the line (code of `exec`, a file that is gone) the number must do.
            pairs[frame.file, frame.function, frame.text or str(frame.line)][side].append(site)
    changes = [
        SiteChange(
            (new or old)[0].frame,
            sum(site.live for site in old),
            sum(site.live for site in new),
            sum(site.per_minute for site in old),
            sum(site.per_minute for site in new),
        )
        for old, new in pairs.values()
    ]
    return sorted(
        changes,
        key=lambda one: (_ORDER[one.change], -abs(one.live_after - one.live_before), one.frame.file, one.frame.line),
    )
