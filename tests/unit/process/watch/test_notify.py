"""Commands and webhooks: real ones, also some that hang, fail or do not answer."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import state_samples
from holdfast.errors import InputError
from holdfast.process.watch.notify import Notifier, check_webhook, post_json
from holdfast.process.watch.state import EventState

TIMEOUT_S = 30


def event(kind: str = "verdict", text: str = "OK → LEAK: it leaks") -> EventState:
    return EventState(t=state_samples.NOW, target="worker", kind=kind, text=text)


FACTS = dict(state_samples.leaking()["targets"][0])


def wait_for(path: Path, lines: int = 1) -> list[str]:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if path.exists() and len(found := path.read_text().splitlines()) >= lines:
            return found
        time.sleep(0.01)
    raise AssertionError(f"{path} was not written")


def test_command_gets_json_and_variables(tmp_path: Path) -> None:
    out = tmp_path / "out"
    said: list[str] = []
    variables = '"$HOLDFAST_EVENT" "$HOLDFAST_TARGET" "$HOLDFAST_VERDICT" "$HOLDFAST_TEXT"'
    script = f"(cat; echo; printf '%s|%s|%s|%s\\n' {variables}) > {out}.x; mv {out}.x {out}"
    notifier = Notifier(script, None, said.append)
    notifier.send(event(text="a\n$(touch /tmp/evil) `id`"), FACTS)
    document, variables = wait_for(out, 2)
    facts = json.loads(document)
    assert (facts["kind"], facts["target"], facts["pid"], facts["limit"]) == ("verdict", "worker", 4711, 1024)
    assert facts["health"] == "draining"
    assert variables == "verdict|worker|LEAK|a $(touch /tmp/evil) `id`"
    notifier.close()
    assert said == []


def test_report_that_fails_does_not_end_the_notifier(tmp_path: Path) -> None:
    """stderr may be a pipe that nobody reads any more."""
    tried: list[str] = []

    def report(sentence: str) -> None:
        tried.append(sentence)
        raise BrokenPipeError

    notifier = Notifier(f"echo >> {tmp_path}/runs; exit 3", None, report)
    for _ in range(3):
        notifier.send(event(), FACTS)
    notifier.close(within_s=TIMEOUT_S)
    assert (tmp_path / "runs").read_text() == "\n" * 3
    assert len(tried) == 6  # the exit code, and that telling of it failed


def test_hanging_command_is_ended_with_its_children_and_blocks_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    notifier = Notifier("sleep 1000 & sleep 1000", None, said.append, command_s=0.3)
    began = time.monotonic()
    for _ in range(250):
        notifier.send(event(), FACTS)
    assert time.monotonic() - began < TIMEOUT_S  # none of the calls waits for the command
    assert notifier.dropped >= 100
    deadline = time.monotonic() + TIMEOUT_S
    while len(said) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert said.pop(0).startswith("more than 100 events wait to be announced")
    assert said[0] == "--notify: the command ran for more than 0 s and was ended"
    notifier.close(within_s=0)


def test_failing_command_is_reported(tmp_path: Path) -> None:
    said: list[str] = []
    notifier = Notifier("exit 3", None, said.append)
    notifier.send(event(), FACTS)
    notifier.close()
    assert said == ["--notify: the command ended with exit code 3"]


class Hook:
    def __init__(self, codes: list[int]) -> None:
        self.got: list[Any] = []
        self.codes = codes


@contextmanager
def hook(*codes: int, location: str = "") -> Iterator[tuple[str, Hook]]:
    """A server that answers with these codes, one after the other."""
    made = Hook(list(codes))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made.got.append(json.loads(body))
            self.send_response(made.codes.pop(0) if made.codes else 200)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_webhook_is_tried_again_after_a_server_error() -> None:
    said: list[str] = []
    with hook(500, 503, 200) as (url, made):
        notifier = Notifier(None, url, said.append, between_s=0.01)
        notifier.send(event(), FACTS)
        notifier.close(TIMEOUT_S)
    assert [one["text"] for one in made.got] == ["OK → LEAK: it leaks"] * 3
    assert said == []


def test_webhook_is_not_tried_again_after_a_refusal() -> None:
    said: list[str] = []
    with hook(404) as (url, made):
        notifier = Notifier(None, url, said.append, between_s=0.01)
        notifier.send(event(), FACTS)
        notifier.close(TIMEOUT_S)
    assert len(made.got) == 1
    assert said == ["--webhook: the server answered 404"]


def test_webhook_does_not_follow_to_another_host() -> None:
    with hook() as (elsewhere, other), hook(302, location=elsewhere) as (url, made):
        error, _ = post_json(url, {"x": 1}, 5)
    assert error == "the server answered 302"
    assert (len(made.got), len(other.got)) == (1, 0)


def test_webhook_without_a_server_gives_up() -> None:
    said: list[str] = []
    with hook() as (url, _):
        pass
    notifier = Notifier(None, url, said.append, between_s=0.01)
    notifier.send(event(), FACTS)
    notifier.close(TIMEOUT_S)
    assert len(said) == 1
    assert said[0].startswith("--webhook: cannot post: ")


@pytest.mark.parametrize(
    "url", ["", "x", "ftp://a/b", "file:///etc/passwd", "http://", "http://a:99999/", "http://a b/", "http://a/é"]
)
def test_bad_urls_are_refused(url: str) -> None:
    with pytest.raises(InputError, match="expected a URL"):
        check_webhook(url)


def test_nothing_to_do_starts_no_thread() -> None:
    before = threading.active_count()
    notifier = Notifier(None, None, print)
    notifier.send(event(), FACTS)
    assert threading.active_count() == before
    notifier.close()
