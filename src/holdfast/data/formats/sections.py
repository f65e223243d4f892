"""What `holdfast inspect` and `salvage` show of a file: each format makes sections, and the commands print them."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from .base import Problem

COMPRESSION = {"none": "uncompressed", "gzip": "GZIP", "zlib": "ZLIB", "bzip2": "bzip2", "xz": "xz"}

_TEXT_WIDTH = 40
_TEXT_VALUES = 6


class Section(NamedTuple):
    """A title, and below it one of facts, a table, code and lines.

    facts   names and values
    heads   of the columns of `rows`: ">size" is aligned to the right, "~type" is cut if the line is too long
    left    how many facts or rows are not shown
    code    a schema as Python source
    """

    title: str = ""
    facts: Sequence[tuple[str, str]] = ()
    heads: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    left: int = 0
    code: str = ""
    lines: Sequence[str] = ()


class Survey(Protocol):
    """What a file contains, as an InspectedFile describes it. It may have sections() of its own."""

    @property
    def path(self) -> str: ...
    @property
    def format(self) -> str | None: ...
    @property
    def bytes(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def code(self) -> str: ...
    @property
    def problem(self) -> str | None: ...
    @property
    def readable(self) -> bool: ...
    def as_dict(self) -> dict[str, object]: ...


class SalvageReport(Protocol):
    """What was salvaged of a file."""

    @property
    def problems(self) -> list[Problem]: ...

    @property
    def is_empty(self) -> bool:
        """Whether nothing could be kept, and so no file was written."""

    def summary(self, out: str) -> str:
        """Describes the result in a line; `out`: the file that was written."""

    def sections(self) -> Iterable[Section]: ...

    def remarks(self, keep_doubtful: bool) -> Iterable[str]:
        """Returns what should be known of the result."""

    @staticmethod
    def total(reports: Sequence[Any]) -> str:
        """Describes the results of several files in a line."""

    def as_dict(self) -> dict[str, object]: ...


def as_text(values: Sequence[Any]) -> str:
    """Formats values: `7`, `[0.5, 1.25, …] (128 values)`, `b'\\x89PNG…' (1,650 bytes)`."""
    if len(values) == 1 and not isinstance(values[0], list):
        return _value_as_text(values[0])
    steps = any(isinstance(value, list) for value in values)
    shown = [as_text(value) if isinstance(value, list) else _value_as_text(value) for value in values[:_TEXT_VALUES]]
    if len(values) <= _TEXT_VALUES:
        return f"[{', '.join(shown)}]"
    return f"[{', '.join(shown)}, …] ({len(values):,} {'steps' if steps else 'values'})"


def _value_as_text(value: Any) -> str:
    if isinstance(value, bytes):
        shown, taken = _bytes_as_text(value)
        return shown if taken == len(value) else f"{shown[:-1]}…{shown[-1]} ({len(value):,} bytes)"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _bytes_as_text(value: bytes) -> tuple[str, int]:
    """Returns as much as fits in a line, and how many bytes that is."""
    for taken in range(min(len(value), _TEXT_WIDTH), 0, -1):
        text = text_of(value[:taken])
        shown = repr(value[:taken]) if text is None else repr(text)
        if len(shown) <= _TEXT_WIDTH + 2:
            return shown, taken
    return repr(value), len(value)


def text_of(data: bytes) -> str | None:
    try:
        text = getincrementaldecoder("utf-8")().decode(data)  # the cut may go through a character
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None
