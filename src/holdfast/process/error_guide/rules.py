"""Defines rules, and the facts about this machine that they need.

A fact is None if it is unknown: permission was denied, or no descriptor was free to read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from ...procfs.descriptors import Kind
from ...procfs.limits import Limit
from ...procfs.locks import Lock
from ..doctor.model import Match
from ..doctor.remedies import Remedy


class Scope(StrEnum):
    """Says which process the limits belong to."""

    OWN = "own"  # this process, in which the error was raised
    OTHER = "other"  # the process given by its pid
    SHELL = "shell"  # the `holdfast explain` command itself: only inherited limits mean anything


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """Describes the free space of a file system."""

    path: str
    size_bytes: int
    free_bytes: int
    inodes: int
    free_inodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFile:
    """Describes a file that the error names. `head` holds its first bytes; `locks` is None if they cannot be read."""

    path: str
    size_bytes: int | None = None
    head: bytes | None = None
    locks: tuple[Lock, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemContext:
    """Holds the facts about one process and its machine.

    The keys of `limits` are the names used in `procfs`: nofile, nproc, cgroup_pids, dev_shm_bytes, …
    """

    scope: Scope
    pid: int
    command: str = ""
    limits: Mapping[str, Limit] = field(default_factory=dict)
    kinds: Mapping[Kind, int] = field(default_factory=dict)
    match: Match | None = None  # the leak signature that its descriptors match
    highest_fd: int | None = None
    is_root: bool = False
    available_bytes: int | None = None
    overcommit: int | None = None
    address_space_bytes: int | None = None  # `ulimit -v`; None if unlimited or unknown
    oom_kills: int | None = None
    maps: int | None = None
    max_maps: int | None = None
    disks: tuple[Disk, ...] = ()
    files: tuple[NamedFile, ...] = ()


class Rank(IntEnum):
    """Orders kinds of errors that are found together: the highest is the most informative."""

    CONSEQUENCE = 1  # it follows from another error
    SIGN = 2  # it has a few possible causes, which facts distinguish
    CAUSE = 3  # it is the cause


class Fact(StrEnum):
    """Names a fact to look up on this machine."""

    DESCRIPTORS = "descriptors"
    HOST_FILES = "host_files"
    HIGHEST = "highest"
    TASKS = "tasks"
    MEMORY = "memory"
    MAPS = "maps"
    SHM = "shm"
    DISK = "disk"
    INOTIFY = "inotify"
    LOCKS = "locks"
    HEAD = "head"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Describes one kind of error.

    errno      the errno behind it, even if the text does not contain it
    needles    lower case: the line must contain one of them
    pattern    a regular expression that the line must also match, ignoring case
    near       lower case: one of these must be on the line or in the traceback that it ends
    facts      what to look up on this machine
    remedy     holdfast code that avoids the error, if there is any
    """

    name: str
    title: str
    errno: int | None = None
    needles: tuple[str, ...]
    pattern: str = ""
    near: tuple[str, ...] = ()
    rank: Rank
    says: str
    mistaken_for: str
    facts: tuple[Fact, ...] = ()
    advice: tuple[str, ...]
    remedy: Remedy | None = None
