"""Decides whether and when a worker that ended is started again. Pure: times are passed in."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

RECYCLE_CODE = 75  # EX_TEMPFAIL: the worker asks for a new one
AT_ONCE_CODE = 70  # a Guard ended it in the middle of its work
_START_S = 10.0  # an end within this time of the start is a failed start
_CAP_START_S = 60.0  # a soft cap may be exceeded for half of it before that counts
_MAX_QUICK = 10
_MAX_OVER_CAP = 2
_QUICK_PAUSE_S = 1.0


class RestartReason(StrEnum):
    """Why a worker was started again; the label of `holdfast_restarts_total`."""

    RECYCLE = "recycle"  # it ended with 75, or the operator asked for a restart
    EXIT = "exit"  # it ended with another exit code
    SIGNAL = "signal"  # a signal ended it that the supervisor had not sent
    STOPPED = "stopped"
    FROZEN = "frozen"
    HUNG = "hung"
    FAILING = "failing"
    FDS = "fds"
    RSS = "rss"
    THREADS = "threads"
    CHILDREN = "children"
    PROGRESS = "progress"


class RestartMode(StrEnum):
    ON_FAILURE = "on-failure"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRules:
    """How long to wait after a failure, and when to give up.

    The wait is `first_s` after the first failure, doubles with each further one up to `longest_s`, and begins anew
    after `window_s` of uptime. `failures` at the start within `window_s` are too many; 0: there are never too many.
    """

    first_s: float = 1.0
    longest_s: float = 300.0
    jitter: float = 0.1
    failures: int = 5
    window_s: float = 600.0


class RestartPolicy:
    """The restarts of one worker. `uniform` draws the jitter."""

    def __init__(self, rules: RestartRules, uniform: Callable[[float, float], float] = random.uniform) -> None:
        self._rules = rules
        self._uniform = uniform
        self._in_row = self._unsuccessful = 0
        self._quick = self._over_cap = 0
        self._failed_s: deque[float] = deque()

    @property
    def failed_starts(self) -> int:
        """How many workers failed at their start, within the last `window_s`."""
        return len(self._failed_s)

    @property
    def unsuccessful(self) -> int:
        """How many workers in a row ended because nothing succeeded."""
        return self._unsuccessful

    def after_failure(self, now_s: float, uptime_s: float, *, at_start: bool = False) -> float | None:
        """Returns how long to wait before the next start; None: give up.

        Only a program that fails at its start is given up, which more starts do not mend: `at_start`, or an uptime of
        seconds. One that has worked may work again.
        """
        rules = self._rules
        self._quick = 0
        if uptime_s >= rules.window_s:
            self._in_row = 0
        self._in_row += 1
        if at_start or uptime_s < _START_S:
            self._failed_s.append(now_s)
            while self._failed_s[0] < now_s - rules.window_s:
                self._failed_s.popleft()
            if rules.failures and len(self._failed_s) >= rules.failures:
                return None
        return self._wait_s(self._in_row)

    def after_shortage(self) -> float:
        """Returns how long to wait after a start that failed because the machine is short of processes or memory."""
        self._in_row += 1
        return self._wait_s(self._in_row)

    def after_no_success(self, *, had_success: bool) -> float:
        """Returns how long to wait after a worker that ended because nothing succeeded any more. It is never given up:
        what it needs, such as an API, may be back at any time."""
        self._unsuccessful = 1 if had_success else self._unsuccessful + 1
        return self._wait_s(self._unsuccessful)

    def _wait_s(self, in_row: int) -> float:
        rules = self._rules
        exponent = min(in_row - 1, 62)  # a larger one could overflow, and all are over the longest wait
        return min(rules.first_s * 2.0**exponent, rules.longest_s) * self._uniform(1 - rules.jitter, 1 + rules.jitter)

    def is_cap_too_low(self, uptime_s: float) -> bool:
        """Takes the age at which a worker was over a cap. Returns whether the cap is the mistake: several in a row were
        over it right after their start, and so would be all that follow."""
        self._over_cap = self._over_cap + 1 if uptime_s < _CAP_START_S else 0
        return self._over_cap > _MAX_OVER_CAP

    def after_recycle(self, uptime_s: float) -> float:
        """Returns how long to wait: not at all, unless many workers in a row ended within seconds."""
        self._quick = self._quick + 1 if uptime_s < _START_S else 0
        return _QUICK_PAUSE_S if self._quick > _MAX_QUICK else 0.0

    def reset(self) -> None:
        """Forgets all failures: the operator asked for a restart."""
        self._in_row = self._unsuccessful = self._quick = self._over_cap = 0
        self._failed_s.clear()
