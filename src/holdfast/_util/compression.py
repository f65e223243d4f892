"""Parses the `codec` argument: how chunks are compressed."""

from __future__ import annotations

from typing import Any, Literal

Codec = Literal["none", "gzip", "lzf", "zstd"] | tuple[Literal["gzip", "zstd"], int] | None

LEVELS = {"gzip": range(10), "zstd": range(1, 23)}
DEFAULT_LEVELS = {"gzip": 4, "zstd": 3}
_ACCEPTED = '"none", "gzip", "lzf", "zstd", ("gzip", 0 to 9) or ("zstd", 1 to 22)'


def check_codec(codec: Any) -> tuple[str | None, int]:
    """Returns a codec's name (None for none) and its level, or raises ValueError."""
    is_pair = isinstance(codec, (tuple, list)) and len(codec) == 2  # JSON makes it a list
    name, level = codec if is_pair else (codec, 0)
    if not isinstance(name, str | None) or (is_pair and name not in LEVELS):
        raise _invalid(codec)
    if name in (None, "none", "lzf"):
        return (None if name == "none" else name), 0
    if name not in LEVELS:
        raise _invalid(codec)
    level = level if is_pair else DEFAULT_LEVELS[name]
    if isinstance(level, bool) or not isinstance(level, int) or level not in LEVELS[name]:
        raise _invalid(codec)
    return name, level


def _invalid(codec: Any) -> ValueError:
    return ValueError(f"expected codec to be {_ACCEPTED}, got {codec!r}")
