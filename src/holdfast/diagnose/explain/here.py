"""What was looked up on this machine. None is unknown: it may not be read, or no descriptor was free to read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ...proc.descriptors import Kind
from ...proc.limit import Limit
from ...proc.locks import Lock
from ..facts import Match


class Whose(StrEnum):
    """Whose limits these are."""

    OWN = "own"  # of the process that asks, where the error was raised
    OTHER = "other"  # of the one that was named
    SHELL = "shell"  # of a command that was asked about a text: only what it inherited tells anything


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """One file system."""

    path: str
    size_bytes: int
    free_bytes: int
    inodes: int
    free_inodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFile:
    """A file that the error speaks of. `head` are its first bytes; `locks` None: that could not be seen."""

    path: str
    size_bytes: int | None = None
    head: bytes | None = None
    locks: tuple[Lock, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """`limits` by name, as proc has them: nofile, nproc, cgroup_pids, dev_shm_bytes, …"""

    whose: Whose
    pid: int
    command: str = ""
    limits: Mapping[str, Limit] = field(default_factory=dict)
    kinds: Mapping[Kind, int] = field(default_factory=dict)
    match: Match | None = None  # what its descriptors look like
    highest_fd: int | None = None
    is_root: bool = False
    available_bytes: int | None = None
    overcommit: int | None = None
    address_space_bytes: int | None = None  # `ulimit -v`; None: unlimited, or unknown
    oom_kills: int | None = None
    maps: int | None = None
    most_maps: int | None = None
    disks: tuple[Disk, ...] = ()
    files: tuple[NamedFile, ...] = ()
