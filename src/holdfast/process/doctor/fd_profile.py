"""Counts a process's descriptors by kind and state, in one snapshot or as the growth between two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields

from ...procfs.descriptors import Descriptor, Kind
from ...procfs.peers import PeerState, PipeEnd
from ...procfs.snapshot import ProcessSnapshot, Snapshot
from .model import FdProfile, PathCount

_PIPE = Kind.PIPE
_TORCH = "/dev/shm/torch_"
_GPU = ("/dev/nvidia", "/dmabuf:")
_PTY = ("/dev/pts/", "/dev/ptmx")
# The path of a memfd is a label that many share; deleted files and most shared memory have a different one each time.
_HAS_PATH = frozenset({Kind.FILE, Kind.DEVICE})
_ZOMBIE = "Z"


def profile_of(proc: ProcessSnapshot, children: int = 0, zombies: int = 0) -> FdProfile:
    """Counts one process. `children` are all of its children, `zombies` those that ended and were not waited for.

    Where its descriptors cannot be listed, only their number is set.
    """
    table = proc.descriptors or ()
    rest = [one for one in table if one.kind is not _PIPE]  # of pipes there may be tens of thousands
    kinds = proc.kinds
    sockets = [one.socket for one in rest if one.socket is not None]
    tcp = [one for one in sockets if one.family.startswith("tcp")]
    states = Counter(one.state for one in tcp)
    hup, err = _dead(proc.ends)
    return FdProfile(
        fds=proc.fd_count if proc.fd_count is not None else len(table),
        kinds=kinds,
        self_pairs=len({end.inode for end in proc.ends_of(PeerState.SELF)}),
        hup=hup,
        err=err,
        live=len(proc.ends_of(PeerState.ALIVE)),
        unknown=len(proc.ends_of(PeerState.UNKNOWN)),
        close_wait=states["CLOSE_WAIT"],
        established=states["ESTABLISHED"],
        established_to=_commonest(one.remote for one in tcp if one.state == "ESTABLISHED"),
        unix_sockets=sum(one.family == "unix" for one in sockets),
        torch_shm=sum(one.deleted and one.target.startswith(_TORCH) for one in rest),
        shm=kinds.get(Kind.SHM, 0),
        deleted=kinds.get(Kind.DELETED, 0),
        most_opened=_commonest(one.target for one in rest if _is_by_name(one)),
        nvidia=sum(one.target.startswith(_GPU) for one in rest),
        ptys=sum(one.target.startswith(_PTY) for one in rest),
        children=children,
        zombies=zombies,
        threads=proc.process.threads or 0,
    )


def profiles_of(snapshot: Snapshot) -> dict[int, FdProfile]:
    """Counts every process of a snapshot, by pid, with its children."""
    states: dict[int | None, list[str]] = {}
    for proc in snapshot.processes:
        states.setdefault(proc.process.ppid, []).append(proc.process.state)
    found = {}
    for proc in snapshot.processes:
        own = states.get(proc.process.pid, [])
        found[proc.process.pid] = profile_of(proc, children=len(own), zombies=own.count(_ZOMBIE))
    return found


def suspect_fds(proc: ProcessSnapshot) -> list[int]:
    """Returns the unusable descriptors, else those of the most frequent kind."""
    dead = [end.fd for end in proc.ends if end.peer_state in (PeerState.DEAD, PeerState.SELF)]
    commonest = next(iter(proc.kinds), None)
    return dead or [one.fd for one in proc.descriptors or () if one.kind is commonest]


def grown(before: FdProfile, after: FdProfile) -> FdProfile:
    """Returns how much `after` exceeds `before`; never negative.

    For the most frequent path and remote address it is a lower bound of their growth: before, no other was more
    frequent.
    """
    counts = [one.name for one in fields(FdProfile) if one.type == "int"]
    return FdProfile(
        **{name: max(0, getattr(after, name) - getattr(before, name)) for name in counts},
        kinds=_more_kinds(before.kinds, after.kinds),
        established_to=_more_times(before.established_to, after.established_to),
        most_opened=_more_times(before.most_opened, after.most_opened),
    )


def baseline(profiles: Sequence[FdProfile]) -> FdProfile:
    """Returns the lowest of each count: the descriptors of a running job come and go, leaked ones stay."""
    counts = [one.name for one in fields(FdProfile) if one.type == "int"]
    kinds = set.intersection(*(set(one.kinds) for one in profiles))
    return FdProfile(
        **{name: min(getattr(one, name) for one in profiles) for name in counts},
        kinds={kind: min(one.kinds[kind] for one in profiles) for kind in profiles[-1].kinds if kind in kinds},
        established_to=_least([one.established_to for one in profiles]),
        most_opened=_least([one.most_opened for one in profiles]),
    )


def _least(counted: Sequence[PathCount | None]) -> PathCount | None:
    known = [one for one in counted if one is not None]
    same = len(known) == len(counted) and len({one.path for one in known}) == 1
    return min(known, key=lambda one: one.times) if same else None


def _dead(ends: Iterable[PipeEnd]) -> tuple[int, int]:
    ways = Counter(end.access for end in ends if end.peer_state is PeerState.DEAD)
    return ways["r"], ways["w"]


def _is_by_name(one: Descriptor) -> bool:
    return one.kind in _HAS_PATH and not one.target.startswith((*_GPU, *_PTY))


def _commonest(names: Iterable[str]) -> PathCount | None:
    """Returns the most frequent one; of several the first by name, so that two snapshots of the same state agree."""
    counted = Counter(names)
    if not counted:
        return None
    path = min(counted, key=lambda name: (-counted[name], name))
    return PathCount(path=path, times=counted[path])


def _more_kinds(before: Mapping[Kind, int], after: Mapping[Kind, int]) -> dict[Kind, int]:
    return {kind: times - before.get(kind, 0) for kind, times in after.items() if times > before.get(kind, 0)}


def _more_times(before: PathCount | None, after: PathCount | None) -> PathCount | None:
    times = (after.times if after else 0) - (before.times if before else 0)
    return PathCount(path=after.path, times=times) if after and times > 0 else None
