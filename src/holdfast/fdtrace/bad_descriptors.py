"""Finds calls on closed descriptors and second closes, and says from the number's history whose fault it is.

A number that is closed twice fails with EBADF at best. If another thread has got the number in between, the second
close takes that thread's descriptor away, and the error shows up there: only the history of the number tells.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from .log_format import BAD, BIRTH, BIRTH_UNSEEN, CLOSE, CLOSE_UNSEEN, FOUND
from .sites import lifetime_keys, user_frame
from .trace_file import SourceFrame, Trace

DOUBLE_CLOSE, USE_AFTER_CLOSE, STALE_CLOSE = "double close", "use after close", "stale close"
SUSPECTED, NEVER_OPEN, UNTOLD = "suspected stale close", "never open", "cannot be told"
_ORDER = (STALE_CLOSE, DOUBLE_CLOSE, USE_AFTER_CLOSE, SUSPECTED, UNTOLD, NEVER_OPEN)

_MOST = 50
_A_CALL = 20  # failures of one stack that are looked at; more of them are only counted
_MOST_CALLS = 500
_MOST_SILENT = 5_000
_MOST_EVENTS = 64  # of one number before a failure
_AT_ONCE_S = 0.01
_CLOSES = re.compile(r"close|closefrom|close_range")
_PROBES = ("fcntl", "dup", "fstat")
_CLOSING_LINE = re.compile(r"close|__exit__|\bwith\b")


class HistoryStep(NamedTuple):
    """One event of a descriptor number."""

    t_s: float
    pid: int
    tid: int
    what: str  # "opened", "closed", "EBADF in read", …
    frame: SourceFrame
    stack: int
    lifetime: int
    note: str = ""


@dataclass(frozen=True)
class NumberHistory:
    """What happened to a descriptor number until a call failed, or took away what belonged to another.

    `count` says how often the same lines did the same. `kind` is one of the names above.
    """

    kind: str
    fd: int
    call: str
    sentence: str
    steps: tuple[HistoryStep, ...]
    count: int = 1


def find_histories(
    trace: Trace, *, since: float = 0.0, until: float = float("inf"), most: int = _MOST
) -> list[NumberHistory]:
    """Returns the histories that end in EBADF or in a stale close, the gravest first, equal ones as one."""
    finder = _Finder(trace)
    found: dict[object, NumberHistory] = {}
    for history in [*finder.failed(since, until), *finder.silent(since, until)]:
        key = (history.kind, history.call, *((step.what, step.frame[:3]) for step in history.steps))
        known = found.get(key)
        found[key] = replace(known, count=known.count + history.count) if known else history
    return sorted(
        found.values(), key=lambda history: (_ORDER.index(history.kind), -history.count, history.steps[-1].t_s)
    )[:most]


class _Event(NamedTuple):
    """One event. `thread` is comparable in a process and in those that it was forked from."""

    at: int  # index of the event in the recording
    thread: int
    gen: int
    action: int


class _Lifetime(NamedTuple):
    """The events of one number from its birth to its close. Either may be missing."""

    birth: _Event | None
    close: _Event | None


_UNKNOWN = _Lifetime(None, None)


class _Finder:
    """Searches one recording."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._events = trace.events
        # Events of one number stand together, in the order in which they were recorded.
        self._order = np.lexsort((self._events["fd"], self._events["process"]))
        self._keys = self._number_keys(
            self._events["process"][self._order].astype(np.int64), self._events["fd"][self._order].astype(np.int64)
        )
        self._frames: dict[int, SourceFrame] = {}

    @staticmethod
    def _number_keys(process: np.ndarray, fd: np.ndarray) -> np.ndarray:
        keys: np.ndarray = process << 32 | fd & 0xFFFFFFFF
        return keys

    # -- calls that failed

    def failed(self, since: float, until: float) -> Iterator[NumberHistory]:
        """Explains every call that failed with EBADF."""
        events = self._events
        bad = np.flatnonzero((events["action"] == BAD) & (events["t_s"] >= since) & (events["t_s"] <= until))
        by_call: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        rows = events[bad]
        for index, process, stack, aux in zip(
            bad.tolist(), rows["process"].tolist(), rows["stack"].tolist(), rows["aux"].tolist(), strict=True
        ):
            by_call[process, stack, aux].append(index)
        calls = [indices for indices in by_call.values() if not self._is_probe(indices[0])]
        for indices in sorted(calls, key=len, reverse=True)[:_MOST_CALLS]:
            histories = [self._explain(index) for index in indices[:_A_CALL]]
            histories[-1] = replace(histories[-1], count=1 + len(indices) - len(histories))
            yield from histories

    def _is_probe(self, index: int) -> bool:
        """A shell asks with fcntl whether a number is free."""
        return not self._events["stack"][index] and self._call(index) in _PROBES

    def _explain(self, index: int) -> NumberHistory:
        event = self._events[index]
        fd, gen = int(event["fd"]), int(event["gen"])
        number = self._number_until(int(event["process"]), fd, index)
        failed = number[-1]
        past = number[:-1]
        lifetimes = _lifetimes_of(past)
        last, before = lifetimes.get(gen, _UNKNOWN), lifetimes.get(gen - 1, _UNKNOWN)
        if last.close and self._is_attempt(last.close, failed):
            # The close is recorded before it happens: this one is the call that failed.
            past = [one for one in past if one != last.close]
            last = _Lifetime(last.birth, None)
        call = self._call(index)
        kind, sentence = self._judge(fd, call, failed, last, before, is_known=bool(gen))
        shown = [one for one in past if one.gen >= gen - (kind != DOUBLE_CLOSE and kind != USE_AFTER_CLOSE)]
        note = {last.close: "closes what it did not open"} if kind == STALE_CLOSE else {}
        steps = [self._step(one, note.get(one, "")) for one in [*shown[-6:], failed]]
        return NumberHistory(kind, fd, call, sentence, tuple(steps))

    def _judge(
        self, fd: int, call: str, failed: _Event, last: _Lifetime, before: _Lifetime, *, is_known: bool
    ) -> tuple[str, str]:
        user = self._who(failed)
        closes = bool(_CLOSES.search(call))
        what = f"closes descriptor {fd}" if closes else f"calls {call} on descriptor {fd}"
        process = self._trace.processes[int(self._events["process"][failed.at])]
        if not last.close:
            if not is_known and not last.birth and not self._has_dropped(failed):
                return NEVER_OPEN, (
                    f"{user} {what}, which was not open before in process {process.pid}: the number is wrong, or it "
                    "belongs to another process."
                )
            opened = f", which {self._who(last.birth)} opened" if last.birth else ""
            why = (
                "the recording no longer holds its history"
                if self._has_dropped(failed)
                else "no call that closed it could be seen"
            )
            return UNTOLD, f"{user} {what}{opened}. It cannot be told who closed it: {why}."
        closer = self._who(last.close)
        if self._is_stale(last, before, failed):
            assert last.birth is not None
            return STALE_CLOSE, (
                f"{self._second_close(fd, last, before)}, which then fails with EBADF in {call} at "
                f"{_place(self._frame(failed))}. {_CLOSE_ONCE}"
            )
        later = self._no_reuse(call)
        if closes:
            if last.close.thread == failed.thread:
                advice = f"Remove one of the two closes{self._or_second(last, before)}."
                return DOUBLE_CLOSE, f"{user} {what} a second time, after {closer}. {advice}{later}"
            return DOUBLE_CLOSE, (
                f"{user} {what} a second time: {closer} closed it before, in another thread. Let one of them own it "
                f"and close it.{later}"
            )
        if last.close.thread != failed.thread:
            return USE_AFTER_CLOSE, (
                f"{closer} closes descriptor {fd} while {user} still uses it in another thread ({call}). End the use "
                f"first: join the thread, or shut the socket down, then close.{later}"
            )
        return USE_AFTER_CLOSE, (
            f"{user} {what} after {closer} closed it. Close it after its last use{self._or_second(last, before)}."
            f"{later}"
        )

    def _second_close(self, fd: int, last: _Lifetime, before: _Lifetime, probably: str = "") -> str:
        assert last.birth is not None
        assert last.close is not None
        first = f", after {self._who(before.close)}" if before.close else ""
        return (
            f"{self._who(last.close)} {probably}closes descriptor {fd} a second time{first}; by then it belonged to "
            f"{self._who(last.birth)}"
        )

    def _no_reuse(self, call: str) -> str:
        if not self._trace.no_reuse:
            return ""
        return f" Without --no-reuse this {call} could have reached another descriptor that had got the same number."

    def _or_second(self, last: _Lifetime, before: _Lifetime) -> str:
        """Says where one function in one thread makes and closes both lifetimes, so that nothing tells them apart."""
        events = [last.birth, last.close, before.birth, before.close]
        there = [event for event in events if event]
        if len(there) < 4 or len({self._owner(event) for event in there}) > 1:
            return ""
        lines = {self._frame(event).line for event in there}
        if len(lines) < 4:
            return ""  # a loop
        return (
            f" (if {_place(self._frame(there[1]))} meant the descriptor of {_place(self._frame(there[2]))}, that is "
            "its second close, and the fault is there)"
        )

    def _is_stale(self, last: _Lifetime, before: _Lifetime, victim: _Event) -> bool:
        """Returns whether the close belongs to the number's life before, which its thread made or closed."""
        born, closed = last.birth, last.close
        if not born or not closed or born.thread != victim.thread:
            return False
        others = [event for event in before if event]
        if closed.thread != born.thread:
            # Where the line that opens and the one that closes are a pair in two threads, it was handed over.
            return closed.thread in {event.thread for event in others} and self._handed_over[self._sites(last)] < 2
        # In one thread functions tell the owners apart, if the one that made the descriptor is the one that misses it.
        owner = self._owner(closed)
        return (
            owner != self._owner(born)
            and self._owner(victim) == self._owner(born)
            and owner in {self._owner(event) for event in others}
        )

    def _is_attempt(self, close: _Event, failed: _Event) -> bool:
        one, two = self._events[close.at], self._events[failed.at]
        return bool(
            close.thread == failed.thread
            and one["stack"] == two["stack"]
            and one["process"] == two["process"]
            and 0 <= two["t_s"] - one["t_s"] < _AT_ONCE_S
            and _CLOSES.search(self._call(failed.at))
            and not self._has_between(close, failed)
        )

    def _has_between(self, close: _Event, failed: _Event) -> bool:
        """Returns whether the thread recorded something else in between: then they are two calls."""
        between = self._events[close.at + 1 : failed.at]
        return bool((between["tid"] == self._events["tid"][failed.at]).any())

    # -- closes that took another's descriptor away, and nobody failed

    def silent(self, since: float, until: float) -> Iterator[NumberHistory]:
        """Finds closes by the owner of the number's life before, where no call failed in that life."""
        born, closed, keys = self._pairs
        if not len(keys):
            return
        events = self._events
        tid = events["tid"]
        closer = tid[closed]
        at = np.minimum(np.searchsorted(keys, keys - np.uint64(1)), len(keys) - 1)
        owned = (keys[at] == keys - np.uint64(1)) & (tid[born[at]] == closer) & (tid[closed[at]] == closer)
        found = np.flatnonzero((closer != tid[born]) & owned & ~self._has_failed)
        chains: list[tuple[_Lifetime, _Lifetime, _Lifetime]] = []
        for number in found.tolist()[:_MOST_SILENT]:
            life = self._pair(int(born[number]), int(closed[number]))
            before = self._pair(int(born[at[number]]), int(closed[at[number]]))
            if not since <= events["t_s"][closed[number]] <= until:
                continue
            after = self._life_after(number)
            if after.close:
                chains.append((before, life, after))
            elif self._is_suspect(life, before) and self._handed_over[self._sites(life)] == 1:
                yield self._describe_silent(before, life, _UNKNOWN)
        times = Counter(self._sites(life) for _, life, _ in chains)
        for before, life, after in chains:
            if times[self._sites(life)] == self._handed_over[self._sites(life)]:
                yield self._describe_silent(before, life, after)

    def _life_after(self, number: int) -> _Lifetime:
        """Returns the next life of the number if it was closed by the thread that had lost the one before."""
        born, closed, keys = self._pairs
        following = number + 1
        if following >= len(keys) or keys[following] != keys[number] + np.uint64(1):
            return _UNKNOWN
        tid = self._events["tid"]
        loser = tid[born[number]]
        if tid[closed[following]] != loser or tid[born[following]] == loser:
            return _UNKNOWN
        return self._pair(int(born[following]), int(closed[following]))

    def _is_suspect(self, life: _Lifetime, before: _Lifetime) -> bool:
        """A descriptor may be handed to a thread that closes it. One function that closes its own number again may not.

        The line must name a close: the garbage collector closes what others made at any line.
        """
        assert life.birth
        assert life.close
        assert before.birth
        assert before.close
        owner = self._owner(life.close)
        line = self._frame(life.close)
        return (
            owner == self._owner(before.birth) == self._owner(before.close)
            and owner[1] != self._owner(life.birth)[1]
            and self._events["stack"][life.close.at] != self._events["stack"][before.close.at]
            and bool(_CLOSING_LINE.search(line.text) or _CLOSING_LINE.search(line.function))
        )

    def _describe_silent(self, before: _Lifetime, life: _Lifetime, after: _Lifetime) -> NumberHistory:
        assert life.birth
        assert life.close
        fd = int(self._events["fd"][life.close.at])
        is_certain = after.close is not None
        sentence = self._second_close(fd, life, before, "" if is_certain else "probably ")
        if after.birth and after.close:
            sentence += (
                f". No call failed: {self._who(after.close)} then closed the same number, which "
                f"{self._who(after.birth)} had got. {_CLOSE_ONCE}"
            )
        else:
            sentence += (
                f". No call failed. If {_place(self._frame(life.birth))} handed its descriptor over to be closed "
                "there, nothing is wrong; `holdfast trace --no-reuse` tells, because a second close then fails."
            )
        events = [event for one in (before, life, after) for event in one if event]
        steps = [self._step(one, "closes what it did not open" if one == life.close else "") for one in events]
        return NumberHistory(STALE_CLOSE if is_certain else SUSPECTED, fd, "close", sentence, tuple(steps))

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
        """How often what a line opened was closed by a line in another thread without harm."""
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

    def _pair(self, born: int, closed: int) -> _Lifetime:
        return _Lifetime(*(self._event(index, int(self._events["tid"][index])) for index in (born, closed)))

    # -- events

    def _number_until(self, process: int, fd: int, index: int) -> list[_Event]:
        """Returns the events of a number up to this one; a forked process goes on with what its parent had."""
        found: list[list[_Event]] = []
        main_thread = self._trace.processes[process].pid
        until = float(self._events["t_s"][index])
        at: int | None = process
        for _ in range(len(self._trace.processes)):
            if at is None or not 0 <= at < len(self._trace.processes):
                break
            rows = self._rows(at, fd)
            if at == process:
                rows = rows[: int(np.flatnonzero(rows == index)[0]) + 1][-_MOST_EVENTS:]
                found.append([self._event(int(row), int(self._events["tid"][row])) for row in rows])
            else:
                # The thread that forked is the main thread of the child.
                rows = rows[self._events["t_s"][rows] <= until][-_MOST_EVENTS:]
                found.append([self._event(int(row), main_thread) for row in rows])
            until = self._trace.processes[at].start_s
            at = self._trace.processes[at].parent
        return [event for part in reversed(found) for event in part]

    def _rows(self, process: int, fd: int) -> np.ndarray:
        key = self._number_keys(np.int64(process), np.int64(fd))  # type: ignore[arg-type]
        first, last = np.searchsorted(self._keys, key), np.searchsorted(self._keys, key, side="right")
        return self._order[first:last]

    def _event(self, index: int, thread: int) -> _Event:
        row = self._events[index]
        return _Event(index, thread, int(row["gen"]), int(row["action"]))

    def _has_dropped(self, event: _Event) -> bool:
        at: int | None = int(self._events["process"][event.at])
        for _ in range(len(self._trace.processes)):
            if at is None or not 0 <= at < len(self._trace.processes):
                break
            if self._trace.processes[at].dropped_events:
                return True
            at = self._trace.processes[at].parent
        return False

    def _step(self, event: _Event, note: str = "") -> HistoryStep:
        row = self._events[event.at]
        what = f"EBADF in {self._call(event.at)}" if event.action == BAD else _WHAT.get(event.action, "seen")
        return HistoryStep(
            float(row["t_s"]),
            self._trace.processes[int(row["process"])].pid,
            int(row["tid"]),
            what,
            self._frame(event),
            int(row["stack"]),
            event.gen,
            note,
        )

    def _call(self, index: int) -> str:
        number = int(self._events["aux"][index])
        name = self._trace.calls[number] if 0 <= number < len(self._trace.calls) else "a call"
        return name.strip("_").removesuffix("_chk").removesuffix("64")

    # -- places

    def _frame(self, event: _Event) -> SourceFrame:
        stack = int(self._events["stack"][event.at])
        if stack not in self._frames:
            self._frames[stack] = user_frame(self._trace.frames_of(stack))
        return self._frames[stack]

    def _sites(self, life: _Lifetime) -> int:
        """Returns a number for the pair of lines that opened and closed."""
        assert life.birth
        assert life.close
        first, last = (int(self._site_numbers[self._events["stack"][event.at]]) for event in (life.birth, life.close))
        return first << 32 | last

    def _owner(self, event: _Event) -> tuple[int, tuple[str, str]]:
        frame = self._frame(event)
        return event.thread, (frame.file, frame.function)

    def _who(self, event: _Event | None) -> str:
        return "a call that was not seen" if event is None else describe_frame(self._frame(event))


