"""Drives a headless Chromium over a pipe with the DevTools protocol.

with Browser() as browser, browser.open(path_or_address) as page:
    page.evaluate("document.title")
    page.problems, page.requests
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_OPTIONS = """
--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --disable-extensions --mute-audio
--disable-background-networking --disable-component-update --disable-default-apps --disable-sync --no-pings
--disable-breakpad --disable-crash-reporter --remote-debugging-pipe --hide-scrollbars
""".split()  # noqa: SIM905
_OPTIONS.append("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
_ANSWER_S = 30.0


class Browser:
    """One Chromium with a profile of its own and without a network but 127.0.0.1."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="holdfast-browser-")
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()
        options = [*_OPTIONS, f"--user-data-dir={self._folder}"]
        # The protocol is on descriptors 3 and 4; the shell moves ours there, whatever their numbers.
        moves = f'exec chromium "$@" 8<&{commands} 9>&{answers} 3<&8 4>&9'
        self._process = subprocess.Popen(
            ["bash", "-c", moves, "bash", *options, "about:blank"],
            pass_fds=(commands, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"HOME": self._folder, "DBUS_SESSION_BUS_ADDRESS": "disabled:"},
            start_new_session=True,
        )
        os.close(commands)
        os.close(answers)
        self._buffer = b""
        self._last_id = 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        deadline = time.monotonic() + 5
        while os.path.exists(self._folder) and time.monotonic() < deadline:
            shutil.rmtree(self._folder, ignore_errors=True)  # the last of its processes may still write

    def call(self, method: str, session: str | None = None, **parameters: object) -> dict[str, Any]:
        """Sends a command and returns its result. Events that come before it are kept."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _ANSWER_S
        while True:
            answer = self.receive(deadline)
            if answer.get("id") != self._last_id:
                self.events.append(answer)
            elif "error" in answer:
                raise AssertionError(f"{method}: {answer['error']}")
            else:
                return dict(answer["result"])

    def receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            readable, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._from, 1 << 20) if readable else b""
            if not data:
                raise AssertionError("expected an answer of Chromium, got " + ("its end" if readable else "none"))
            self._buffer += data
        message, self._buffer = self._buffer.split(b"\0", 1)
        return dict(json.loads(message))

    @contextlib.contextmanager
    def open(self, path: Path | str, width: int = 1280, height: int = 900, scheme: str = "light") -> Iterator[Page]:
        """Opens a file, or an address of this host, and waits until it has loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        try:
            for domain in ("Page", "Runtime", "Network", "Log"):
                page.call(f"{domain}.enable")
            page.resize(width, height)
            page.prefer(scheme)
            began = time.monotonic()
            page.call("Performance.enable", timeDomain="threadTicks")
            page.call("Page.navigate", url=path if isinstance(path, str) else path.as_uri())
            page.wait_for("document.documentElement?.dataset.ready === 'yes'")
            # Two frames later it has been painted.
            page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
            page.opened_s = time.monotonic() - began
            metrics = {one["name"]: one["value"] for one in page.call("Performance.getMetrics")["metrics"]}
            page.busy_s = metrics["TaskDuration"]
            yield page
        finally:
            self.call("Target.closeTarget", targetId=target)


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.opened_s = 0.0
        self.busy_s = 0.0  # of the page's thread: unlike opened_s, other processes don't change it

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def evaluate(self, script: str) -> Any:
        """Returns the value of a JavaScript expression, as JSON knows it."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, script: str) -> None:
        deadline = time.monotonic() + _ANSWER_S
        while not self.evaluate(script):
            assert time.monotonic() < deadline, f"waited for {script}"
            time.sleep(0.005)

    def click(self, selector: str) -> None:
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def type(self, selector: str, text: str) -> None:
        """Replaces the text of an input."""
        self.evaluate(
            f"(() => {{ const input = document.querySelector({json.dumps(selector)}); input.value = {json.dumps(text)};"
            " input.dispatchEvent(new Event('input')); })()"
        )

    def texts(self, selector: str) -> list[str]:
        """Returns the text of every element that is shown."""
        found = self.evaluate(
            f"[...document.querySelectorAll({json.dumps(selector)})].filter((e) => e.getClientRects().length)"
            ".map((e) => e.textContent)"
        )
        return [str(text) for text in found]

    def resize(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, scheme: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Moves the mouse with its left button down."""
        for kind, (x, y), held in (
            ("mouseMoved", start, 0),
            ("mousePressed", start, 1),
            ("mouseMoved", ((start[0] + end[0]) / 2, end[1]), 1),
            ("mouseMoved", end, 1),
            ("mouseReleased", end, 0),
        ):
            clicks = 1 if kind != "mouseMoved" else 0
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=held, clickCount=clicks)

    def press(self, key: str) -> None:
        """Presses a key such as ArrowRight or Tab."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def _events(self, *methods: str) -> list[dict[str, Any]]:
        self.evaluate("1")  # what happened before has arrived with the answer
        return [
            event["params"]
            for event in self._browser.events
            if event.get("sessionId") == self._session and event["method"] in methods
        ]

    @property
    def problems(self) -> list[dict[str, Any]]:
        """Exceptions, and everything that the console shows as an error or a warning."""
        return [
            event
            for event in self._events("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
            if event.get("type", "error") in ("error", "warning", "assert")
            and event.get("entry", {}).get("level", "error") in ("error", "warning")
        ]

    @property
    def requests(self) -> list[str]:
        """Addresses of everything that the page asked for."""
        return [event["request"]["url"] for event in self._events("Network.requestWillBeSent")]
