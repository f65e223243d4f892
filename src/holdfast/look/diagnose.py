"""One process tree: a full look, cheap samples for a while, a full look again, and a verdict on each process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..diagnose.facts import Diagnosis, JobSample, Structure, Verdict
from ..diagnose.forecast import PIPE_PAGES
from ..diagnose.judge import judge
from ..diagnose.signatures import match
from ..diagnose.structure import grown, structures_of
from ..diagnose.sureness import LEAST_S, sureness_of
from ..errors import InputError
from ..proc.limit import Limit
from ..proc.processes import Identity
from ..proc.procfs import REAL, ProcFS
from ..proc.snapshot import ProcessLook, Snapshot, take_snapshot
from .watch import ENDED, EVERY_S, Watch

# The longest that a watch takes which ends by itself.
MOST_S = 900.0
_ROUNDS = 60
_SOONEST_S = 0.1
_ENDED = "it ended while it was watched: this is how it was before"
_NOT_WAITED_FOR = "it has ended and holds nothing any more; its parent has not waited for it yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosed:
    look: ProcessLook
    diagnosis: Diagnosis


def diagnose(
    pid: int | None = None,
    for_s: float = 0.0,
    *,
    tree: bool = True,
    procfs: ProcFS = REAL,
    jobs: Sequence[JobSample] = (),
    cap: int | None = None,
) -> list[Diagnosed]:
    """A verdict on a process, by default this one, and on each of its descendants; the process itself comes first.

    With `for_s` it is watched that long: growth shows only then. `jobs` (the count after each job) and `cap` (where a
    guard will act) are of the process itself. InputError: there is no such process.
    """
    if not 0 <= for_s < math.inf:
        raise ValueError(f"expected a time to watch, or 0 for one look, got {for_s} s")
    seen = Observation(pid, tree=tree, procfs=procfs)
    if for_s > 0:
        seen.watch(for_s)
    return seen.conclude(jobs=jobs, cap=cap)


class Observation:
    """The steps of `diagnose`, for those who interrupt the watch and still want a verdict, or watch on after one."""

    def __init__(
        self,
        pid: int | None = None,
        *,
        tree: bool = True,
        procfs: ProcFS = REAL,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self.first = take_snapshot(pid, tree, procfs)
        self._pid = self.first.root.process.pid
        self._tree = tree
        self._procfs = procfs
        self._clock = clock
        self._wait = wait
        self._watch: Watch | None = None

    def watch(self, for_s: float, tell: Callable[[float], object] | None = None) -> None:
        """Samples for that long; `tell` hears after each round how many seconds have passed, and may end the watch."""
        if not 0 < for_s < math.inf:
            raise ValueError(f"expected a time to watch above zero, got {for_s} s")
        if self._watch is None:
            every_s = min(EVERY_S, max(_SOONEST_S, for_s / _ROUNDS))
            self._watch = Watch([self._pid], self._procfs, self._clock, self._wait, tree=self._tree, every_s=every_s)
        self._watch.run(for_s, tell)

    def watch_until_told(self, tell: Callable[[float], object] | None = None, most_s: float = MOST_S) -> None:
        """Samples until the verdict on every process of the first look is clear, `most_s` at most.

        Where the first look proves a leak, nothing is sampled.
        """
        if self._is_told():
            return

        def tell_or_end(passed_s: float) -> bool:
            ended = tell is not None and bool(tell(passed_s))
            return ended or (passed_s >= LEAST_S and self._is_told())

        self.watch(most_s, tell_or_end)

    def _is_told(self) -> bool:
        """Whether one is proven bad, or the verdicts on all that live are clear: by the samples, without a new look."""
        if self.first.root.process.state in ENDED:
            return True
        found = self._judge_all(self.first, None, (), None)
        if any(one.diagnosis.verdict in (Verdict.LEAK, Verdict.EXHAUSTED) for one in found):
            return True
        if self._watch is None:
            return False
        living = [one for one in found if one.look.process.pid in self._watch.alive]
        return all(sureness_of(one.diagnosis).told for one in living)

    def conclude(self, *, jobs: Sequence[JobSample] = (), cap: int | None = None) -> list[Diagnosed]:
        """The last look, where it was watched, and the verdicts."""
        if self.first.root.process.state in ENDED:
            return _saying(_NOT_WAITED_FOR, self._judge_all(self.first, None, jobs, cap))
        if self._watch is None:
            return self._judge_all(self.first, None, jobs, cap)
        last = self._look_again()
        if last is not None:
            return self._judge_all(last, self.first, jobs, cap)
        return _saying(_ENDED, self._judge_all(self.first, None, jobs, cap))

    def _look_again(self) -> Snapshot | None:
        """None if the process has ended, even where its pid is another one's by now, or nobody has waited for it."""
        try:
            last = take_snapshot(self._pid, self._tree, self._procfs)
        except InputError:
            return None
        root = last.root.process
        return last if root.identity == self.first.root.process.identity and root.state not in ENDED else None

    def _judge_all(
        self, last: Snapshot, first: Snapshot | None, jobs: Sequence[JobSample], cap: int | None
    ) -> list[Diagnosed]:
        structures = structures_of(last)
        before = {} if first is None else _by_identity(first)
        pipe_limit = _pipe_limit(last.shared)
        ended = last is self.first  # of one that was watched, the last sample is newer
        found = []
        for look in last.processes:
            root = look is last.root
            diagnosis = self._judge(
                look,
                structures[look.process.pid],
                before.get(look.process.identity),
                jobs=jobs if root else (),
                cap=cap if root else None,
                pipe_limit=None if look.process.uid in (0, None) else pipe_limit,
                ended=ended,
            )
            found.append(Diagnosed(look=look, diagnosis=diagnosis))
        return found

    def _judge(
        self,
        look: ProcessLook,
        structure: Structure,
        first: Structure | None,
        *,
        jobs: Sequence[JobSample],
        cap: int | None,
        pipe_limit: int | None,
        ended: bool,
    ) -> Diagnosis:
        nofile = next((limit for limit in look.limits if limit.name == "nofile"), Limit(name="nofile"))
        series = self._watch.series.get(look.process.identity) if self._watch is not None else None
        return judge(
            fds=series.latest.fds if ended and series is not None and series.latest else look.fd_count,
            soft=nofile.soft,
            hard=nofile.hard,
            samples=series.samples if series is not None else (),
            jobs=jobs,
            structure=None if look.descriptors is None else structure,
            first_structure=first,
            match=match(structure, None if first is None else grown(first, structure)),
            cap=cap,
            pipe_limit=pipe_limit,
            uptime_s=look.process.uptime_s,
            pid=look.process.pid,
        )


def _saying(sentence: str, found: list[Diagnosed]) -> list[Diagnosed]:
    """With a sentence on the process itself before all others."""
    root = found[0]
    said = (sentence, *root.diagnosis.evidence)
    return [replace(root, diagnosis=replace(root.diagnosis, evidence=said)), *found[1:]]


def _by_identity(snapshot: Snapshot) -> dict[Identity, Structure]:
    """Without those whose descriptors could not be seen: as if they had none, everything would have grown."""
    structures = structures_of(snapshot)
    return {
        look.process.identity: structures[look.process.pid]
        for look in snapshot.processes
        if look.descriptors is not None
    }


def _pipe_limit(shared: Sequence[Limit]) -> int | None:
    pages = next((limit.soft for limit in shared if limit.name == "pipe_user_pages"), None)
    return None if pages is None or pages == math.inf else int(pages) // PIPE_PAGES
