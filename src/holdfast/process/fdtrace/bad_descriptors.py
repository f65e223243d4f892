"""Finds calls on closed descriptors and second closes, and says from the number's history whose fault it is.

A number that is closed twice fails with EBADF at best. If another thread has got the number in between, the second
close takes that thread's descriptor away, and the error shows up there: only the history of the number tells.
"""

from __future__ import annotations

import re
import shlex
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from .descriptor_lives import NO_LIFE, Event, HistoryStep, Lifetime, Lives, describe_frame, lifetimes_of, place
from .ebadf_mistakes import IS_CLOSE, EbadfCalls
from .log_format import BAD, BIRTH, CLOSE, KINDS
from .silent_closes import SilentCloses
from .sites import is_library
from .trace_file import SourceFrame, Trace

DOUBLE_CLOSE, USE_AFTER_CLOSE, STALE_CLOSE = "double close", "use after close", "stale close"
STALE_DUP2, NOT_INHERITED = "stale dup2", "not inherited"
SUSPECTED, NEVER_OPEN, UNTOLD = "suspected stale close", "never open", "cannot be told"
_ORDER = (STALE_CLOSE, STALE_DUP2, DOUBLE_CLOSE, USE_AFTER_CLOSE, NOT_INHERITED, UNTOLD, NEVER_OPEN, SUSPECTED)

_MAX = 50
_A_CALL = 20  # lives that one line used after their end and that are explained; more of them are only counted
_MAX_CALLS = 500
_SOCKET = KINDS.index("socket")


@dataclass(frozen=True)
class NumberHistory:
    """What happened to a descriptor number until a call failed, or took away what belonged to another.

    `culprit` is the line to change and `victim` the one that failed, or lost its descriptor. `count` says how many
    descriptors have this history, by the same lines. `kind` is one of the names above. `doubt` says what else may have
    happened, and how to find out. `is_deadly`: the program failed after this error.
    """

    kind: str
    fd: int
    call: str
    sentence: str
    steps: tuple[HistoryStep, ...]
    culprit: SourceFrame
    victim: SourceFrame
    count: int = 1
    doubt: str = ""
    is_deadly: bool = False

    @property
    def headline(self) -> str:
        """The first sentence: what happened, without the advice."""
        return f"{self.sentence.partition('. ')[0].rstrip('.')}."

    @property
    def is_certain(self) -> bool:
        return self.kind != SUSPECTED


def find_histories(
    trace: Trace, *, since: float = 0.0, until: float = float("inf"), maximum: int = _MAX
) -> list[NumberHistory]:
    """Returns the histories that end in EBADF or in a stale close, the gravest first, equal ones as one."""
    lives = Lives(trace)
    silently = SilentCloses(lives)
    finder = _Finder(lives, silently)
    found: dict[object, NumberHistory] = {}
    silent = (_silent(lives, *lifes) for lifes in silently.find(since, until))
    for history in [*finder.failed(since, until), *silent]:
        key = (history.kind, history.call, *((step.what, step.frame[:3]) for step in history.steps))
        known = found.get(key)
        found[key] = replace(known, count=known.count + history.count) if known else history
    return sorted(
        found.values(),
        key=lambda history: (
            not history.is_deadly,
            _ORDER.index(history.kind),
            not history.culprit.line,
            -history.count,
            history.steps[-1].t_s,
        ),
    )[:maximum]


class _Verdict(NamedTuple):
    kind: str
    sentence: str
    culprit: Event
    doubt: str = ""
    helper: Event | None = None  # an event that the same line may have brought about


