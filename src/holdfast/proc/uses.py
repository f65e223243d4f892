"""What the kernel does not count for anyone, counted over the processes looked at: they use at least that much."""

from __future__ import annotations

from dataclasses import replace

from .descriptors import Kind
from .ends import Tables
from .limit import Limit
from .limits import shared_limits
from .procfs import ProcFS, read_or_none

# A new pipe has room for 16 pages, unless somebody asked for more or the user has had his share.
_PIPE_PAGES = 16


def used_limits(procfs: ProcFS, root: int, tables: Tables) -> list[Limit]:
    """The limits that all of them draw on."""
    pipes, inotify = Kind.PIPE, Kind.INOTIFY
    watchers = [(pid, one.fd) for pid, table in tables.items() for one in table or () if one.kind is inotify]
    own = {
        "pipe_user_pages": _PIPE_PAGES
        * len({one.inode for table in tables.values() for one in table or () if one.kind is pipes}),
        "inotify_instances": len(watchers),
        "inotify_watches": _watches(procfs, watchers),
    }
    return [
        replace(limit, used=own[limit.name]) if limit.name in own else limit for limit in shared_limits(procfs, root)
    ]


def _watches(procfs: ProcFS, watchers: list[tuple[int, int]]) -> int | None:
    """fdinfo of an inotify descriptor has a row `inotify wd:1 ino:…` for every watch."""
    rows = 0
    for pid, fd in watchers:
        text = read_or_none(procfs, f"/proc/{pid}/fdinfo/{fd}")
        if text is None:
            return None
        rows += sum(line.startswith("inotify wd:") for line in text.splitlines())
    return rows
