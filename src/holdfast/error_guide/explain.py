"""What an error means, here and now: the table's answer with this machine's facts.

Everything that is needed is imported when this module is: a process without a free descriptor can import nothing.
"""

from __future__ import annotations

import linecache  # noqa: F401 - traceback loads these two late
import os
import tokenize  # noqa: F401
import traceback
from collections.abc import Iterable, Sequence
from types import TracebackType

from ..procfs.procfs import REAL, ProcFS
from .cause_chain import CauseLink, message_of, own_context, recognise, walk
from .context import gather, paths_in, paths_of
from .explanation import Explanation, of_exception, of_sighting, of_unknown_exception, of_unknown_text
from .log_scanner import Sighting, scan_text
from .rules import Scope

_FRAMES = 12


def explain(
    what: BaseException | str,
    *,
    pid: int | None = None,
    path: str | os.PathLike[str] | None = None,
    procfs: ProcFS = REAL,
) -> Explanation:
    """What this exception, or this text, really means: which errno is behind it, which limit that is and how much of it
    is used, who holds the lock; what it is often mistaken for, and what to do.

    `pid` is the process to look at, by default this one. `path` is the file in question, where the error does not name
    it. Of a text with several errors the most telling one is explained. What is not known has `.known` False; nothing
    is raised for that, nor for facts that cannot be read. Works with no descriptor free.
    """
    if isinstance(what, BaseException):
        return _explain_exception(what, pid, path, procfs)
    if not isinstance(what, str):
        raise TypeError(f"expected an exception or a text, got {type(what).__name__}")
    seen = scan_text(what)
    return explain_sighting(seen[0], pid, path, procfs=procfs) if seen else of_unknown_text()


def explain_sighting(
    seen: Sighting,
    pid: int | None = None,
    path: str | os.PathLike[str] | None = None,
    *,
    shell: bool = False,
    procfs: ProcFS = REAL,
) -> Explanation:
    """One kind of error of a text. `shell`: this process is only the one that was asked."""
    names = (
        [os.fspath(path)]
        if path is not None
        else [*paths_in(seen.text), *paths_in(own_context(seen.text, seen.context))]
    )
    return of_sighting(seen, gather(seen.rule.facts, _scope(pid, shell), pid, names, procfs))


def _explain_exception(
    error: BaseException, pid: int | None, path: str | os.PathLike[str] | None, procfs: ProcFS
) -> Explanation:
    links = walk(error)
    found = recognise(links, _frames)
    if found is None:
        return of_unknown_exception(links)
    names = [os.fspath(path)] if path is not None else _names(links, found.link)
    return of_exception(found, gather(found.rule.facts, _scope(pid, False), pid, names, procfs))


def _scope(pid: int | None, shell: bool) -> Scope:
    if pid is not None and pid != os.getpid():
        return Scope.OTHER
    return Scope.SHELL if shell and pid is None else Scope.OWN


def _names(links: Iterable[CauseLink], best: CauseLink) -> Sequence[str]:
    """The error's own files first, then those of the others, then what stands in the text."""
    others = [link for link in links if link is not best]
    names = [name for link in (best, *others) for name in paths_of(link.error)]
    return [*names, *paths_in(message_of(best.error))]


def _frames(trace: TracebackType | None) -> str:
    """The last lines of code, as far as their files can be read: which call it was tells a lock from a fork."""
    try:
        return "".join(traceback.format_list(traceback.extract_tb(trace, limit=-_FRAMES)))
    except Exception:  # noqa: BLE001 - a loader's own get_source may do anything
        return ""