class _Finder:
    """Explains the calls of one recording that failed with EBADF."""

    def __init__(self, lives: Lives, silently: SilentCloses) -> None:
        self._lives = lives
        self._silently = silently
        self._trace = lives.trace
        self._events = lives.events
        self._others: dict[tuple[int, int], Event | None] = {}  # process and number: who has it elsewhere

    def failed(self, since: float, until: float) -> Iterator[NumberHistory]:
        """Explains every descriptor that a call failed on, once."""
        events = self._events
        bad = [at for at in self._lives.bad if since <= events["t_s"][at] <= until]
        calls = EbadfCalls(self._lives)
        deadly = calls.deadly(bad)
        by_life: dict[tuple[int, int, int], list[int]] = {}
        latest: dict[tuple[int, int], int] = {}
        for index in calls.accuse(bad, deadly):
            process, fd, gen = (events[name][index] for name in ("process", "fd", "gen"))
            gen = latest[process, fd] = self._gen_meant(index, gen, latest.get((process, fd), gen))
            by_life.setdefault((process, fd, gen), []).append(index)
        by_call: dict[tuple[int, int, int], list[list[int]]] = defaultdict(list)
        for indices in by_life.values():
            process, stack, call = (events[name][indices[0]] for name in ("process", "stack", "aux"))
            by_call[process, stack, call].append(indices)
        for groups in sorted(by_call.values(), key=len, reverse=True)[:_MAX_CALLS]:
            histories = [self._explain(indices, deadly) for indices in groups[:_A_CALL]]
            histories[-1] = replace(histories[-1], count=1 + len(groups) - len(histories))
            yield from histories

    def _gen_meant(self, index: int, gen: int, earlier: int) -> int:
        """Returns the life that the call meant: the earlier one that has failed calls already, or the last one.

        At exit, objects whose number was closed below them fail once more. What the interpreter opened meanwhile to
        print a traceback, or holdfast for its own search, was not meant.
        """
        if earlier == gen:
            return gen
        by_gen = lifetimes_of(self._lives.until(index))
        between = [by_gen.get(number, NO_LIFE).birth for number in range(earlier + 1, gen + 1)]
        is_at_exit = not self._lives.acting(self._lives.event(index))
        return earlier if is_at_exit or all(map(self._lives.is_private, between)) else gen

    # -- what happened

    def _explain(self, indices: Sequence[int], deadly: int) -> NumberHistory:
        lives = self._lives
        # The close of a file object writes and seeks first.
        same = [at for at in indices if self._events["stack"][at] == self._events["stack"][indices[0]]]
        closes = [at for at in same if IS_CLOSE.search(lives.call(at)) and lives.names_close(lives.event(at))]
        index = [*closes, indices[0]][0]
        fd, call = self._events["fd"][index], lives.call(index)
        failed = lives.event(index)
        past = [one for one in lives.until(index) if one.at != index and one.action != BAD] if fd >= 0 else []
        by_gen = lifetimes_of(past)
        gens = [gen for gen, life in sorted(by_gen.items()) if not lives.is_private(life.birth)]
        if gens and self._is_popen(failed, by_gen[gens[-1]]):
            gens.pop()
        last, before = (by_gen[gens[-at]] if len(gens) >= at else NO_LIFE for at in (1, 2))
        if fd < 0:
            past = self._closed_object(failed)
            last = Lifetime(*past) if past else NO_LIFE
        elif last.close and self._is_attempt(last.close, failed):
            past = [one for one in past if one != last.close]
            last = Lifetime(last.birth, None)
        found = self._judge(fd, call, failed, last, before)
        is_plain = found.kind in (DOUBLE_CLOSE, USE_AFTER_CLOSE) and not found.doubt
        shown = [one for one in past if fd < 0 or one.gen in gens[-1 if is_plain else -2 :]]
        later = {(self._events["stack"][at], self._events["aux"][at]): lives.event(at) for at in reversed(indices)}
        notes = {STALE_CLOSE: "closes what it did not open", STALE_DUP2: "replaces what it did not open"}
        steps = [
            lives.step(one, notes.get(found.kind, "") if one == found.culprit else "")
            for one in [*shown[-6:], *sorted(later.values())[:4]]
        ]
        return NumberHistory(
            found.kind,
            fd,
            call,
            found.sentence,
            tuple(steps),
            lives.differing(found.culprit, found.helper) if found.helper else lives.frame(found.culprit),
            lives.frame(failed),
            doubt=found.doubt,
            is_deadly=deadly in indices,
        )

    def _judge(self, fd: int, call: str, failed: Event, last: Lifetime, before: Lifetime) -> _Verdict:
        user = self._who(failed)
        closes = bool(IS_CLOSE.search(call))
        number = f"descriptor {fd}" if fd >= 0 else "a closed socket"
        what = f"closes {number}" if closes else f"calls {call} on {number}"
        if not last.close:
            return self._judge_without_close(failed, last, f"{user} {what}", fd)
        closer = self._who(last.close)
        if self._is_stale_dup2(last, before, failed):
            assert last.birth is not None
            return _Verdict(
                STALE_DUP2,
                f"{self._who(last.birth)} calls dup2 onto descriptor {fd}, which belonged to "
                f"{self._who(before.birth)}: from then on both use one number. After {closer} closed it, {call} at "
                f"{place(self._lives.frame(failed))} fails with EBADF. Give dup2 a number of its own.",
                last.birth,
            )
        stale = self._is_stale(last, before, failed)
        if stale:
            first = f", after {self._who(before.close)}" if before.close else ""
            return _Verdict(
                STALE_CLOSE,
                f"{closer} closes descriptor {fd} a second time{first}; by then it belonged to "
                f"{self._who(last.birth)}, which then fails with EBADF in {call} at "
                f"{place(self._lives.frame(failed))}. {CLOSE_ONCE}",
                last.close,
            )
        doubt = self._doubt(last, before, failed)
        later = (
            f" Without --no-reuse this {call} could have reached another descriptor." if self._trace.no_reuse else ""
        )
        if self._lives.is_implicit(last):
            assert last.birth is not None
            kind, second = (DOUBLE_CLOSE, " a second time") if closes else (USE_AFTER_CLOSE, "")
            return self._judge_dropped(kind, fd, f"{user} {what}{second}", last, later)
        across = last.close.thread != failed.thread
        if closes:
            # Of two owners, the one that closes the number itself, below the other one's object, is wrong.
            is_first = self._lives.is_raw(last.close) and not self._lives.is_raw(failed)
            way = " in another thread" if across else ""
            advice = (
                f"Remove the close at {place(self._lives.frame(last.close))}" if is_first else "Close it in one place"
            )
            return _Verdict(
                DOUBLE_CLOSE,
                f"{user} {what} a second time: {closer} closed it before{way}. {advice}.{later}",
                last.close if is_first else failed,
                doubt,
                helper=None if is_first else last.close,
            )
        if across:
            return _Verdict(
                USE_AFTER_CLOSE,
                f"{closer} closes {number} while {user} still uses it in another thread ({call}). End the use "
                f"first: join the thread, or shut the socket down, then close.{later}",
                last.close,
                doubt,
            )
        return _Verdict(
            USE_AFTER_CLOSE,
            f"{user} {what} after {closer} closed it. Close it after its last use.{later}",
            last.close,
            doubt,
        )

    def _judge_dropped(self, kind: str, fd: int, subject: str, life: Lifetime, later: str) -> _Verdict:
        """Says that an object was dropped, which closed its descriptor."""
        assert life.birth
        assert life.close
        owner = self._who(life.birth)
        if self._lives.is_at_exit(life.close):
            return _Verdict(
                kind,
                f"What {owner} made lived until the interpreter ended, which closed its descriptor {fd} before its "
                f"last use: {subject}. Close it before the program ends: with a `with` block, or close() and join().",
                life.birth,
            )
        where = self._lives.frame(life.close)
        dropped = " by the garbage collector" if not where.line or is_library(where.file) else f" at {place(where)}"
        return _Verdict(
            kind,
            f"{subject} after the object that {owner} made was dropped{dropped}, which closed it. Keep the object as "
            f"long as its number is used.{later}",
            life.birth,
        )

    def _judge_without_close(self, failed: Event, last: Lifetime, subject: str, fd: int) -> _Verdict:
        lives = self._lives
        process = self._trace.processes[self._events["process"][failed.at]]
        if fd < 0:
            return _Verdict(
                USE_AFTER_CLOSE, f"{subject}: the object was closed or detached before. End its use first.", failed
            )
        if last == NO_LIFE and not lives.has_dropped(failed):
            owner = self._elsewhere(failed, fd)
            if owner:
                there = self._trace.processes[self._events["process"][owner.at]].pid
                return _Verdict(
                    NOT_INHERITED,
                    f"{subject}, which is not open in process {process.pid}: process {there} has it, from "
                    f"{self._who(owner)}, and a program inherits only what it is given. Name it in pass_fds, or send "
                    "the object itself.",
                    failed,
                )
            return _Verdict(
                NEVER_OPEN,
                f"{subject}, which was not open before in process {process.pid}: the number is wrong.",
                failed,
            )
        opened = f", which {self._who(last.birth)} opened" if last.birth else ""
        is_lost = lives.has_dropped(failed)
        why = "the recording no longer holds its history" if is_lost else "no call that closed it could be seen"
        return _Verdict(UNTOLD, f"{subject}{opened}. It cannot be told who closed it: {why}.", failed)

    def _elsewhere(self, failed: Event, fd: int) -> Event | None:
        """Returns who had opened the number in another process, and had it open when this one began."""
        events = self._events
        process = events["process"][failed.at]
        if (process, fd) not in self._others:
            start_s = self._trace.processes[process].start_s
            # The latest open or close of the number in each process.
            last = [
                next(
                    (
                        at
                        for at in reversed(self._lives.rows(other, fd))
                        if events["t_s"][at] <= start_s and events["action"][at] in (BIRTH, CLOSE)
                    ),
                    -1,
                )
                for other in range(len(self._trace.processes))
                if other != process
            ]
            births = [at for at in last if at >= 0 and events["action"][at] == BIRTH]
            self._others[process, fd] = self._lives.event(max(births)) if births else None
        return self._others[process, fd]

    def _closed_object(self, failed: Event) -> list[Event]:
        """Returns birth and close of the socket that a call on -1 meant: one that the line names, else the last one."""
        events, lives = self._events, self._lives
        mine = lives.of_process[events["process"][failed.at]]
        before = (mine[number] for number in range(bisect_left(mine, failed.at) - 1, -1, -1))
        closes = (at for at in before if events["action"][at] == CLOSE and events["kind"][at] == _SOCKET)
        found: list[list[Event]] = []
        for at in islice(closes, _A_CALL):
            close = lives.event(at)
            births = [one for one in lives.until(at) if one.action == BIRTH and one.gen == close.gen]
            if not births or lives.is_implicit(Lifetime(births[-1], close)):
                continue
            found.append([births[-1], close])
            name = re.match(r"(?:await |return )?([\w.]+)\.\w+\(", lives.frame(close).text)
            if name and f"{name[1]}." in lives.frame(failed).text:
                return found[-1]
        is_detached = "detach" in "".join(frame.text for frame in self._trace.frames)
        return found[0] if found and not is_detached else []

    # -- whose number it was

    def _is_stale(self, last: Lifetime, before: Lifetime, victim: Event) -> bool:
        """Returns whether the close belongs to the number's life before: whoever did it made or closed that one."""
        lives = self._lives
        born, closed = last.birth, last.close
        if not born or not closed or lives.is_implicit(last):
            return False
        if closed.thread != born.thread:
            is_before = closed.thread in {event.thread for event in before if event} or self._is_same_line(
                closed, before
            )
            # Where the line that opens and the one that closes are a pair in two threads, it was handed over.
            return born.thread == victim.thread and is_before and self._silently.handed_over(last) < 2
        if born.thread != victim.thread:
            return False
        if lives.scope(closed) != lives.scope(born):
            # The one that made the life before, or else who belongs to that and not to this one.
            maker = before.birth if before.birth and before.birth.thread == closed.thread else None
            is_before = maker is not None and lives.scope(closed) == lives.scope(maker)
            if not is_before and not lives.is_tied(closed, born):
                is_before = lives.is_tied(closed, before.birth) or lives.is_tied(closed, before.close)
            return is_before and lives.scope(victim) != lives.scope(closed)
        # One function made both: the names of its variables tell.
        return (
            lives.scope(closed) == lives.scope(born)
            and lives.name(before.birth) != lives.name(born) != ""
            and lives.is_named(lives.name(before.birth), closed)
            and not lives.is_named(lives.name(born), closed)
        )

    def _is_same_line(self, closed: Event, before: Lifetime) -> bool:
        """Two threads that run the same function close the same number."""
        frame = self._lives.frame(closed)
        return before.close is not None and bool(frame.line) and self._lives.frame(before.close)[:3] == frame[:3]

    def _is_stale_dup2(self, last: Lifetime, before: Lifetime, victim: Event) -> bool:
        """Returns whether a dup2 took the number from code that goes on to use or close it."""
        lives = self._lives
        if not lives.is_dup2(last.birth, before.close) or self._events["fd"][victim.at] < 3 or not before.birth:
            return False
        if lives.is_tied(last.birth, before.birth):
            # One function made both: the line of the dup2 names what it means to replace.
            name = lives.name(before.birth)
            return last.birth is not None and bool(name) and not lives.is_named(name, last.birth)
        return lives.is_tied(victim, before.birth) or lives.is_tied(last.close, before.birth)

    def _doubt(self, last: Lifetime, before: Lifetime, failed: Event) -> str:
        """Says where the close may have meant the number's life before."""
        lives = self._lives
        if self._trace.no_reuse or not last.close or not before.close:
            return ""
        there = [one for one in (last.birth, last.close, before.birth, before.close) if one]
        lines = {lives.frame(one).line for one in there}
        if len(lines) < len(there) or not all(lines):
            return ""  # a loop, or code that cannot be named
        is_foreign = last.birth is not None and not lives.is_tied(last.close, last.birth)
        if not is_foreign and not lives.is_tied(last.close, before.birth):
            return ""
        return (
            f"The number was used again, so it may also be that {place(lives.frame(last.close))} meant the descriptor "
            f"of {place(lives.frame(there[2]))}. `{no_reuse_command(self._trace)}` tells: there it comes "
            "again as late as possible."
        )

    def _is_popen(self, failed: Event, life: Lifetime) -> bool:
        """Returns whether subprocess itself got the number, for a pipe to the child that failed."""
        if not life.birth or life.close:
            return False
        one, two = self._lives.acting(failed), self._lives.acting(life.birth)
        is_there = bool(one) and bool(two) and one[0].file == two[0].file and one[0].file.endswith("/subprocess.py")
        return is_there and self._lives.frame(failed) == self._lives.frame(life.birth)

    def _is_attempt(self, close: Event, failed: Event) -> bool:
        """Returns whether the close is the call that failed: a close is recorded before it happens."""
        return bool(self._events["kind"][failed.at]) and close.thread == failed.thread

    def _who(self, event: Event | None) -> str:
        return "a call that was not seen" if event is None else describe_frame(self._lives.frame(event))


