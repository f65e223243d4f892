"""Text of unknown origin in a line of ours."""

from __future__ import annotations


def one_line(text: str) -> str:
    """A process names itself as it likes: line breaks and escape sequences would end up on somebody's terminal."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
