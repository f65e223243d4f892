"""The live page of `holdfast watch`, and its report in a file, in a real browser."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from cli_process import holdfast
from leaking_process import leaker

import state_samples as samples
from browser import Browser, Page
from holdfast.process.watch.collector import Selection, WatchCollector
from holdfast.process.watch.server import HttpAddress, WatchServer
from holdfast.process.watch.store import Store

pytestmark = pytest.mark.needs("chromium")


class SampleCollector:
    """Stands in for the collector: the document is what a test says."""

    def __init__(self) -> None:
        self._state: Mapping[str, Any] = samples.nothing()
        self.published: object = None

    def show(self, state: Mapping[str, Any]) -> None:
        self._state, self.published = state, object()  # the server makes a new answer

    def document(self) -> Mapping[str, Any]:
        return self._state


class StateServer:
    """The real server of the page, on samples or on a real collector."""

    def __init__(self, port: int = 0, collector: WatchCollector | None = None) -> None:
        self._collector: Any = collector or SampleCollector()
        self._server = WatchServer(self._collector, HttpAddress("127.0.0.1", port), clock=time.time)
        self.address = self._server.url
        self.port = int(self.address.strip("/").rpartition(":")[2])
        self.stop = self._server.close

    def show(self, state: Mapping[str, Any]) -> None:
        self._collector.show(state)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as started:
        yield started


@pytest.fixture
def server() -> Iterator[StateServer]:
    started = StateServer()
    yield started
    started.stop()


@contextmanager
def looking_at(browser: Browser, server: StateServer, state: Mapping[str, Any], **how: Any) -> Iterator[Page]:
    """The page of a state; it is clean at the end, and has asked no other host."""
    server.show(state)
    with browser.open(server.address, **how) as page:
        yield page
        assert page.problems == []
        assert all(asked.startswith((server.address, "data:")) for asked in page.requests)


def renew(page: Page, server: StateServer, state: Mapping[str, Any]) -> None:
    """Lets the page take another document now, as it does when its tab is shown again."""
    server.show(state)
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for(f"Number(document.documentElement.dataset.shown) === {state['now']}")


def later(state: Mapping[str, Any], seconds: float = 5.0) -> dict[str, Any]:
    return {**state, "now": state["now"] + seconds}


# ---- what it shows


def test_a_leak_is_seen_at_once(browser: Browser, server: StateServer) -> None:
    with looking_at(browser, server, samples.leaking()) as page:
        assert page.texts("#headline .verdict") == ["LEAK"]
        assert page.texts("#headline p")[0].startswith("worker leaks by 290 an hour, out of descriptors in 20 min")
        assert page.evaluate("document.title").startswith("LEAK · worker 920/1,024")
        assert page.texts("#tabs .name") == ["worker", "loader", "worker-2"]  # the worst first
        figures = dict(zip(page.texts(".figure h3"), page.texts(".figure .value"), strict=True))
        assert figures["Open descriptors"] == "920 / 1,024"
        assert figures["Limit reached in"] == "20\u202fmin – 23\u202fmin"
        assert figures["Growth"] == "+290/h"
        assert figures["Guard"] == "draining"
        assert page.texts("#why .advice li")[0].startswith("Drop finished DataLoader iterators")
        assert page.texts("#bars .used")[0] == "920 of 1,024 · 90\u202f% tight"

        names = "document.getElementById('time-chart').chart.marks.map((one) => one.name)"
        assert page.evaluate(names) == ["open", "baseline", "95 % band", "trend", "forecast", "events"]
        notes = page.texts("#time-chart .level")
        assert notes == ["limit 1,024", "Guard hard cap 870", "Guard soft cap 512"]
        assert page.texts("#time-chart .legend button") == ["open", "baseline", "95 % band", "trend", "events"]
        assert page.evaluate("document.querySelectorAll('#time-chart svg svg path.line').length") == 4
        assert page.evaluate("document.querySelectorAll('#time-chart .point').length") == 5
        assert page.evaluate("document.querySelectorAll('#kinds-chart path.area').length") == 3
        assert page.evaluate("document.querySelectorAll('#jobs-chart .point').length") == 256
        assert "+0.025 descriptors a job, over 256 jobs" in page.texts("#jobs-hint")

        assert len(page.texts("#pipes-table tbody tr")) == 50
        assert page.texts("#tree-table tbody td:first-child") == ["4711", "└ 4720", "  └ 4721"]
        assert page.texts("#events-table tbody td:nth-child(3)")[0] == "drain"  # the newest first
        check_sorting(page)
        check_ranges(page)


def test_what_died_of_exhaustion_or_is_in_a_restart_loop_is_first_and_never_green(
    browser: Browser, server: StateServer
) -> None:
    with looking_at(browser, server, samples.dying()) as page:
        assert page.texts("#headline .verdict") == ["EXHAUSTED, ended"]
        assert page.texts("#headline p")[0].startswith(
            "trainer has ended out of descriptors; loader: it is in a restart"
        )
        assert page.texts("#tabs .name") == ["trainer", "loader", "worker", "api", "batch"]
        assert page.texts("#tabs .verdict") == ["EXHAUSTED, ended", "RESTART LOOP", "LEAK", "OK", "ENDED"]
        tones = "[...document.querySelectorAll('#tabs button')].map((one) => one.dataset.tone)"
        assert page.evaluate(tones) == ["bad", "bad", "bad", "good", "none"]
        page.evaluate("document.querySelectorAll('#tabs button')[1].click()")
        assert page.texts("#about .sentence")[0].startswith("It is in a restart loop: 4 unplanned restarts")
        assert page.texts("#why .advice li")[0].startswith("Read why it ends")
        renew(page, server, samples.document(samples.dying()["targets"][3], now=samples.NOW + 5))
        assert page.texts("#headline .verdict") == ["RESTART LOOP"]
        renew(page, server, samples.document(samples.dying()["targets"][1], now=samples.NOW + 10))
        assert page.texts("#headline .verdict") == ["ENDED"]


def check_sorting(page: Page) -> None:
    head = "#tree-table th:nth-child(3)"
    page.click(f"{head} button")
    assert page.evaluate(f"document.querySelector('{head}').getAttribute('aria-sort')") == "descending"
    page.click(f"{head} button")
    # What is not known comes last either way, and the tree is no tree any more.
    assert page.texts("#tree-table tbody td:first-child") == ["4720", "4711", "4721"]
    page.click(f"{head} button")
    page.type("#events-table input", "restart")
    assert len(page.texts("#events-table tbody tr")) == 1
    page.type("#events-table input", "")


def check_ranges(page: Page) -> None:
    width_s = "(([from, to]) => Math.round(to - from))(" + X_RANGE + ")"
    assert page.texts("#range [aria-pressed=true]") == ["6 h"]  # shows all of the trend
    assert 3 * 3600 < page.evaluate(width_s) < 4 * 3600
    page.click("#range button:nth-child(1)")
    assert 3600 < page.evaluate(width_s) < 2 * 3600
    assert page.texts("#range [aria-pressed=true]") == ["1 h"]
    assert page.texts("#scale [aria-pressed=true]") == ["To the limit"]
    top = "document.getElementById('time-chart').chart.top"
    assert page.evaluate(top) > 1024
    page.evaluate("[...document.querySelectorAll('#scale button')].at(-1).click()")
    assert page.texts("#scale [aria-pressed=true]") == ["To the data"]


X_RANGE = "document.getElementById('time-chart').chart.x.range"


def test_what_is_missing_is_reported_and_what_to_do(browser: Browser, server: StateServer) -> None:
    with looking_at(browser, server, samples.nothing()) as page:
        assert page.texts("#headline .verdict") == ["WAITING"]
        assert page.texts("#headline .empty")[0].startswith("The watcher shows a process here as soon as")
        assert page.texts("#nav a") == ["Now", "Events"]
        assert page.texts("#target") == []
        renew(page, server, later(samples.without_guard()))
        assert page.texts("#headline .verdict") == ["OK"]
        assert page.texts("#problems li") == ["watch.db: the disk is full: samples are kept in memory only"]
        said = page.texts(".empty")
        for text in ("No Guard in this process", "The kinds are not known", "The limits of this", "No event yet"):
            assert any(line.startswith(text) for line in said), text
        assert page.evaluate("document.querySelectorAll('#time-chart path.line').length") > 0
        renew(page, server, later(samples.ended(), 10))
        assert page.texts("#headline .verdict") == ["LEAK, ended"]
        renew(page, server, later(samples.exhausted(), 15))
        assert page.texts("#headline .verdict") == ["EXHAUSTED"]
        assert page.texts("#jobs-facts .bad dd") == ["failing", "212", "SSLError"]
        failing = samples.target(guard=samples.guard(health="failing", sentence="it is failing"))
        renew(page, server, samples.document(failing, now=samples.NOW + 20))
        assert page.texts("#headline .verdict") == ["FAILING"]  # though its descriptors are fine
        nulls = dict.fromkeys(samples.target(), None) | {"target": "new", "verdict": "UNCLEAR"}
        renew(page, server, {**later(samples.nothing(), 25), "targets": [nulls], "events": None, "every_s": None})
        assert page.texts("#headline .verdict") == ["UNCLEAR"]
        assert page.texts("#figures .value")[0] == "– / limit unknown"


# ---- a new document


def test_a_leak_turns_the_page_red_while_it_is_inspected(browser: Browser, tmp_path: Path) -> None:
    with ExitStack() as stack:
        victim = stack.enter_context(leaker())
        store = Store(tmp_path / "watch.db", 0.2)
        collector = stack.enter_context(closing(WatchCollector(Selection(pids=(victim.pid,)), store, every_s=0.2)))
        collector.round()
        server = StateServer(collector=collector)
        stack.callback(server.stop)
        with browser.open(server.address) as page:
            assert page.texts("#headline .verdict") == ["OK"]
            page.evaluate("window.isTheSame = true")
            deadline = time.monotonic() + 60
            while page.texts("#headline .verdict") != ["LEAK"]:
                assert time.monotonic() < deadline, page.texts("#headline")
                victim.leak(4)
                time.sleep(0.2)  # the pace of the samples
                collector.round()
            assert page.evaluate("window.isTheSame")  # it was not loaded again
            assert "leaks by" in page.texts("#headline p")[0]
            assert "LEAK" in page.evaluate("document.title")
            assert any("LEAK" in text for text in page.texts("#events-table tbody tr"))
            assert len(page.texts("#pipes-table tbody tr")) >= 10
            assert page.problems == []
    done = holdfast("report", tmp_path / "watch.db", "--html", tmp_path / "watch.html")
    assert done.returncode == 0, done
    with browser.open(tmp_path / "watch.html") as page:
        assert page.texts("#headline .verdict") == ["LEAK"]
        assert page.texts("#status")[0].startswith("recorded until ")
        assert page.texts("#banner") == []
        assert page.evaluate("document.querySelectorAll('#time-chart path.line').length") > 3
        assert page.problems == []
        asked = [address for address in page.requests if not address.startswith("data:")]
        assert asked == [(tmp_path / "watch.html").as_uri()]


def test_a_new_document_keeps_what_the_reader_does(browser: Browser, server: StateServer) -> None:
    with looking_at(browser, server, samples.leaking()) as page:
        # By keyboard: the next tab, and back round.
        page.evaluate("document.querySelector('#tabs [aria-selected=true]').focus()")
        page.press("ArrowRight")
        assert page.texts("#tabs [aria-selected=true] .name") == ["loader"]
        assert page.texts("#about .name") == ["loader"]
        page.press("End")
        assert page.texts("#tabs [aria-selected=true] .name") == ["worker-2"]

        box = page.evaluate(
            "(({x, y, width, height}) => [x, y, width, height])"
            "(document.querySelector('#time-chart svg svg').getBoundingClientRect())"
        )
        page.evaluate(f"window.scrollTo(0, {box[1] - 200})")
        x, y, width = box[0], 200 + box[3] / 2, box[2]
        whole = page.evaluate(X_RANGE)
        page.drag((x + width * 0.25, y), (x + width * 0.75, y))
        page.wait_for("!document.getElementById('unzoom').hidden")
        zoomed = page.evaluate(X_RANGE)
        assert 0.4 < (zoomed[1] - zoomed[0]) / (whole[1] - whole[0]) < 0.6
        assert page.evaluate(X_RANGE.replace("time-chart", "kinds-chart")) == zoomed  # both charts

        page.type("#tree-table input", "4720")
        page.evaluate("document.querySelector('#tree-table input').focus()")
        page.evaluate("document.querySelector('#tree-table th:nth-child(3) button').click()")
        page.evaluate("getSelection().selectAllChildren(document.querySelector('#about .sentence'))")
        before = page.evaluate(f"[scrollY, String(getSelection()), {X_RANGE}]")
        assert before[0] > 0
        assert before[1]

        changed = later(samples.leaking())
        changed["targets"] = [*changed["targets"][:2], {**changed["targets"][2], "fds": 77}]
        renew(page, server, changed)
        assert page.texts("#figures .value")[0] == "77 / 1,024"
        assert page.evaluate(f"[scrollY, String(getSelection()), {X_RANGE}]") == before
        assert page.evaluate("document.activeElement.matches('#tree-table input')")
        assert page.texts("#tabs [aria-selected=true] .name") == ["worker-2"]
        assert page.texts("#tree-table tbody td:first-child") == ["4720"]
        assert page.evaluate("document.querySelector('#tree-table th:nth-child(3)').ariaSort") == "descending"

        page.click("#unzoom")
        assert page.evaluate(X_RANGE) != zoomed
        # A target that is gone gives its place to the worst.
        renew(page, server, {**later(samples.leaking(), 10), "targets": samples.leaking()["targets"][:2]})
        assert page.texts("#about .name") == ["worker"]


def test_it_says_that_the_watcher_is_gone_and_goes_on_when_it_is_back(browser: Browser) -> None:
    server = StateServer()
    server.show({**samples.healthy(), "every_s": 0.2})  # it asks once a second
    try:
        with browser.open(server.address) as page:
            check_that_a_hidden_tab_asks_nothing(page)
            assert page.texts("#banner") == []
            server.stop()
            page.wait_for("!document.getElementById('banner').hidden")
            assert page.texts("#banner")[0].startswith("No answer since ")
            assert "the watcher may have ended" in page.texts("#banner")[0]
            assert page.texts("#headline .verdict") == ["OK"]  # what was known stays
            server = StateServer(server.port)
            server.show(later(samples.leaking()))
            page.wait_for("document.getElementById('banner').hidden")
            assert page.texts("#headline .verdict") == ["LEAK"]
            # The only problems are the questions that were not answered.
            assert all("ERR_CONNECTION_REFUSED" in str(problem) for problem in page.problems)
    finally:
        server.stop()


def check_that_a_hidden_tab_asks_nothing(page: Page) -> None:
    hide = "Object.defineProperty(document, 'hidden', { value: %s, configurable: true });"
    change = "document.dispatchEvent(new Event('visibilitychange'))"
    page.evaluate(hide % "true" + change)
    asked = page.requests
    # The page's own timer, if it had one, would be first.
    page.evaluate("new Promise((done) => setTimeout(done, 1100))")
    assert page.requests == asked
    page.evaluate(hide % "false" + change)
    deadline = time.monotonic() + 30
    while len(page.requests) == len(asked):
        assert time.monotonic() < deadline


# ---- how it looks

CONTRAST = """
(() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (rgb) => rgb.slice(0, 3).map((value) => value / 255)
    .map((value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
    .reduce((sum, value, at) => sum + value * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const found = rgba(getComputedStyle(one).backgroundColor);
      if (found[3] === 255) return found;
    }
    return [255, 255, 255];
  };
  const bad = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.nodeValue.trim();
    if (!text || !element.getClientRects().length || element.closest('script, style')) continue;
    const style = getComputedStyle(element);
    const colour = rgba(element instanceof SVGElement ? style.fill : style.color);
    const [one, other] = [light(colour), light(behind(element))].sort((a, b) => b - a);
    if ((one + 0.05) / (other + 0.05) < 4.5) bad.add(`${element.className} ${text.slice(0, 30)} ${colour}`);
  }
  return [...bad];
})()
"""


def test_every_text_is_legible_and_fits_a_phone(browser: Browser, server: StateServer) -> None:
    with looking_at(browser, server, samples.nothing()) as page:
        brightness = "Number(/\\d+/.exec(getComputedStyle(document.body).backgroundColor)[0])"
        now = samples.NOW
        for width, scheme in ((1280, "light"), (360, "dark")):
            page.resize(width, 800)
            page.prefer(scheme)
            assert (page.evaluate(brightness) < 60) == (scheme == "dark")
            for sample in samples.ALL:
                now += 1
                renew(page, server, {**sample(), "now": now})
                assert page.evaluate(CONTRAST) == [], sample.__name__
                page.wait_for(f"document.documentElement.scrollWidth === {width}")
                charts = "[...document.querySelectorAll('.chart > svg')]"
                page.wait_for(f"{charts}.every((svg) => svg.clientWidth < innerWidth)")
        page.click("#theme")
        assert page.evaluate(brightness) > 200
        assert page.evaluate(CONTRAST) == []


def test_hostile_text_is_only_text(browser: Browser, server: StateServer) -> None:
    server.show(samples.hostile())
    with browser.open(server.address) as page:
        for place in ("#headline", "#problems", "#about", "#why", "#figures", "#kinds", "#jobs", "#tree", "#events"):
            assert "</script><img src=x" in " ".join(page.texts(place)), place
        # What would turn the direction of writing is escaped.
        assert page.evaluate("/[\\u202e\\u001b]/.test(document.body.innerText)") is False
        assert page.evaluate("document.querySelectorAll('img').length") == 0
        assert "<img" in page.evaluate("document.querySelector('#time-chart svg').ariaLabel")
        assert page.problems == []
        # What would run, or ask another host, is stopped by the policy.
        page.evaluate(f"document.body.insertAdjacentHTML('beforeend', {json.dumps('<img src=x onerror=hacked=1>')})")
        page.evaluate("fetch('http://127.0.0.1:9/').catch(() => 0)")
        page.evaluate("new Promise((done) => setTimeout(done))")
        assert page.evaluate("typeof hacked") == "undefined"
        assert len(page.problems) >= 2
        assert all("Content Security Policy" in str(problem) for problem in page.problems)
