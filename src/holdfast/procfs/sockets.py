"""Reads addresses and states of sockets from `/proc/PID/net/tcp` and its siblings."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from .procfs import ProcFS, UnixRow, read_or_none

_TCP_STATES = (
    "",
    "ESTABLISHED",
    "SYN_SENT",
    "SYN_RECV",
    "FIN_WAIT1",
    "FIN_WAIT2",
    "TIME_WAIT",
    "CLOSE",
    "CLOSE_WAIT",
    "LAST_ACK",
    "LISTEN",
    "CLOSING",
    "NEW_SYN_RECV",
)
_UNIX_STATES = {1: "UNCONNECTED", 2: "CONNECTING", 3: "CONNECTED", 4: "DISCONNECTING"}
_UNIX_LISTENS = 0x10000
_INTERNET = ("tcp", "tcp6", "udp", "udp6")


class SocketInfo(NamedTuple):
    """A socket. `family` is tcp, tcp6, udp, udp6 or unix; `local` and `remote` are `address:port` or a Unix path."""

    family: str
    state: str
    local: str = ""
    remote: str = ""


# Netlink reports the states of Unix sockets with the numbers of TCP.
_ROW_STATES = {1: "CONNECTED", 7: "UNCONNECTED", 10: "LISTEN"}
_NAMELESS = {state: SocketInfo("unix", name) for state, name in _ROW_STATES.items()}


def read_sockets(
    procfs: ProcFS, pid: int, wanted: AbstractSet[int] | None = None, unix: Mapping[int, UnixRow] | None = None
) -> dict[int, SocketInfo]:
    """Reads the sockets of the process's network namespace by inode, all or those `wanted`, except unreadable ones.

    `unix` holds the Unix sockets that are already known.
    """
    found = {inode: name_row(unix[inode]) for inode in wanted & unix.keys()} if unix and wanted else {}
    if wanted is None or len(found) < len(wanted):
        found.update(parse_unix(read_or_none(procfs, f"/proc/{pid}/net/unix") or "", wanted))
    for family in _INTERNET:
        # Each of these takes milliseconds: the kernel walks all of its tables, however few sockets there are.
        if wanted is None or len(found) < len(wanted):
            found.update(parse_internet(read_or_none(procfs, f"/proc/{pid}/net/{family}") or "", family, wanted))
    return found


def name_row(row: UnixRow) -> SocketInfo:
    if not row.path and row.state in _ROW_STATES:
        return _NAMELESS[row.state]
    return SocketInfo("unix", _ROW_STATES.get(row.state, ""), row.path)


def parse_internet(text: str, family: str, wanted: AbstractSet[int] | None = None) -> dict[int, SocketInfo]:
    """Parses net/tcp, tcp6, udp or udp6; sockets in TIME_WAIT belong to no process and have inode 0.

    ```
      sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
       0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 31337 1 …
    ```
    """
    found = {}
    for line in text.splitlines()[1:]:
        words = line.split()
        try:
            inode, state = int(words[9]), int(words[3], 16)
            if inode and (wanted is None or inode in wanted):
                name = _TCP_STATES[state] if state < len(_TCP_STATES) else ""
                found[inode] = SocketInfo(family, name, _address(words[1]), _address(words[2]))
        except (IndexError, ValueError, OSError):
            continue  # an incomplete last line
    return found


def _address(text: str) -> str:
    """Formats `0100007F:1F90` as `127.0.0.1:8080`: 32-bit words in the machine's byte order, a big-endian port."""
    host, _, port = text.partition(":")
    raw = b"".join(int(host[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(host), 8))
    if len(raw) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, raw)}:{int(port, 16)}"
    return f"[{socket.inet_ntop(socket.AF_INET6, raw)}]:{int(port, 16)}"


def parse_unix(text: str, wanted: AbstractSet[int] | None = None) -> dict[int, SocketInfo]:
    """Parses net/unix; a path may be missing, or contain spaces.

    ```
    Num       RefCount Protocol Flags    Type St Inode Path
    0000000000000000: 00000002 00000000 00010000 0001 01 20117 /run/agent.sock
    ```
    """
    found = {}
    for line in text.splitlines()[1:]:
        words = line.split(maxsplit=7)
        try:
            inode = int(words[6])
            if wanted is not None and inode not in wanted:
                continue
            flags, state = int(words[3], 16), int(words[5], 16)
        except (IndexError, ValueError):
            continue
        name = "LISTEN" if flags & _UNIX_LISTENS else _UNIX_STATES.get(state, "")
        found[inode] = SocketInfo("unix", name, words[7] if len(words) > 7 else "")
    return found
