"""Times as people type them."""

from __future__ import annotations

import re

import click

_FACTORS = {"": 1.0, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST_S = 365 * 86400.0


def parse_seconds(text: str) -> float:
    """`30s`, `5m`, `1.5h` or `90` -> seconds. ValueError says what was expected."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if not match or match[2] not in _FACTORS:
        raise ValueError(f"expected a time such as 30s, 5m or 1h, got {text!r}")
    value = float(match[1]) * _FACTORS[match[2]]
    if not 0 < value <= _LONGEST_S:
        raise ValueError(f"expected a time above zero and of a year at most, got {text!r}")
    return value


def seconds_of(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """An option's callback."""
    try:
        return None if value is None else parse_seconds(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None
