"""The child's side of line_child.py: one JSON object in, one out, until the parent closes the pipe."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def serve(answer: Callable[[dict[str, Any]], Any]) -> None:
    """Answers {"result": …}, or {"error": text, "type": name} for what `answer` raised."""
    # Whatever prints goes to stderr, so that the answers alone are on the pipe.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    for line in requests:
        try:
            reply = {"result": answer(json.loads(line))}
        except Exception as error:  # noqa: BLE001 - the parent decides what an error means
            reply = {"error": str(error), "type": type(error).__name__}
        sys.stdout.flush()
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
