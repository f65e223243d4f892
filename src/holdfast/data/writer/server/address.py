"""Where the server listens, and how producers find it.

`journal/address.json` holds the address. A Unix socket is beside it under a fixed name, so the address stays the same
over restarts. A path too long for a socket address is reached through a descriptor of its directory.
"""

from __future__ import annotations

import json
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ....errors import InputError, WriteError

POINTER = "address.json"
SOCKET = "serve.sock"
_MAX_PATH = 100


class ServerListener:
    """The listening socket. `close` removes its files, unless they belong to another server by now."""

    def __init__(self, journal: Path, wanted: str | None, epoch: int) -> None:
        self._pointer = journal / POINTER
        self._path: Path | None = None
        if wanted is not None and wanted.startswith("tcp://"):
            host, port = _host_and_port(wanted)
            self.socket = _tcp(host, port)
            bound = self.socket.getsockname()
            shown = f"[{host}]" if ":" in host else host
            self.address = f"tcp://{shown}:{bound[1]}"
        else:
            self._path = _unix_path(journal, wanted)
            self.socket, self._inode = _unix(self._path, epoch)
            self.address = f"unix:{self._path}"
        self.socket.listen(128)
        self.socket.setblocking(False)
        self._text = json.dumps({"address": self.address, "pid": os.getpid(), "epoch": epoch})
        draft = self._pointer.with_name(f".{POINTER}.{epoch}")
        draft.write_text(self._text)
        os.replace(draft, self._pointer)

    def close(self) -> None:
        self.socket.close()
        try:
            if self._path is not None and os.stat(self._path).st_ino == self._inode:
                os.unlink(self._path)
            if self._pointer.read_text() == self._text:
                os.unlink(self._pointer)
        except OSError:
            pass  # removed, or another server's


def _unix_path(journal: Path, wanted: str | None) -> Path:
    if wanted in (None, "unix"):
        return journal / SOCKET
    assert wanted is not None
    if not wanted.startswith("unix:"):
        raise ValueError(f"expected an address such as unix, unix:/a/path.sock or tcp://host:port, got {wanted!r}")
    return Path(os.path.abspath(wanted.removeprefix("unix:")))


def _unix(path: Path, epoch: int) -> tuple[socket.socket, int]:
    """Binds under another name and renames: the final name always accepts connections."""
    draft = path.with_name(f".{path.name}.{epoch}")
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        with _short_name(draft) as name:
            made.bind(name)
        inode = os.stat(draft).st_ino
        made.listen(128)
        os.replace(draft, path)
    except OSError as error:
        made.close()
        raise WriteError(f"cannot listen at {path}: {error.strerror}") from error
    finally:
        os.umask(mask)
    return made, inode


@contextmanager
def _short_name(path: Path) -> Iterator[str]:
    """Yields a name for the path that fits into a socket address."""
    if len(os.fsencode(path)) <= _MAX_PATH:
        yield str(path)
        return
    fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{path.name}"
    finally:
        os.close(fd)


def _tcp(host: str, port: int) -> socket.socket:
    try:
        family, kind, proto, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, proto)
    except OSError as error:
        raise WriteError(f"cannot listen at {host}:{port}: {error.strerror}") from error
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(where)
    except OSError as error:
        made.close()
        raise WriteError(f"cannot listen at {host}:{port}: {error.strerror}") from error
    return made


def _host_and_port(address: str) -> tuple[str, int]:
    try:
        parts = urlsplit(address)
        if parts.hostname and parts.port is not None and not parts.path.strip("/"):
            return parts.hostname, parts.port
    except ValueError:
        pass
    raise ValueError(f"expected an address such as tcp://host:port, got {address!r}")


# ---- producers


def resolve(target: str) -> str:
    """Returns an address unchanged; for a dataset directory, that of its server. InputError: it has none."""
    if target.startswith(("unix:", "tcp://")):
        return target
    pointer = Path(target) / "journal" / POINTER
    try:
        content: Any = json.loads(pointer.read_text())
        return str(content["address"])
    except FileNotFoundError:
        raise InputError(
            f"{target}: expected an address or a directory with a running server, there is no {pointer}"
        ) from None
    except OSError as error:
        raise InputError(f"{pointer}: cannot read: {error.strerror}") from error
    except (ValueError, LookupError, TypeError):
        raise InputError(f"{pointer}: expected the address of a server, got other content") from None


def open_connection(address: str, timeout_s: float) -> socket.socket:
    """Returns a non-blocking connection. OSError: nothing listens there."""
    if address.startswith("tcp://"):
        made = socket.create_connection(_host_and_port(address), timeout_s)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    else:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.settimeout(timeout_s)
            with _short_name(Path(address.removeprefix("unix:"))) as name:
                made.connect(name)
        except BaseException:
            made.close()
            raise
    enlarge_buffers(made)
    made.setblocking(False)
    return made


def enlarge_buffers(made: socket.socket) -> None:
    """Asks for large socket buffers: a context switch per frame is what costs."""
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        made.setsockopt(socket.SOL_SOCKET, option, 1 << 21)


def is_short_of_fds(made: socket.socket, kept: int) -> bool:
    """Returns whether fewer than `kept` descriptors are free: a new socket has the lowest free number."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit != resource.RLIM_INFINITY and made.fileno() >= limit - kept
