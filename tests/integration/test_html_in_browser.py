"""The page of `holdfast report --html` in a real browser."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import Browser, Page
from factories_traces import HOSTILE, hostile_trace, large_trace
from holdfast.process.fdtrace.html_page import write_page
from holdfast.process.fdtrace.recording import LIBRARY, TraceOptions, record
from holdfast.process.fdtrace.trace_file import save

pytestmark = [
    pytest.mark.needs("chromium"),
    pytest.mark.skipif(not LIBRARY.exists(), reason="the tracing library was not built: no C compiler"),
]

PROGRAM = """
    import multiprocessing, os, socket, time
    kept = []

    class Reader:
        def __init__(self):
            self.sockets = socket.socketpair()

    def load():
        kept.append(Reader())

    def read():
        with open("/dev/null") as file:
            file.read()

    def close_twice():
        fd = os.open("/dev/null", os.O_RDONLY)
        os.close(fd)
        try:
            os.close(fd)
        except OSError:
            pass

    worker = multiprocessing.get_context("fork").Process(target=read)
    worker.start()
    for _ in range(60):
        load()
        read()
        read()
        time.sleep(0.005)
    close_twice()
    worker.join()
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as started:
        yield started


@pytest.fixture(scope="module")
def leak_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    script = folder / "leak.py"
    script.write_text(textwrap.dedent(PROGRAM))
    outcome = record([sys.executable, str(script)], TraceOptions())
    assert outcome.returncode == 0
    save(outcome.trace, folder / "leak.hft")
    command = [
        sys.executable,
        "-m",
        "holdfast",
        "report",
        str(folder / "leak.hft"),
        "--html",
        str(folder / "leak.html"),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)
    return folder / "leak.html"


def is_clean(page: Page) -> bool:
    """Nothing failed, and nothing but the page itself was asked for."""
    assert page.problems == []
    assert len(page.requests) == 1
    return True


def test_the_page_shows_the_leak(browser: Browser, leak_page: Path) -> None:
    with browser.open(leak_page) as page:
        assert "leak.py:7 in Reader.__init__ leaks: 120 descriptors (socket)" in page.texts("#verdict")[0]
        facts = dict(zip(page.texts("#facts dt"), page.texts("#facts dd"), strict=True))
        assert facts["Command"].endswith("leak.py")
        assert facts["Mode"] == "full"
        assert facts["Processes"].startswith("2, ")

        check_chart(page)
        check_flame(page)
        check_sites(page)

        assert page.texts("#histories .tag") == ["double close"]
        # What is wrong stands above the charts, in red, with the line to change.
        assert page.evaluate("document.querySelector('.summary + section').id") == "bad"
        assert page.evaluate("document.getElementById('verdict').className") == "wrong"
        assert "close_twice() in leak.py" in page.texts("#histories .blame dd")[0]
        assert "close_twice() in leak.py" in page.texts("#histories p")[0]
        page.click("#histories tbody tr")
        assert "os.open" in page.texts("#histories .detail .stack")[0]

        assert len(page.texts("#processes-table tbody tr")) == 2
        assert page.texts("#processes-table tbody td:first-child")[1].startswith("└ ")
        page.type("#processes-table input", "no such process")
        assert page.texts("#processes-table tbody tr") == []
        assert is_clean(page)


def check_chart(page: Page) -> None:
    names = "document.getElementById('chart').chart.marks.map((one) => one.name)"
    assert page.evaluate(names)[0] == "socket"
    page.click("#chart-by button:nth-child(2)")
    assert "leak.py:7 Reader.__init__" in page.evaluate(names)[0]
    assert max(page.evaluate("document.getElementById('chart').chart.marks[0].y")) == 120
    areas = "document.querySelectorAll('#chart path.area').length"
    assert page.evaluate(areas) == len(page.texts("#chart .legend button")) > 2

    # The legend hides and shows what it names.
    page.click("#chart .legend button")
    assert page.evaluate(areas) == len(page.texts("#chart .legend button")) - 1
    assert page.evaluate("document.querySelector('#chart .legend button').ariaPressed") == "false"
    page.click("#chart .legend button")

    # The pointer shows the values, and a drag zooms.
    x, y, width = page.evaluate(
        "(({x, y, width}) => [x, y + 60, width])(document.querySelector('#chart svg svg').getBoundingClientRect())"
    )
    page.drag((x + width * 0.2, y), (x + width * 0.7, y))
    assert re.match(r"\d+\.\d s", page.texts("#chart .tip")[0])
    assert any("Reader.__init__" in row for row in page.texts("#chart .tip div"))
    tops = "['.tip', 'svg'].map((one) => document.querySelector(`#chart ${one}`).getBoundingClientRect().top)"
    tip_top, chart_top = page.evaluate(tops)
    assert chart_top < tip_top < chart_top + 50
    share = "(({ x, marks }) => (x.range[1] - x.range[0]) / marks[0].x.at(-1))(document.getElementById('chart').chart)"
    assert 0.45 < page.evaluate(share) < 0.55
    page.click("#unzoom")
    assert page.evaluate(share) == 1
    page.click("#chart-by button:nth-child(1)")


