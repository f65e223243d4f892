"""Writes what a watch has recorded as one HTML file, and gives the live page its files: both are the same page."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._util.atomic import write_atomically
from ..fdtrace.html_file import assemble, common_part, plotly_script
from .documents import load_state

_HERE = Path(__file__).parent

# What page.html asks the server for, and what stands there in a file of its own.
_INLINE = {
    r'(?<=<meta http-equiv="Content-Security-Policy" content=")[^"]*': "{{policy}}",
    r'<link rel="stylesheet" href="static/page\.css">': "<style>\n{{style}}\n</style>",
    r'(?<=<script type="application/json" id="data">)null(?=</script>)': "{{data}}",
    r'<script src="static/page\.js"></script>': "<script>{{script}}</script>",
    r'<script src="static/plotly\.min\.js"></script>': "<script>{{plotly}}</script>",
}


def write_report(db_path: str | os.PathLike[str], out_path: str | os.PathLike[str]) -> None:
    """Writes the page of a watch database over whatever has this name.

    Raises:
        InputError: plotly, which draws the charts, is not installed, or the database cannot be read.
    """
    plotly_script()  # before the work
    write_state(load_state(Path(db_path)), out_path)


def write_state(state: Mapping[str, Any], out_path: str | os.PathLike[str]) -> None:
    """Writes the page of a state document, which it embeds."""
    plotly = plotly_script()
    template = (_HERE / "page.html").read_text()
    for pattern, part in _INLINE.items():
        template, found = re.subn(pattern, part, template)
        assert found == 1, f"expected {pattern} once in page.html, got it {found} times"
    style, script = _page_part("css"), _page_part("js")
    page = assemble(template, style=style, script=script, plotly=plotly, data={**state, "live": False})
    write_atomically(out_path, page.encode())


def live_files() -> dict[str, tuple[str, bytes]]:
    """Returns the files of the live page by their path, each with its media type.

    Raises:
        InputError: plotly is not installed.
    """
    return {
        "/": ("text/html; charset=utf-8", (_HERE / "page.html").read_bytes()),
        "/static/page.css": ("text/css; charset=utf-8", _page_part("css").encode()),
        "/static/page.js": ("text/javascript; charset=utf-8", _page_part("js").encode()),
        "/static/plotly.min.js": ("text/javascript; charset=utf-8", plotly_script().encode()),
    }


def _page_part(kind: str) -> str:
    return common_part(kind) + (_HERE / f"page.{kind}").read_text()
