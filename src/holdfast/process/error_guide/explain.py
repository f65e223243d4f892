"""Implements `hold.explain`.

The module imports everything it needs at once, because a process without a free descriptor cannot import modules.
"""

from __future__ import annotations

import linecache  # noqa: F401 - traceback imports these two lazily
import os
import tokenize  # noqa: F401
import traceback
from collections.abc import Iterable, Sequence
from types import TracebackType

from ...procfs.procfs import REAL, ProcFS
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
) -> Explanation:
    """Explains an exception or a text: which errno is behind it, which limit is reached and how much of it is used, who
    holds the lock, what the error is often mistaken for, and what to do.

    If a text contains several errors, the most informative one is explained. An unknown error gives an explanation
    with `.known` False; neither that nor unreadable facts raise. The function works without a free descriptor.

    Args:
        what: The exception or the text.
        pid: The process to inspect; by default this one.
        path: The file in question, if the error does not name it.
    """
    return explain_with(REAL, what, pid, path)


def explain_with(
    procfs: ProcFS, what: BaseException | str, pid: int | None = None, path: str | os.PathLike[str] | None = None
) -> Explanation:
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
    """Explain one kind of error found in a text. `shell` means that the error did not occur in this process."""
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
    """Return the files of the matched error, then those of the other errors, then those named in the message."""
    others = [link for link in links if link is not best]
    names = [name for link in (best, *others) for name in paths_of(link.error)]
    return [*names, *paths_in(message_of(best.error))]


def _frames(trace: TracebackType | None) -> str:
    """Return the last lines of code, if their files can be read: the call distinguishes a lock from a fork."""
    try:
        return "".join(traceback.format_list(traceback.extract_tb(trace, limit=-_FRAMES)))
    except Exception:  # noqa: BLE001 - a custom import loader's get_source may raise anything
        return ""
