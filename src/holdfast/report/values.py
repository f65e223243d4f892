"""A feature's values, shortened: for people and for machines."""

from __future__ import annotations

import math
from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Any

import numpy as np

_LISTED = 16
_BYTES = 64
_TEXT_WIDTH = 40
_TEXT_VALUES = 6


def as_json(values: Sequence[Any]) -> Any:
    """One value, a list, or `{"length": …, "values": […]}`; nested for a list of lists."""
    if len(values) == 1 and not isinstance(values[0], list):
        return _value_as_json(values[0])
    shown = [as_json(value) if isinstance(value, list) else _value_as_json(value) for value in values[:_LISTED]]
    return shown if len(values) <= _LISTED else {"length": len(values), "values": shown}


def _value_as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        text = _text_of(value[:_BYTES])
        return {"length": len(value)} | ({"hex": value[:_BYTES].hex()} if text is None else {"text": text})
    if isinstance(value, float):
        return float(_shortest(value)) if math.isfinite(value) else _shortest(value)
    return value


def as_text(values: Sequence[Any]) -> str:
    """`7`, `[0.5, 1.25, …] (128 values)`, `b'\\x89PNG…' (1,650 bytes)`."""
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
    """As much of it as fits in a line, and how many bytes that is."""
    for taken in range(min(len(value), _TEXT_WIDTH), 0, -1):
        text = _text_of(value[:taken])
        shown = repr(value[:taken]) if text is None else repr(text)
        if len(shown) <= _TEXT_WIDTH + 2:
            return shown, taken
    return repr(value), len(value)


def _shortest(value: float) -> str:
    """As few digits as tell this 32-bit float from its neighbours."""
    return str(np.float32(value))


def _text_of(data: bytes) -> str | None:
    try:
        text = getincrementaldecoder("utf-8")().decode(data)  # the cut may go through a character
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None
