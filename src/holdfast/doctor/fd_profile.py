"""What a process's descriptors are like, as numbers: counted in one look, or grown between two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..procfs.descriptors import Descriptor, Kind
from ..procfs.peers import PeerState, PipeEnd
from ..procfs.snapshot import ProcessSnapshot, Snapshot
from .model import FdProfile, Match, PathCount, Trend
from .trend import JobTrend

_PIPE = Kind.PIPE
_TORCH = "/dev/shm/torch_"
_GPU = ("/dev/nvidia", "/dmabuf:")
# A memfd's path is a name that many of them share; deleted files, and most shared memory, are another one each time.
_HAS_PATH = frozenset({Kind.FILE, Kind.DEVICE})
_ZOMBIE = "Z"


def profile_of(proc: ProcessSnapshot, children: int = 0, zombies: int = 0) -> FdProfile:
    """One process. `children` are all that it has; `zombies` are those of them that ended and were not waited for.

    Where its descriptors may not be seen, their number is all that is told of them.
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
        children=children,
        zombies=zombies,
        threads=proc.process.threads or 0,
    )


def profiles_of(snapshot: Snapshot) -> dict[int, FdProfile]:
    """Every process of a snapshot by its pid, each with its children counted."""
    states: dict[int | None, list[str]] = {}
    for proc in snapshot.processes:
        states.setdefault(proc.process.ppid, []).append(proc.process.state)
    found = {}
    for proc in snapshot.processes:
        own = states.get(proc.process.pid, [])
        found[proc.process.pid] = profile_of(proc, children=len(own), zombies=own.count(_ZOMBIE))
    return found


def grown(before: FdProfile, after: FdProfile) -> FdProfile:
    """What `after` has more than `before`; never negative.

    Of the path opened most and of the far address met most it is the least that they can have grown by: before, no
    other was there more often.
    """
    return FdProfile(
        fds=_more(before.fds, after.fds),
        kinds=_more_kinds(before.kinds, after.kinds),
        self_pairs=_more(before.self_pairs, after.self_pairs),
        hup=_more(before.hup, after.hup),
        err=_more(before.err, after.err),
        live=_more(before.live, after.live),
        unknown=_more(before.unknown, after.unknown),
        close_wait=_more(before.close_wait, after.close_wait),
        established=_more(before.established, after.established),
        established_to=_more_times(before.established_to, after.established_to),
        unix_sockets=_more(before.unix_sockets, after.unix_sockets),
        torch_shm=_more(before.torch_shm, after.torch_shm),
        shm=_more(before.shm, after.shm),
        deleted=_more(before.deleted, after.deleted),
        most_opened=_more_times(before.most_opened, after.most_opened),
        nvidia=_more(before.nvidia, after.nvidia),
        children=_more(before.children, after.children),
        zombies=_more(before.zombies, after.zombies),
        threads=_more(before.threads, after.threads),
    )


def _dead(ends: Iterable[PipeEnd]) -> tuple[int, int]:
    ways = Counter(end.access for end in ends if end.peer_state is PeerState.DEAD)
    return ways["r"], ways["w"]


def _is_by_name(one: Descriptor) -> bool:
    return one.kind in _HAS_PATH and not one.target.startswith(_GPU)


def _commonest(names: Iterable[str]) -> PathCount | None:
    """The one met most; of equals the first by name, so that two looks at the same thing agree."""
    counted = Counter(names)
    if not counted:
        return None
    path = min(counted, key=lambda name: (-counted[name], name))
    return PathCount(path=path, times=counted[path])


def _more(before: int, after: int) -> int:
    return max(0, after - before)


def _more_kinds(before: Mapping[Kind, int], after: Mapping[Kind, int]) -> dict[Kind, int]:
    return {kind: times - before.get(kind, 0) for kind, times in after.items() if times > before.get(kind, 0)}


def _more_times(before: PathCount | None, after: PathCount | None) -> PathCount | None:
    times = _more(before.times if before else 0, after.times if after else 0)
    return PathCount(path=after.path, times=times) if after and times else None


# Everything that is known of one process, gathered for a verdict.


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictInput:
    """None is unknown. `structure` is the last full look, `first` an earlier one; `match` explains what grew."""

    fds: int | None
    soft: float | None
    hard: float | None
    trend: Trend | None = None
    jobs: JobTrend | None = None
    profile: FdProfile | None = None
    first: FdProfile | None = None
    match: Match | None = None
    uptime_s: float | None = None
    pid: int | None = None

    @property
    def growing(self) -> Trend | None:
        """The trend, if there is one that grows."""
        return self.trend if self.trend is not None and self.trend.grows else None