_CLOSE_ONCE = "Close it in one place, and forget the number after that."
_WHAT = {
    BIRTH: "opened",
    CLOSE: "closed",
    CLOSE_UNSEEN: "closed unseen",
    BIRTH_UNSEEN: "closed, opened unseen",
    FOUND: "open before",
}


def _lifetimes_of(events: Sequence[_Event]) -> dict[int, _Lifetime]:
    births: dict[int, _Event] = {}
    closes: dict[int, _Event] = {}
    for event in events:
        if event.action in (BIRTH, FOUND):
            births[event.gen] = event
        elif event.action in (CLOSE, BIRTH_UNSEEN):
            closes[event.gen] = event
    return {gen: _Lifetime(births.get(gen), closes.get(gen)) for gen in births.keys() | closes.keys()}


def _place(frame: SourceFrame) -> str:
    return f"{frame.file.rsplit('/', 1)[-1]}:{frame.line}" if frame.line else frame.file


def describe_frame(frame: SourceFrame) -> str:
    """`load() in data.py:31`; only the line for code outside of a function."""
    name = frame.function.rsplit(".<locals>.", 1)[-1]
    if not frame.line:
        return "C code without a Python frame"
    return _place(frame) if not name or name.startswith("<") else f"{name}() in {_place(frame)}"
