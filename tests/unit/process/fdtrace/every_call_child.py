"""Calls every hooked function from Python (ctypes where Python has none of its own) and prints as every_call.c does.

A line `+ FD KIND LINE` also says at which line of this file the descriptor was made.
"""

import _posixshmem
import array
import ctypes
import fcntl
import mmap
import os
import select
import shutil
import socket
import sys
import tempfile

folder = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
for name in ("fopen", "fopen64", "freopen", "freopen64", "tmpfile", "tmpfile64", "popen", "opendir", "mmap", "mmap64"):
    getattr(libc, name).restype = ctypes.c_void_p
libc.syscall.restype = ctypes.c_long
KEPT_ERRNO, NOT_OPEN = 1234, 900
NULL = b"/dev/null"
lines = []


def perform(function):
    """Every event below this frame is compared with what is printed."""
    ctypes.set_errno(KEPT_ERRNO)
    result = function()
    if isinstance(result, int) and 0 <= result < 2**63:
        assert ctypes.get_errno() == KEPT_ERRNO, (function.__code__.co_firstlineno, ctypes.get_errno())
    return result


def say(*words):
    lines.append(" ".join(map(str, words)))


def line_of(function):
    return function.__code__.co_firstlineno


def made(kind, function, close=os.close):
    result = perform(function)
    fd = result if isinstance(result, int) else result.fileno()
    assert fd >= 0, (line_of(function), os.strerror(ctypes.get_errno()))
    say("+", fd, kind, line_of(function))
    if close is os.close:
        close = lambda: os.close(fd)  # noqa: E731
    elif close is not None:
        close = result.close
    if close is not None:
        perform(close)
        say("-", fd)
    return fd


def pair(kind, function, fds=None):
    fds = perform(function) if fds is None else (perform(function), fds)[1]
    for fd in fds:
        say("+", fd, kind, line_of(function))
    for fd in fds:
        perform(lambda fd=fd: os.close(fd))
        say("-", fd)


def stream(kind, function, close=libc.fclose, number=libc.fileno):
    pointer = perform(function)
    assert pointer, line_of(function)
    fd = number(ctypes.c_void_p(pointer))
    say("+", fd, kind, line_of(function))
    perform(lambda: close(ctypes.c_void_p(pointer)))
    say("-", fd)


def reopened(call):
    function = lambda: libc.fopen(NULL, b"r")  # noqa: E731
    file = ctypes.c_void_p(perform(function))
    fd = libc.fileno(file)
    say("+", fd, "file", line_of(function))
    function = lambda: call(NULL, b"r", file)  # noqa: E731
    assert perform(function)
    say("-", fd)
    say("+", fd, "file", line_of(function))
    perform(lambda: libc.fclose(file))
    say("-", fd)


def path(name):
    return os.path.join(folder, name).encode()


def two():
    return (ctypes.c_int * 2)(-1, -1)


# -- Python's own functions --------------------------------------------------------------------------------------------

made("file", lambda: os.open("/dev/null", 0))
made("file", lambda: open("/dev/null"), "close")  # noqa: SIM115
made("file", lambda: tempfile.mkstemp(dir=folder)[0])
made("directory", lambda: os.open("/", os.O_DIRECTORY))
pair("pipe", lambda: os.pipe())
pair("pipe", lambda: os.pipe2(0))
made("dup", lambda: os.dup(0))
made("dup", lambda: os.dup2(0, 50))
made("dup", lambda: os.dup2(0, 50, inheritable=False))
made("dup", lambda: fcntl.fcntl(0, fcntl.F_DUPFD, 60))
made("socket", lambda: socket.socket(), "close")
ends = socket.socketpair()
say("#")
for end in ends:
    socket.send_fds(end, [b"x"], [0, 1])
pair("received", lambda: socket.recv_fds(ends[0], 1, 4)[1])
pair("received", lambda: list(array.array("i", ends[1].recvmsg(1, 64, socket.MSG_CMSG_CLOEXEC)[1][0][2])))
server = socket.create_server(("127.0.0.1", 0))
clients = [socket.create_connection(server.getsockname()) for _ in range(3)]
made("socket", lambda: server._accept()[0])
made("eventfd", lambda: os.eventfd(0))
made("epoll", lambda: select.epoll(), "close")
made("memfd", lambda: os.memfd_create("x"))
made("shm", lambda: _posixshmem.shm_open(f"/holdfast-{os.getpid()}", os.O_CREAT | os.O_RDWR, mode=0o600))
_posixshmem.shm_unlink(f"/holdfast-{os.getpid()}")
made("pidfd", lambda: os.pidfd_open(os.getpid()))
pair("pty", lambda: os.openpty())
function = lambda: os.forkpty()  # noqa: E731
child, terminal = perform(function)
if not child:
    os._exit(0)
