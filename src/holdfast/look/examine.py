"""Several process trees watched at the same time, each judged at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

from ..diagnose.sureness import sureness_of
from ..errors import HoldfastError
from ..proc.procfs import REAL, ProcFS
from .diagnose import Observation
from .holders import with_holders
from .target import Target

_TELL_EVERY_S = 0.2


class _StoppedError(Exception):
    """The watch was called off."""


class Examination:
    """`errors` are sentences on the processes that could not be looked at.

    An interrupted `watch` is no loss: `conclude` judges by what was seen until then.
    """

    def __init__(self, pids: Sequence[int], *, tree: bool = True, role: str = "process", procfs: ProcFS = REAL) -> None:
        self.errors: list[str] = []
        self._role = role
        self._watched_s = 0.0
        self._was_watched = False
        self._stop = threading.Event()
        self._seen: list[Observation] = []
        for pid in dict.fromkeys(pids):
            try:
                self._seen.append(Observation(pid, tree=tree, procfs=procfs, wait=self._wait))
            except HoldfastError as error:
                self.errors.append(str(error))

    def _wait(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise _StoppedError

    def watch(self, for_s: float | None, tell: Callable[[float], None] = lambda passed_s: None) -> None:
        """Samples all of them for that long; None: each until its verdict is told, 15 minutes at most.

        `tell` hears now and then how many seconds have passed.
        """
        if not self._seen:
            return
        self._was_watched = True
        passed = [0.0] * len(self._seen)

        def note(at: int, seconds: float) -> None:
            passed[at] = seconds

        with ThreadPoolExecutor(len(self._seen), "holdfast-watch") as pool:
            try:
                running = [pool.submit(self._watch_one, at, for_s, note) for at in range(len(self._seen))]
                while wait(running, _TELL_EVERY_S).not_done:
                    tell(min(passed))
            finally:
                # Before the pool is left, which waits for its threads.
                self._stop.set()
                self._watched_s = max(passed)
        for one in running:
            one.result()

    def _watch_one(self, at: int, for_s: float | None, note: Callable[[int, float], None]) -> None:
        try:
            if for_s is None:
                self._seen[at].watch_until_told(lambda seconds: note(at, seconds))
            else:
                self._seen[at].watch(for_s, lambda seconds: note(at, seconds))
        except _StoppedError:
            pass

    def conclude(self) -> list[Target]:
        found = []
        for seen in self._seen:
            target = Target(
                judged=tuple(seen.conclude()),
                role=self._role,
                shared=seen.first.shared,
                whole_tree=seen.first.whole_tree,
                watched_s=self._watched_s,
            )
            if self._was_watched:
                target = replace(target, sureness=sureness_of(target.worst.diagnosis).sentence)
            if target.worst.diagnosis.fds is None:
                self.errors.append(f"process {target.pid}: its descriptors may not be seen; ask as its user or as root")
            else:
                found.append(with_holders(target))
        return found