def check_flame(page: Page) -> None:
    # It begins with what grows; below the user's line the standard library is folded.
    assert page.texts("#flame-weight [aria-pressed=true]") == ["Growth"]
    assert [label.split("  ")[0] for label in page.texts("#flame .frame")] == [
        "all stacks",
        "<module>",
        "load",
        "Reader.__init__",
        "socket",
    ]
    page.click("#flame-fold")
    assert "socketpair" in page.texts("#flame .frame.library")[0]
    page.click("#flame-fold")

    page.click("#flame-weight button:nth-child(3)")
    labels = page.texts("#flame .frame")
    assert {"read", "load"} <= {label.split("  ")[0] for label in labels}
    page.evaluate(
        "[...document.querySelectorAll('#flame .frame')].find((e) => e.textContent.startsWith('load'))"
        ".dispatchEvent(new Event('mouseover', { bubbles: true }))"
    )
    assert page.texts("#flame-info .source") == ["kept.append(Reader())"]
    assert "120 born" in page.texts("#flame-info")[0]

    page.type("#flame-search", '("/dev/null") as file')  # of the source line
    hits = page.texts("#flame .hit")
    assert hits
    assert all(label.startswith("read ") or not label for label in hits)
    assert "search finds" in page.texts("#flame-info")[0]
    page.type("#flame-search", "")
    assert page.texts("#flame .hit") == []

    page.evaluate(
        "[...document.querySelectorAll('#flame .frame')].find((e) => e.textContent.startsWith('load')).click()"
    )
    assert "read" not in {label.split("  ")[0] for label in page.texts("#flame .frame")}
    page.click("#flame-reset")
    assert page.texts("#flame .frame") == labels


def check_sites(page: Page) -> None:
    first = "#sites-table tbody tr:first-child td:first-child b"
    born = "#sites-table th:nth-child(5)"
    assert page.texts(first)[0].endswith("leak.py:7")
    page.click(f"{born} button")
    assert page.evaluate(f"document.querySelector('{born}').getAttribute('aria-sort')") == "descending"
    numbers = [int(text.replace(",", "")) for text in page.texts("#sites-table tbody td:nth-child(5)")]
    assert numbers == sorted(numbers, reverse=True)
    page.click(f"{born} button")
    numbers = [int(text.replace(",", "")) for text in page.texts("#sites-table tbody td:nth-child(5)")]
    assert numbers == sorted(numbers)
    page.click(f"{born} button")

    page.type("#sites-table input", "SOCKETPAIR")
    assert len(page.texts("#sites-table tbody tr")) == 1
    page.click("#sites-table tbody tr")
    detail = page.texts("#sites-table .detail")[0]
    assert "self.sockets = socket.socketpair()" in detail
    assert "module variable 'kept'" in detail
    page.click("#sites-table tbody tr")
    assert page.texts("#sites-table .detail") == []
    page.type("#sites-table input", "")


def test_light_and_dark(browser: Browser, leak_page: Path) -> None:
    def colours(page: Page) -> tuple[int, int, int]:
        """Returns the brightness of the page, its text and the chart's text."""
        found = page.evaluate(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,"
            " getComputedStyle(document.querySelector('#chart .x-tick')).fill]"
            ".map((colour) => Number(/\\d+/.exec(colour)[0]))"
        )
        return (found[0], found[1], found[2])

    with browser.open(leak_page, 800, 600, "dark") as page:
        dark = colours(page)
        assert dark[0] < 60 < 180 < dark[1]
        assert dark[2] == dark[1]
        page.click("#theme")
        light = colours(page)
        assert light[1] < 60 < 180 < light[0]
        assert light[2] == light[1]
        page.click("#theme")
        assert colours(page) == dark
        # In a narrow window the tables scroll, not the page.
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert is_clean(page)


def test_hostile_text_is_only_text(browser: Browser, tmp_path: Path) -> None:
    write_page(hostile_trace(), tmp_path / "page.html")
    with browser.open(tmp_path / "page.html") as page:
        page.click("#chart-by button:nth-child(2)")
        page.click("#sites-table tbody tr")
        page.type("#flame-search", "onerror")
        page.evaluate("document.querySelector('#flame .hit').dispatchEvent(new Event('mouseover', { bubbles: true }))")
        assert HOSTILE[:30] in page.texts("#flame-info")[0]
        for place in (
            "#verdict",
            "#facts",
            "#warnings",
            "#sites-table",
            "#processes-table",
            "#unknown-table",
            "#chart",
        ):
            assert "</script>" in " ".join(page.texts(place)), place
        assert page.evaluate("typeof hacked") == "undefined"
        assert page.evaluate("document.querySelectorAll('img, script').length") == 2
        # The page's own policy stops scripts that are not its own, and requests.
        page.evaluate(f"document.body.insertAdjacentHTML('beforeend', {json.dumps('<img src=x onerror=hacked=1>')})")
        page.evaluate("fetch('http://127.0.0.1:9/').catch(() => 0)")
        assert page.evaluate("typeof hacked") == "undefined"
        assert all("Content Security Policy" in str(problem) for problem in page.problems)
        assert len(page.problems) >= 2


def test_a_large_recording_opens_at_once(browser: Browser, tmp_path: Path) -> None:
    # The number of events changes no part of the page.
    write_page(large_trace().build(600), tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 10e6
    with browser.open(tmp_path / "page.html") as page:
        assert "300 sites" in page.texts("#left-out")[0]
        assert len(page.texts("#sites-table tbody tr")) == 100
        page.click("#sites-table > button")
        assert len(page.texts("#sites-table tbody tr")) == 300
        assert is_clean(page)
        busy_s = [page.busy_s]
    while min(busy_s) >= 2 and len(busy_s) < 3:  # a busy machine slows the thread's own time, too
        with browser.open(tmp_path / "page.html") as page:
            busy_s.append(page.busy_s)
    assert min(busy_s) < 2
