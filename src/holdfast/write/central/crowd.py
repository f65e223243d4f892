"""All who are connected: greeted, refused, dropped; and what the selector looks at of each."""

from __future__ import annotations

import errno
import hmac
import json
import logging
import os
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

from ..names import check_task
from .address import few_descriptors, widen
from .arena import Arena, make_arena
from .buffers import Buffers
from .connection import Connection
from .frames import FrameError
from .messages import REFUSED, STOPPING, WELCOME, pack_message

_log = logging.getLogger("holdfast.server")

_HELLO_S = 5.0  # a stranger who says nothing is gone by then
_STALLED_S = 30.0  # in the middle of a frame, while others wait for its memory
_MOST_STRANGERS = 64
_KEPT, _KEPT_FOR_GREETED = 12, 20  # descriptors: the journal and the sealer must always get theirs


class Crowd:
    """`welcome` gives what a producer of that name is told. `held`: nothing more is read of them for now."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        buffers: Buffers,
        *,
        token: str | None,
        n_pieces: int,
        arena: tuple[int, int] | None,
        welcome: Callable[[str], dict[str, Any]],
    ) -> None:
        """`arena`: slots and their size, for producers on this machine."""
        self.all: set[Connection] = set()
        self.named: dict[str, Connection] = {}
        self.hungry: list[Connection] = []  # they wait for memory
        self.refused = 0
        self.is_stopping = False
        self._selector, self._buffers = selector, buffers
        self._token = token.encode(errors="surrogatepass") if token else None
        self._n_pieces, self._arena, self._welcome = n_pieces, arena, welcome
        self._held = False

    # ---- they come and go

    def accept(self, listening: socket.socket) -> None:
        try:
            sock, peer = listening.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                _log.error("cannot take another producer: %s", error.strerror)
                time.sleep(0.01)  # it stays in the queue, and would be told of at once again
            return
        sock.setblocking(False)
        widen(sock)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        who = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "a local process"
        strangers = [one for one in self.all if one.name is None]
        one = Connection(sock, who, self._buffers.most_bytes)
        self.all.add(one)
        if few_descriptors(sock, _KEPT):
            self.drop(one, "the server has no descriptors left (RLIMIT_NOFILE)")
            return
        if len(strangers) >= _MOST_STRANGERS:
            oldest = min(strangers, key=lambda stranger: stranger.since_s)
            self.drop(oldest, "too many who have not said HELLO")
        self.watch(one)

    def serve(self, one: Connection, mask: int) -> bool:
        """Reads and sends what can be; whether frames have arrived."""
        if not one.is_open:
            return False  # dropped within this round
        try:
            if mask & selectors.EVENT_WRITE:
                one.send(b"")
            if mask & selectors.EVENT_READ:
                state = one.read(self._buffers)
                if state == "hello":
                    self._greet(one)
                elif state == "memory":
                    self.hungry.append(one)
        except FrameError as error:
            self.refuse(one, str(error))
        except (OSError, EOFError):
            if not one.arrived:
                self.drop(one, None)
        if one.is_open and not one.arrived:
            self.watch(one)
        return bool(one.arrived)

    def _greet(self, one: Connection) -> None:
        content = one.hello()
        if not self._knows_token(content.get("token")):
            self.refuse(one, "wrong token")
            return
        if few_descriptors(one.socket, _KEPT_FOR_GREETED):
            self.refuse(one, "the server has no descriptors left for another producer (RLIMIT_NOFILE)")
            return
        if self.is_stopping:
            one.send(pack_message(STOPPING))
            self.drop(one, None)
            return
        try:
            name = check_task(content.get("producer") or "")
        except ValueError:
            self.refuse(one, f"expected a producer's name, got {str(content.get('producer'))[:80]!r}")
            return
        pid = content.get("pid")
        one.who = f"producer {name!r}, process {pid if isinstance(pid, int) else '?'}"
        before = self.named.get(name)
        if before is not None:
            self.refuse(before, f"{one.who}, has connected by the same name")
        answer = self._welcome(name)
        self.named[name] = one
        arena, fd = self._share(one) if content.get("shares") is True else (None, -1)
        one.greeted(name, self._n_pieces, arena)
        if arena is None:
            one.send(pack_message(WELCOME, 0, json.dumps(answer)))
            return
        try:
            answer["arena"] = [arena.slots, arena.slot_bytes]
            one.send_with(pack_message(WELCOME, 0, json.dumps(answer)), fd)
        finally:
            os.close(fd)

    def _share(self, one: Connection) -> tuple[Arena | None, int]:
        """Memory for its frames, if it is on this machine and there is enough; and the descriptor to send it by."""
        if self._arena is None or one.socket.family != socket.AF_UNIX:
            return None, -1
        slots, slot_bytes = self._arena
        if not self._buffers.lend(slots * slot_bytes):
            return None, -1
        try:
            return make_arena(slots, slot_bytes)
        except OSError as error:
            self._buffers.take_back(slots * slot_bytes)
            _log.info("%s sends its rows through its socket: no memory to share: %s", one.who, error.strerror)
            return None, -1

    def _knows_token(self, said: Any) -> bool:
        if self._token is None:
            return True
        return isinstance(said, str) and hmac.compare_digest(said.encode(errors="surrogatepass"), self._token)

    def refuse(self, one: Connection, why: str) -> None:
        self.refused += 1
        try:
            one.send(pack_message(REFUSED, 0, why))
        except (OSError, EOFError):
            pass
        self.drop(one, why)

    def drop(self, one: Connection, why: str | None) -> None:
        if why is not None:
            _log.warning("%s: refused: %s", one.who, why)
        self.all.discard(one)
        if one.name is not None and self.named.get(one.name) is one:
            del self.named[one.name]
        if one in self.hungry:
            self.hungry.remove(one)
        if one.events:
            self._selector.unregister(one.socket)
            one.events = 0
        one.close(self._buffers)

    def drop_all(self) -> None:
        for one in list(self.all):
            self.drop(one, None)

    def drop_the_slow(self) -> None:
        now_s = time.monotonic()
        for one in list(self.all):
            if one.name is None and now_s - one.since_s > _HELLO_S:
                self.drop(one, f"no HELLO within {_HELLO_S:.0f} s")
            elif self.hungry and one.amid and one not in self.hungry and now_s - one.since_s > _STALLED_S:
                self.drop(one, f"stopped in the middle of a frame for {_STALLED_S:.0f} s while others wait")

    # ---- what they are told

    def tell(self, one: Connection, message: bytes) -> None:
        try:
            one.send(message)
        except (OSError, EOFError):
            self.drop(one, None)
            return
        self.watch(one)

    def tell_all(self, message: bytes) -> None:
        for one in list(self.named.values()):
            self.tell(one, message)

    def ack(self, one: Connection, mark: int) -> None:
        if not one.is_open:
            return
        try:
            one.ack(mark)
        except (OSError, EOFError):
            self.drop(one, None)
            return
        self.watch(one)

    # ---- what the selector looks at

    def watch(self, one: Connection) -> None:
        if not one.is_open:
            return
        waits = bool(one.arrived) or (self._held and one.name is not None) or one in self.hungry
        wanted = (0 if waits else selectors.EVENT_READ) | (selectors.EVENT_WRITE if one.has_unsent else 0)
        if wanted == one.events:
            return
        if not one.events:
            self._selector.register(one.socket, wanted, one)
        elif not wanted:
            self._selector.unregister(one.socket)
        else:
            self._selector.modify(one.socket, wanted, one)
        one.events = wanted

    def hold(self, held: bool) -> None:
        if held != self._held:
            self._held = held
            for one in self.all:
                self.watch(one)
