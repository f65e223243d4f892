"""Serves the page, metrics, probes and JSON over HTTP, from threads beside the collector.

It listens on the loopback interface and then answers only requests that were made to it by such a name: a page of
another site cannot read it by pointing its own name at 127.0.0.1. Any other address needs a token. Nothing is fetched
from another host, and the page is told so by its content security policy.

Requests are served from memory and the store; one document is made for each round of samples, however many ask for it.
Each connection has a thread, so that a slow disk or client delays no other; at most 64 connections are open at a time.
A new one takes the place of the one that has waited longest for a request, or else of the one that has taken nothing of
its answer for longest: clients that never read keep no probe out. One that sends no whole request is closed after some
seconds, and one that does not take its answer after a minute. Answers are sent from memory that all clients share, so
that a client that does not read costs none.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import hmac
import http.client
import io
import ipaddress
import json
import os
import re
import socket
import socketserver
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlencode

from ..._util.text import one_line
from ...errors import InputError
from .collector import Published, WatchCollector
from .metrics import CONTENT_TYPE, render_metrics
from .probe import UNHEALTHY_ETA_S, ProbeAnswer, check_health, check_readiness
from .report_page import PAGE, page_part
from .state import MAX_EVENTS

DEFAULT_PORT = 9321
LEAST_TOKEN = 16
MAX_CONNECTIONS = 64
_MAX_HEAD_BYTES = 64 << 10
_IDLE_S = 10
_ANSWER_S = 60
_POLL_S = 0.2
_PIECE_BYTES = 64 << 10
_MAX_UNREAD_BYTES = 1 << 20
_RESET = struct.pack("ii", 1, 0)
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


# ---- where it listens


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """A host, as a name or an address, and a port; 0 takes a free one."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    def url(self, port: int | None = None) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port if port is None else port}/"


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def parse_http_address(text: str) -> HttpAddress:
    """Parses `9321`, `:9321`, `127.0.0.1:9321`, `localhost` or `[::1]:9321`; ValueError says what was expected.

    Without a host it is the loopback interface, without a port 9321.
    """
    match = re.fullmatch(r"(?:\[(?P<six>[0-9a-fA-F:.%\w]+)\]|(?P<host>[^\s:\[\]/@]*))(?::(?P<port>\d{1,5}))?", text)
    is_port = text.isascii() and text.isdigit()
    if (not match and not is_port) or not text:
        raise ValueError(f"expected an address such as 127.0.0.1:9321, :9321 or [::1]:9321, got {one_line(text)!r}")
    if is_port:
        host, port = "", int(text)
    else:
        assert match is not None
        host, port = match["six"] or match["host"] or "", int(match["port"] or DEFAULT_PORT)
    if port > 65535:
        raise ValueError(f"expected a port of at most 65535, got {port}")
    if match and match["six"]:
        try:
            ipaddress.IPv6Address(host.split("%")[0])
        except ValueError:
            raise ValueError(f"expected an IPv6 address in brackets, got {one_line(text)!r}") from None
    return HttpAddress(host or "127.0.0.1", port)


def check_token(address: HttpAddress, token: str | None) -> str | None:
    """Returns the token; InputError if the address needs one, or if it is easy to guess."""
    if token is None:
        if address.is_loopback:
            return None
        raise InputError(
            f"{address.host} is reachable from other machines, which needs a token: set the variable HOLDFAST_TOKEN "
            f"to a secret of at least {LEAST_TOKEN} characters, such as that of `openssl rand -hex 16`, or give "
            "--token; or listen at 127.0.0.1 and use `ssh -L`"
        )
    if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(
            f"expected a token of at least {LEAST_TOKEN} letters and digits without spaces, got {len(token)} characters"
        )
    return token


