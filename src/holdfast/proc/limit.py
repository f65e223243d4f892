"""One thing that can run out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """`soft` is where trouble begins, `hard` how far `soft` can be raised. None is unknown, `math.inf` unlimited."""

    name: str
    used: int | None = None
    soft: float | None = None
    hard: float | None = None

    @property
    def headroom(self) -> float | None:
        """How many more there may be."""
        if self.used is None or self.soft is None:
            return None
        return max(0, self.soft - self.used)

    @property
    def ratio(self) -> float | None:
        """The used part: 0 of none or of unlimited, 1 where nothing is left."""
        if self.used is None or self.soft is None:
            return None
        return self.used / self.soft if self.soft else 1.0


def tightest(limits: Iterable[Limit]) -> Limit | None:
    """The one used most, of those of which that is known."""
    known = [limit for limit in limits if limit.ratio is not None]
    return max(known, key=lambda limit: limit.ratio or 0.0, default=None)
