"""The public name of a full look."""

from __future__ import annotations

from ..proc.snapshot import Snapshot, take_snapshot


def snapshot(pid: int | None = None, tree: bool = True) -> Snapshot:
    """What the kernel knows of a process, by default this one, and of its descendants, now.

    Descriptors by kind, their paths, ends and peers; limits with what is used of each; size, threads, age. With no
    descriptor free it still tells of this process. InputError: there is no such process.
    """
    return take_snapshot(pid, tree)
