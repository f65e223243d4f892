"""Probes of a worker's progress from outside: a file that must change, or a page that must answer.

A probe runs in a process of its own, because a dead network mount or a stuck server would block the supervisor. Its
output is `+MARK` if it succeeded, or a sentence about what is wrong. Progress is a mark that differs from the last.
"""

from __future__ import annotations

import http.client
import os
import ssl
from collections.abc import Callable
from urllib.parse import urlsplit

from ...._util.text import one_line, span_words

_MAX_PROBE_S = 10.0
_MAX_EVERY_S = 2.5  # a silence is found at most that late
Probe = Callable[[int], None]


def file_probe(path: str) -> Probe:
    def work(write: int) -> None:
        try:
            found = os.stat(path)
            text = f"+{found.st_mtime_ns}-{found.st_size}-{found.st_ino}"
        except OSError as error:
            text = f"{path}: {error.strerror}"
        os.write(write, text.encode("utf-8", "replace"))

    return work


def http_probe(url: str, timeout_s: float) -> Probe:
    """A GET must be answered with a status of 200 to 299; a redirection is not followed."""

    def work(write: int) -> None:
        try:
            status = _get(url, timeout_s)
            text = "+" if 200 <= status < 300 else f"{url} answered with status {status}"
        except (OSError, http.client.HTTPException, ValueError) as error:
            text = f"{url}: {getattr(error, 'strerror', None) or str(error) or type(error).__name__}"
        os.write(write, text.encode("utf-8", "replace"))

    return work


def _get(url: str, timeout_s: float) -> int:
    parts = urlsplit(url)
    assert parts.hostname is not None
    if parts.scheme == "https":
        context = ssl.create_default_context()
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=timeout_s, context=context
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection.request("GET", target, headers={"User-Agent": "holdfast-supervise", "Connection": "close"})
    return connection.getresponse().status


class ProgressWatch:
    """Remembers when one worker last made progress. Times are passed in."""

    def __init__(self, what: str, limit_s: float, now_s: float, *, is_page: bool) -> None:
        self.what = what
        self._limit_s = limit_s
        self._is_page = is_page  # each success counts; of a file, each change
        self._mark = ""
        self._seen_s = now_s
        self._problem = ""
        self.has_changed = False  # since the worker has started
        self.every_s = min(max(limit_s / 10, 0.1), _MAX_EVERY_S)
        self.probe_s = min(limit_s, _MAX_PROBE_S)
        self.next_s = now_s

    def probed(self, output: str, now_s: float) -> None:
        """Takes the output of a probe; empty: it did not end in time."""
        self.next_s = now_s + self.every_s
        if not output.startswith("+"):
            self._problem = one_line(output) or f"{self.what} did not answer within {span_words(self.probe_s)}"
            return
        self._problem = ""
        if self._is_page or output != self._mark:
            self.has_changed |= self._is_page or bool(self._mark)
            self._mark, self._seen_s = output, now_s

    def overdue(self, now_s: float) -> str:
        """Returns a sentence if there was no progress for too long, otherwise an empty text."""
        quiet_s = now_s - self._seen_s
        if quiet_s <= self._limit_s:
            return ""
        verb = "had no good answer" if self._is_page else "did not change"
        why = f" ({self._problem.removeprefix(f'{self.what}: ')})" if self._problem else ""
        return f"it makes no progress: {self.what} {verb} for {span_words(quiet_s)}{why}"

    def restart_clock(self, now_s: float) -> None:
        """Begins anew: the machine or the supervisor was stopped meanwhile."""
        self._seen_s = now_s
