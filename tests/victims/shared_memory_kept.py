"""Blocks of shared memory that are unlinked, and never closed."""

from __future__ import annotations

from multiprocessing.shared_memory import SharedMemory

from rounds import KEPT, serve


def leak() -> None:
    for _ in range(4):
        block = SharedMemory(create=True, size=64)
        block.unlink()
        KEPT.append(block)


def honest() -> None:
    block = SharedMemory(create=True, size=64)
    block.unlink()
    block.close()
    KEPT.append(block)


serve(leak, honest)
