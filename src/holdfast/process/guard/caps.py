"""Caps: how much of a resource a worker may use before it drains (soft) or ends at once (hard)."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from ..._util.text import format_bytes, parse_bytes

Amount = int | float | str | None
_LEAST_BYTES = 1 << 20  # no program needs less memory: a smaller number without a unit is a slip
# Work in progress comes and goes: above the soft cap, only what rises from sample to sample counts at once.
RISING_SAMPLES = 3
SOFT_SAMPLES = 30


@dataclass(frozen=True, slots=True)
class Cap:
    """Bounds one resource of a worker. At `soft` it drains and asks for a restart; at `hard` it ends at once.

    Args:
        soft, hard: Each is a number (`1000`), a part of the limit that applies (`0.5`, `"50%"`), or for memory a size
            (`"24GiB"`).
        tree: All descendants of the process count, too.
    """

    __module__ = "holdfast"

    soft: Amount = None
    hard: Amount = None
    tree: bool = False

    def __post_init__(self) -> None:
        soft, hard = parse_amount(self.soft, "soft"), parse_amount(self.hard, "hard")
        if soft is None and hard is None:
            raise ValueError("expected a cap with soft=, hard= or both, got neither")
        if type(soft) is type(hard) and soft is not None and hard is not None and soft > hard:
            raise ValueError(f"expected a soft cap of at most the hard one, got {self.soft!r} and {self.hard!r}")


def parse_amount(value: Amount, what: str) -> int | float | None:
    """Returns an int for an absolute amount, a float in (0, 1] for a part of the limit; raises ValueError."""
    if value is None:
        return None
    if isinstance(value, str):
        return _parse_text(value, what)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0 or value == float("inf"):
        raise ValueError(f"expected {what}= above zero, such as 1000, 0.5 or '24GiB', got {value!r}")
    if isinstance(value, int):
        return value
    if value <= 1:
        return value
    if value.is_integer():
        return int(value)
    raise ValueError(f"expected {what}= as a number, or a part of the limit between 0 and 1, got {value!r}")


def _parse_text(text: str, what: str) -> int | float:
    if text.rstrip().endswith("%"):
        try:
            part = float(text.rstrip()[:-1]) / 100
        except ValueError:
            part = 0.0
        if not 0 < part <= 1:
            raise ValueError(f"expected {what}= between 0 and 100 %, got {text!r}")
        return part
    if re.fullmatch(r"\s*\d*\.\d+\s*", text):
        amount = parse_amount(float(text), what)  # a part, as from a command line or a config file
        assert amount is not None
        return amount
    try:
        return parse_bytes(text)
    except ValueError:
        raise ValueError(
            f"expected {what}= as a number, a part such as 0.5 or 50%, or for memory a size such as 24GiB, got {text!r}"
        ) from None


class ResolvedCap(NamedTuple):
    """A cap in absolute numbers; None: no such cap. `of` is the limit that a part was taken of."""

    soft: int | None
    hard: int | None
    of: int | None = None

    def exceeded(self, used: int) -> str | None:
        """Returns "hard", "soft" or None."""
        if self.hard is not None and used >= self.hard:
            return "hard"
        return "soft" if self.soft is not None and used >= self.soft else None


class CapWatch:
    """Keeps the last samples of one resource, and counts those in a row that were above its soft cap."""

    def __init__(self) -> None:
        self._last: deque[int] = deque(maxlen=RISING_SAMPLES)
        self._above = 0

    def check(self, used: int, cap: ResolvedCap) -> str | None:
        """Returns "hard" at once, and "soft" if the last three samples rise or the last 30 were above the soft cap."""
        which = cap.exceeded(used)
        self._last.append(used)
        self._above = self._above + 1 if which else 0
        rises = len(self._last) == RISING_SAMPLES and all(before < after for before, after in pairwise(self._last))
        return which if which == "hard" or rises or self._above >= SOFT_SAMPLES else None


class CappedResource(NamedTuple):
    """A resource that can be capped. `part_of` names the limit that a part refers to; empty: there is none."""

    name: str
    noun: str
    part_of: str = ""
    in_bytes: bool = False

    def amount(self, value: int) -> str:
        return format_bytes(value) if self.in_bytes else f"{value:,}"

    def check(self, cap: Cap | Amount) -> Cap | None:
        """Returns the cap; a plain amount is a hard one. Raises ValueError if it does not fit this resource."""
        if cap is None:
            return None
        if not isinstance(cap, Cap):
            try:
                cap = Cap(hard=cap)
            except ValueError as error:
                raise ValueError(f"{self.name}=: {error}") from None
        expected = f"expected {self.name}= as a number of {self.noun}"
        for value in (cap.soft, cap.hard):
            amount = parse_amount(value, self.name)
            if self.in_bytes and isinstance(amount, int) and amount < _LEAST_BYTES and str(value).strip().isdigit():
                raise ValueError(
                    f"expected a size with its unit, such as {value}GiB, got {value}, which is {value} bytes"
                )
            if isinstance(parse_amount(value, self.name), float) and not self.part_of:
                raise ValueError(f"{expected}, got the part {value!r}")
            if not self.in_bytes and isinstance(value, str) and value.strip()[-1:].isalpha():
                or_part = " or a part of their limit" if self.part_of else ""
                raise ValueError(f"{expected}{or_part}, got the size {value!r}")
        return cap

    def resolve(self, cap: Cap, limit: int | None) -> ResolvedCap:
        """Converts parts of the limit to numbers. Where there is no limit, a part is no cap."""
        return ResolvedCap(self._resolve(cap.soft, limit), self._resolve(cap.hard, limit), limit)

    def _resolve(self, value: Amount, limit: int | None) -> int | None:
        amount = parse_amount(value, self.name)
        if isinstance(amount, float):
            return None if limit is None else max(1, int(amount * limit))
        return amount

    def sentence(self, used: int, cap: ResolvedCap, which: str) -> str:
        at = cap.hard if which == "hard" else cap.soft
        assert at is not None
        of = f" (limit {self.amount(cap.of)})" if cap.of is not None else ""
        noun = "of memory" if self.in_bytes else self.noun
        return f"it uses {self.amount(used)} {noun}, its {which} cap is {self.amount(at)}{of}"


FDS = CappedResource("fds", "descriptors", "the soft limit of descriptors")
RSS = CappedResource("rss", "bytes", "the memory limit", in_bytes=True)
THREADS = CappedResource("threads", "threads")
CHILDREN = CappedResource("children", "child processes")
