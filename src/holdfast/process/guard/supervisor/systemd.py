"""Reports the state of the service to systemd: READY, STATUS, WATCHDOG, STOPPING. Without systemd it does nothing.

The datagram socket is opened at the start, so that no descriptor is needed later.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import MutableMapping

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class SystemdNotifier:
    def __init__(self, environment: MutableMapping[str, str]) -> None:
        """Takes its variables out of the environment: they are not for workers."""
        address, usec, pid = (environment.pop(name, "") for name in VARIABLES)
        self.watchdog_s: float | None = None  # how often WATCHDOG=1 is due
        self._socket: socket.socket | None = None
        self._address: str | bytes = address
        self._status = ""
        if address.startswith(("/", "@")):
            if address.startswith("@"):
                self._address = b"\0" + os.fsencode(address[1:])
            with contextlib.suppress(OSError):
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
                self._socket.setblocking(False)
        if self._socket and usec.isdigit() and int(usec) and pid in ("", str(os.getpid())):
            self.watchdog_s = int(usec) / 2e6

    @property
    def is_on(self) -> bool:
        return self._socket is not None

    def ready(self) -> None:
        self._send("READY=1")

    def reloading(self) -> None:
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def still_stopping(self, more_s: float) -> None:
        """Asks for more time than TimeoutStopSec: workers finish their jobs."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(more_s * 1e6)}")

    def watchdog(self) -> None:
        self._send("WATCHDOG=1")

    def status(self, sentence: str) -> None:
        """Sends one sentence, if it is another than the last."""
        sentence = sentence.replace("\n", " ")
        if sentence != self._status and self._send(f"STATUS={sentence}"):
            self._status = sentence

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, text: str) -> bool:
        if self._socket is None:
            return False
        try:
            self._socket.sendto(text.encode("utf-8", "replace"), self._address)
        except OSError:  # nobody listens, or its queue is full
            return False
        return True
