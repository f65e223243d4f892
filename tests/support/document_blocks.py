"""The code blocks of a page, and whether what a command printed is what the page shows.

```console
$ holdfast verify a.tfrecord      a command; goes on below where the line ends in a backslash
# exit 1                          its exit code, where it is not 0
a.tfrecord  damaged …             what it prints; … or ... stands for any text, alone on a line for any lines
$ holdfast doctor 31387  # numbers vary
…                                 what it prints, with the numbers, times and bars of another run
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"^(?P<indent>\s*)(?P<ticks>`{3,}|~{3,})\s*(?P<language>[^\s`{]*)")
_ANY = re.compile(r"…|\.\.\.")
_EXIT = re.compile(r"# exit (\d+)$")
_VARY = "# numbers vary"


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    line: int  # of its first line of code, counted from 1
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    line: int
    source: str
    exit_code: int
    output: str
    numbers_vary: bool = False


def blocks(page: str) -> Iterator[Block]:
    lines = enumerate(page.splitlines(), start=1)
    for number, line in lines:
        opened = _FENCE.match(line)
        if not opened:
            continue
        code = []
        for _, inner in lines:
            if _closes(inner, opened["ticks"]):
                break
            code.append(_dedented(inner, opened["indent"]))
        else:
            raise ValueError(f"line {number}: this block is never closed")
        yield Block(opened["language"], number + 1, "\n".join(code))


def prose(page: str) -> str:
    """The page without its code blocks and inline code."""
    kept, ticks = [], None
    for line in page.splitlines():
        opened = None if ticks else _FENCE.match(line)
        if opened:
            ticks = opened["ticks"]
        elif ticks and _closes(line, ticks):
            ticks = None
        elif not ticks:
            kept.append(re.sub(r"`[^`]*`", "", line))
    return "\n".join(kept)


def commands(block: Block) -> list[Command]:
    """Of a console block."""
    found: list[Command] = []
    source: list[str] = []
    output: list[str] = []
    start = 0

    def finish() -> None:
        if source:
            code = _EXIT.match(output[0]) if output else None
            shown = output[1:] if code else output
            vary = source[-1].endswith(_VARY)
            found.append(Command(start, "\n".join(source), int(code[1]) if code else 0, "\n".join(shown), vary))

    for number, line in enumerate(block.text.splitlines(), start=block.line):
        if line.startswith("$ "):
            finish()
            source, output, start = [line[2:]], [], number
        elif source and not output and source[-1].endswith("\\"):
            source.append(line.removeprefix("> "))
        elif source:
            output.append(line)
        elif line.strip():
            raise ValueError(f"line {number}: a console block starts with a command: $ …")
    finish()
    return found


def matches(wanted: str, got: str, *, numbers_vary: bool = False) -> bool:
    if numbers_vary:
        wanted, got = _without_numbers(wanted), _without_numbers(got)
    pattern = "".join(_line_pattern(line) for line in _tidy(wanted))
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in _tidy(got))) is not None


def _without_numbers(text: str) -> str:
    """The words and their order. A number may be in another unit, and make a line break elsewhere."""
    text = re.sub(r"[▏▎▍▌▋▊▉█░#·-]*[▏▎▍▌▋▊▉█░]+", "BAR", text)
    text = re.sub(r"[+±−-]?\d[\d,.:]*(?: (?:s|min|h|d|kB|MB|B)\b)?", "N", text)
    return re.sub(r"\s+", " ", re.sub(r"N(?:[–± ]+N)+", "N", text)).strip()


def _line_pattern(line: str) -> str:
    if _ANY.fullmatch(line.strip()):
        return r"(?:.*\n)*?"
    return ".*".join(re.escape(part) for part in _ANY.split(line)) + "\n"


def _tidy(text: str) -> list[str]:
    """Without trailing spaces, and without empty lines at either end."""
    return [line.rstrip() for line in text.strip("\n").rstrip().splitlines()]


def _closes(line: str, ticks: str) -> bool:
    return line.strip().startswith(ticks) and not line.strip().strip(ticks[0])


def _dedented(line: str, indent: str) -> str:
    return line.removeprefix(indent) if line.startswith(indent) else line.lstrip()