CLOSE_ONCE = "Close it in one place, and forget the number after that."


def no_reuse_command(trace: Trace) -> str:
    """Returns the command that records the program again, with numbers that come again as late as possible."""
    try:
        words = shlex.split(trace.command)
    except ValueError:
        words = []
    return f"holdfast trace --no-reuse -- {shlex.join(words)}" if 0 < len(words) < 20 else "holdfast trace --no-reuse …"


def _silent(lives: Lives, before: Lifetime, life: Lifetime, after: Lifetime) -> NumberHistory:
    """Describes a close that took another's descriptor away while no call failed."""
    assert life.birth
    assert life.close
    fd = lives.events["fd"][life.close.at]
    birth, close = describe_frame(lives.frame(life.birth)), describe_frame(lives.frame(life.close))
    first = f", after {describe_frame(lives.frame(before.close))}" if before.close else ""
    is_certain = after.close is not None
    sentence = (
        f"{close} {'' if is_certain else 'probably '}closes descriptor {fd} a second time{first}; by then it belonged "
        f"to {birth}. No call failed"
    )
    doubt = ""
    if after.birth and after.close:
        sentence += (
            f": {describe_frame(lives.frame(after.close))} then closed the same number, which "
            f"{describe_frame(lives.frame(after.birth))} had got. {CLOSE_ONCE}"
        )
    else:
        sentence += "."
        doubt = (
            f"If {place(lives.frame(life.birth))} handed its descriptor over to be closed there, nothing is wrong. "
            f"`{no_reuse_command(lives.trace)}` tells, because a second close then fails."
        )
    events = [event for one in (before, life, after) for event in one if event]
    steps = [lives.step(one, "closes what it did not open" if one == life.close else "") for one in events]
    return NumberHistory(
        STALE_CLOSE if is_certain else SUSPECTED,
        fd,
        "close",
        sentence,
        tuple(steps),
        lives.frame(life.close),
        lives.frame(life.birth),
        doubt=doubt,
    )
