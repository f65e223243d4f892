"""A tree of processes that hold descriptors: what benchmarks/look.py looks at.

    look_tree.py work 20000 3        four of ten are pipes between the processes, two what finished torch iterators
                                     leave (one self-pair : one HUP : one ERR), two files, two sockets
    look_tree.py leak 20000 3        eight of ten are what finished torch iterators leave, one a file, one a socket

Here 3 processes hold 20,000 each. Says their pids as JSON when all are there, the parent's first; ends with its stdin.
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
# The interpreter's own, and those that are open only while the tree is made.
SPARE = 40

# Of ten: pipes to the other processes, what finished iterators left, sockets; the rest are files.
MIXES = {"work": (4, 2, 2), "leak": (0, 8, 1)}


def main() -> None:
    mix, number, processes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (number + SPARE, hard))
    linked, left, sockets = (part * number // 10 for part in MIXES[mix])
    links = [os.pipe() for _ in range(linked)]
    children = [start_child(number, left, sockets, links) for _ in range(processes - 1)]
    for read_end, _ in links:
        os.close(read_end)
    fill(number, left, sockets)
    print(json.dumps([os.getpid(), *children]), flush=True)
    sys.stdin.read()
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def start_child(number: int, left: int, sockets: int, links: list[tuple[int, int]]) -> int:
    """It keeps the read ends of the links, as its sisters do, and dies with its parent, however that ends."""
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.close(ready)
        for _, write_end in links:
            os.close(write_end)
        fill(number, left, sockets)
        os.write(tell, b"x")
        while True:
            signal.pause()
    os.close(tell)
    if os.read(ready, 1) != b"x":
        sys.exit(f"wanted a child that holds {number} descriptors; it ended")
    os.close(ready)
    return pid


def fill(number: int, left: int, sockets: int) -> None:
    """Until the process has so many."""
    for _ in range(left // 4):
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
