from __future__ import annotations

import os
import socket
import sys

from fake_proc import FakeProc

from holdfast.procfs.procfs import REAL
from holdfast.procfs.sockets import SocketInfo, parse_internet, parse_unix, read_sockets

TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 31337 1 0000 100 0 0 10 0
   1: 0100007F:1F90 0100007F:C001 06 00000000:00000000 00:00000000 00000000     0        0 0 1 0000 100 0 0 10 0
   2: torn
"""
UNIX = """Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 20117 /run/an agent.sock
0000000000000000: 00000003 00000000 00000000 0001 03 20118
torn
"""


def _inode(one: socket.socket) -> int:
    return os.fstat(one.fileno()).st_ino


def test_tcp_rows() -> None:
    assert parse_internet(TCP, "tcp") == {31337: SocketInfo("tcp", "LISTEN", "127.0.0.1:8080", "0.0.0.0:0")}


def test_rows_of_the_sixth_version() -> None:
    loopback = (1).to_bytes(16, "big")
    words = "".join(f"{int.from_bytes(loopback[at : at + 4], sys.byteorder):08X}" for at in range(0, 16, 4))
    text = TCP.replace("0100007F:1F90", f"{words}:1F90").replace("00000000:0000 0A", f"{'0' * 32}:0000 0A")
    assert parse_internet(text, "tcp6") == {31337: SocketInfo("tcp6", "LISTEN", "[::1]:8080", "[::]:0")}


def test_unix_rows() -> None:
    assert parse_unix(UNIX) == {
        20117: SocketInfo("unix", "LISTEN", "/run/an agent.sock"),
        20118: SocketInfo("unix", "CONNECTED"),
    }


def test_tables_that_cannot_be_read_are_empty() -> None:
    assert read_sockets(FakeProc(), 7) == {}


def test_real_tcp_sockets_show_who_did_not_close() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        with client, accepted:
            table = read_sockets(REAL, os.getpid())
            assert table[_inode(server)].state == "LISTEN"
            assert table[_inode(client)].state == "ESTABLISHED"
            assert table[_inode(client)].remote == f"127.0.0.1:{server.getsockname()[1]}"
            accepted.close()
            assert client.recv(1) == b""  # its end has arrived
            assert read_sockets(REAL, os.getpid())[_inode(client)].state == "CLOSE_WAIT"


def test_real_unix_and_udp_sockets() -> None:
    one, other = socket.socketpair()
    with one, other, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        table = read_sockets(REAL, os.getpid())
        assert table[_inode(one)] == SocketInfo("unix", "CONNECTED")
        assert table[_inode(udp)].family == "udp"
        assert table[_inode(udp)].local == f"127.0.0.1:{udp.getsockname()[1]}"