say("+", terminal, "pty", line_of(function))
os.waitpid(child, 0)
perform(lambda: os.close(terminal))
say("-", terminal)
fd = made("file", lambda: os.open(path("m"), os.O_RDWR | os.O_CREAT), None)
os.truncate(fd, 4096)
function = lambda: mmap.mmap(fd, 4096)  # noqa: E731
mapped = perform(function)
copy = max(number for number in range(3, 100) if os.path.realpath(f"/proc/self/fd/{number}") == path("m").decode())
say("+", copy, "dup", line_of(function))
perform(lambda: mapped.close())
say("-", copy)
perform(lambda: os.closerange(fd, fd + 1))
say("-", fd)
fd = made("file", lambda: os.open("/dev/null", 0), None)
file = perform(lambda: os.fdopen(fd))
perform(lambda: file.close())
say("-", fd)

# -- The others --------------------------------------------------------------------------------------------------------

made("file", lambda: libc.open(NULL, 0))
made("file", lambda: libc.open64(NULL, 0))
made("file", lambda: libc.openat(-100, NULL, 0))
made("file", lambda: libc.openat64(-100, NULL, 0))
made("file", lambda: libc.__open_2(NULL, 0))
made("file", lambda: libc.__open64_2(NULL, 0))
made("file", lambda: libc.__openat_2(-100, NULL, 0))
made("file", lambda: libc.__openat64_2(-100, NULL, 0))
made("file", lambda: libc.creat(path("a"), 0o600))
made("file", lambda: libc.creat64(path("a"), 0o600))
stream("file", lambda: libc.fopen(NULL, b"r"))
stream("file", lambda: libc.fopen64(NULL, b"r"))
stream("file", lambda: libc.tmpfile())
stream("file", lambda: libc.tmpfile64())
stream("pipe", lambda: libc.popen(b"exit 3", b"r"), libc.pclose)
reopened(libc.freopen)
reopened(libc.freopen64)
stream("directory", lambda: libc.opendir(b"/"), libc.closedir, libc.dirfd)
made("file", lambda: libc.mkstemp(path("XXXXXX")))
made("file", lambda: libc.mkstemp64(path("XXXXXX")))
made("file", lambda: libc.mkostemp(path("XXXXXX"), 0))
made("file", lambda: libc.mkostemp64(path("XXXXXX"), 0))
made("file", lambda: libc.mkstemps(path("XXXXXX.x"), 2))
made("file", lambda: libc.mkstemps64(path("XXXXXX.x"), 2))
made("file", lambda: libc.mkostemps(path("XXXXXX.x"), 2, 0))
made("file", lambda: libc.mkostemps64(path("XXXXXX.x"), 2, 0))
fds = two()
pair("pipe", lambda: libc.pipe(fds), fds)
pair("pipe", lambda: libc.pipe2(fds, 0), fds)
pair("socket", lambda: libc.socketpair(1, 1, 0, fds), fds)
made("dup", lambda: libc.dup(0))
made("dup", lambda: libc.dup2(0, 51))
made("dup", lambda: libc.dup3(0, 51, 0))
made("dup", lambda: libc.fcntl(0, 0, 3))
made("dup", lambda: libc.fcntl64(0, 0, 3))
made("socket", lambda: libc.socket(1, 1, 0))
made("socket", lambda: libc.accept(server.fileno(), None, None))
made("socket", lambda: libc.accept4(server.fileno(), None, None, 0))
made("eventfd", lambda: libc.eventfd(0, 0))
made("timerfd", lambda: libc.timerfd_create(1, 0))
made("signalfd", lambda: libc.signalfd(-1, bytes(128), 0))
made("epoll", lambda: libc.epoll_create(1))
made("epoll", lambda: libc.epoll_create1(0))
made("inotify", lambda: libc.inotify_init())
made("inotify", lambda: libc.inotify_init1(0))
if os.geteuid() == 0:
    made("fanotify", lambda: libc.fanotify_init(0, 0))
made("memfd", lambda: libc.memfd_create(b"x", 0))
made("shm", lambda: libc.shm_open(f"/holdfast-{os.getpid()}".encode(), os.O_CREAT | os.O_RDWR, 0o600))
libc.shm_unlink(f"/holdfast-{os.getpid()}".encode())
queue = f"/holdfast-{os.getpid()}".encode()
mq = made("mq", lambda: libc.mq_open(queue, os.O_CREAT | os.O_RDWR, 0o600, None), None)
perform(lambda: libc.mq_close(mq))
say("-", mq)
libc.mq_unlink(queue)
pidfd = made("pidfd", lambda: libc.pidfd_open(os.getpid(), 0), None)
made("received", lambda: libc.pidfd_getfd(pidfd, 0, 0))
perform(lambda: libc.close(pidfd))
say("-", pidfd)
made("pty", lambda: libc.posix_openpt(os.O_RDWR | os.O_NOCTTY))
made("pty", lambda: libc.getpt())
first, second = ctypes.c_int(), ctypes.c_int()
function = lambda: libc.openpty(ctypes.byref(first), ctypes.byref(second), None, None, None)  # noqa: E731
assert perform(function) == 0
for number in (first.value, second.value):
    say("+", number, "pty", line_of(function))
for number in (first.value, second.value):
    perform(lambda number=number: libc.close_range(number, number, 0))
    say("-", number)
