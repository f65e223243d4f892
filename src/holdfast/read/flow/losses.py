"""Samples that were asked to be skipped, each with its reason; and the bound of how many may be."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

from ...errors import DataError, MapError

_LISTED = 1000  # further ones are counted


@dataclass(frozen=True, slots=True)
class Loss:
    """Sample `record` of `path` was left out: damaged on disk, or a function failed on it."""

    path: str
    record: int
    kind: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, record {self.record:,}: {self.kind}: {self.reason}"


class Losses:
    """The first thousand are listed, all are counted. Threads may share it."""

    def __init__(self, samples: int, max_corrupt: int) -> None:
        self._samples = samples
        self._max_corrupt = max_corrupt
        self._seen: set[tuple[str, int]] = set()
        self._listed: list[Loss] = []
        self._failed = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._seen)

    def __iter__(self) -> Iterator[Loss]:
        return iter(list(self._listed))

    def corrupt(self, path: str, record: int, error: DataError) -> None:
        """A sample that cannot be read. Raises when it is one too many."""
        self._note(Loss(path, record, "damaged", error.reason))
        if len(self) - self._failed > self._max_corrupt:
            raise type(error)(
                error.path,
                error.record,
                error.offset,
                f"{error.reason}; that is one more than the {self._max_corrupt:,} that max_corrupt lets be skipped",
                error.hint,
            ) from error

    def failed(self, error: MapError, max_errors: int | float) -> None:
        """A sample that a function failed on. Raises when it is one too many."""
        with self._lock:
            self._failed += 1
        self._note(Loss(error.path, error.record, f"{error.function}()", error.reason))
        most = max_errors if max_errors >= 1 or max_errors == 0 else max_errors * self._samples
        if self._failed > most:
            raise _one_too_many(error, most) from error

    def _note(self, loss: Loss) -> None:
        with self._lock:
            if (loss.path, loss.record) not in self._seen:
                self._seen.add((loss.path, loss.record))
                if len(self._listed) < _LISTED:
                    self._listed.append(loss)


def _one_too_many(error: MapError, most: float) -> MapError:
    return MapError(
        error.path,
        error.record,
        error.function,
        f"{error.reason}; that is one more than the {most:,.0f} that max_errors lets be skipped",
        error.traceback,
    )
