"""What was sampled of one process: fine for the last hour, coarser the older it is, never more than a few thousand."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ..diagnose.facts import Sample
from ..proc.processes import Identity


@dataclass(frozen=True, slots=True)
class Tier:
    """Samples at least `every_s` apart are kept for `keep_s`."""

    every_s: float
    keep_s: float


_FINE_SAMPLES = 720
_COARSE = (Tier(60, 2 * 86400), Tier(900, 30 * 86400))


def tiers_for(every_s: float) -> tuple[Tier, ...]:
    """For samples taken every so many seconds, of which the last 720 stay as they are: of 5 s, an hour."""
    # Half of it: of two samples that come a little early or late, none may replace the other.
    return Tier(every_s / 2, _FINE_SAMPLES * every_s), *_COARSE


class _Ring:
    """One tier. Of all samples in a stretch of `every_s` the lowest stays: the floor must survive the thinning."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self._stretch: float | None = None
        self.kept: deque[Sample] = deque()

    def add(self, sample: Sample) -> list[Sample]:
        """Returns what is too old for this tier."""
        stretch = sample.at_s // self._tier.every_s
        if self.kept and stretch == self._stretch:
            if sample.fds <= self.kept[-1].fds:
                self.kept[-1] = sample
            return []
        self._stretch = stretch
        self.kept.append(sample)
        old = []
        while self.kept[0].at_s < sample.at_s - self._tier.keep_s:
            old.append(self.kept.popleft())
        return old


class Series:
    """One process's samples. `ended_at_s` is when it was found to be gone."""

    def __init__(self, identity: Identity, every_s: float) -> None:
        self.identity = identity
        self.ended_at_s: float | None = None
        self.latest: Sample | None = None
        self._rings = [_Ring(tier) for tier in tiers_for(every_s)]

    def add(self, sample: Sample) -> None:
        """Samples come in the order of time."""
        self.latest = sample
        old = [sample]
        for ring in self._rings:
            old = [gone for one in old for gone in ring.add(one)]

    @property
    def samples(self) -> list[Sample]:
        """Oldest first, the latest always among them."""
        found = [one for ring in reversed(self._rings) for one in ring.kept]
        if self.latest is not None and found and found[-1] is not self.latest:
            found.append(self.latest)
        return found
