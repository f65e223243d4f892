"""Samples that were asked to be skipped, each with its reason; and the bound of how many may be."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..errors import DataError, MapError

_LISTED = 1000  # further ones are counted


@dataclass(frozen=True, slots=True)
class Loss:
    """Sample `record` of `path` was left out: damaged on disk, or a function failed on it.

    kind:       "damaged"; "unreadable" for a shard that was left out as a whole; or the name of the function
    offset:     where in the file, or in what it unpacks to; None where that means nothing
    bytes_lost: None where it is not known
    """

    path: str
    record: int
    kind: str
    reason: str
    offset: int | None = None
    bytes_lost: int | None = None

    def __str__(self) -> str:
        record = "" if self.kind == "unreadable" else f", record {self.record:,}"
        place = "" if self.kind == "unreadable" or self.offset is None else f" at byte {self.offset:,}"
        lost = f" ({self.bytes_lost:,} bytes lost)" if self.bytes_lost else ""
        return f"{self.path}{record}{place}: {self.kind}: {self.reason}{lost}"


class Losses:
    """The first thousand are listed, all are counted: a sample once, in however many epochs. Threads may share it.

    found: what was lost before the first batch; it counts against `max_corrupt` too
    """

    def __init__(self, samples: int, max_corrupt: int, found: Sequence[Loss] = ()) -> None:
        self._samples = samples
        self._found = len(found)
        self._max_corrupt = max_corrupt
        self._seen: set[tuple[str, int]] = set()
        self._listed = list(found[:_LISTED])
        self._damaged = self._found
        self._failed: Counter[int] = Counter()  # by function
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._found + len(self._seen)

    def __iter__(self) -> Iterator[Loss]:
        return iter(list(self._listed))

    def corrupt(self, path: str, record: int, error: DataError, size_bytes: int | None = None) -> None:
        """A sample that cannot be read. Raises when it is one too many."""
        if self._note(Loss(path, record, "damaged", error.reason, error.offset, size_bytes)):
            self._damaged += 1
        if self._damaged > self._max_corrupt:
            raise type(error)(
                error.path,
                error.record,
                error.offset,
                f"{error.reason}; that is one more than the {self._max_corrupt:,} that max_corrupt lets be skipped",
                error.hint,
            ) from error

    def failed(self, error: MapError, max_errors: int | float, function: object) -> None:
        """A sample that a function failed on. Raises when it is one too many for this function."""
        if self._note(Loss(error.path, error.record, f"{error.function}()", error.reason)):
            self._failed[id(function)] += 1
        most = max_errors if max_errors >= 1 or max_errors == 0 else max_errors * self._samples
        if self._failed[id(function)] > most:
            raise _one_too_many(error, most) from error

    def _note(self, loss: Loss) -> bool:
        """Whether it is new."""
        with self._lock:
            if (loss.path, loss.record) in self._seen:
                return False
            self._seen.add((loss.path, loss.record))
            if len(self._listed) < _LISTED:
                self._listed.append(loss)
            return True


def _one_too_many(error: MapError, most: float) -> MapError:
    return MapError(
        error.path,
        error.record,
        error.function,
        f"{error.reason}; that is one more than the {most:,.0f} that max_errors lets be skipped",
        error.traceback,
    )
