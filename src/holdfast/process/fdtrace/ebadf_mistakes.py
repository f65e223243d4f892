"""Separates the calls that failed with EBADF by mistake from those that only wanted to know, or to be sure.

A daemon closes all numbers that it might have, and other code asks with fstat whether a number is open.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby, pairwise

from .descriptor_lives import Lives
from .log_format import CLOSE
from .trace_file import SourceFrame

IS_CLOSE = re.compile(r"close|closefrom|close_range")
_LEAST_LOOP = 4  # numbers in a row that a loop closes
_ASKS = ("fcntl", "dup", "fstat")
# Calls on -1, the number of a socket object that was closed.
_OF_SOCKETS = re.compile(r"send|recv|accept|connect|bind|listen|setsockopt|read|write")
# Functions of the standard library that try, and go on if the number is closed: (file, function).
_TOLERANT = {("selectors.py", "unregister"), ("socketserver.py", "shutdown_request"), ("socket.py", "__repr__")}
# What a line that calls fstat wants to have, beside the answer.
_OPENS = re.compile(r"open\(|FileIO\(|map\(|socket\(|fromfile\(")


def _is_tolerant(acting: Sequence[SourceFrame]) -> bool:
    return any((frame.file.rsplit("/", 1)[-1], frame.function.rsplit(".", 1)[-1]) in _TOLERANT for frame in acting[:2])


class EbadfCalls:
    """The calls of a recording that failed with EBADF."""

    def __init__(self, lives: Lives) -> None:
        self._lives = lives
        self._trace = lives.trace
        self._events = lives.events

    def deadly(self, bad: Sequence[int]) -> int:
        """Returns the last failed call of the program's main thread if the program failed, else -1."""
        if not self._trace.exit_code or not self._trace.processes:
            return -1
        pid = self._trace.processes[0].pid
        mine = [
            index for index in bad if self._events["tid"][index] == pid and self._lives.acting(self._lives.event(index))
        ]
        return mine[-1] if mine else -1

    def accuse(self, bad: Sequence[int], deadly: int) -> list[int]:
        """Returns the failed calls that are a mistake of Python code."""
        events = self._events
        loops = self._closing_loops() | self._sweeps(bad)
        known: dict[tuple[int, int, bool], bool] = {}
        found = []
        for index in bad:
            key = events["stack"][index], events["aux"][index], events["fd"][index] < 0
            if key not in known:
                known[key] = self._is_mistake(index)
            is_python = bool(self._trace.processes[events["process"][index]].python)
            if is_python and index not in loops and (known[key] or index == deadly):
                found.append(index)
        return found

    def _is_mistake(self, index: int) -> bool:
        event, call = self._lives.event(index), self._lives.call(index)
        acting = self._lives.acting(event)
        if self._lives.is_own(event):
            return False
        if not acting:  # C code and the interpreter ask whether a number is open
            return call not in _ASKS and self._events["fd"][index] >= 0
        if self._events["fd"][index] < 0:
            return bool(_OF_SOCKETS.match(call)) and not _is_tolerant(acting)
        return not self._only_asks(call, acting[0].text) and not _is_tolerant(acting)

    @staticmethod
    def _only_asks(call: str, line: str) -> bool:
        """Returns whether a line only asks whether a number is open, which is no mistake if the program goes on."""
        return (call == "fstat" and bool(line) and not _OPENS.search(line)) or (call == "fcntl" and "F_GETFL" in line)

    def _sweeps(self, bad: Sequence[int]) -> set[int]:
        """Returns the calls of lines that close or ask for many numbers that were never open, in any order."""
        events = self._events
        calls: dict[tuple[int, int], list[int]] = defaultdict(list)
        for index in bad:
            if IS_CLOSE.search(self._lives.call(index)) or self._lives.call(index) in _ASKS:
                calls[events["process"][index], events["stack"][index]].append(index)
        found: set[int] = set()
        for indices in calls.values():
            never = {events["fd"][index] for index in indices if not events["gen"][index]}
            if sum(fd >= 0 for fd in never) >= _LEAST_LOOP:
                found.update(indices)
        return found

    def _closing_loops(self) -> set[int]:
        """Returns the closes of loops over numbers of which some were never open: they forget nothing."""
        events = self._events
        closes = {at for at in self._lives.bad if IS_CLOSE.search(self._lives.call(at))}
        never = {at for at in closes if not events["gen"][at]}
        loops: dict[tuple[int, int, int], list[int]] = {  # what each line did in each thread
            (events["process"][at], events["tid"][at], events["stack"][at]): [] for at in never
        }
        if not loops:
            return set()
        for at, (action, *line) in enumerate(events.rows("action", "process", "tid", "stack")):
            if (action == CLOSE or at in closes) and (key := (line[0], line[1], line[2])) in loops:
                loops[key].append(at)
        found: set[int] = set()
        for rows in loops.values():
            first = 0
            for step, run in groupby(events["fd"][after] - events["fd"][at] for at, after in pairwise(rows)):
                last = first + len(list(run))
                loop = rows[first : last + 1]
                if abs(step) == 1 and len(loop) >= _LEAST_LOOP and not never.isdisjoint(loop):
                    found.update(loop)
                first = last
        return found
