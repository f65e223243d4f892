"""Numbers with their nouns, and names that cannot play tricks on a terminal."""

from __future__ import annotations


def counted(n: int, noun: str) -> str:
    """`1 file`, `1,024 files`."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def printable(text: str) -> str:
    """Names come from anywhere: an escape sequence, a line break or broken UTF-8 is shown as what it is."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
