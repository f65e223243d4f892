"""What was looked up on this machine. None is unknown: it may not be read, or no descriptor was free to read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from ..doctor.model import Match
from ..doctor.remedies import Remedy
from ..procfs.descriptors import Kind
from ..procfs.limits import Limit
from ..procfs.locks import Lock


class Scope(StrEnum):
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
class SystemContext:
    """`limits` by name, as proc has them: nofile, nproc, cgroup_pids, dev_shm_bytes, …"""

    scope: Scope
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


# What a row of the table is made of.


class Rank(IntEnum):
    """How much a kind of error tells, if several are found together."""

    CONSEQUENCE = 1  # what follows from something else: the cause is elsewhere
    SIGN = 2  # one of few things, to be told apart by facts
    CAUSE = 3  # this is what went wrong


class Fact(StrEnum):
    """What is to be looked up here."""

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
    """One kind of error.

    needles        in lower case: a line that holds none of them is not this
    pattern        what the line must match besides; upper and lower case are the same
    near           in lower case: one of these must stand on the line or in the traceback that it ends
    errno          the one behind it, also where the text does not say so
    asks           what to look up here
    cure           what holdfast has against it, where it has something
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
