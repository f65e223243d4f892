"""Serves the page, metrics, probes and JSON over HTTP, from a thread beside the collector.

It listens on the loopback interface and then answers only requests that were made to it by such a name: a page of
another site cannot read it by pointing its own name at 127.0.0.1. Any other address needs a token. Nothing is fetched
from another host, and the page is told so by its content security policy.

Requests are served from memory and the store; one document is made for each round of samples, however many ask for it.
At most 64 connections are open at a time. A new one takes the place of the one that has waited longest for a request,
or else of the one that has taken nothing of its answer for longest: clients that never read keep no probe out. One that
sends no whole request is closed after some seconds, and one that does not take its answer after a minute. An answer is
sent in pieces, so that a client that does not read it costs no memory.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import hmac
import ipaddress
import json
import logging
import os
import re
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

from ..._util.text import one_line
from ...errors import InputError
from .collector import Published, WatchCollector
from .metrics import CONTENT_TYPE, render_metrics
from .probe import UNHEALTHY_ETA_S, ProbeAnswer, check_health, check_readiness
from .report_page import PAGE, page_part
from .state import MAX_EVENTS

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

DEFAULT_PORT = 9321
LEAST_TOKEN = 16
MAX_CONNECTIONS = 64
_IDLE_S = 10
_ANSWER_S = 60
_PIECE_BYTES = 64 << 10
_RESET = struct.pack("ii", 1, 0)
_COOKIE = "holdfast_watch"
_STATIC = {"page.css": "text/css", "page.js": "text/javascript", "plotly.min.js": "text/javascript"}
_HEADERS = {
    # plotly writes style attributes, and draws its downloads from blobs.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "font-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
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


def bind(address: HttpAddress) -> socket.socket:
    """Returns a listening socket; InputError says why there is none."""
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise InputError(f"{address.host}: cannot find this host: {getattr(error, 'strerror', error)}") from error
    made = socket.socket(family, kind | socket.SOCK_CLOEXEC, proto)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(where)
        made.listen(MAX_CONNECTIONS)
    except OSError as error:
        made.close()
        raise InputError(f"cannot listen at {address.url()}: {_why_not(error)}") from error
    return made


def _why_not(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the port is in use; choose another, or port 0 for a free one"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address"
    if error.errno == errno.EACCES:
        return "permission denied; a port of 1024 or more needs no privilege"
    return error.strerror or str(error)


# ---- who may ask


class Gate:
    """Lets requests in that have the token or, without one, that were made to a loopback name."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = None if token is None else token.encode()
        # Not the token itself, which is not to be read from a browser's files.
        self._cookie = hmac.new((token or "").encode(), b"holdfast cookie", hashlib.sha256).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        from starlette.requests import Request

        request = Request(scope)
        scope["state"] = {"trusted": True}
        answer = self._refuse(request) if self._token is None else self._check_token(request)
        await (self._app if answer is None else answer)(scope, receive, _with_headers(send))

    def _refuse(self, request: Request) -> Response | None:
        name = request.headers.get("host", "")
        host = re.sub(r":\d*$", "", name).strip("[]").lower()
        if len(request.headers.getlist("host")) == 1 and is_loopback(host):
            return None
        return _plain(
            421,
            f"expected a request to localhost or 127.0.0.1, got one to {one_line(name)[:100]!r}; to serve under "
            "another name, give holdfast watch a --token\n",
        )

    def _check_token(self, request: Request) -> Response | None:
        assert self._token is not None
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token):
            return None
        if hmac.compare_digest(request.cookies.get(_COOKIE, "").encode(), self._cookie.encode()):
            return None
        query = parse_qsl(request.url.query, keep_blank_values=True)
        for name, value in query:
            if name == "token" and hmac.compare_digest(value.encode("utf-8", "replace"), self._token):
                return self._remember(request, [one for one in query if one[0] != "token"])
        if request.url.path in ("/healthz", "/readyz"):
            request.scope["state"]["trusted"] = False
            return None
        return _plain(
            401,
            "expected a token: open this page once with ?token=… in its address, or send the header "
            "`Authorization: Bearer …`\n",
            {"WWW-Authenticate": "Bearer"},
        )

    def _remember(self, request: Request, query: list[tuple[str, str]]) -> Response:
        """Sets a cookie and removes the token from the address, which browsers keep and show."""
        name = request.url.path.rpartition("/")[2]
        where = (name or "./") + (f"?{urlencode(query)}" if query else "")
        answer = _plain(303, "", {"Location": f"./{where}" if ":" in where else where})
        answer.set_cookie(_COOKIE, self._cookie, httponly=True, samesite="strict", max_age=30 * 86400, path="/")
        return answer


