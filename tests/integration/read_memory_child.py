"""Reads one epoch and prints how far RSS rose above what it was before it, in bytes; run by test_read_memory.py."""

from __future__ import annotations

import ctypes
import hashlib
import sys
from pathlib import Path

import holdfast as hold


def status_bytes(field: str) -> int:
    """From /proc/self/status: `VmHWM:     12345 kB`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def read_all(dataset: hold.Dataset) -> int:
    """Works with what it gets for a while, as a training step does: batches are made ready meanwhile."""
    samples = 0
    with dataset.iterate() as it:
        for batch in it:
            samples += len(batch["label"])
            if "image" in batch:
                for image in batch["image"]:
                    hashlib.sha256(image)
    return samples


def main(folder: str, batch: int, memory: str, prefetch: str) -> None:
    read_all(hold.read(f"{folder}/one.tfrecord").batch(1).prefetch())  # what is imported only then
    dataset = hold.read(f"{folder}/part-*").shuffle(seed=1).batch(batch).limits(memory=memory)
    dataset = (dataset.prefetch(prefetch) if prefetch else dataset).plan()
    ctypes.CDLL(None).malloc_trim(0)  # what looking at the files left free would hide as much of the growth
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    start = status_bytes("VmRSS")
    samples = read_all(dataset)
    print(samples, status_bytes("VmHWM") - start)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
