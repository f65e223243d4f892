"""What a row of the table is made of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from ..cures import Cure


class Rank(IntEnum):
    """How much a kind of error tells, if several are found together."""

    SEQUEL = 1  # what follows from something else: the cause is elsewhere
    SIGN = 2  # one of few things, to be told apart by facts
    CAUSE = 3  # this is what went wrong


class Ask(StrEnum):
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
class Row:
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
    asks: tuple[Ask, ...] = ()
    advice: tuple[str, ...]
    cure: Cure | None = None
