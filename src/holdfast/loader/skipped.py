"""Samples that were skipped, each with its reason; and the limit of how many may be."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..errors import DataError, MapError

_MAX_LISTED = 1000  # further ones are only counted


@dataclass(frozen=True, slots=True)
class Loss:
    """Sample `record` of `path` was skipped: it is corrupt on disk, or a function failed on it.

    kind:       "damaged"; "unreadable" for a complete shard; or the name of the function
    offset:     in the file, or in its decompressed content; None where that means nothing
    bytes_lost: None if not known
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
    """Lists the first thousand skipped samples and counts all, each once in however many epochs. Threads may share it.

    found: what was skipped before the first batch; it counts against `max_corrupt` too
    """

    def __init__(self, samples: int, max_corrupt: int, found: Sequence[Loss] = ()) -> None:
        self._samples = samples
        self._n_found = len(found)
        self._max_corrupt = max_corrupt
        self._seen: set[tuple[str, int]] = set()
        self._listed = list(found[:_MAX_LISTED])
        self._n_corrupt = self._n_found
        self._n_failed: Counter[int] = Counter()  # by function
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._n_found + len(self._seen)

    def __iter__(self) -> Iterator[Loss]:
        return iter(list(self._listed))

    def add_corrupt(self, path: str, record: int, error: DataError, size_bytes: int | None = None) -> None:
        """Adds a sample that cannot be read. Raises if it is one too many."""
        if self._add(Loss(path, record, "damaged", error.reason, error.offset, size_bytes)):
            self._n_corrupt += 1
        if self._n_corrupt > self._max_corrupt:
            raise type(error)(
                error.path,
                error.record,
                error.offset,
                f"{error.reason}; that is one more than the {self._max_corrupt:,} that max_corrupt allows",
                error.hint,
            ) from error

    def add_failed(self, error: MapError, max_errors: int | float, function: object) -> None:
        """Adds a sample that a function failed on. Raises if it is one too many for this function."""
        if self._add(Loss(error.path, error.record, f"{error.function}()", error.reason)):
            self._n_failed[id(function)] += 1
        limit = max_errors if max_errors >= 1 or max_errors == 0 else max_errors * self._samples
        if self._n_failed[id(function)] > limit:
            raise _too_many(error, limit) from error

    def _add(self, loss: Loss) -> bool:
        """Returns whether it is new."""
        with self._lock:
            if (loss.path, loss.record) in self._seen:
                return False
            self._seen.add((loss.path, loss.record))
            if len(self._listed) < _MAX_LISTED:
                self._listed.append(loss)
            return True


def _too_many(error: MapError, limit: float) -> MapError:
    return MapError(
        error.path,
        error.record,
        error.function,
        f"{error.reason}; that is one more than the {limit:,.0f} that max_errors allows",
        error.traceback,
    )
