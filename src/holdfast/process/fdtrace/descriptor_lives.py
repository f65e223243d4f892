"""Reads the lives of descriptor numbers out of a recording, and which code was behind each event of them."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from .log_format import BAD, BIRTH, BIRTH_UNSEEN, CLOSE, CLOSE_UNSEEN, FOUND, KINDS
from .sites import is_library, is_own, user_frame
from .trace_file import SourceFrame, Trace

_MAX_EVENTS = 64  # of one number before a failure
_DUP = KINDS.index("dup")
# A line that closes says so. The garbage collector, and the end of a variable, close at any line.
_CLOSES = re.compile(r"close|exit|\bwith\b|\bdel\b|detach|dup2|shutdown|terminate|release|\(\*")
_RAW = re.compile(r"\bos\.\w+\(|libc|CDLL")
_WHAT = {
    BIRTH: "opened",
    CLOSE: "closed",
    CLOSE_UNSEEN: "closed unseen",
    BIRTH_UNSEEN: "closed, opened unseen",
    FOUND: "open before",
}
_PRIVATE = re.compile(r"^<frozen (importlib|getpath)|/(linecache|tokenize)\.py$")
_SHUTDOWN = SourceFrame("(the interpreter's shutdown)", 0, "")
_COLLECTOR = SourceFrame("(the garbage collector)", 0, "")


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


class Event(NamedTuple):
    """One event. `thread` is comparable in a process and in those that it was forked from."""

    at: int  # index of the event in the recording
    thread: int
    gen: int
    action: int


class Lifetime(NamedTuple):
    """The events of one number from its birth to its close. Either may be missing."""

    birth: Event | None
    close: Event | None


NO_LIFE = Lifetime(None, None)


class Lives:
    """The events of each number of a recording."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.events = trace.events
        self._numbers: dict[int, Mapping[int, Sequence[int]]] = {}
        self._acting: dict[int, list[SourceFrame]] = {}

    # -- events

    def until(self, index: int, fd: int | None = None) -> list[Event]:
        """Returns the events of the number of this event up to it, or those of another number of its process.

        A forked process goes on with what its parent had.
        """
        process = self.events["process"][index]
        fd = self.events["fd"][index] if fd is None else fd
        found: list[list[Event]] = []
        main_thread = self.trace.processes[process].pid
        times, tids = self.events["t_s"], self.events["tid"]
        until = times[index]
        at: int | None = process
        for _ in range(len(self.trace.processes)):
            if at is None or not 0 <= at < len(self.trace.processes):
                break
            rows = self.rows(at, fd)
            end = bisect_right(rows, index) if at == process else bisect_right(rows, until, key=times.__getitem__)
            # The thread that forked is the main thread of the child.
            found.append(
                [
                    self.event(row, tids[row] if at == process else main_thread)
                    for row in rows[max(0, end - _MAX_EVENTS) : end]
                ]
            )
            until = self.trace.processes[at].start_s
            at = self.trace.processes[at].parent
        return [event for part in reversed(found) for event in part]

    @cached_property
    def of_process(self) -> list[array[int]]:
        """The events of each process, in the order in which they were recorded."""
        found = [array("I") for _ in self.trace.processes]
        for at, process in enumerate(self.events["process"]):
            found[process].append(at)
        return found

    def rows(self, process: int, fd: int) -> Sequence[int]:
        """Returns the events of one number of a process."""
        if process not in self._numbers:
            by_fd: dict[int, list[int]] = defaultdict(list)
            numbers = self.events["fd"]
            for at in self.of_process[process]:
                by_fd[numbers[at]].append(at)
            self._numbers[process] = by_fd
        return self._numbers[process].get(fd, ())

    @cached_property
    def bad(self) -> list[int]:
        """The calls that failed with EBADF."""
        return [at for at, action in enumerate(self.events["action"]) if action == BAD]

    def event(self, index: int, thread: int | None = None) -> Event:
        events = self.events
        thread = events["tid"][index] if thread is None else thread
        return Event(index, thread, events["gen"][index], events["action"][index])

    def has_dropped(self, event: Event) -> bool:
        """Returns whether the ring of the process, or of one that it was forked from, has lost events."""
        at: int | None = self.events["process"][event.at]
        for _ in range(len(self.trace.processes)):
            if at is None or not 0 <= at < len(self.trace.processes):
                break
            if self.trace.processes[at].dropped_events:
                return True
            at = self.trace.processes[at].parent
        return False

    def call(self, index: int) -> str:
        number = self.events["aux"][index]
        name = self.trace.calls[number] if 0 <= number < len(self.trace.calls) else "a call"
        return {"fxstat": "fstat"}.get(short := name.strip("_").removesuffix("_chk").removesuffix("64"), short)

    def step(self, event: Event, note: str = "") -> HistoryStep:
        events = self.events
        what = f"EBADF in {self.call(event.at)}" if event.action == BAD else _WHAT.get(event.action, "seen")
        return HistoryStep(
            events["t_s"][event.at],
            self.trace.processes[events["process"][event.at]].pid,
            events["tid"][event.at],
            what,
            self.frame(event),
            events["stack"][event.at],
            event.gen,
            note,
        )

    # -- the code behind an event

    def acting(self, event: Event) -> list[SourceFrame]:
        """Returns the frames that brought the event about, innermost first.

        A finalizer, and the garbage collector in holdfast's own search at a program's end, run inside whatever code is
        running: the frames outside of it did not call it.
        """
        stack = self.events["stack"][event.at]
        if stack not in self._acting:
            found: list[SourceFrame] = []
            for frame in self.trace.frames_of(stack):
                if is_own(frame.file):
                    break
                found.append(frame)
                if frame.function.endswith("__del__"):
                    break
            self._acting[stack] = found
        return self._acting[stack]

    def frame(self, event: Event) -> SourceFrame:
        """Returns the innermost line of the user's code that acted, or says who else did."""
        acting = self.acting(event)
        if acting:
            frame = user_frame(acting)
            return acting[-1] if is_library(frame.file) and acting[-1].function.endswith("__del__") else frame
        if self.trace.frames_of(self.events["stack"][event.at]):
            return _COLLECTOR
        return _SHUTDOWN if self.is_at_exit(event) else user_frame(())

    def is_own(self, event: Event) -> bool:
        return not self.acting(event) and bool(self.trace.frames_of(self.events["stack"][event.at]))

    def is_at_exit(self, event: Event) -> bool:
        """Returns whether the interpreter was shutting down."""
        finalizing_s = self.trace.processes[self.events["process"][event.at]].finalizing_s
        return finalizing_s is not None and self.events["t_s"][event.at] >= finalizing_s

    def is_implicit(self, life: Lifetime) -> bool:
        """Returns whether the object that owned the descriptor was dropped, which closed it: no line asked for it."""
        if not life.birth or not life.close:
            return False
        acting = self.acting(life.close)
        if not acting:
            return self.frame(life.close) in (_SHUTDOWN, _COLLECTOR)
        if acting[-1].function.endswith("__del__") and all(is_library(frame.file) for frame in acting):
            return True
        born = self.acting(life.birth)
        if born and not is_library(born[0].file) and _RAW.search(born[0].text):
            return False  # a number without an object
        return bool(acting[0].text) and not _CLOSES.search(acting[0].text) and "close" not in acting[0].function

    def is_raw(self, event: Event) -> bool:
        """Returns whether the line names os.close() or libc, not an object's method."""
        acting = self.acting(event)
        return bool(acting) and bool(_RAW.search(acting[0].text))

    def names_close(self, event: Event) -> bool:
        acting = self.acting(event)
        return bool(acting) and bool(re.search(r"close|__exit__|\bwith\b|\bdel\b", acting[0].text))

    def differing(self, one: Event, other: Event) -> SourceFrame:
        """Returns the line of the first event, or the line that called it where both are the same: a helper closes."""
        mine, others = ([frame for frame in self.acting(event) if not is_library(frame.file)] for event in (one, other))
        pairs = zip(mine, others, strict=False)
        return next((frame for frame, another in pairs if frame != another), self.frame(one))

    def is_dup2(self, birth: Event | None, close: Event | None) -> bool:
        """Returns whether a dup2 ended a life and began the next one."""
        if not birth or not close:
            return False
        is_same = all(self.events[name][birth.at] == self.events[name][close.at] for name in ("stack", "tid"))
        return is_same and self.events["kind"][birth.at] == _DUP

    def scope(self, event: Event) -> tuple[str, str]:
        """Returns the file and the class of the line, or its function outside of a class: what may own a number."""
        return _scope(self.frame(event))

    def is_tied(self, one: Event | None, other: Event | None) -> bool:
        """Returns whether one thread did both, in one class or function or in one that the other one called."""
        if not one or not other or one.thread != other.thread:
            return False
        return self.scope(one) in self._scopes(other) or self.scope(other) in self._scopes(one)

    def _scopes(self, event: Event) -> set[tuple[str, str]]:
        callers = {
            _scope(frame) for frame in self.acting(event) if not is_library(frame.file) and frame.function != "<module>"
        }
        return callers | {self.scope(event)}

    def name(self, birth: Event | None) -> str:
        """Returns the name that the line gives to the descriptor, "" if it cannot be told."""
        found = re.match(r"(?:self\.)?([A-Za-z_]\w*)\s*=[^=]", self.frame(birth).text) if birth else None
        return found[1] if found else ""

    def is_named(self, name: str, event: Event) -> bool:
        return bool(name) and bool(re.search(rf"\b{name}\b", self.frame(event).text))

    def is_private(self, birth: Event | None) -> bool:
        """Returns whether nobody else can have known the number: holdfast's own, or of an import or a traceback."""
        if birth is None:
            return False
        for frame in self.trace.frames_of(self.events["stack"][birth.at]):
            is_traceback = frame.function.endswith("invoke_excepthook") and frame.file.endswith("/threading.py")
            if is_traceback or is_own(frame.file) or _PRIVATE.search(frame.file):
                return True
            if not is_library(frame.file):
                return False
        return False


