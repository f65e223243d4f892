"""Finds the Python objects that keep a descriptor open."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from ..._util.text import time_argument
from ...errors import InputError
from ...procfs.descriptors import Kind, kind_of, list_fds
from ...procfs.procfs import REAL, readlink_or_none
from .fd_readers import Readers, match_mapped
from .object_graph import Cycles, ObjectWalk
from .paths import ROOTS, TORCH_STORAGE, HeldBy, Labels, OwnerGroup, OwnerPath, Root, group_paths

WITHIN_S = 5.0
MAX_TRACED = 2_000
_MAPPABLE = (Kind.FILE, Kind.DELETED, Kind.SHM, Kind.MEMFD, Kind.DEVICE)


def owners(fd: int, *, within: str | float = WITHIN_S) -> list[OwnerPath]:
    """Returns the shortest path to each object that owns this descriptor, or a single entry that says that none does.

    There may be more paths to the same object. It runs no code of the objects but reads the references of all: in a
    large process that takes a second or two. It ends after 3,000,000 objects or 200 steps from a root,
    and then says so.

    Args:
        fd: The descriptor.
        within: When the search ends as well, in seconds or as a text such as "10s".

    Raises:
        InputError: The descriptor is not open in this process.
    """
    if _target(fd) is None:
        raise InputError(f"expected an open descriptor of this process, got {fd}")
    return find_paths([fd], within_s=time_argument(within, "within"))


def owners_summary(
    fds: Collection[int] | None = None, *, within: str | float = 2 * WITHIN_S, max: int = MAX_TRACED
) -> list[OwnerGroup]:
    """Groups descriptors by what holds them, the largest group first. Those that are not open are left out.

    Args:
        fds: The descriptors; by default all but the standard three.
        within: When the search ends, in seconds or as a text such as "10s".
        max: Of more descriptors, an even sample is traced and the counts are estimates.
    """
    if max < 1:
        raise ValueError(f"expected max to be at least 1, got {max}")
    asked = sorted(set(fds)) if fds is not None else [fd for fd in open_fds() if fd > 2]
    asked = [fd for fd in asked if _target(fd) is not None]
    paths = find_paths(spread(asked, max), within_s=time_argument(within, "within"))
    return group_paths(paths, len(asked) if len(asked) > max else None)


def spread(fds: Sequence[int], maximum: int) -> list[int]:
    """Samples at most this many of them, evenly from the first to the last."""
    if len(fds) <= maximum:
        return list(fds)
    return [fds[at * len(fds) // maximum] for at in range(maximum)]


def find_paths(
    fds: Collection[int], *, within_s: float, clock: Callable[[], float] = time.monotonic
) -> list[OwnerPath]:
    """Returns one path or more for each descriptor, in their order; none for a descriptor that was closed meanwhile.

    `within_s` is measured by `clock`: time.thread_time finds as much on a busy machine as on a quiet one.
    """
    targets = {fd: target for fd in fds if (target := _target(fd)) is not None}
    readers = Readers()
    walk = ObjectWalk(targets, readers, within_s, clock)
    _add_mapped(walk, targets)
    without_owner = targets.keys() - walk.owned()
    walk.run({fd for fd in without_owner if kind_of(targets[fd])[0] in readers.untracked})
    found: dict[int, list[OwnerPath]] = {fd: [] for fd in targets}
    for path in _describe_owners(walk):
        found[path.fd].append(path)
    return [path for fd, target in targets.items() for path in found[fd] or _without_owner(fd, target, walk)]


def _add_mapped(walk: ObjectWalk, targets: dict[int, str]) -> None:
    files = [fd for fd in targets.keys() - walk.owned() if kind_of(targets[fd])[0] in _MAPPABLE]
    if files and walk.maps:
        for fd, maps in match_mapped(files, walk.maps.values()).items():
            for one in maps:
                walk.add_owner(one, fd)


def _describe_owners(walk: ObjectWalk) -> list[OwnerPath]:
    labels = Labels()
    found: list[OwnerPath] = []
    cycles: Cycles | None = None
    for obj, fds in walk.owners.values():
        path = walk.path_to(obj)
        if path is None:
            held = HeldBy.CYCLE if walk.complete else HeldBy.UNKNOWN
            if cycles is None:
                cycles = Cycles(walk.unreached() if walk.complete else ())
            path = Root(held, ROOTS[held]), cycles.path_to(obj)
        root, steps, owner = labels.words(*path)
        found += [OwnerPath(fd, path[0].held, root, steps, owner) for fd in fds]
    return found


def _without_owner(fd: int, target: str, walk: ObjectWalk) -> list[OwnerPath]:
    if _target(fd) != target:  # another thread closed it, and its owner with it, during the search
        return []
    if walk.interrupted:
        return [OwnerPath(fd, HeldBy.UNKNOWN, ROOTS[HeldBy.UNKNOWN])]
    text = TORCH_STORAGE if target.startswith("/dev/shm/torch_") else ROOTS[HeldBy.NOBODY]
    return [OwnerPath(fd, HeldBy.NOBODY, text)]


def _target(fd: int) -> str | None:
    return readlink_or_none(REAL, f"/proc/self/fd/{fd}")


def open_fds() -> list[int]:
    own = REAL.own_pid()
    return [] if own is None else list_fds(REAL, own) or []
