"""Assembles an HTML file that needs no other file and no other host, and keeps data from becoming markup or a script.

The pages of recordings and of watched processes share html_page.common.css and html_page.common.js.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

from ...errors import InputError

_HERE = Path(__file__).parent


def plotly_script() -> str:
    """Returns the library that draws the charts."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise InputError("the HTML page needs plotly: pip install 'holdfast-io[ui]'") from error
    return str(get_plotlyjs())


def common_part(kind: str) -> str:
    """Returns the style (`css`) or the script (`js`) that comes before a page's own."""
    return (_HERE / f"html_page.common.{kind}").read_text()


def assemble(template: str, *, style: str, script: str, plotly: str, data: object) -> str:
    """Returns a page that needs no other file: the template with all its `{{parts}}`."""
    scripts = {"plotly": _inline(plotly), "script": _inline(script)}
    # The browser runs these two scripts and loads nothing, whatever the data contains.
    hashes = " ".join(f"'sha256-{_hash(one)}'" for one in scripts.values())
    parts = {
        **scripts,
        "style": style,
        "data": to_json(data),
        "policy": f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:",
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _inline(script: str) -> str:
    """Keeps a script from ending the element that it stands in."""
    return re.sub(r"<(?=/script|!--)", r"\\x3c", script, flags=re.IGNORECASE)


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def to_json(data: object) -> str:
    """Returns JSON in ASCII that can stand in a script element."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
