"""A server that speaks as much of WebHDFS as writing and reading files takes, as its REST API describes it: its port on
the first line of stdout, until stdin ends. Files are in memory; each request is one step, as at a name node."""

from __future__ import annotations

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

FILES: dict[str, tuple[bytes, int]] = {}  # content, and when it was written in ms
TURN = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def handle_any(self) -> None:
        parts = urlsplit(self.path)
        asked = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        path = unquote(parts.path).removeprefix("/webhdfs/v1")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if asked["op"] in ("CREATE", "APPEND") and "datanode" not in asked:
            # The name node sends the client on to a data node.
            where = f"http://{self.headers['Host']}{self.path}&datanode=true"
            self.answer(307, b"", Location=where)
            return
        with TURN:
            status, content = getattr(self, asked["op"].lower())(path, asked, body)
        self.answer(status, content if isinstance(content, bytes) else json.dumps(content).encode())

    do_GET = do_PUT = do_POST = do_DELETE = handle_any

    def answer(self, status: int, content: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    # ---- operations

    def create(self, path: str, asked: dict[str, str], body: bytes) -> tuple[int, Any]:
        if path in FILES and asked.get("overwrite") != "true":
            return self.wrong("FileAlreadyExistsException", path)
        FILES[path] = body, int(time.time() * 1000)
        return 201, b""

    def append(self, path: str, asked: dict[str, str], body: bytes) -> tuple[int, Any]:
        if path not in FILES:
            return self.wrong("FileNotFoundException", path)
        FILES[path] = FILES[path][0] + body, int(time.time() * 1000)
        return 200, b""

    def open(self, path: str, asked: dict[str, str], body: bytes) -> tuple[int, Any]:
        if path not in FILES:
            return self.wrong("FileNotFoundException", path)
        first = int(asked.get("offset", 0))
        return 200, FILES[path][0][first : first + int(asked.get("length", 1 << 60))]

    def rename(self, path: str, asked: dict[str, str], body: bytes) -> tuple[int, Any]:
        """Onto nothing that is there."""
        target = asked["destination"]
        can = path in FILES and target not in FILES
        if can:
            FILES[target] = FILES.pop(path)
        return 200, {"boolean": can}

    def delete(self, path: str, asked: dict[str, str], body: bytes) -> tuple[int, Any]:
        return 200, {"boolean": FILES.pop(path, None) is not None}

    def getfilestatus(self, path: str, asked: dict[str, str], body: bytes) -> tuple[int, Any]:
        found = self.status(path.rstrip("/"), "")
        return (200, {"FileStatus": found}) if found else self.wrong("FileNotFoundException", path)

    def liststatus(self, path: str, asked: dict[str, str], body: bytes) -> tuple[int, Any]:
        path = path.rstrip("/")
        if path in FILES:
            return 200, {"FileStatuses": {"FileStatus": [self.status(path, "")]}}
        inside = {name[len(path) + 1 :].partition("/")[0] for name in FILES if name.startswith(f"{path}/")}
        if not inside:
            return self.wrong("FileNotFoundException", path)
        return 200, {"FileStatuses": {"FileStatus": [self.status(f"{path}/{name}", name) for name in sorted(inside)]}}

    def status(self, path: str, name: str) -> dict[str, Any] | None:
        if path in FILES:
            data, at_ms = FILES[path]
            return {"pathSuffix": name, "type": "FILE", "length": len(data), "modificationTime": at_ms}
        if any(one.startswith(f"{path}/") for one in FILES):
            return {"pathSuffix": name, "type": "DIRECTORY", "length": 0, "modificationTime": 0}
        return None

    def wrong(self, kind: str, path: str) -> tuple[int, Any]:
        return 404 if "NotFound" in kind else 403, {"RemoteException": {"exception": kind, "message": path}}


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
sys.stdin.read()
server.shutdown()
