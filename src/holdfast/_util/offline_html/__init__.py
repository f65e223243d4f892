"""Assembles an HTML file that needs no other file and no other host, and keeps data from becoming markup or a script.

The pages of recordings and of watched processes share common.css, common.js and chart.js.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

_HERE = Path(__file__).parent
_COMMON = {"css": ("common.css",), "js": ("common.js", "chart.js")}


def common_part(kind: str) -> str:
    """Returns the style (`css`) or the script (`js`) that comes before a page's own."""
    return "".join((_HERE / name).read_text() for name in _COMMON[kind])


def assemble(template: str, *, style: str, script: str, data: object) -> str:
    """Returns a page that needs no other file: the template with all its `{{parts}}`."""
    script = _inline(script)
    # The browser runs this script and loads nothing, whatever the data contains.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "script": script,
        "style": style,
        "data": to_json(data),
        "policy": f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:",
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _inline(script: str) -> str:
    """Keeps a script from ending the element that it stands in."""
    return re.sub(r"<(?=/script|!--)", r"\\x3c", script, flags=re.IGNORECASE)


def to_json(data: object) -> str:
    """Returns JSON in ASCII that can stand in a script element."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
