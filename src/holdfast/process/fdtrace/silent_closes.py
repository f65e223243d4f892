"""Finds closes that took another's descriptor away while no call failed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from .descriptor_lives import NO_LIFE, Lifetime, Lives
from .log_format import BAD, BIRTH, CLOSE
from .sites import lifetime_keys, user_frame

_MOST = 5_000
_CLOSING_LINE = re.compile(r"close|__exit__|\bwith\b")


class SilentCloses:
    """Searches the lives that began and ended in one process."""

    def __init__(self, lives: Lives) -> None:
        self._lives = lives
        self._trace = lives.trace
        self._events = lives.events

    def find(self, since: float, until: float) -> Iterator[tuple[Lifetime, Lifetime, Lifetime]]:
        """Yields (the life before, the life that was ended by the owner of that, the next one).

        The last one is known where the thread that had lost its descriptor has closed it: then the mistake is certain.
        """
        born, closed, keys = self._pairs
        if not len(keys):
            return
        events = self._events
        tid = events["tid"]
        closer = tid[closed]
        at = np.minimum(np.searchsorted(keys, keys - np.uint64(1)), len(keys) - 1)
        owned = (keys[at] == keys - np.uint64(1)) & (tid[born[at]] == closer) & (tid[closed[at]] == closer)
        found = np.flatnonzero((closer != tid[born]) & owned & ~self._has_failed)
        chains: list[tuple[Lifetime, Lifetime, Lifetime]] = []
        for number in found.tolist()[:_MOST]:
            life = self._pair(int(born[number]), int(closed[number]))
            before = self._pair(int(born[at[number]]), int(closed[at[number]]))
            if not since <= events["t_s"][closed[number]] <= until or self._lives.is_implicit(life):
                continue
            after = self._life_after(number)
            if after.close:
                chains.append((before, life, after))
            elif self._is_suspect(life, before) and self.handed_over(life) == 1:
                yield before, life, NO_LIFE
        times = Counter(self._sites(life) for _, life, _ in chains)
        for before, life, after in chains:
            if times[self._sites(life)] == self.handed_over(life):
                yield before, life, after

    def handed_over(self, life: Lifetime) -> int:
        """Returns how often what the line opened was closed by the other line in another thread without harm."""
        return self._handed_over[self._sites(life)]

    def _life_after(self, number: int) -> Lifetime:
        """Returns the next life of the number if it was closed by the thread that had lost the one before."""
        born, closed, keys = self._pairs
        following = number + 1
        if following >= len(keys) or keys[following] != keys[number] + np.uint64(1):
            return NO_LIFE
        tid = self._events["tid"]
        loser = tid[born[number]]
        if tid[closed[following]] != loser or tid[born[following]] == loser:
            return NO_LIFE
        return self._pair(int(born[following]), int(closed[following]))

    def _is_suspect(self, life: Lifetime, before: Lifetime) -> bool:
        """A descriptor may be handed to a thread that closes it. One function that closes its own number again may not.

        The line must name a close: the garbage collector closes what others made at any line.
        """
        assert life.birth
        assert life.close
        assert before.birth
        assert before.close
        scope = self._lives.scope
        line = self._lives.frame(life.close)
        return (
            scope(life.close) == scope(before.birth) == scope(before.close)
            and scope(life.close) != scope(life.birth)
            and self._events["stack"][life.close.at] != self._events["stack"][before.close.at]
            and bool(_CLOSING_LINE.search(line.text) or _CLOSING_LINE.search(line.function))
        )

    @cached_property
    def _pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns birth, close and key of every life that began and ended in one process, sorted by key."""
        events = self._events
        births = np.flatnonzero(events["action"] == BIRTH)
        closes = np.flatnonzero(events["action"] == CLOSE)
        keys, at_birth, at_close = np.intersect1d(
            lifetime_keys(events[births]), lifetime_keys(events[closes]), return_indices=True
        )
        return births[at_birth], closes[at_close], keys

    @cached_property
    def _has_failed(self) -> np.ndarray:
        """Whether a call failed in the life, by the order of `_pairs`."""
        failed: np.ndarray = np.isin(self._pairs[2], lifetime_keys(self._events[self._events["action"] == BAD]))
        return failed

    @cached_property
    def _handed_over(self) -> Counter[int]:
        born, closed, _ = self._pairs
        tid, stack = self._events["tid"], self._events["stack"]
        keep = (tid[born] != tid[closed]) & ~self._has_failed
        sites = self._site_numbers
        both = sites[stack[born[keep]]] << 32 | sites[stack[closed[keep]]]
        pairs, times = np.unique(both, return_counts=True)
        return Counter(dict(zip(pairs.tolist(), times.tolist(), strict=True)))

    @cached_property
    def _site_numbers(self) -> np.ndarray:
        """A number for the line of each stack."""
        known: dict[object, int] = {}
        frames = (user_frame(self._trace.frames_of(stack))[:3] for stack in range(len(self._trace.stacks)))
        return np.array([known.setdefault(frame, len(known)) for frame in frames], np.int64)

    def _pair(self, born: int, closed: int) -> Lifetime:
        return Lifetime(self._lives.event(born), self._lives.event(closed))

    def _sites(self, life: Lifetime) -> int:
        """Returns a number for the pair of lines that opened and closed."""
        assert life.birth
        assert life.close
        first, last = (int(self._site_numbers[self._events["stack"][event.at]]) for event in (life.birth, life.close))
        return first << 32 | last