fd = made("dup", lambda: os.dup2(0, 800), None)
perform(lambda: libc.closefrom(800))
say("-", fd)
made("io_uring", lambda: libc.syscall(425, 4, ctypes.create_string_buffer(256)))
made("file", lambda: libc.syscall(437, -100, NULL, bytes(24), 24))
made("pidfd", lambda: libc.syscall(434, os.getpid(), 0))

# -- EBADF -------------------------------------------------------------------------------------------------------------

buffer = ctypes.create_string_buffer(256)
item = (ctypes.c_int * 2)(NOT_OPEN, select.POLLIN)
ARGUMENTS = {
    "read": (buffer, 1), "write": (buffer, 1), "pread": (buffer, 1, 0), "pread64": (buffer, 1, 0),
    "pwrite": (buffer, 1, 0), "pwrite64": (buffer, 1, 0), "readv": (buffer, 1), "writev": (buffer, 1),
    "recv": (buffer, 1, 0), "recvfrom": (buffer, 1, 0, None, None), "send": (buffer, 1, 0),
    "sendto": (buffer, 1, 0, None, 0), "sendmsg": (buffer, 0), "lseek": (0, 0), "lseek64": (0, 0), "fstat": (buffer,),
    "fstat64": (buffer,), "epoll_ctl": (1, 0, buffer), "epoll_wait": (buffer, 1, 0), "ftruncate": (0,),
    "ftruncate64": (0,), "fsync": (), "fdatasync": (), "ioctl": (0x541B, buffer), "__read_chk": (buffer, 1, 256),
    "__pread_chk": (buffer, 1, 0, 256), "__pread64_chk": (buffer, 1, 0, 256), "__recv_chk": (buffer, 1, 256, 0),
    "__recvfrom_chk": (buffer, 1, 256, 0, None, None), "recvmsg": (buffer, 0), "recvmmsg": (buffer, 1, 0, None),
    "accept": (None, None), "accept4": (None, None, 0), "dup": (), "dup2": (50,), "dup3": (50, 0), "fcntl": (3,),
    "fcntl64": (3,), "close": (), "mq_close": (), "connect": (buffer, 16), "bind": (buffer, 16), "listen": (1,),
    "shutdown": (2,), "setsockopt": (1, 9, buffer, 4), "getsockopt": (1, 9, buffer, ctypes.byref(ctypes.c_int(4))),
    "getsockname": (buffer, buffer), "getpeername": (buffer, buffer), "flock": (1,), "sendfile": (0, None, 1),
    "sendfile64": (0, None, 1), "tcgetattr": (buffer,), "tcsetattr": (0, buffer), "fchdir": (), "fchmod": (0o600,),
    "openat": (b"a", 0), "openat64": (b"a", 0), "fstatat": (b"a", buffer, 0), "fstatat64": (b"a", buffer, 0),
    "unlinkat": (b"a", 0), "mkdirat": (b"a", 0o700), "eventfd_read": (buffer,),
    "eventfd_write": (ctypes.c_uint64(1),), "fchown": (0, 0), "futimens": (None,), "fstatvfs": (buffer,),
    "fstatvfs64": (buffer,), "lockf": (1, 0), "lockf64": (1, 0), "readlinkat": (b"a", buffer, 1),
    "faccessat": (b"a", 4, 0), "preadv": (buffer, 1, 0), "preadv64": (buffer, 1, 0), "pwritev": (buffer, 1, 0),
    "pwritev64": (buffer, 1, 0), "preadv64v2": (buffer, 1, 0, 0), "pwritev64v2": (buffer, 1, 0, 0),
    "copy_file_range": (None, 1, None, 1, 0), "splice": (None, 1, None, 1, 0),
}  # fmt: skip
for name, arguments in ARGUMENTS.items():
    assert perform(lambda: getattr(libc, name)(NOT_OPEN, *arguments)) == -1, name  # noqa: B023
    assert ctypes.get_errno() == 9, name
    say("!", NOT_OPEN, name)
for name in ("__fxstat", "__fxstat64"):
    assert perform(lambda: getattr(libc, name)(1, NOT_OPEN, buffer)) == -1, name  # noqa: B023
    say("!", NOT_OPEN, name)
for name, more in (("select", (bytes(16),)), ("pselect", (bytes(16), None))):
    asked = ctypes.create_string_buffer(128)
    asked[5] = 1  # 40: the kernel ignores numbers beyond the highest that was ever open
    assert perform(lambda: getattr(libc, name)(41, asked, None, None, *more)) == -1, name  # noqa: B023
    say("!", 40, name)
perform(lambda: libc.fcntl(NOT_OPEN, fcntl.F_GETFD))  # only asks
for name in ("mmap", "mmap64"):
    perform(lambda: getattr(libc, name)(None, 4096, 1, 1, NOT_OPEN, 0))  # noqa: B023
    say("!", NOT_OPEN, name)
for name, more in (("poll", (0,)), ("__poll_chk", (0, 8)), ("ppoll", (bytes(16), None))):
    assert perform(lambda: getattr(libc, name)(item, 1, *more)) == 1, name  # noqa: B023
    say("!", NOT_OPEN, name)
for each in (server, *clients, *ends):
    each.close()
shutil.rmtree(folder)
print("\n".join(lines))
