"""What the time of a shard's read went into, as far as the format can tell. Each thread has its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from .._native import codec

_EVERY = 16  # reads: checking CRCs is part of decoding, so of some its price is measured by itself


class Spent(threading.local):
    """Seconds, since they were last taken away. A shard adds to them, a pipeline takes them."""

    fetch_s = 0.0
    verify_s = 0.0
    _price_s = 0.0  # of a byte's CRC
    _n_reads = 0

    @contextmanager
    def fetching(self) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        finally:
            self.fetch_s += perf_counter() - start

    def verified(self, view: Any, size_bytes: int) -> None:
        """So many bytes had their CRCs checked; `view` is of some of them."""
        if self._n_reads % _EVERY == 0 and len(view):
            start = perf_counter()
            codec.crc32c(view)
            self._price_s = (perf_counter() - start) / len(view)
        self._n_reads += 1
        self.verify_s += self._price_s * size_bytes

    def take(self) -> tuple[float, float]:
        """Seconds of fetching and of verifying."""
        taken = self.fetch_s, self.verify_s
        self.fetch_s = self.verify_s = 0.0
        return taken


spent = Spent()