def _why_not(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the port is in use; choose another, or port 0 for a free one"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address"
    if error.errno == errno.EACCES:
        return "permission denied; a port of 1024 or more needs no privilege"
    return error.strerror or str(error)


# ---- requests and answers


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: str
    path: str
    query: str
    headers: http.client.HTTPMessage
    is_last: bool  # the client closes the connection after it

    def parameter(self, name: str) -> str | None:
        return dict(parse_qsl(self.query, keep_blank_values=True)).get(name)

    @property
    def has_body(self) -> bool:
        return self.headers.get("content-length", "0") != "0" or "transfer-encoding" in self.headers

    @property
    def takes_gzip(self) -> bool:
        return "gzip" in self.headers.get("accept-encoding", "")


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    def head(self, *, is_last: bool) -> bytes:
        headers = {"Date": formatdate(usegmt=True), **_HEADERS, **self.headers}
        if self.status != HTTPStatus.NOT_MODIFIED:
            headers["Content-Length"] = str(len(self.body))
        if is_last:
            headers["Connection"] = "close"
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _plain(status: int, text: str, headers: Mapping[str, str] | None = None) -> HttpAnswer:
    return HttpAnswer(status, text.encode(), {"Content-Type": "text/plain; charset=utf-8", **(headers or {})})


def _json(facts: Any, status: int = 200) -> HttpAnswer:
    return HttpAnswer(status, json.dumps(facts).encode(), {"Content-Type": "application/json"})


def read_request(file: io.BufferedIOBase) -> HttpRequest | HttpAnswer | None:
    """Returns the next request, the answer to what is none, or None at the end of the connection."""
    head = b""
    while line := file.readline(_MAX_HEAD_BYTES - len(head)):
        if line.strip() or head:  # an empty line before a request is ignored
            head += line
        if len(head) == _MAX_HEAD_BYTES:
            return _plain(431, f"expected headers of less than {_MAX_HEAD_BYTES} bytes\n")
        if head and not line.strip():
            break
    else:
        return None
    first, _, rest = head.partition(b"\n")
    match = re.fullmatch(
        r"([A-Z]+) (?:https?://[^/?]*)?([^\s?#]*)(?:\?([^\s#]*))? HTTP/1\.([01])\s*", first.decode("latin-1")
    )
    if match is None:
        return _plain(400, "expected a request of HTTP/1.1\n")
    try:
        headers = http.client.parse_headers(io.BytesIO(rest))
    except http.client.HTTPException:
        return _plain(431, "expected at most 100 headers\n")
    method, path, query, minor = match.groups(default="")
    return HttpRequest(
        method, path, query, headers, is_last=minor == "0" or headers.get("connection", "").lower() == "close"
    )


# ---- who may ask


class Gate:
    """Lets requests in that have the token or, without one, that were made to a loopback name."""

    def __init__(self, token: str | None) -> None:
        self._token = None if token is None else token.encode()
        # Not the token itself, which is not to be read from a browser's files.
        secret = hmac.new((token or "").encode(), b"holdfast cookie", hashlib.sha256).hexdigest()
        self._cookie = f"holdfast_watch={secret}"

    def check(self, request: HttpRequest) -> HttpAnswer | None:
        """Returns the answer to a request that is not let in."""
        return self._check_host(request) if self._token is None else self._check_token(request, self._token)

    def _check_host(self, request: HttpRequest) -> HttpAnswer | None:
        names = request.headers.get_all("host", [])
        host = re.sub(r":\d*$", "", "".join(names)).strip("[]").lower()
        if len(names) == 1 and is_loopback(host):
            return None
        return _plain(
            421,
            f"expected a request to localhost or 127.0.0.1, got one to {one_line(', '.join(names))[:100]!r}; to serve "
            "under another name, give holdfast watch a --token\n",
        )

    def _check_token(self, request: HttpRequest, token: bytes) -> HttpAnswer | None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token):
            return None
        cookies = "; ".join(request.headers.get_all("cookie", [])).split(";")
        if any(hmac.compare_digest(one.strip().encode(), self._cookie.encode()) for one in cookies):
            return None
        query = parse_qsl(request.query, keep_blank_values=True)
        for name, value in query:
            if name == "token" and hmac.compare_digest(value.encode("utf-8", "replace"), token):
                return self._remember(request, [one for one in query if one[0] != "token"])
        return _plain(
            401,
            "expected a token: open this page once with ?token=… in its address, or send the header "
            "`Authorization: Bearer …`\n",
            {"WWW-Authenticate": "Bearer"},
        )

    def _remember(self, request: HttpRequest, query: list[tuple[str, str]]) -> HttpAnswer:
        """Sets a cookie and removes the token from the address, which browsers keep and show."""
        name = request.path.rpartition("/")[2]
        where = (name or "./") + (f"?{urlencode(query)}" if query else "")
        cookie = f"{self._cookie}; HttpOnly; Max-Age={30 * 86400}; Path=/; SameSite=strict"
        return _plain(303, "", {"Location": f"./{where}" if ":" in where else where, "Set-Cookie": cookie})


# ---- what they get


