"""Writes what a watch has recorded as one HTML file: the live page, with the state document inside."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..._util.atomic import write_atomically
from ..._util.offline_html import assemble, common_part

PAGE = Path(__file__).parent / "page.html"

# What page.html asks the server for, and what stands there in a file of its own.
_INLINE = {
    r'(?<=<meta http-equiv="Content-Security-Policy" content=")[^"]*': "{{policy}}",
    r'<link rel="stylesheet" href="static/page\.css">': "<style>\n{{style}}\n</style>",
    r'(?<=<script type="application/json" id="data">)null(?=</script>)': "{{data}}",
    r'<script src="static/page\.js"></script>': "<script>{{script}}</script>",
}


def write_state(state: Mapping[str, Any], out_path: str | os.PathLike[str]) -> None:
    """Writes the page of a state document, which it embeds, over whatever has this name."""
    template = PAGE.read_text()
    for pattern, part in _INLINE.items():
        template, found = re.subn(pattern, part, template)
        assert found == 1, f"expected {pattern} once in page.html, got it {found} times"
    style, script = page_part("css"), page_part("js")
    page = assemble(template, style=style, script=script, data={**state, "live": False})
    write_atomically(out_path, page.encode())


def page_part(kind: str) -> str:
    """Returns the whole style (`css`) or script (`js`) of the page, which the server gives the live page as a file."""
    return common_part(kind) + PAGE.with_suffix(f".{kind}").read_text()
