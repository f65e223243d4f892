"""Memory for frames that are on their way in: so many bytes over all connections, used again and again."""

from __future__ import annotations

_STEP_BYTES = 1 << 16


class Buffers:
    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0  # in use, kept or lent
        self._lent = 0
        self._free: list[bytearray] = []

    def take(self, size: int) -> bytearray | None:
        """One of at least that size; None: not now."""
        wanted = max(_STEP_BYTES, -(-size // _STEP_BYTES) * _STEP_BYTES)
        for at, buffer in enumerate(self._free):
            if wanted <= len(buffer) <= 2 * wanted:
                return self._free.pop(at)
        while self._free and self.bytes + wanted > self.most_bytes:
            self.bytes -= len(self._free.pop(0))
        if self.bytes > self._lent and self.bytes + wanted > self.most_bytes:
            return None
        try:
            buffer = bytearray(wanted)
        except MemoryError:
            return None
        self.bytes += wanted
        return buffer

    def give(self, buffer: bytearray) -> None:
        self._free.append(buffer)

    def lend(self, size: int) -> bool:
        """Whether that many bytes may be shared with a producer for as long as it is connected. Half of all at most."""
        if self._lent + size > self.most_bytes // 2:
            return False
        self._lent += size
        self.bytes += size
        return True

    def take_back(self, size: int) -> None:
        self._lent -= size
        self.bytes -= size