def _with_headers(send: Send) -> Send:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            there = {name.lower() for name, _ in message["headers"]}
            message["headers"] = [
                *message["headers"],
                *(
                    (name.lower().encode(), value.encode())
                    for name, value in _HEADERS.items()
                    if name.lower().encode() not in there
                ),
            ]
        await send(message)

    return sending


def _plain(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    from starlette.responses import PlainTextResponse

    return PlainTextResponse(text, status, headers)


# ---- what they get


class WatchApp:
    """The answers to all requests."""

    def __init__(
        self, collector: WatchCollector, *, clock: Callable[[], float], eta_s: float = UNHEALTHY_ETA_S
    ) -> None:
        self._collector = collector
        self._clock = clock
        self._eta_s = eta_s
        self._lock = threading.Lock()
        self._made: tuple[Published, bytes] | None = None
        self._static: dict[str, tuple[bytes, bytes, str]] = {}

    def routes(self, token: str | None) -> Starlette:
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.routing import Route

        paths = {
            "/": self._page,
            "/static/{name}": self._file,
            "/metrics": self._metrics,
            "/healthz": self._health,
            "/readyz": self._readiness,
            "/api/state": self._state,
            "/api/targets": self._targets,
            "/api/events": self._events,
        }
        # Starlette runs endpoints in threads, so that a slow disk delays no other request. Probes and metrics need only
        # what is in memory: they are coroutines, which wait neither for the disk nor for a free thread.
        return Starlette(
            routes=[Route(path, endpoint, methods=["GET"]) for path, endpoint in paths.items()],
            middleware=[Middleware(Gate, token=token)],
        )

    def _page(self, request: Request) -> Response:
        return self._send_file(request, "page.html", "text/html; charset=utf-8", "no-cache")

    def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _STATIC:
            return _plain(404, "not found\n")
        return self._send_file(request, name, f"{_STATIC[name]}; charset=utf-8", "no-cache")

    def _send_file(self, request: Request, name: str, type_: str, caching: str) -> Response:
        found = self._read_static(name)
        if found is None:
            return _plain(404, f"{name} is missing from this installation: pip install 'holdfast-io[ui]'\n")
        data, packed, tag = found
        headers = {"ETag": tag, "Cache-Control": caching, "Vary": "Accept-Encoding"}
        if request.headers.get("if-none-match") == tag:
            return _plain(304, "", headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return _in_pieces(packed, type_, headers | {"Content-Encoding": "gzip"})
        return _in_pieces(data, type_, headers)

    def _read_static(self, name: str) -> tuple[bytes, bytes, str] | None:
        """Returns the file as it is and packed, which all requests share, and its tag."""
        with self._lock:
            if name not in self._static:
                try:
                    data = _read_file(name)
                except OSError:
                    return None
                tag = f'"{hashlib.sha256(data).hexdigest()[:24]}"'
                self._static[name] = data, gzip.compress(data, 6, mtime=0), tag
            return self._static[name]

    def _state(self, request: Request) -> Response:
        only = request.query_params.get("target")
        if only is not None:
            document = self._collector.document(only=only)
            if not document["targets"]:
                return _json({"error": f"there is no target {only!r}"}, 404)
            return _json(document)
        return _send_json(request, self._whole())

    def _whole(self) -> bytes:
        """Makes the document once for each round."""
        with self._lock:
            published = self._collector.published
            if self._made is None or self._made[0] is not published:
                self._made = published, json.dumps(self._collector.document(), separators=(",", ":")).encode()
            return self._made[1]

    def _targets(self, request: Request) -> Response:
        document = self._collector.document(history=False)
        names = ("target", "source", "pid", "command", "alive", "verdict", "sentence", "fds", "limit", "eta_s")
        facts: list[Mapping[str, Any]] = [dict(one) for one in document["targets"]]
        return _json({"targets": [{name: one[name] for name in names} for one in facts]})

    def _events(self, request: Request) -> Response:
        since = request.query_params.get("since", "0")
        try:
            start = float(since)
        except ValueError:
            return _json({"error": f"expected since=SECONDS, got {since!r}"}, 400)
        events = [one for one in self._collector.store.events(MAX_EVENTS) if one["t"] > start]
        only = request.query_params.get("target")
        return _json({"events": [one for one in events if only in (None, one["target"])]})

    async def _metrics(self, request: Request) -> Response:
        from starlette.responses import Response

        published = self._collector.published
        text = render_metrics(
            self._collector.document(history=False), round_s=published.round_s, rounds=published.rounds
        )
        return Response(text, headers={"Content-Type": CONTENT_TYPE})

    async def _health(self, request: Request) -> Response:
        def check(**options: Any) -> ProbeAnswer:
            return check_health(eta_s=self._eta_s, **options)

        return self._probe(request, check)

    async def _readiness(self, request: Request) -> Response:
        return self._probe(request, check_readiness)

    def _probe(self, request: Request, check: Callable[..., ProbeAnswer]) -> Response:
        document = self._collector.document(history=False)
        target = request.query_params.get("target")
        known = [one["target"] for one in document["targets"]]
        trusted = bool(request.scope["state"]["trusted"])
        if target is not None and target not in known:
            return _json({"ok": False, "reasons": [f"there is no target {target!r}"] if trusted else []}, 404)
        answer = check(document=document, now=self._clock(), names=self._collector.selection.names, target=target)
        return _json({"ok": answer.ok, "reasons": list(answer.reasons) if trusted else []}, answer.status)


def _read_file(name: str) -> bytes:
    if name == "page.html":
        return PAGE.read_bytes()
    if name != "plotly.min.js":
        return page_part(name.removeprefix("page.")).encode()
    found = find_spec("plotly")
    places = [] if found is None else list(found.submodule_search_locations or ())
    return Path(places[0] if places else "/nonexistent", "package_data", name).read_bytes()


def _json(facts: Any, status: int = 200) -> Response:
    return _in_pieces(json.dumps(facts).encode(), "application/json", status=status)


def _send_json(request: Request, data: bytes) -> Response:
    if "gzip" in request.headers.get("accept-encoding", ""):
        return _in_pieces(gzip.compress(data, 1), "application/json", {"Content-Encoding": "gzip"})
    return _in_pieces(data, "application/json")


def _in_pieces(data: bytes, type_: str, headers: Mapping[str, str] | None = None, status: int = 200) -> Response:
    """Returns an answer of which the server copies one piece at a time: the next when the client has taken this one."""
    from starlette.responses import Response

    class PiecesResponse(Response):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for at in range(0, len(data), _PIECE_BYTES):
                piece = data[at : at + _PIECE_BYTES]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    length = {"Content-Length": str(len(data))}
    return PiecesResponse(status_code=status, media_type=type_, headers={**(headers or {}), **length})


# ---- the thread


def require_ui() -> None:
    """InputError: the packages that the server needs are not installed."""
    missing = [name for name in ("starlette", "uvicorn", "plotly") if find_spec(name) is None]
    if missing:
        raise InputError(f"the page needs {' and '.join(missing)}: pip install 'holdfast-io[ui]'")


class WatchServer:
    """Serves from a thread until `close`. `url` is where."""

    def __init__(
        self,
        collector: WatchCollector,
        address: HttpAddress,
        *,
        clock: Callable[[], float],
        token: str | None = None,
        eta_s: float = UNHEALTHY_ETA_S,
    ) -> None:
        require_ui()
        token = check_token(address, token)
        import uvicorn

        self._socket = bind(address)
        self.url = address.url(self._socket.getsockname()[1])
        app = WatchApp(collector, clock=clock, eta_s=eta_s).routes(token)
        config = uvicorn.Config(
            app,
            http=_bounded_protocol(),
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_IDLE_S,
            timeout_graceful_shutdown=1,
        )
        # A client that sends garbage is no news.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="holdfast-watch-http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Ends the server; requests that are being answered get a second."""
        # It would report clients that have not taken their answer.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()


def _bounded_protocol() -> Any:
    """Returns uvicorn's protocol with a bound on connections, and on the time for each request and its answer.

    uvicorn itself ends only a connection that is silent between two requests: half a request would hold it for ever.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class BoundedProtocol(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            others = self._others()
            if len(others) >= MAX_CONNECTIONS:
                min(others, key=lambda one: (one.is_answering, one.since_s)).cut_off()
            self._expect(_IDLE_S)

        def _others(self) -> list[Any]:
            return [one for one in self.connections if one is not self and not one.transport.is_closing()]

        @property
        def is_answering(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _expect(self, within_s: float, *, last: bool = False) -> None:
            """Waits for a request or, if this is the last time, for the end of its answer."""
            self._stop_waiting()
            self._is_last = last
            self.since_s = self.loop.time()
            self._give_up = self.loop.call_later(within_s, self._end_if_late)

        def _end_if_late(self) -> None:
            if self.is_answering and not self._is_last:
                self._expect(_ANSWER_S, last=True)
            else:
                self.cut_off()

        def cut_off(self) -> None:
            if self.is_answering:  # the kernel would keep what the client does not read for minutes
                self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.transport.abort()

        def resume_writing(self) -> None:
            self.since_s = self.loop.time()  # the client has taken a piece
            super().resume_writing()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if not self.transport.is_closing():
                self._expect(_IDLE_S)

        def _stop_waiting(self) -> None:
            if hasattr(self, "_give_up"):
                self._give_up.cancel()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

    return BoundedProtocol


def token_from_environment(environment: Mapping[str, str] = os.environ) -> str | None:
    return environment.get("HOLDFAST_TOKEN") or None
