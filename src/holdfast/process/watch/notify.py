"""Sends messages: runs a command with JSON on its stdin, and posts the same JSON to a URL.

A thread of its own does it, one event after the other, so that a command that hangs or a server that does not answer
delays no sample. At most `_MAX_WAITING` events wait; of more, the oldest are dropped and counted.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from ..._util.text import one_line
from ...errors import InputError
from .state import EventState

_MAX_WAITING = 100
COMMAND_S = 30.0
WEBHOOK_S = 10.0
_TRIES = 3
_BETWEEN_S = 2.0
_MAX_ERROR = 200


def check_webhook(url: str) -> str:
    """Returns the URL; InputError: it is none."""
    try:
        parts = urlsplit(url)
        is_fine = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_fine = False
    if not is_fine or not url.isascii() or any(sign.isspace() or not sign.isprintable() for sign in url):
        raise InputError(f"expected a URL such as https://example.org/hook, got {one_line(url)!r}")
    return url


class Notifier:
    """Runs `command` (by the shell) and posts to `webhook` for every event it gets.

    `report(sentence)` is called, from the thread, for what failed.
    """

    def __init__(
        self,
        command: str | None,
        webhook: str | None,
        report: Callable[[str], None],
        *,
        command_s: float = COMMAND_S,
        webhook_s: float = WEBHOOK_S,
        between_s: float = _BETWEEN_S,
    ) -> None:
        self._command = command
        self._webhook = webhook
        self._report = report
        self._command_s = command_s
        self._webhook_s = webhook_s
        self._between_s = between_s
        self._waiting: deque[dict[str, Any]] = deque()
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._busy = False
        self.dropped = 0
        self._thread: threading.Thread | None = None
        if command or webhook:
            self._thread = threading.Thread(target=self._run, name="holdfast-watch-notify", daemon=True)
            self._thread.start()

    def send(self, event: EventState, facts: Mapping[str, Any]) -> None:
        """Queues an event; `facts` are those of its target. It returns at once."""
        if self._thread is None:
            return
        with self._changed:
            if len(self._waiting) >= _MAX_WAITING:
                self._waiting.popleft()
                self.dropped += 1
                is_first = self.dropped == 1
            else:
                is_first = False
            self._waiting.append(message_of(event, facts))
            self._changed.notify_all()
        if is_first:
            self._report(f"more than {_MAX_WAITING} events wait to be announced: the oldest are dropped from now on")

    def close(self, within_s: float = 5.0) -> None:
        """Gives what waits a moment, then ends the command that runs."""
        if self._thread is None:
            return
        deadline = time.monotonic() + within_s
        with self._changed:
            while (self._waiting or self._busy) and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            self._stop.set()
            self._changed.notify_all()
        self._thread.join(self._webhook_s + 5)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._stop.is_set():
                    self._changed.wait()
                if self._stop.is_set():
                    return
                message = self._waiting.popleft()
                self._busy = True
            try:
                if self._command is not None:
                    self._run_command(message)
                if self._webhook is not None:
                    self._post(message)
            except (OSError, RuntimeError, ValueError) as error:
                # No thread can be started, or nobody reads the reports any more: the next event may come through.
                with contextlib.suppress(OSError, ValueError):
                    self._report(f"the event {message['kind']!r} was not announced: {error}")
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

    def _run_command(self, message: dict[str, Any]) -> None:
        assert self._command is not None
        try:
            child = subprocess.Popen(
                ["/bin/sh", "-c", self._command],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | environment_of(message),
                start_new_session=True,  # so that all it starts can be ended with it
            )
        except OSError as error:
            self._report(f"--notify: cannot run the command: {error.strerror}")
            return
        deadline = time.monotonic() + self._command_s
        writer = threading.Thread(target=_feed, args=(child, json.dumps(message).encode()), daemon=True)
        writer.start()
        while child.poll() is None and time.monotonic() < deadline and not self._stop.wait(0.02):
            pass
        if child.poll() is None:
            self._report(f"--notify: the command ran for more than {self._command_s:.0f} s and was ended")
        elif child.returncode:
            self._report(f"--notify: the command ended with exit code {child.returncode}")
        _end_group(child)
        writer.join(1)

    def _post(self, message: dict[str, Any]) -> None:
        assert self._webhook is not None
        error = ""
        for attempt in range(_TRIES):
            if attempt and self._stop.wait(self._between_s * attempt):
                return
            error, is_final = post_json(self._webhook, message, self._webhook_s)
            if not error or is_final:
                break
        if error:
            self._report(f"--webhook: {error}")


def message_of(event: EventState, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what is sent: the event, and the state of its target."""
    names = ("pid", "command", "alive", "verdict", "sentence", "cause", "advice", "restarts", "restart_loop", "fds")
    guard = facts.get("guard")
    return {
        "version": 1,
        **event,
        **{name: facts.get(name) for name in (*names, "limit", "growth_per_hour", "eta_s", "dead_pipes")},
        "health": None if guard is None else guard["health"],
    }


def environment_of(message: Mapping[str, Any]) -> dict[str, str]:
    """Returns variables for a command that does not read JSON."""
    found = {
        "HOLDFAST_EVENT": message["kind"],
        "HOLDFAST_TARGET": message["target"],
        "HOLDFAST_TEXT": message["text"],
        "HOLDFAST_ADVICE": "; ".join(message["advice"] or ()),
        "HOLDFAST_VERDICT": message["verdict"],
        "HOLDFAST_HEALTH": message["health"],
        "HOLDFAST_PID": message["pid"],
        "HOLDFAST_FDS": message["fds"],
        "HOLDFAST_LIMIT": message["limit"],
        "HOLDFAST_ETA_S": message["eta_s"][0] if message["eta_s"] else None,
    }
    return {name: "" if value is None else one_line(str(value)) for name, value in found.items()}


def _feed(child: subprocess.Popen[bytes], data: bytes) -> None:
    assert child.stdin is not None
    try:
        with child.stdin as stdin:
            stdin.write(data)
    except OSError:
        pass  # it does not read


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """Kills the command and what it started in its session."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    child.wait()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The message goes to the host that was given, and to no other."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


def post_json(url: str, message: Mapping[str, Any], timeout_s: float) -> tuple[str, bool]:
    """Posts a message; returns an error, "" if it was accepted, and whether another try is pointless."""
    request = urllib.request.Request(
        url,
        data=json.dumps(message).encode(),
        headers={"Content-Type": "application/json", "User-Agent": "holdfast-watch"},
        method="POST",
    )
    try:
        with _OPENER.open(request, timeout=timeout_s) as answer:
            answer.read(1)
            return "", True
    except urllib.error.HTTPError as error:
        with error:
            return f"the server answered {error.code}", error.code < 500 and error.code not in (408, 429)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        return f"cannot post: {one_line(str(reason))[:_MAX_ERROR]}", False