class WatchApp:
    """The answers to all requests."""

    def __init__(
        self,
        collector: WatchCollector,
        *,
        clock: Callable[[], float],
        token: str | None = None,
        eta_s: float = UNHEALTHY_ETA_S,
    ) -> None:
        self._collector = collector
        self._clock = clock
        self._gate = Gate(token)
        self._lock = threading.Lock()
        self._made: tuple[Published, bytes] | None = None
        self._static: dict[str, tuple[bytes, bytes, str]] = {}
        self._routes: dict[str, Callable[[HttpRequest], HttpAnswer]] = {
            "/": partial(self._send_file, "page.html", "text/html"),
            "/static/page.css": partial(self._send_file, "page.css", "text/css"),
            "/static/page.js": partial(self._send_file, "page.js", "text/javascript"),
            "/metrics": self._metrics,
            "/healthz": partial(self._probe, partial(check_health, eta_s=eta_s)),
            "/readyz": partial(self._probe, check_readiness),
            "/api/state": self._state,
            "/api/targets": self._targets,
            "/api/events": self._events,
        }

    def answer(self, request: HttpRequest) -> HttpAnswer:
        refused = self._gate.check(request)
        # Without the token a probe gets a yes or no.
        if refused is not None and not (refused.status == 401 and request.path in ("/healthz", "/readyz")):
            return refused
        route = self._routes.get(request.path)
        if route is None:
            return _plain(404, "not found\n")
        if request.method not in ("GET", "HEAD"):
            return _plain(405, "expected GET or HEAD\n", {"Allow": "GET, HEAD"})
        return _plain(413, "expected a request without a body\n") if request.has_body else route(request)

    def _send_file(self, name: str, kind: str, request: HttpRequest) -> HttpAnswer:
        data, packed, tag = self._read_static(name)
        headers = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if request.headers.get("if-none-match") == tag:
            return HttpAnswer(304, b"", headers)
        headers["Content-Type"] = f"{kind}; charset=utf-8"
        if request.takes_gzip:
            return HttpAnswer(200, packed, headers | {"Content-Encoding": "gzip"})
        return HttpAnswer(200, data, headers)

    def _read_static(self, name: str) -> tuple[bytes, bytes, str]:
        """Returns the file as it is and packed, which all requests share, and its tag."""
        with self._lock:
            if name not in self._static:
                data = PAGE.read_bytes() if name == "page.html" else page_part(name.removeprefix("page.")).encode()
                tag = f'"{hashlib.sha256(data).hexdigest()[:24]}"'
                self._static[name] = data, gzip.compress(data, 6, mtime=0), tag
            return self._static[name]

    def _state(self, request: HttpRequest) -> HttpAnswer:
        only = request.parameter("target")
        if only is not None:
            document = self._collector.document(only=only)
            return _json(document) if document["targets"] else _json({"error": f"there is no target {only!r}"}, 404)
        headers = {"Content-Type": "application/json"}
        if request.takes_gzip:
            return HttpAnswer(200, gzip.compress(self._whole(), 1), headers | {"Content-Encoding": "gzip"})
        return HttpAnswer(200, self._whole(), headers)

    def _whole(self) -> bytes:
        """Makes the document once for each round."""
        with self._lock:
            published = self._collector.published
            if self._made is None or self._made[0] is not published:
                self._made = published, json.dumps(self._collector.document(), separators=(",", ":")).encode()
            return self._made[1]

    def _targets(self, request: HttpRequest) -> HttpAnswer:
        document = self._collector.document(history=False)
        names = ("target", "source", "pid", "command", "alive", "verdict", "sentence", "fds", "limit", "eta_s")
        facts: list[Mapping[str, Any]] = [dict(one) for one in document["targets"]]
        return _json({"targets": [{name: one[name] for name in names} for one in facts]})

    def _events(self, request: HttpRequest) -> HttpAnswer:
        since = request.parameter("since") or "0"
        try:
            start = float(since)
        except ValueError:
            return _json({"error": f"expected since=SECONDS, got {since!r}"}, 400)
        events = [one for one in self._collector.store.events(MAX_EVENTS) if one["t"] > start]
        only = request.parameter("target")
        return _json({"events": [one for one in events if only in (None, one["target"])]})

    def _metrics(self, request: HttpRequest) -> HttpAnswer:
        published = self._collector.published
        text = render_metrics(
            self._collector.document(history=False), round_s=published.round_s, rounds=published.rounds
        )
        return HttpAnswer(200, text.encode(), {"Content-Type": CONTENT_TYPE})

    def _probe(self, check: Callable[..., ProbeAnswer], request: HttpRequest) -> HttpAnswer:
        is_trusted = self._gate.check(request) is None  # reasons name targets
        document = self._collector.document(history=False)
        target = request.parameter("target")
        known = [one["target"] for one in document["targets"]]
        if target is not None and target not in known:
            return _json({"ok": False, "reasons": [f"there is no target {target!r}"] if is_trusted else []}, 404)
        answer = check(document=document, now=self._clock(), names=self._collector.selection.names, target=target)
        return _json({"ok": answer.ok, "reasons": list(answer.reasons) if is_trusted else []}, answer.status)


# ---- connections


