"""Starts a tree of processes that hold descriptors, to be scanned.

    python -m benchmarks.fdscan.process_tree work 20000 3
    python -m benchmarks.fdscan.process_tree leak 20000 3

Here 3 processes hold 20,000 descriptors each. In the mix `work`, four of ten are pipes between the processes, two are
what finished torch iterators leak (pipes with both ends in one process, and ends without a peer), two files, two
sockets. In `leak`, eight of ten are what torch iterators leak, one a file, one a socket. Prints the pids as JSON, the
parent's first, when all processes are ready; ends with its stdin.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import sys

_PR_SET_PDEATHSIG = 1
# Descriptors of the interpreter, and those that are open only while the tree is built.
SPARE = 40

# Of ten: pipes to the other processes, what iterators leaked, sockets; the rest are files.
MIXES = {"work": (4, 2, 2), "leak": (0, 8, 1)}


def main() -> None:
    mix, number, processes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (number + SPARE, hard))
    linked, leaked, sockets = (part * number // 10 for part in MIXES[mix])
    links = [os.pipe() for _ in range(linked)]
    children = [start_child(number, leaked, sockets, links) for _ in range(processes - 1)]
    for read_end, _ in links:
        os.close(read_end)
    fill(number, leaked, sockets)
    print(json.dumps([os.getpid(), *children]), flush=True)
    sys.stdin.read()
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def start_child(number: int, leaked: int, sockets: int, links: list[tuple[int, int]]) -> int:
    """Forks a child that keeps the read ends of the links, and dies with its parent however that ends."""
    ready, report = os.pipe()
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.close(ready)
        for _, write_end in links:
            os.close(write_end)
        fill(number, leaked, sockets)
        os.write(report, b"x")
        while True:
            signal.pause()
    os.close(report)
    if os.read(ready, 1) != b"x":
        sys.exit(f"expected a child that holds {number} descriptors, but it ended")
    os.close(ready)
    return pid


def fill(number: int, leaked: int, sockets: int) -> None:
    """Opens descriptors until the process has `number` of them."""
    for _ in range(leaked // 4):
        os.pipe()
        os.close(os.pipe()[1])
        os.close(os.pipe()[0])
    for _ in range(sockets // 2):
        for end in socket.socketpair():
            end.detach()
    for _ in range(number - len(os.listdir("/proc/self/fd")) + 1):
        os.open(__file__, os.O_RDONLY)


if __name__ == "__main__":
    main()