def _scope(frame: SourceFrame) -> tuple[str, str]:
    name = frame.function.rsplit(".<locals>.", 1)[-1]
    return frame.file, name.rsplit(".", 1)[0] if "." in name else name


def lifetimes_of(events: Sequence[Event]) -> dict[int, Lifetime]:
    """Returns the lives of a number by their count."""
    births: dict[int, Event] = {}
    closes: dict[int, Event] = {}
    for event in events:
        if event.action in (BIRTH, FOUND):
            births[event.gen] = event
        elif event.action in (CLOSE, BIRTH_UNSEEN):
            closes[event.gen] = event
    return {gen: Lifetime(births.get(gen), closes.get(gen)) for gen in births.keys() | closes.keys()}


def place(frame: SourceFrame) -> str:
    return f"{frame.file.rsplit('/', 1)[-1]}:{frame.line}" if frame.line else frame.file


def describe_frame(frame: SourceFrame) -> str:
    """`load() in data.py:31`; only the line for code outside of a function."""
    name = frame.function.rsplit(".<locals>.", 1)[-1]
    if not frame.line:
        return frame.file.strip("()") if frame in (_SHUTDOWN, _COLLECTOR) else "C code without a Python frame"
    return place(frame) if not name or name.startswith("<") else f"{name}() in {place(frame)}"
