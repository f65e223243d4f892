"""The interpreter a page's Python blocks run in, one after the other, as if typed into one file."""

from __future__ import annotations

import sys
import traceback
from typing import Any

import __main__
from line_server import serve


def run(ask: dict[str, Any]) -> str:
    """ "" or the traceback. Lines are numbered as on the page."""
    source = "\n" * (ask["line"] - 1) + ask["source"]
    try:
        exec(compile(source, ask["page"], "exec"), vars(__main__))
    except BaseException:  # noqa: BLE001 - whatever ends a block, sys.exit too, is for the page's author to see
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    sys.path[0] = ""  # the page's own folder, like an interpreter started there; not that of the tests
    serve(run)