class _Connection:
    """One client: a thread that reads requests and sends answers until either side ends it."""

    def __init__(self, sock: socket.socket, app: WatchApp, on_end: Callable[[_Connection], None]) -> None:
        self._socket = sock
        self._app = app
        self._on_end = on_end
        self.is_cut_off = False
        self._expect(_IDLE_S, is_answering=False)
        self.thread = threading.Thread(target=self._run, name="holdfast-watch-client", daemon=True)

    def _expect(self, within_s: float, *, is_answering: bool) -> None:
        self.is_answering = is_answering
        self.since_s = time.monotonic()  # when the client did something
        self.deadline_s = self.since_s + within_s

    def cut_off(self) -> None:
        """Ends it from another thread: its own one waits for the client."""
        self.is_cut_off = True
        with suppress(OSError):
            if self.is_answering:  # the kernel would keep what the client does not read for minutes
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._socket.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        try:
            with self._socket, self._socket.makefile("rb") as file, suppress(OSError):
                while self._serve(file):
                    self._expect(_IDLE_S, is_answering=False)
        finally:
            self._on_end(self)

    def _serve(self, file: io.BufferedReader) -> bool:
        """Answers one request; returns whether another one may follow."""
        request = read_request(file)
        if request is None:
            return False
        self._expect(_ANSWER_S, is_answering=True)
        answer = self._app.answer(request) if isinstance(request, HttpRequest) else request
        is_last = not isinstance(request, HttpRequest) or request.is_last or request.has_body
        has_body = bool(answer.body) and not (isinstance(request, HttpRequest) and request.method == "HEAD")
        self._socket.sendall(answer.head(is_last=is_last), socket.MSG_MORE if has_body else 0)
        rest = memoryview(answer.body if has_body else b"")
        while rest:
            rest = rest[self._socket.send(rest[:_PIECE_BYTES]) :]
            self.since_s = time.monotonic()
        if is_last:
            self._take_the_rest(file)
        return not is_last

    def _take_the_rest(self, file: io.BufferedReader) -> None:
        """Reads what the client still sends: closing before would reset the connection, and could lose the answer."""
        self._expect(_IDLE_S, is_answering=False)
        self._socket.shutdown(socket.SHUT_WR)
        left = _MAX_UNREAD_BYTES
        while left > 0 and (data := file.read1(_PIECE_BYTES)):
            left -= len(data)


class WatchServer(socketserver.TCPServer):
    """Serves from threads until `close`. `url` is where."""

    allow_reuse_address = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(
        self,
        collector: WatchCollector,
        address: HttpAddress,
        *,
        clock: Callable[[], float],
        token: str | None = None,
        eta_s: float = UNHEALTHY_ETA_S,
    ) -> None:
        self._app = WatchApp(collector, clock=clock, token=check_token(address, token), eta_s=eta_s)
        self._changed = threading.Condition()
        self._connections: set[_Connection] = set()
        try:
            self.address_family, *_, where = socket.getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
        except (OSError, UnicodeError) as error:
            raise InputError(f"{address.host}: cannot find this host: {getattr(error, 'strerror', error)}") from error
        try:
            super().__init__(where, socketserver.BaseRequestHandler)  # type: ignore[arg-type]
        except OSError as error:
            raise InputError(f"cannot listen at {address.url()}: {_why_not(error)}") from error
        self.url = address.url(self.server_address[1])
        self._thread = threading.Thread(
            target=self.serve_forever, args=(_POLL_S,), name="holdfast-watch-http", daemon=True
        )
        self._thread.start()

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return self.socket.accept()
        except OSError:
            time.sleep(_POLL_S)  # out of descriptors: it would be asked again at once
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        made = _Connection(request, self._app, self._forget)
        with self._changed:
            others = [one for one in self._connections if not one.is_cut_off]
            if len(others) >= MAX_CONNECTIONS:
                min(others, key=lambda one: (one.is_answering, one.since_s)).cut_off()
            if len(self._connections) >= 2 * MAX_CONNECTIONS:  # those that were cut off are still at work
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            made.thread.start()
            self._connections.add(made)

    def _forget(self, connection: _Connection) -> None:
        with self._changed:
            self._connections.discard(connection)
            self._changed.notify_all()

    def service_actions(self) -> None:
        now = time.monotonic()
        with self._changed:
            for one in self._connections:
                if now >= one.deadline_s and not one.is_cut_off:
                    one.cut_off()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def close(self) -> None:
        """Ends the server and all connections; requests that are being answered get a second."""
        self.shutdown()
        self.server_close()
        self._thread.join(10)
        with self._changed:
            threads = [one.thread for one in self._connections]
            for one in self._connections:
                if not one.is_answering:
                    one.cut_off()
            self._changed.wait_for(lambda: not self._connections, 1)
            for one in self._connections:
                one.cut_off()
        for thread in threads:
            thread.join(10)
