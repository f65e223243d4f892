"""Rows whose values follow from their numbers, and forked processes: shared by soak_write and soak_consolidate."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import holdfast as hold
from holdfast._util.failpoints import VARIABLE

PLAIN = {"who": hold.Int64(), "seq": hold.Int64(), "x": hold.Float32(16)}
SCHEMA = {**PLAIN, "text": hold.Bytes()}


def rows(who: int, first: int, count: int, schema: Any = SCHEMA) -> dict[str, Any]:
    seq = np.arange(first, first + count)
    whose = np.full(count, who)
    made = {"who": whose, "seq": seq, "x": _x(whose, seq), "text": _texts(whose, seq)}
    return {name: made[name] for name in schema}


def count_wrong(got: dict[str, Any]) -> int:
    """Counts the rows whose values do not match their numbers."""
    who, seq = got["who"], got["seq"]
    texts = zip(got["text"].tolist(), _texts(who, seq), strict=True) if "text" in got else ()
    return int((got["x"] != _x(who, seq)).any(1).sum()) + sum(a != b for a, b in texts)


def _x(who: Any, seq: Any) -> Any:
    return ((seq[:, None] * 31 + who[:, None] * 7 + np.arange(16)) % 1000).astype(np.float32)


def _texts(who: Any, seq: Any) -> list[bytes]:
    return [b"%d-%d" % pair for pair in zip(who.tolist(), seq.tolist(), strict=True)]


def forked(work: Callable[[], object], failpoint: str | None) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if failpoint is not None:
            os.environ[VARIABLE] = failpoint
        work()
        code = 0
    except BaseException as error:  # noqa: BLE001 - a child must never return into its parent's code
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)
