"""Finds the errno behind an error, and whether an EMFILE is of this process."""

from __future__ import annotations

from errno import EMFILE, ENFILE, ENOMEM

from ..._util.text import one_line
from ..error_guide.cause_chain import recognise, walk

SHORTAGES = frozenset({EMFILE, ENFILE, ENOMEM})
_MAX_NEEDED = 64
_MAX_CHARS = 500


def is_short_of_fds(used: int, soft: int) -> bool:
    """Returns whether an EMFILE can be of this process, and not of another one, or of inotify's limit for the user.

    What failed may have needed many descriptors, and have closed them again: pools and loaders take dozens.
    """
    return soft - used < min(_MAX_NEEDED, soft // 8)


def find_errno(error: BaseException) -> tuple[int | None, bool]:
    """Returns the errno behind an error, however wrapped: EMFILE, ENFILE and ENOMEM before any other. The second value
    is whether the error came from a worker process."""
    links = walk(error)
    is_remote = any(_is_remote(link.error) for link in links)
    numbers = [ENOMEM if isinstance(link.error, MemoryError) else link.errno for link in links if link.meant]
    numbers += [link.errno for link in links if not link.meant]
    for number in numbers:
        if number in SHORTAGES:
            return number, is_remote
    cause = recognise(links)  # torch and TensorFlow put the text of an errno into errors of their own
    if cause is not None and cause.rule.errno in SHORTAGES:
        return cause.rule.errno, is_remote
    return next((number for number in numbers if number), None), is_remote


def error_text(error: BaseException | str | None) -> str:
    """Returns an error as one line, with its type."""
    if isinstance(error, BaseException):
        try:
            text = one_line(str(error))[:_MAX_CHARS]
            return f"{type(error).__name__}: {text}" if text else type(error).__name__
        except Exception:  # noqa: BLE001 - __str__ of a foreign class may raise anything
            return type(error).__name__
    return one_line(str(error))[:_MAX_CHARS] if error is not None else ""


def _is_remote(error: BaseException) -> bool:
    """Returns whether multiprocessing, concurrent.futures or a DataLoader brought it from a worker process."""
    return type(error).__name__.endswith("RemoteTraceback") or "DataLoader worker process" in error_text(error)
