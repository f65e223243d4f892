from __future__ import annotations

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from factories_traces import HOSTILE, TraceBuilder, hostile_trace, large_trace, leaking_trace
from holdfast._util.offline_html import to_json
from holdfast.process.fdtrace.html_page import MAX_ROWS, MAX_SITES, MAX_STACKS, PageData, write_page
from holdfast.process.fdtrace.trace_file import Trace


class Elements(HTMLParser):
    """Collects the elements of a page, and the text of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=False)
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "script":
            self.scripts[-1] += data


def page_of(trace: Trace, folder: Path) -> str:
    write_page(trace, folder / "page.html")
    return (folder / "page.html").read_text()


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield key
            yield from texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from texts(one)


def test_no_text_of_the_recording_becomes_markup(tmp_path: Path) -> None:
    hostile, plain = hostile_trace(), TraceBuilder().build()
    elements = Elements(page_of(hostile, tmp_path))
    assert elements.tags == Elements(page_of(plain, tmp_path)).tags
    data = json.loads(elements.scripts[0])
    assert data == json.loads(to_json(PageData(hostile).as_dict()))
    assert not set("<>&") & set(elements.scripts[0])


def test_all_text_is_printable_and_short() -> None:
    found = list(texts(PageData(hostile_trace()).as_dict()))
    assert all(text.isprintable() for text in found)
    assert max(map(len, found)) < 12_000
    assert any(r"\x1b[31m" in text and r"\udcff" in text and r"\u202e" in text for text in found)
    assert any("{{script}}" in text for text in found)
    assert any(HOSTILE[:30] in text for text in found)


def test_numbers_that_json_does_not_have_are_left_out() -> None:
    made = TraceBuilder()
    made.process(start_s=float("nan"), end_s=float("inf"))
    data = PageData(made.build(started=1e300)).as_dict()
    assert {"start_s": None, "end_s": None}.items() <= data["processes"][1].items()
    assert ("Began", "unknown") in data["facts"]
    to_json(data)


def test_the_page_holds_the_largest_and_says_what_is_left_out() -> None:
    made = large_trace(MAX_ROWS + 7, events=2 * (MAX_STACKS + 1_000), stacks=MAX_STACKS + 1_000, sites=MAX_SITES + 50)
    data = PageData(made.build(600)).as_dict()
    assert (len(data["sites"]), len(data["processes"])) == (MAX_SITES, MAX_ROWS)
    assert len(data["flame"]) == len(data["weights"]["born"]) == MAX_STACKS
    assert "50 sites" in data["left_out"]
    assert "7 process rows" in data["left_out"]
    assert min(process["peak"] for process in data["processes"]) == 80 + 7
    assert len(to_json(data)) < 5e6


def test_the_frames_are_bounded() -> None:
    made = TraceBuilder()
    for fd in range(100):
        made.born(1, fd, made.stack(*((f"/{n}.py", n, "f", "x" * 1_000) for n in range(300 * fd, 300 * fd + 300))))
    data = PageData(made.build()).as_dict()
    assert len(data["frames"]) <= 20_000
    assert len(to_json(data)) < 10e6


def test_the_processes_stand_under_their_parents() -> None:
    made = TraceBuilder()
    made.process(parent=0, start_s=3)
    made.process(parent=3, start_s=2)
    made.process(parent=0, start_s=1)
    made.process(parent=4)  # damaged: its own parent
    rows = PageData(made.build()).as_dict()["processes"]
    assert [(row["pid"], row["depth"]) for row in rows] == [(100, 0), (103, 1), (102, 2), (101, 1), (104, 0)]


def test_only_the_time_asked_for() -> None:
    data = PageData(leaking_trace().build(), since=10.5, until=20.5).as_dict()
    assert data["sites"][0]["born"] == 10
    assert ("Looked at", "10.5 s to 20.5 s") in data["facts"]
