"""What an iteration counts: the time, calls and bytes of every stage, and the samples that were skipped."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic, perf_counter_ns

from ..._util.text import format_bytes
from ...errors import DataError, MapError
from ..formats.base import read_timing

_MAX_LISTED = 1000  # further ones are only counted
_NO_WAIT = 0.05  # a consumer that waits less than this part of the time does not wait for the reading


@dataclass(slots=True)
class StageStats:
    """`seconds` is the sum over all `workers` that ran at once."""

    seconds: float = 0.0
    calls: int = 0
    workers: int = 1

    @property
    def alone_s(self) -> float:
        """How long the stage would have taken alone."""
        return self.seconds / self.workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What an iteration has done so far. `str()` formats it as a table."""

    elapsed_s: float
    batches: int
    samples: int
    bytes_read: int
    wait_s: float
    stages: dict[str, StageStats]
    open_files: int
    open_files_max: int
    open_files_bound: int
    memory_bytes: int
    memory_max_bytes: int
    memory_bound_bytes: int
    lost: int
    rank: str

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def bottleneck(self) -> str:
        """The stage that the others wait for; "consumer" if batches are ready before they are asked for."""
        if not self.batches or self.wait_s < _NO_WAIT * self.elapsed_s or not self.stages:
            return "consumer"
        return max(self.stages, key=lambda name: self.stages[name].alone_s)

    def __str__(self) -> str:
        share = 100 / self.elapsed_s if self.elapsed_s else 0.0
        rows = [("stage", "seconds", "workers", "busy", "calls")]
        rows += [
            (name, f"{one.seconds:.2f}", str(one.workers), f"{one.alone_s * share:.0f} %", f"{one.calls:,}")
            for name, one in self.stages.items()
        ]
        rows.append(("wait", f"{self.wait_s:.2f}", "", f"{self.wait_s * share:.0f} %", f"{self.batches:,}"))
        widths = [max(len(row[at]) for row in rows) for at in range(5)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(row[at].rjust(widths[at]) for at in range(1, 5))]).rstrip()
            for row in rows
        ]
        return "\n".join([self._head(), *lines, f"bottleneck: {self.bottleneck}"])

    def _head(self) -> str:
        rate = format_bytes(int(self.bytes_read / self.elapsed_s)) if self.elapsed_s else "0 B"
        lost = f", {self.lost:,} lost" if self.lost else ""
        return (
            f"{self.batches:,} batches, {self.samples:,} samples{lost}, {format_bytes(self.bytes_read)} in "
            f"{self.elapsed_s:.2f} s: {self.samples_per_s:,.0f} samples/s, {rate}/s; {self.rank}\n"
            f"open files {self.open_files} now, {self.open_files_max} at most, of {self.open_files_bound}; "
            f"memory {format_bytes(self.memory_bytes)} now, {format_bytes(self.memory_max_bytes)} at most, "
            f"of {format_bytes(self.memory_bound_bytes)}"
        )


@dataclass(slots=True)
class Meter:
    """Counts during an iteration. Threads may share it."""

    stages: dict[str, StageStats] = field(default_factory=dict)
    bytes_read: int = 0
    batches: int = 0
    samples: int = 0
    wait_s: float = 0.0
    memory_bytes: int = 0
    memory_max_bytes: int = 0
    begun: float = field(default_factory=monotonic)
    # Reentrant: an iteration that the garbage collector closes while the lock is held calls add_memory().
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def add(self, stage: str, seconds: float, workers: int = 1, calls: int = 1) -> None:
        with self._lock:
            one = self.stages.setdefault(stage, StageStats())
            one.seconds += seconds
            one.calls += calls
            one.workers = workers

    @contextmanager
    def timed(self, stage: str, workers: int = 1) -> Iterator[None]:
        start = perf_counter_ns()
        try:
            yield
        finally:
            self.add(stage, (perf_counter_ns() - start) / 1e9, workers)

    @contextmanager
    def reading(self, size_bytes: int) -> Iterator[None]:
        """Times a shard's read, divided as its format reports it: what is not fetching or verifying is decoding."""
        read_timing.take()
        start = perf_counter_ns()
        try:
            yield
        finally:
            total_s = (perf_counter_ns() - start) / 1e9
            fetch_s, verify_s = read_timing.take()
            with self._lock:
                self.bytes_read += size_bytes
            self.add("read", fetch_s or total_s)
            if verify_s:
                self.add("verify", verify_s)
                self.add("decode", max(0.0, total_s - fetch_s - verify_s))

    def decoded(self, seconds: float) -> None:
        """Counts the decoding of raw frames, which checks their CRCs as well."""
        verify_s = min(seconds, read_timing.take()[1])
        self.add("verify", verify_s)
        self.add("decode", seconds - verify_s)

    def add_memory(self, change_bytes: int) -> None:
        """Counts memory that is kept for later batches; a negative number releases it."""
        with self._lock:
            self.memory_bytes += change_bytes
            self.memory_max_bytes = max(self.memory_max_bytes, self.memory_bytes)


# ---- skipped samples


@dataclass(frozen=True, slots=True)
class SkippedSample:
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


class SkippedSamples:
    """Lists the first thousand skipped samples and counts all, each once in however many epochs. Threads may share it.

    found: what was skipped before the first batch; it counts against `max_corrupt` too
    """

    def __init__(self, samples: int, max_corrupt: int, found: Sequence[SkippedSample] = ()) -> None:
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

    def __iter__(self) -> Iterator[SkippedSample]:
        return iter(list(self._listed))

    def add_corrupt(self, path: str, record: int, error: DataError, size_bytes: int | None = None) -> None:
        """Adds a sample that cannot be read. Raises if it is one too many."""
        if self._add(SkippedSample(path, record, "damaged", error.reason, error.offset, size_bytes)):
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
        if self._add(SkippedSample(error.path, error.record, f"{error.function}()", error.reason)):
            self._n_failed[id(function)] += 1
        limit = max_errors if max_errors >= 1 or max_errors == 0 else max_errors * self._samples
        if self._n_failed[id(function)] > limit:
            raise _too_many(error, limit) from error

    def _add(self, loss: SkippedSample) -> bool:
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
