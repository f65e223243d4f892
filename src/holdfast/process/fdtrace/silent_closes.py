"""Finds closes that took another's descriptor away while no call failed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from itertools import islice

from .descriptor_lives import NO_LIFE, Lifetime, Lives
from .log_format import CLOSE
from .sites import user_frame

_MAX = 5_000
_Key = tuple[int, int, int]  # process, number and the count of its lives
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
        chains: list[tuple[Lifetime, Lifetime, Lifetime]] = []
        for before, life, key in islice(self._suspects(), _MAX):
            assert life.close
            if not since <= self._events["t_s"][life.close.at] <= until or self._lives.is_implicit(life):
                continue
            after = self._life_after(life, key)
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

    def _suspects(self) -> Iterator[tuple[Lifetime, Lifetime, _Key]]:
        """Yields lives that were closed by the thread that had opened and closed the number before, and the life
        before each."""
        for key in sorted(self._handed):
            life, before = self._life(key), self._life((*key[:2], key[2] - 1))
            assert life.close
            if before.birth and before.close and before.birth.thread == before.close.thread == life.close.thread:
                yield before, life, key

    def _life_after(self, life: Lifetime, key: _Key) -> Lifetime:
        """Returns the next life of the number if it was closed by the thread that had lost the one before."""
        after = self._life((*key[:2], key[2] + 1))
        if not after.birth or not after.close or not life.birth:
            return NO_LIFE
        loser = life.birth.thread
        return after if after.close.thread == loser != after.birth.thread else NO_LIFE

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

    def _key(self, at: int) -> _Key:
        return self._events["process"][at], self._events["fd"][at], self._events["gen"][at]

    @cached_property
    def _handed(self) -> dict[_Key, int]:
        """The births of what another thread closed while no call had failed on it."""
        tid, action = self._events["tid"], self._events["action"]
        closes = enumerate(self._trace.closes)
        births = [at for at, close in closes if close >= 0 and tid[at] != tid[close] and action[close] == CLOSE]
        failed = set(map(self._key, self._lives.bad)) if births else set()
        return {key: at for at in births if (key := self._key(at)) not in failed}

    @cached_property
    def _births(self) -> dict[_Key, int]:
        """The births of all lives of the numbers that were handed over."""
        numbers = {key[:2] for key in self._handed}
        process, fd, action = (self._events[name] for name in ("process", "fd", "action"))
        return {
            self._key(at): at
            for at, close in enumerate(self._trace.closes)
            if close >= 0 and (process[at], fd[at]) in numbers and action[close] == CLOSE
        }

    @cached_property
    def _handed_over(self) -> Counter[tuple[int, int]]:
        return Counter(self._sites_of(at, self._trace.closes[at]) for at in self._handed.values())

    @cached_property
    def _site_numbers(self) -> list[int]:
        """A number for the line of each stack."""
        known: dict[object, int] = {}
        frames = (user_frame(self._trace.frames_of(stack))[:3] for stack in range(len(self._trace.stacks)))
        return [known.setdefault(frame, len(known)) for frame in frames]

    def _life(self, key: _Key) -> Lifetime:
        at = self._births.get(key)
        return NO_LIFE if at is None else Lifetime(self._lives.event(at), self._lives.event(self._trace.closes[at]))

    def _sites(self, life: Lifetime) -> tuple[int, int]:
        """Returns the numbers of the lines that opened and closed."""
        assert life.birth
        assert life.close
        return self._sites_of(life.birth.at, life.close.at)

    def _sites_of(self, birth: int, close: int) -> tuple[int, int]:
        stack = self._events["stack"]
        return self._site_numbers[stack[birth]], self._site_numbers[stack[close]]
