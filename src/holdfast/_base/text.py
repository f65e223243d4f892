"""Text of unknown origin in a line of ours."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

_MOST_NAMES = 12


def one_line(text: str) -> str:
    """A process names itself as it likes: line breaks and escape sequences would end up on somebody's terminal."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


def names_there(wanted: str, there: Sequence[str], title: str = "There are") -> str:
    """Returns the answer to a misspelt name: the nearest of those that exist, then all of them, or the first few."""
    if not there:
        return ""
    near = difflib.get_close_matches(wanted, there, 1)
    shown = ", ".join(map(repr, there[:_MOST_NAMES])) + (" …" if len(there) > _MOST_NAMES else "")
    return (f"Did you mean {near[0]!r}? " if near else "") + f"{title}: {shown}"
