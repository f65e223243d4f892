"""How a verdict looks."""

from __future__ import annotations

from ..diagnose.facts import Verdict

MARKS = {
    Verdict.OK: "✓",
    Verdict.UNCLEAR: "?",
    Verdict.SETTLING: "◌",
    Verdict.GROWING: "▲",
    Verdict.LEAK: "✗",
    Verdict.EXHAUSTED: "✗",
}
STYLES = {
    Verdict.OK: "green",
    Verdict.UNCLEAR: "yellow",
    Verdict.SETTLING: "cyan",
    Verdict.GROWING: "bold yellow",
    Verdict.LEAK: "bold red",
    Verdict.EXHAUSTED: "bold white on red",
}


def marked(verdict: Verdict) -> str:
    return f"{MARKS[verdict]} {verdict.value}"


def use_style(ratio: float) -> str:
    """The colour of a bar: from the half on it is worth a look."""
    return "red" if ratio >= 0.85 else "yellow" if ratio >= 0.5 else "green"
