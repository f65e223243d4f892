"""What to do, by verdict: what holds for every cause."""

from __future__ import annotations

import math

from .case import Case
from .facts import Verdict

_TIGHT = 0.8
_PLENTY = "1048576"


def find_advice(case: Case, verdict: Verdict) -> tuple[str, ...]:
    """That of the cause first, where there is something to mend; of a process at its limit the way out first."""
    name = "PID" if case.pid is None else str(case.pid)
    more = _more_room(name, case)
    until_then = [f"until then: {one}" for one in more]
    cause = case.match.advice if case.match is not None else (_find(name),)
    if verdict is Verdict.EXHAUSTED:
        return (*more, *cause, _at_start(case))
    if verdict is Verdict.LEAK:
        return (*cause, *until_then)
    if verdict is Verdict.GROWING:
        return (*cause, *((_watch(name),) if case.match is not None else ()), *until_then)
    if verdict is Verdict.SETTLING:
        return ("look again in an hour: what rises ever less is a warm-up most of the time",)
    if verdict is Verdict.UNCLEAR:
        return (_watch(name),)
    return (*more, _at_start(case)) if _is_tight(case) else ()


def _is_tight(case: Case) -> bool:
    return case.fds is not None and bool(case.soft) and case.fds >= _TIGHT * (case.soft or 0)


def _watch(name: str) -> str:
    return f"watch it longer before you act: holdfast doctor {name} --for 10m"


def _find(name: str) -> str:
    return f"watch it at work to see which kind grows: holdfast doctor {name} --for 10m"


def _more_room(name: str, case: Case) -> tuple[str, ...]:
    """Nothing where there is no limit, or none that is known."""
    if case.soft is None or case.soft == math.inf:
        return ()
    if case.hard is not None and case.hard > case.soft:
        most = _PLENTY if case.hard == math.inf else f"{case.hard:.0f}"
        return (f"raise its limit while it runs: prlimit --pid {name} --nofile={most}:",)
    return (f"restart it before it runs out, or raise its limit as root: prlimit --pid {name} --nofile=SOFT:HARD",)


def _at_start(case: Case) -> str:
    if case.soft is not None and case.hard is not None and case.hard > case.soft:
        return "call hold.raise_nofile() when the program starts, or `ulimit -n` in the shell that starts it"
    return "raise the hard limit where it is started (LimitNOFILE= of systemd, --ulimit nofile= of docker)"
