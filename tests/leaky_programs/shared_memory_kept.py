"""Unlinks blocks of shared memory and never closes them."""

from __future__ import annotations

from multiprocessing.shared_memory import SharedMemory

from leak_rounds import KEPT, serve


def leak() -> None:
    for _ in range(4):
        block = SharedMemory(create=True, size=64)
        block.unlink()
        KEPT.append(block)


def clean() -> None:
    block = SharedMemory(create=True, size=64)
    block.unlink()
    block.close()
    KEPT.append(block)


serve(leak, clean)
