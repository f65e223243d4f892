"""Formats names, sizes and counts for messages, and parses sizes."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence

_MAX_NAMES = 12


def one_line(text: str) -> str:
    """Replaces line breaks, escape sequences and runs of spaces: a process can give itself any name."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


def names_there(wanted: str, there: Sequence[str], title: str = "There are") -> str:
    """Returns a hint for an unknown name: the nearest existing one, then all of them, or the first few."""
    if not there:
        return ""
    near = difflib.get_close_matches(wanted, there, 1)
    shown = ", ".join(map(repr, there[:_MAX_NAMES])) + (" …" if len(there) > _MAX_NAMES else "")
    return (f"Did you mean {near[0]!r}? " if near else "") + f"{title}: {shown}"


def natural_key(name: str) -> list[tuple[int, str]]:
    """Returns a sort key that puts `part-9` before `part-10`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


# ---- sizes
_FACTORS = {
    "": 1,
    "b": 1,
    "k": 10**3,
    "kb": 10**3,
    "kib": 2**10,
    "m": 10**6,
    "mb": 10**6,
    "mib": 2**20,
    "g": 10**9,
    "gb": 10**9,
    "gib": 2**30,
    "t": 10**12,
    "tb": 10**12,
    "tib": 2**40,
}

_MAX = 2**63


def parse_bytes(size: str | int) -> int:
    """Converts `"256MB"`, `"1.5 GiB"` or a number of bytes to bytes, or raises a ValueError."""
    if isinstance(size, int) and not isinstance(size, bool):
        value: float = size
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(size))
        if not match or match[2].lower() not in _FACTORS:
            raise ValueError(f"expected a size such as 256MB or 1.5GiB, got {size!r}")
        value = float(match[1]) * _FACTORS[match[2].lower()]
    if value < 1:
        raise ValueError(f"expected a size of at least one byte, got {size!r}")
    if value > _MAX:
        raise ValueError(f"expected a size of at most 2^63 bytes, got {str(size)[:40]}")
    return int(value)


def format_bytes(n: int) -> str:
    """Formats a size with three digits and a unit: 512 B, 1.21 MB, 34.0 GB."""
    if n < 1000:
        return f"{n} B"
    value = float(n)
    for unit in ("kB", "MB", "GB", "TB"):
        value /= 1000
        if value < 999.5 or unit == "TB":
            break
    return f"{value:.{max(0, 3 - len(str(int(value))))}f} {unit}"


# ---- times

_SPANS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def span_words(seconds: float) -> str:
    """`40 s`, `12 min`, `5 h 20 min`, `6 d 2 h`: two units at most, the second only below ten of the first."""
    if seconds < 1:
        return "less than 1 s"
    for at, (size, name) in enumerate(_SPANS):
        if seconds < size:
            continue
        whole = int(seconds // size)
        if at + 1 == len(_SPANS) or whole >= 10:
            return f"{round(seconds / size)} {name}"
        smaller, smaller_name = _SPANS[at + 1]
        rest = int((seconds - whole * size) // smaller)
        return f"{whole} {name} {rest} {smaller_name}" if rest else f"{whole} {name}"
    raise AssertionError(f"expected a span of at least one second, got {seconds}")


_SECONDS = {"": 1.0, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST_S = 365 * 86400.0


def parse_seconds(text: str | float, *, zero: bool = False) -> float:
    """Parses `30s`, `5m`, `1.5h` or a number of seconds, above zero unless `zero` is allowed; raises ValueError."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        value = float(text)
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(text).lower())
        if not match or match[2] not in _SECONDS:
            raise ValueError(f"expected a time such as 30s, 5m or 1h, got {text!r}")
        value = float(match[1]) * _SECONDS[match[2]]
    if not 0 <= value <= _LONGEST_S or not (value or zero):
        raise ValueError(f"expected a time {'of at least' if zero else 'above'} zero and at most a year, got {text!r}")
    return value


def time_argument(value: str | float, name: str, *, zero: bool = True, endless: bool = False) -> float:
    """Returns a time argument of a public function in seconds, inf too if `endless`. ValueError names the argument."""
    if endless and value == math.inf:
        return math.inf
    try:
        return parse_seconds(value, zero=zero)
    except ValueError as error:
        raise ValueError(f"{name}=: {error}") from None


# ---- counts and names


def counted(n: int, noun: str) -> str:
    """Formats a number with its noun: `1 file`, `1,024 files`, `2 batches`."""
    return f"{n:,} {noun}" + ("" if n == 1 else "es" if noun.endswith(("s", "ch")) else "s")


def printable(text: str) -> str:
    """Escapes what is not printable: a file name may contain escape sequences, line breaks or invalid UTF-8."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
