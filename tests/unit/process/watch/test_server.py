"""Addresses and tokens, and real HTTP on the loopback interface."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import resource
import select
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from holdfast.errors import InputError
from holdfast.process.watch import server as module
from holdfast.process.watch.collector import WatchCollector
from holdfast.process.watch.finder import Selection
from holdfast.process.watch.server import HttpAddress, WatchServer, check_token, is_loopback, parse_http_address
from holdfast.process.watch.store import Store

TOKEN = "0123456789abcdef-token"
TIMEOUT_S = 60


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9321", "127.0.0.1", 9321),
        (":9321", "127.0.0.1", 9321),
        ("9000", "127.0.0.1", 9000),
        (":0", "127.0.0.1", 0),
        ("[::1]:9321", "::1", 9321),
        ("[::1]", "::1", 9321),
        ("localhost", "localhost", 9321),
        ("0.0.0.0:80", "0.0.0.0", 80),
        ("my-host.example:1", "my-host.example", 1),
    ],
)
def test_addresses(text: str, host: str, port: int) -> None:
    assert parse_http_address(text) == HttpAddress(host, port)


@pytest.mark.parametrize("text", ["", "http://x", "a:b", "::1", "[::1", "a b:1", "a:1/x", "a:70000", "99999", "[x]:1"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_http_address(text)


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost", "LOCALHOST", "localhost.")))
    assert not any(
        map(
            is_loopback, ("0.0.0.0", "::", "10.0.0.1", "localhost.evil.com", "127.0.0.1.evil.com", "127.0.0.1%evil", "")
        )
    )


def test_other_hosts_need_a_token() -> None:
    assert check_token(HttpAddress("127.0.0.1", 1), None) is None
    with pytest.raises(InputError, match=r"HOLDFAST_TOKEN .*`openssl rand -hex 16`"):
        check_token(HttpAddress("0.0.0.0", 1), None)
    for bad in ("short", "x" * 15, "with a space in it", "ü" * 20, "line\nbreak-and-more"):
        with pytest.raises(InputError, match="at least 16"):
            check_token(HttpAddress("0.0.0.0", 1), bad)
    assert check_token(HttpAddress("0.0.0.0", 1), TOKEN) == TOKEN


class Answer:
    def __init__(self, status: int, headers: http.client.HTTPMessage, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = gzip.decompress(body) if headers.get("Content-Encoding") == "gzip" else body

    @property
    def document(self) -> Any:
        return json.loads(self.body)


class Client:
    def __init__(self, url: str) -> None:
        self.url = url
        parts = urlsplit(url)
        assert parts.hostname
        assert parts.port
        self.host, self.port = parts.hostname, parts.port

    def __call__(self, path: str, method: str = "GET", **headers: str) -> Answer:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()


class LargeCollector(WatchCollector):
    """Has more to say than the kernel keeps for a client that does not read."""

    def document(self, **options: Any) -> Any:
        return {**super().document(**options), "filler": "x" * (16 << 20)}


@contextmanager
def served(
    *, address: str = "127.0.0.1:0", token: str | None = None, is_large: bool = False, **selection: Any
) -> Iterator[Client]:
    """A watch on a process that does nothing."""
    with subprocess.Popen(["sleep", "1000"]) as victim:
        collector = (LargeCollector if is_large else WatchCollector)(
            Selection(**(selection or {"pids": (victim.pid,)})), Store(None)
        )
        server = None
        try:
            collector.round()
            server = WatchServer(collector, parse_http_address(address), clock=time.time, token=token)
            yield Client(server.url)
        finally:
            victim.kill()
            if server is not None:
                server.close()
            collector.close()


def test_paths() -> None:
    with served() as get:
        state = get("/api/state").document
        assert (state["version"], state["live"]) == (1, True)
        [target] = state["targets"]
        label = target["target"]
        assert (label, target["alive"]) == ("sleep", True)
        assert get("/api/state?target=" + label).document["targets"][0]["pid"] == target["pid"]
        assert get("/api/state?target=nobody").status == 404
        assert get("/api/targets").document["targets"][0]["target"] == label
        assert get("/api/events").document["events"][0]["kind"] == "start"
        assert get("/api/events?since=9e99").document == {"events": []}
        assert get("/api/events?since=x").status == 400
        assert get("/healthz").document == {"ok": True, "reasons": []}
        assert get("/readyz").status == 200
        assert get("/healthz?target=nobody").status == 404
        metrics = get("/metrics")
        assert metrics.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert b"holdfast_target_up" in metrics.body
        assert get("/nothing").status == 404
        assert get("/static/../server.py").status == 404
        assert get("/static/%2e%2e/server.py").status == 404
        assert get("/static/..%2fserver.py").status == 404
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            answer = get("/api/state", method)
            assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
        head = get("/metrics", "HEAD")
        assert (head.status, head.body) == (200, b"")
        assert int(head.headers["Content-Length"]) > 100


def test_script_is_served_from_here_and_cached() -> None:
    with served() as get:
        first = get("/static/page.js", Accept_Encoding="gzip")
        assert first.status == 200
        assert b"const chart" in first.body
        assert first.headers["Content-Type"].startswith("text/javascript")
        assert get("/static/page.js").body == first.body
        again = get("/static/page.js", If_None_Match=first.headers["ETag"])
        assert (again.status, again.body) == (304, b"")


def test_document_is_compressed_on_request() -> None:
    with served() as get:
        packed = get("/api/state", Accept_Encoding="gzip")
        assert packed.headers["Content-Encoding"] == "gzip"
        assert packed.document == get("/api/state").document


def test_every_answer_has_the_security_headers() -> None:
    with served() as get:
        for path in ("/", "/api/state", "/metrics", "/nothing", "/static/page.js"):
            headers = get(path).headers
            assert "default-src 'none'; script-src 'self'" in headers["Content-Security-Policy"]
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Referrer-Policy"] == "no-referrer"
            assert "Server" not in headers
            assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize("host", ["evil.com", "evil.com:80", "127.0.0.1.evil.com", "localhost.evil.com", "", "[::2]:1"])
def test_names_of_other_hosts_are_refused(host: str) -> None:
    with served() as get:
        answer = get("/api/state", Host=host)
        assert answer.status == 421
        assert b"expected a request to localhost" in answer.body
        assert get("/metrics", Host=host).status == 421


def test_forwarded_ports_are_fine() -> None:
    with served() as get:
        for host in ("localhost:1", "127.0.0.1:65000", "[::1]:7", "LOCALHOST"):
            assert get("/healthz", Host=host).status == 200


def test_token_is_needed_everywhere() -> None:
    with served(token=TOKEN) as get:
        for path in ("/", "/api/state", "/metrics", "/static/page.js", "/api/events", "/nothing"):
            answer = get(path)
            assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        for wrong in ("Bearer x", "Bearer", "Basic " + TOKEN, "Bearer " + TOKEN + "x", "Bearer é"):
            assert get("/api/state", Authorization=wrong).status == 401
        assert get("/api/state", Authorization=f"Bearer {TOKEN}").status == 200
        assert get("/api/state", Authorization=f"bearer {TOKEN}", Host="watch.example.com").status == 200
        assert get("/healthz").document == {"ok": True, "reasons": []}  # without reasons, which name targets
        assert get("/api/state?token=wrong").status == 401


def test_token_in_the_address_becomes_a_cookie() -> None:
    with served(token=TOKEN) as get:
        answer = get(f"/api/targets?token={TOKEN}&x=1")
        assert answer.status == 303
        assert answer.headers["Location"] == "targets?x=1"
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        assert TOKEN not in cookie
        assert get("/api/state", Cookie=cookie.split(";")[0]).status == 200
        assert get("/api/state", Cookie="holdfast_watch=x").status == 401
        assert get(f"/?token={TOKEN}").headers["Location"] == "./"


def test_failing_probe_says_why() -> None:
    with served(names=("there-is-no-such-process-anywhere",)) as get:
        answer = get("/healthz")
        assert answer.status == 503
        assert answer.document["reasons"] == ["no process has 'there-is-no-such-process-anywhere' in its command line"]


def test_port_in_use_is_reported() -> None:
    with served() as get, pytest.raises(InputError, match="the port is in use; choose another"):
        with served(address=f"127.0.0.1:{get.port}"):
            pass
    with pytest.raises(InputError, match="this machine has no such address"):
        with served(address="192.0.2.1:0", token=TOKEN):
            pass
    with pytest.raises(InputError, match="cannot find this host"):
        with served(address="a..b:0", token=TOKEN):
            pass


def test_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with served(address="[::1]:0") as get:
        assert get.url.startswith("http://[::1]:")
        assert get("/healthz").status == 200


def test_connections_are_bounded_and_silent_ones_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 5)
    monkeypatch.setattr(module, "_IDLE_S", 1)
    with served() as get:
        silent = [socket.create_connection((get.host, get.port), TIMEOUT_S) for _ in range(12)]
        assert get("/healthz").status == 200  # it takes the place of the oldest
        assert all(one.recv(1) == b"" for one in silent)  # the last ones are closed after a second
        for one in silent:
            one.close()


def test_half_a_request_holds_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IDLE_S", 1)
    with served() as get, socket.create_connection((get.host, get.port), TIMEOUT_S) as raw:
        raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert raw.recv(1 << 16).startswith(b"HTTP/1.1 200")
        raw.sendall(b"GET /healthz HTTP/1.1\r\nHo")
        while raw.recv(1 << 16):
            pass


def exchange(get: Client, data: bytes) -> bytes:
    """Sends all data and returns all answers until the server ends the connection."""
    with socket.create_connection((get.host, get.port), TIMEOUT_S) as raw:
        raw.sendall(data)
        return b"".join(iter(lambda: raw.recv(1 << 16), b""))


def test_requests_in_a_row_and_what_ends_a_connection() -> None:
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
    with served() as get:
        answers = exchange(get, head + b"\r\n" + head + b"Connection: close\r\n\r\n" + head + b"\r\n")
        assert answers.count(b"HTTP/1.1 200 OK") == 2
        assert exchange(get, head.replace(b"1.1", b"1.0") + b"\r\n").startswith(b"HTTP/1.1 200")
        # The body is not read, nor taken for the next request.
        body = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000
        answers = exchange(get, head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert answers.startswith(b"HTTP/1.1 413")
        assert answers.count(b"HTTP/1.1") == 1
        assert exchange(get, head + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n").startswith(b"HTTP/1.1 413")
        for many in (b"X: %s\r\n" % (b"x" * 70_000), b"X: x\r\n" * 101, (b"X: %s\r\n" % (b"x" * 1000)) * 90):
            assert exchange(get, head + many + b"\r\n").startswith(b"HTTP/1.1 431")
        assert exchange(get, b"hello\r\n\r\n").startswith(b"HTTP/1.1 400")
        assert exchange(get, head + b"Host: localhost\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 421")


def test_answers_that_nobody_reads_are_ended_and_cost_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IDLE_S", 1)
    monkeypatch.setattr(module, "_ANSWER_S", 1)
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 20)
    with served(is_large=True) as get:
        size = len(get("/api/state").body)
        before = read_rss_bytes()
        clients = []
        for _ in range(20):
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.settimeout(TIMEOUT_S)
            one.connect((get.host, get.port))
            one.sendall(b"GET /api/state HTTP/1.1\r\nHost: localhost\r\n\r\n")
            clients.append(one)
        assert all(one.recv(1) for one in clients)
        assert read_rss_bytes() - before < 20 * size / 2
        for one in clients:  # each is ended, though nobody reads
            ended = select.poll()
            ended.register(one, 0)  # POLLHUP and POLLERR are always reported
            assert ended.poll(1000 * TIMEOUT_S)
            one.close()


def test_clients_that_never_read_keep_no_probe_out() -> None:
    with served(is_large=True) as get, contextlib.ExitStack() as stack:

        def connect(request: bytes) -> socket.socket:
            one = stack.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.settimeout(TIMEOUT_S)
            one.connect((get.host, get.port))
            one.sendall(request)
            return one

        def check_probes() -> None:
            for path in ("/healthz", "/readyz", "/metrics") * 3:
                assert get(path).status == 200

        whole = b"GET /api/state HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for _ in range(module.MAX_CONNECTIONS + 8):
            assert connect(whole).recv(1)  # the answer has begun, and nobody takes the rest
        check_probes()
        for _ in range(200):
            connect(b"GET /healthz HTTP/1.1\r\nHo")
        check_probes()
        for _ in range(module.MAX_CONNECTIONS):
            connect(whole)
        check_probes()


def read_rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("data", [b"\x00" * 100, b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"x" * 100_000, b"\x16\x03\x01"])
def test_garbage_does_no_harm(data: bytes) -> None:
    with served() as get:
        with socket.create_connection((get.host, get.port), TIMEOUT_S) as raw:
            raw.sendall(data)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(1 << 16):
                pass
        assert get("/healthz").status == 200
