"""Programs that misuse descriptors, each with the truth about it, and programs that do not.

The lines that are to blame end with `#C`, those that fail with `#V`; `#CV` is both. Where two lines are equally to
blame, both carry the mark. A program may die of its mistake or survive it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

DOUBLE, USED, STALE, DUP2 = "double close", "use after close", "stale close", "stale dup2"
NEVER, ABROAD = "never open", "not inherited"

# Threads that take turns: `turn(n)` waits for step n, `done()` begins the next one.
PRELUDE = """
import os, signal, socket, sys, threading, time
signal.alarm(60)
step, changed = 0, threading.Condition()
def turn(n):
    with changed:
        changed.wait_for(lambda: step == n, 20)
def done():
    global step
    with changed:
        step += 1
        changed.notify_all()
def run(*functions):
    threads = [threading.Thread(target=f) for f in functions]
    [t.start() for t in threads]
    [t.join() for t in threads]
NULL = '/dev/null'
"""


class Program(NamedTuple):
    """A program and what is true of it. `culprits` and `victims` are line numbers; none: any will do."""

    name: str
    kind: str
    source: str
    culprits: tuple[int, ...]
    victims: tuple[int, ...]


def _programs(table: str) -> list[Program]:
    """Reads `=== name | kind` and the source below it."""
    found = []
    for part in re.split(r"^=== ", table, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        name, _, kind = (text.strip() for text in head.partition("|"))
        source = PRELUDE + body
        marks = [(number, line) for number, line in enumerate(source.splitlines(), 1) if re.search(r"#C?V?$", line)]
        found.append(
            Program(
                name,
                kind,
                re.sub(r" *#C?V?$", "", source, flags=re.MULTILINE),
                tuple(number for number, line in marks if re.search("#CV?$", line)),
                tuple(number for number, line in marks if line.endswith("V")),
            )
        )
    return found


FAULTY = _programs("""
=== a file closed late takes a socket's number, whose thread prints its traceback | stale close
def offender():
    turn(0)
    file = open(NULL, 'rb')
    os.close(file.fileno()); done()
    turn(2)
    file.close(); done()  #C
def victim():
    turn(1); mine = socket.socket(); done()
    turn(3); mine.getsockopt(1, 3)  #V
run(offender, victim)
=== a program gets a number that its own start has used | not inherited
import subprocess
fd = os.open(NULL, 0)
subprocess.run([sys.executable, '-c', f'import os; os.read({fd}, 1)'], stderr=subprocess.DEVNULL)
=== a number closed twice | double close
fd = os.open(NULL, 0)
os.close(fd)
os.close(fd)  #CV
=== closed in the function and again by its caller | double close
def load(fd):
    os.read(fd, 1)
    os.close(fd)
def main():
    fd = os.open(NULL, 0)
    load(fd)
    os.close(fd)  #CV
main()
=== closed in except and in finally | double close
def load():
    fd = os.open(NULL, 0)
    try:
        raise ValueError
    except ValueError:
        os.close(fd)
    finally:
        os.close(fd)  #CV
load()
=== twenty numbers closed twice | double close
def close_all(fds):
    for fd in fds:
        try:
            os.close(fd)  #V
        except OSError:
            pass
fds = [os.open(NULL, 0) for _ in range(20)]
close_all(fds)
close_all(fds)  #C
=== a file's number closed below it | double close
file = open(NULL, 'rb')
os.close(file.fileno())  #C
file.close()  #V
=== a number closed inside its with block | double close
with open(NULL, 'rb') as file:  #V
    os.close(file.fileno())  #C
=== os.fdopen twice | double close
def load():
    fd = os.open(NULL, 0)
    first, second = os.fdopen(fd, 'rb', 0), os.fdopen(fd, 'rb', 0)
    first.close()
    second.close()  #CV
load()
=== os.close after os.fdopen | double close
fd = os.open(NULL, 0)
file = os.fdopen(fd, 'rb')
os.close(fd)  #C
file.close()  #V
=== mkstemp closed twice | double close
import tempfile
fd, path = tempfile.mkstemp()
os.unlink(path)
with os.fdopen(fd, 'w') as file:
    file.write('x')
os.close(fd)  #CV
=== a socket's number closed below it | double close
sock = socket.socket()
os.close(sock.fileno())  #C
sock.close()  #V
=== two sockets of one number | double close
one, other = socket.socketpair()
copy = socket.socket(fileno=one.fileno())
copy.close()  #C
one.close()  #CV
=== a detached socket closed twice | double close
sock = socket.socket()
fd = sock.detach()
os.close(fd)
os.close(fd)  #CV
=== a pool's worker closes what its caller closes | double close
from concurrent.futures import ThreadPoolExecutor
def worker(fd):
    os.close(fd)
fd = os.open(NULL, 0)
with ThreadPoolExecutor(1) as pool:
    pool.submit(worker, fd).result()
os.close(fd)  #CV
=== two threads close one number | double close
fd = os.open(NULL, 0)
def first():
    turn(0); os.close(fd); done()
def second():
    turn(1)
    os.close(fd)  #CV
run(first, second)
=== __del__ closes what was closed | double close
class Reader:
    def __init__(self):
        self.fd = os.open(NULL, 0)
    def close(self):
        os.close(self.fd)
    def __del__(self):
        os.close(self.fd)  #CV
reader = Reader()
reader.close()
del reader
=== weakref.finalize closes what was closed | double close
import weakref
class Reader:
    def __init__(self):
        self.fd = os.open(NULL, 0)
        self.end = weakref.finalize(self, finish, self.fd)
def finish(fd):
    os.close(fd)  #CV
reader = Reader()
os.close(reader.fd)
reader.end()
=== an ExitStack closes what was closed | double close
import contextlib
def load():
    with contextlib.ExitStack() as stack:  #V
        fd = os.open(NULL, 0)
        stack.callback(os.close, fd)
        os.close(fd)  #C
try:
    load()
except OSError:
    pass
=== ctypes closes twice | double close
import ctypes
libc = ctypes.CDLL(None)
fd = libc.open(NULL.encode(), 0)
libc.close(fd)
libc.close(fd)  #CV
=== ctypes closes the number of a file | double close
import ctypes
file = open(NULL, 'rb')
ctypes.CDLL(None).close(file.fileno())  #C
file.close()  #V
=== a connection's number closed below it | double close
import multiprocessing as mp
here, there = mp.Pipe()
os.close(here.fileno())  #C
here.close()  #V
=== a child closes its copy twice | double close
fd = os.open(NULL, 0)
pid = os.fork()
if not pid:
    os.close(fd)
    os.close(fd)  #CV
os.waitpid(pid, 0)
=== a signal handler closes what main closes | double close
import signal
def stop(*_):
    os.close(fd)
fd = os.open(NULL, 0)
signal.signal(signal.SIGUSR1, stop)
os.kill(os.getpid(), signal.SIGUSR1)
os.close(fd)  #CV
=== an epoll closed twice | double close
import select
poll = select.epoll()
os.close(poll.fileno())  #C
poll.close()  #V
=== a scandir of a number that is closed twice | double close
fd = os.open('/', os.O_RDONLY)
names = os.listdir(fd)
os.close(fd)
def finish(fd):
    os.close(fd)  #CV
finish(fd)
=== read after close | use after close
fd = os.open(NULL, 0)
os.close(fd)  #C
os.read(fd, 1)  #V
=== write after close in another function | use after close
def finish(fd):
    os.close(fd)  #C
def log(fd):
    os.write(fd, b'x')  #V
def main():
    fd = os.open(NULL, os.O_WRONLY)
    finish(fd)
    log(fd)
main()
=== read after close, and an import has had the number since | use after close
fd = os.open(NULL, 0)
os.close(fd)  #C
import decimal, fractions
os.read(fd, 1)  #V
=== seek after close | use after close
fd = os.open('/etc/hostname', 0)
os.close(fd)  #C
os.lseek(fd, 0, 0)  #V
=== the program dies of fstat | use after close
fd = os.open('/etc/hostname', 0)
os.close(fd)  #C
size = os.fstat(fd).st_size  #V
=== a map of a closed number | use after close
import mmap
fd = os.open('/etc/passwd', 0)
os.close(fd)  #C
mmap.mmap(fd, 0, prot=mmap.PROT_READ)  #V
=== os.fdopen of a closed number | use after close
fd = os.open(NULL, 0)
os.close(fd)  #C
os.fdopen(fd)  #V
=== a copy of a closed number | use after close
fd = os.open(NULL, 0)
os.close(fd)  #C
os.dup(fd)  #V
=== dup2 of a closed number | use after close
fd = os.open(NULL, 0)
os.close(fd)  #C
os.dup2(fd, 50)  #V
=== sendfile from a closed file | use after close
one, other = socket.socketpair()
fd = os.open('/etc/passwd', 0)
os.close(fd)  #C
os.sendfile(one.fileno(), fd, 0, 10)  #V
=== a lock on a closed file | use after close
import fcntl
fd = os.open(NULL, 0)
os.close(fd)  #C
fcntl.flock(fd, fcntl.LOCK_EX)  #V
=== lockf on a closed file | use after close
import fcntl
fd = os.open(NULL, os.O_WRONLY)
os.close(fd)  #C
fcntl.lockf(fd, fcntl.LOCK_EX)  #V
=== ftruncate and fsync after close | use after close
import tempfile
fd, path = tempfile.mkstemp()
os.unlink(path)
os.close(fd)  #C
try:
    os.ftruncate(fd, 0)  #V
finally:
    os.fsync(fd)
=== tcgetattr of a closed terminal | use after close
import termios
main, worker = os.openpty()
os.close(worker)  #C
termios.tcgetattr(worker)  #V
=== select on a closed number | use after close
import select
read, write = os.pipe()
os.close(read)  #C
select.select([read], [], [], 0)  #V
=== poll on a closed number | use after close
import select
read, write = os.pipe()
waiting = select.poll()
waiting.register(read)
os.close(read)  #C
waiting.poll(0)  #V
=== a closed number registered with epoll | use after close
import select
read, write = os.pipe()
waiting = select.epoll()
os.close(read)  #C
waiting.register(read)  #V
=== an epoll whose number was closed | use after close
import select
waiting = select.epoll()
os.close(waiting.fileno())  #C
waiting.poll(0)  #V
=== a closed number registered with a selector | use after close
import selectors
read, write = os.pipe()
waiting = selectors.DefaultSelector()
os.close(read)  #C
waiting.register(read, selectors.EVENT_READ)  #V
=== the list of a closed folder | use after close
fd = os.open('/', 0)
os.close(fd)  #C
os.listdir(fd)  #V
=== a file below a closed folder | use after close
fd = os.open('/etc', 0)
os.close(fd)  #C
os.open('passwd', 0, dir_fd=fd)  #V
=== stat below a closed folder | use after close
fd = os.open('/etc', 0)
os.close(fd)  #C
os.stat('passwd', dir_fd=fd)  #V
=== chdir to a closed folder | use after close
fd = os.open('/etc', 0)
os.close(fd)  #C
os.fchdir(fd)  #V
=== bind, after a library closed the number | use after close
def library(fd):
    os.close(fd)  #C
sock = socket.socket()
library(sock.fileno())
sock.bind(('127.0.0.1', 0))  #V
=== listen, after a library closed the number | use after close
def library(fd):
    os.close(fd)  #C
sock = socket.socket()
sock.bind(('127.0.0.1', 0))
library(sock.fileno())
sock.listen()  #V
=== connect, after the number was closed | use after close
server = socket.create_server(('127.0.0.1', 0))
sock = socket.socket()
os.close(sock.fileno())  #C
sock.connect(server.getsockname())  #V
=== shutdown, after the number was closed | use after close
one, other = socket.socketpair()
os.close(one.fileno())  #C
one.shutdown(socket.SHUT_RDWR)  #V
=== options of a closed socket | use after close
one, other = socket.socketpair()
os.close(one.fileno())  #C
one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  #V
=== the name of a closed socket | use after close
one, other = socket.socketpair()
os.close(one.fileno())  #C
one.getsockname()  #V
=== a socket made of a closed number | use after close
one, other = socket.socketpair()
fd = one.detach()
os.close(fd)  #C
socket.socket(fileno=fd)  #V
=== accept on a closed server | use after close
server = socket.create_server(('127.0.0.1', 0))
os.close(server.fileno())  #C
server.accept()  #V
=== a socket object used after its close | use after close
one, other = socket.socketpair()
one.close()  #C
one.send(b'x')  #V
=== a socket object closed by another thread | use after close
one, other = socket.socketpair()
def closer():
    turn(0)
    one.close()  #C
    done()
def reader():
    turn(1)
    one.recv(1)  #V
run(closer, reader)
=== a socket used after detach | use after close
one, other = socket.socketpair()
fd = one.detach()
one.sendall(b'x')  #V
=== a closed number as stdout of a program | use after close
import subprocess
read, write = os.pipe()
os.close(write)  #C
subprocess.run(['true'], stdout=write)  #V
=== a closed number in pass_fds | use after close
import subprocess
write = os.dup2(os.open(NULL, 0), 90)
os.close(write)  #C
subprocess.run(['true'], pass_fds=[write])  #V
=== a closed number as stdin of a program | use after close
import subprocess
def start(fd):
    subprocess.run(['cat'], stdin=fd)  #V
fd = os.dup2(os.open(NULL, 0), 90)
os.close(fd)  #C
start(fd)
=== the number outlives its file object | use after close
def number():
    file = open(NULL, 'rb')  #C
    return file.fileno()
os.read(number(), 1)  #V
=== the number of a temporary file that nobody keeps | use after close
import tempfile
fd = tempfile.TemporaryFile().fileno()  #C
os.write(fd, b'x')  #V
=== a file in a cycle, closed by the garbage collector | use after close
import gc
class Node:
    def __init__(self):
        self.me, self.file = self, open(NULL, 'rb', 0)  #C
def number():
    return Node().file.fileno()
def main():
    fd = number()
    gc.collect()
    os.read(fd, 1)  #V
main()
=== a daemon closes what its thread uses | use after close
one, other = socket.socketpair()
def daemonize():
    os.closerange(3, 200)  #C
def reader():
    turn(1)
    one.recv(1)  #V
def main():
    turn(0); daemonize(); done()
run(main, reader)
=== a closing loop takes the log's file | use after close
import logging
logging.basicConfig(filename=NULL)
log = logging.getLogger()
for fd in range(3, 100):
    try:
        os.close(fd)  #C
    except OSError:
        pass
logging.raiseExceptions = False
log.error('x')  #V
=== a child uses what its parent closed | use after close
def parent():
    fd = os.open(NULL, 0)
    os.close(fd)  #C
    return fd
fd = parent()
pid = os.fork()
if not pid:
    os.read(fd, 1)  #V
os.waitpid(pid, 0)
=== a worker closes everything, then its connection fails | use after close
import multiprocessing as mp
def work(connection):
    os.closerange(3, 100)  #C
    connection.send(1)  #V
here, there = mp.get_context('fork').Pipe()
worker = mp.get_context('fork').Process(target=work, args=(there,))
worker.start()
worker.join()
=== a queue whose pipe was closed | use after close
import multiprocessing as mp
items = mp.get_context('fork').SimpleQueue()
os.close(items._writer.fileno())  #C
items.put(1)  #V
=== workers of a pool use a closed file | use after close
import multiprocessing as mp
def read(_):
    try:
        return os.read(fd, 1)  #V
    except OSError:
        return None
fd = os.dup2(os.open(NULL, 0), 90)
os.close(fd)  #C
with mp.get_context('fork').Pool(2) as pool:
    pool.map(read, range(4))
=== a thread pool's file closed too early | use after close
from concurrent.futures import ThreadPoolExecutor
def read(fd):
    turn(1)
    return os.read(fd, 1)  #V
fd = os.open(NULL, 0)
with ThreadPoolExecutor(1) as pool:
    future = pool.submit(read, fd)
    os.close(fd)  #C
    done()
future.result()
=== atexit uses what main closed | use after close
import atexit
def finish():
    os.write(fd, b'end')  #V
fd = os.open(NULL, os.O_WRONLY)
atexit.register(finish)
os.close(fd)  #C
=== asyncio waits for a closed number | use after close
import asyncio
async def main():
    read, write = os.pipe()
    os.close(read)  #C
    asyncio.get_running_loop().add_reader(read, print)  #V
asyncio.run(main())
=== asyncio sends on a number that was closed | use after close
import asyncio
async def main():
    one, other = socket.socketpair()
    one.setblocking(False)
    os.close(one.fileno())  #C
    await asyncio.get_running_loop().sock_sendall(one, b'x')  #V
asyncio.run(main())
=== sqlite loses its file | use after close
import sqlite3, tempfile
folder = tempfile.TemporaryDirectory()
base = sqlite3.connect(folder.name + '/a.db')
base.execute('create table a(b)')
base.commit()
os.closerange(3, 100)  #C
try:
    base.execute('insert into a values(1)')  #V
except sqlite3.Error:
    pass
=== ctypes reads what Python closed | use after close
import ctypes
libc = ctypes.CDLL(None)
file = open(NULL, 'rb')
fd = file.fileno()
file.close()  #C
libc.read(fd, ctypes.create_string_buffer(4), 1)  #V
=== an eventfd used after close | use after close
fd = os.eventfd(0)
os.close(fd)  #C
os.eventfd_write(fd, 1)  #V
=== a generator closed before its number is read | use after close
def lines():
    with open(NULL, 'rb') as file:  #C
        yield file.fileno()
running = lines()
fd = next(running)
running.close()
os.read(fd, 1)  #V
=== a pool that the garbage collector finds at exit | use after close
import atexit, gc, multiprocessing.pool
class Strategy:
    def __init__(self):
        self.me, notifier = self, multiprocessing.SimpleQueue()  #C
        self.pool = multiprocessing.pool.ThreadPool(2)
        self.pool._change_notifier = notifier
def main():
    Strategy()
gc.disable()
atexit.register(gc.collect)
main()
=== a file that the garbage collector closes at exit | use after close
import atexit, gc
kept = [open(NULL) for _ in range(20)]
class Node:
    def __init__(self):
        self.me, self.file = self, open(NULL, 'wb', 0)  #C
def number():
    return Node().file.fileno()
def finish():
    gc.collect()
    os.write(fd, b'end')  #V
gc.disable()
fd = number()
atexit.register(finish)
=== a pool at exit, under an excepthook | use after close
import gc, multiprocessing.pool, traceback
class Strategy:
    def __init__(self):
        self.me, notifier = self, multiprocessing.SimpleQueue()  #C
        self.pool = multiprocessing.pool.ThreadPool(2)
        self.pool._change_notifier = notifier
def hook(kind, error, trace):
    traceback.clear_frames(trace)
    gc.collect()
sys.excepthook = hook
def main():
    strategy = Strategy()
    raise ValueError
main()
=== a second close hits another thread's file | stale close
def offender():
    turn(0); fd = os.open(NULL, 0); os.close(fd); done()
    turn(2)
    os.close(fd)  #C
    done()
def victim():
    turn(1); fd = os.open('/dev/zero', 0); done()
    turn(3)
    os.read(fd, 1)  #V
run(offender, victim)
=== a second close, and the victim's close fails | stale close
def offender():
    turn(0); fd = os.open(NULL, 0); os.close(fd); done()
    turn(2)
    os.close(fd)  #C
    done()
def victim():
    turn(1); fd = os.open('/dev/zero', 0); done()
    turn(3)
    os.close(fd)  #V
run(offender, victim)
=== two threads close one number, a third has it | stale close
shared = os.open(NULL, 0)
def closer(at):
    turn(at)
    os.close(shared)  #C
    done()
def victim():
    turn(1); fd = os.open('/dev/zero', 0); done()
    turn(3)
    os.read(fd, 1)  #V
run(lambda: closer(0), victim, lambda: closer(2))
=== a second file object closes a stranger's file | stale close
def library():
    first = open(NULL, 'rb', 0)
    second = os.fdopen(first.fileno(), 'rb', 0)
    first.close()
    yield
    second.close()  #C
    yield
def user():
    running = library()
    next(running)
    fd = os.open('/dev/zero', 0)
    next(running)
    os.read(fd, 1)  #V
user()
=== __del__ closes a number that another class has | stale close
class Old:
    def __init__(self):
        self.fd = os.open(NULL, 0)
    def close(self):
        os.close(self.fd)
    def __del__(self):
        os.close(self.fd)  #C
class New:
    def __init__(self):
        self.fd = os.open('/dev/zero', 0)
    def read(self):
        return os.read(self.fd, 1)  #V
old = Old()
old.close()
new = New()
del old
new.read()
=== a stale name in one function | stale close
old = os.open(NULL, 0)
os.close(old)
new = os.open('/dev/zero', 0)
os.close(old)  #C
os.read(new, 1)  #V
=== a socket's old number closed after a reconnect | stale close
class Client:
    def connect(self):
        self.sock, self.other = socket.socketpair()
        self.fd = self.sock.fileno()
    def drop(self):
        self.sock.close()
    def cleanup(self):
        os.close(self.fd)  #C
def save():
    return os.open('/dev/zero', 0)
client = Client()
client.connect()
client.drop()
fd = save()
client.cleanup()
def read():
    os.read(fd, 1)  #V
read()
=== dup2 onto a number that another thread has | stale dup2
source = os.open(NULL, 0)
def offender():
    turn(0); fd = os.open(NULL, 0); os.close(fd); done()
    turn(2)
    os.dup2(source, fd)  #C
    os.close(fd)
    done()
def victim():
    turn(1); fd = os.open('/dev/zero', 0); done()
    turn(3)
    os.read(fd, 1)  #V
run(offender, victim)
=== dup2 onto the number of another function's file | stale dup2
class Table:
    def __init__(self):
        self.file = open('/dev/zero', 'rb', 0)
    def close(self):
        self.file.close()
class Redirect:
    def __init__(self, number):
        self.fd = os.open(NULL, 0)
        os.dup2(self.fd, number)  #C
        self.number = number
    def read(self):
        os.read(self.number, 1)  #V
table = Table()
redirect = Redirect(table.file.fileno())
table.close()
redirect.read()
=== a number that was never open | never open
os.read(777, 1)  #CV
=== a number read from a wrong place | never open
def receive(fd):
    return os.fdopen(fd)  #CV
receive(64)
=== a program gets a number that it did not inherit | not inherited
import subprocess
fd = os.open('/etc/passwd', 0)
fd = os.dup2(fd, 77, inheritable=False)
subprocess.run([sys.executable, '-I', '-c', 'import os; os.read(77, 1)'], close_fds=True)
=== exec closes the number | not inherited
fd = os.dup2(os.open('/etc/passwd', 0), 77, inheritable=False)
os.execv(sys.executable, [sys.executable, '-I', '-c', 'import os; os.read(77, 1)'])
=== a spawned worker gets a number | not inherited
import multiprocessing as mp
def work(fd):
    os.read(fd, 1)  #V
if __name__ == '__main__':
    fd = os.dup2(os.open('/etc/passwd', 0), 77, inheritable=False)
    worker = mp.get_context('spawn').Process(target=work, args=(fd,))
    worker.start()
    worker.join()
=== a connection used after its pool closed it | use after close
class Pool:
    def __init__(self):
        self.sock, self.peer = socket.socketpair()
    def release(self):
        self.sock.close()  #C
pool = Pool()
conn = pool.sock
pool.release()
conn.sendall(b'x')  #V
=== stop() closes the pipe that its thread reads | use after close
r, w = os.pipe()
class Worker(threading.Thread):
    def run(self):
        os.read(r, 1); done()
        turn(2)
        os.read(r, 1)  #V
    def stop(self):
        os.close(r)  #C
worker = Worker()
worker.start()
os.write(w, b'x')
turn(1)
worker.stop()
done()
worker.join()
=== a number used after its context manager | use after close
import contextlib
@contextlib.contextmanager
def opened(path):
    fd = os.open(path, 0)
    try:
        yield fd
    finally:
        os.close(fd)  #C
with opened(NULL) as fd:
    pass
os.read(fd, 1)  #V
=== a number used after the file made of it | use after close
fd = os.open(NULL, os.O_WRONLY)
with os.fdopen(fd, 'wb') as f:  #C
    f.write(b'x')
os.write(fd, b'y')  #V
=== a dropped file had closed the number | double close
fd = os.open(NULL, 0)
os.fdopen(fd, 'rb').read()
os.close(fd)  #CV
=== a file that went out of scope had closed the number | double close
def first():
    f = open(NULL, 'rb')  #C
    return f.fileno()
fd = first()
os.close(fd)  #CV
=== a server selects a client that it dropped | use after close
import select
server = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(server.getsockname())
conn, _ = server.accept()
clients = [conn.fileno()]
def drop(c):
    c.close()  #C
def loop():
    while True:
        r, _, _ = select.select(clients, [], [], 0.1)  #V
        drop(conn)
loop()
=== the pipe of a program closed below its object | use after close
import subprocess
p = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
os.close(p.stdout.fileno())  #C
try:
    p.communicate(b'x')  #V
finally:
    p.stdin.close()
    p.wait()
=== a stream of a socket whose number was closed | use after close
a, b = socket.socketpair()
f = a.makefile('rb')
os.close(a.fileno())  #C
f.readline()  #V
=== the stream of a log handler closed below it | use after close
import logging
h = logging.FileHandler('/dev/null')
log = logging.getLogger('z')
log.addHandler(h)
def rotate():
    os.close(h.stream.fileno())  #C
rotate()
log.warning('x')  #V
=== the file below an archive closed by its number | use after close
import gzip, tempfile
t = tempfile.TemporaryFile()
g = gzip.GzipFile(fileobj=t, mode='wb')
os.close(t.fileno())  #C
g.write(b'x' * 100000)
g.close()
t.flush()  #V
=== os.close submitted twice | double close
from concurrent.futures import ThreadPoolExecutor
fd = os.open(NULL, 0)
with ThreadPoolExecutor(1) as ex:
    ex.submit(os.close, fd).result()
    ex.submit(os.close, fd).exception()
=== a closed number for set_wakeup_fd | use after close
import signal
r, w = os.pipe()
os.set_blocking(w, False)
os.close(w)  #C
signal.set_wakeup_fd(w)  #V
=== set_inheritable after close | use after close
fd = os.open(NULL, 0)
os.close(fd)  #C
os.set_inheritable(fd, True)  #V
=== fstatvfs after close | use after close
fd = os.open('/etc/passwd', 0)
os.close(fd)  #C
os.fstatvfs(fd)  #V
=== copy_file_range from a closed file | use after close
fd = os.open('/etc/passwd', 0)
out = os.open(NULL, os.O_WRONLY)
os.close(fd)  #C
os.copy_file_range(fd, out, 10)  #V
=== preadv after close | use after close
fd = os.open('/etc/passwd', 0)
os.close(fd)  #C
os.preadv(fd, [bytearray(4)], 0)  #V
=== chown after close | use after close
fd = os.open('/etc/passwd', 0)
os.close(fd)  #C
os.chown(fd, 0, 0)  #V
=== epoll.modify of a closed number | use after close
import select
ep = select.epoll()
r, w = os.pipe()
ep.register(r, select.EPOLLIN)
os.close(r)  #C
ep.modify(r, 0)  #V
=== a file with unwritten data dropped after its number was closed | double close
f = open(NULL, 'wb')
f.write(b'x')
os.close(f.fileno())  #C
del f  #V
=== standard output closed, and flushed at exit | use after close
os.close(1)  #C
print('x')
=== print to a closed standard output | use after close
def quiet():
    os.close(1)  #C
quiet()
print('x', flush=True)  #V
=== a write to a closed standard error | use after close
os.close(2)  #C
sys.stderr.write('x\\n')  #V
=== a worker closes its connection's number | use after close
import multiprocessing as mp
def work(conn):
    os.close(conn.fileno())  #C
    conn.send(1)  #V
ctx = mp.get_context('fork')
a, b = ctx.Pipe()
p = ctx.Process(target=work, args=(b,))
p.start(); p.join()
=== an object dropped while a thread reads its number | use after close
class Source:
    def __init__(self):
        self.f = open('/dev/zero', 'rb', 0)  #C
        self.fd = self.f.fileno()
def reader(fd):
    turn(1)
    os.read(fd, 1)  #V
s = Source()
t = threading.Thread(target=reader, args=(s.fd,))
t.start()
s = None
done()
t.join()
=== the number of a NamedTemporaryFile closed in its block | double close
import tempfile
with tempfile.NamedTemporaryFile() as t:  #V
    os.close(t.fileno())  #C
=== HDF5 loses its file | use after close
import h5py, tempfile
d = tempfile.TemporaryDirectory()
f = h5py.File(d.name + '/a.h5', 'w')
f['x'] = [1]
os.closerange(3, 50)  #C
try:
    f.flush()  #V
except Exception:
    pass
os._exit(1)
=== dup2 onto a number that was guessed | stale dup2
f = open('/etc/passwd', 'rb', 0)
null = os.open(NULL, os.O_WRONLY)
os.dup2(null, 3)  #C
f.close()
os.write(3, b'x')  #V
=== a helper called twice for one number | double close
def safe_close(fd):
    os.close(fd)  #V
def a():
    fd = os.open(NULL, 0)
    safe_close(fd)
    return fd
fd = a()
safe_close(fd)  #C
=== a helper called twice, and the number was used again | stale close
def safe_close(fd):
    os.close(fd)  #C
def a():
    fd = os.open(NULL, 0)
    safe_close(fd)
    return fd
def b():
    return os.open('/dev/zero', 0)
old = a()
new = b()
safe_close(old)  #C
os.read(new, 1)  #V
=== two wrappers of one number | stale close
class FD:
    def __init__(self, n): self.n = n
    def close(self): os.close(self.n)  #C
one = FD(os.open(NULL, 0))
two = FD(one.n)
one.close()
three = os.open('/dev/zero', 0)
two.close()  #C
os.read(three, 1)  #V
=== a coroutine closes what a task reads | use after close
import asyncio
async def reader(fd, ready):
    await ready.wait()
    os.read(fd, 1)  #V
async def main():
    ready = asyncio.Event()
    fd = os.open(NULL, 0)
    task = asyncio.create_task(reader(fd, ready))
    os.close(fd)  #C
    ready.set()
    await task
asyncio.run(main())
=== a number used after its stream was closed | use after close
import asyncio
async def main():
    a, b = socket.socketpair()
    r, w = await asyncio.open_connection(sock=a)
    fd = a.fileno()
    w.close()
    await w.wait_closed()
    os.write(fd, b'x')  #V
asyncio.run(main())
=== a lambda at exit closes again | double close
import atexit
fd = os.open(NULL, 0)
atexit.register(lambda: os.close(fd))  #CV
os.close(fd)  #C
=== atexit calls os.close again | double close
import atexit
fd = os.open(NULL, 0)
atexit.register(os.close, fd)
os.close(fd)  #C
=== map closes, then a line does | double close
a, b = os.pipe()
list(map(os.close, (a, b)))
os.close(a)  #CV
=== a stale close, three times | stale close
errors = []
def bad():
    for n in range(3):
        turn(4 * n)
        fd = os.open(NULL, 0); os.close(fd); done()
        turn(4 * n + 2)
        os.close(fd)  #C
        done()
def good():
    for n in range(3):
        turn(4 * n + 1)
        f = os.open('/dev/zero', 0); done()
        turn(4 * n + 3)
        try:
            os.read(f, 1)  #V
        except OSError as e:
            errors.append(e)
        done()
run(bad, good)
=== a fork server's worker gets a number | not inherited
import multiprocessing as mp
def work(n):
    os.fdopen(n)  #V
if __name__ == '__main__':
    f = os.dup2(os.open('/etc/passwd', 0), 60, inheritable=False)
    p = mp.get_context('forkserver').Process(target=work, args=(f,))
    p.start(); p.join()
=== a program gets a number without pass_fds | not inherited
import subprocess
f = open('/etc/passwd')
n = os.dup2(f.fileno(), 55)
subprocess.run([sys.executable, '-c', 'import os,sys; os.read(int(sys.argv[1]), 1)', str(n)])
""")

CLEAN = _programs("""
=== a closing loop that keeps some
for fd in set(range(3, 64)) - {5, 9, 13, 20}:
    try:
        os.close(fd)
    except OSError:
        pass
for fd in (30, 7, 41, 12, 3, 50, 22):
    try:
        os.close(fd)
    except OSError:
        pass
=== functions that ask whether a number is open
import fcntl
def is_open(fd, how):
    try:
        how(fd)
    except OSError:
        return False
fd = os.open(NULL, 0)
os.close(fd)
is_open(fd, os.fstat)
try:
    fcntl.fcntl(fd, fcntl.F_GETFL)
except OSError:
    pass
=== a daemon closes a range
os.close(os.open(NULL, 0))
os.closerange(3, 256)
=== a daemon closes one by one
import tempfile
tempfile.TemporaryFile().close()
for fd in range(3, 256):
    try:
        os.close(fd)
    except OSError:
        pass
=== a daemon closes downwards
a, b = os.pipe()
os.close(a)
for fd in range(1023, 2, -1):
    try:
        os.close(fd)
    except OSError:
        pass
=== a daemon that forks twice
def daemonize():
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    for fd in range(3, 64):
        try:
            os.close(fd)
        except OSError:
            pass
    null = os.open(NULL, os.O_RDWR)
    for fd in 0, 1, 2:
        os.dup2(null, fd)
    os.close(null)
pid = os.fork()
if not pid:
    daemonize()
    os._exit(0)
os.waitpid(pid, 0)
=== a daemon that closes by a helper
import contextlib
def close_quietly(fd):
    with contextlib.suppress(OSError):
        os.close(fd)
socket.socketpair()
for fd in range(3, 40):
    close_quietly(fd)
=== a short closing loop
for fd in range(5, 20):
    try:
        os.close(fd)
    except OSError:
        pass
=== fstat asks which numbers are open
def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
os.close(os.open(NULL, 0))
opened = [fd for fd in range(256) if is_open(fd)]
=== fstat asks about one closed number
file = open(NULL, 'rb')
fd = file.fileno()
file.close()
try:
    os.fstat(fd)
except OSError:
    pass
=== fcntl asks which numbers are open
import fcntl
os.close(os.open(NULL, 0))
for fd in range(100):
    try:
        fcntl.fcntl(fd, fcntl.F_GETFD)
    except OSError:
        pass
=== get_inheritable asks
a, b = os.pipe()
os.close(a)
try:
    os.get_inheritable(a)
except OSError:
    pass
=== isatty and terminal size ask
import shutil
os.close(0)
os.isatty(0), shutil.get_terminal_size()
=== a shell with redirections
import subprocess
text = 'exec 7</dev/null; exec 7<&-; exec 7<&-; exec 8>&1; true >&8; exec 8>&- 8>&-; read x <&7'
subprocess.run(['bash', '-c', text], stderr=-3)
=== a shell with pipes and a coprocess
import subprocess
text = 'coproc cat; echo 1 >&${COPROC[1]}; exec {COPROC[1]}>&-; seq 9 | sort | head -1; x=$(echo 1); cat <(echo 2)'
subprocess.run(['bash', '-c', text], stdout=-3)
=== a shell without a standard input
import subprocess
subprocess.run(['bash', '-c', 'exec <&- >&-; true; python3 -c 1; ls /nonexistent'], stderr=-3)
=== a Python without standard streams
import subprocess
subprocess.run(['sh', '-c', f'exec {sys.executable} -I -c 1 <&- >&- 2>&-'])
=== programs with close_fds
import subprocess
a, b = os.pipe()
subprocess.run(['true'], close_fds=True), subprocess.run(['true'], close_fds=False)
subprocess.run(['cat'], input=b'x', stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
=== a program with pass_fds and preexec_fn
import subprocess
a, b = os.pipe()
subprocess.run(['true'], pass_fds=[b]), subprocess.run(['true'], preexec_fn=lambda: os.closerange(10, 64))
=== programs from threads
import subprocess
def work():
    for _ in range(3):
        subprocess.run(['true'], stdout=subprocess.PIPE)
run(work, work)
=== os.popen and posix_spawn
os.popen('echo 1').close()
os.waitpid(os.posix_spawn('/bin/true', ['true'], os.environ), 0)
=== a pool in a with block
import multiprocessing as mp
with mp.get_context('fork').Pool(2) as pool:
    pool.map(abs, range(9))
=== a pool that is closed and joined
import multiprocessing as mp
pool = mp.get_context('fork').Pool(2)
pool.map(abs, range(9))
pool.close()
pool.join()
=== a pool that is left to the end
import multiprocessing as mp
pool = mp.get_context('fork').Pool(2)
pool.map(abs, range(9))
pool.terminate()
=== spawned processes
import multiprocessing as mp
if __name__ == '__main__':
    worker = mp.get_context('spawn').Process(target=abs, args=(1,))
    worker.start()
    worker.join()
=== a fork server
import multiprocessing as mp
if __name__ == '__main__':
    worker = mp.get_context('forkserver').Process(target=abs, args=(1,))
    worker.start()
    worker.join()
=== a queue and a manager
import multiprocessing as mp
context = mp.get_context('fork')
items = context.Queue()
worker = context.Process(target=items.put, args=(1,))
worker.start(); items.get(); worker.join()
with context.Manager() as manager:
    manager.list().append(1)
=== shared memory
from multiprocessing import shared_memory
block = shared_memory.SharedMemory(create=True, size=10)
block.close()
block.unlink()
=== threads that load files
from concurrent.futures import ThreadPoolExecutor
def load(n):
    with open('/dev/zero', 'rb') as file:
        file.read(10)
    return open(NULL)
with ThreadPoolExecutor(6) as pool:
    for file in pool.map(load, range(200)):
        file.close()
=== a pool of processes of concurrent.futures
import multiprocessing as mp
from concurrent.futures import ProcessPoolExecutor
with ProcessPoolExecutor(2, mp_context=mp.get_context('fork')) as pool:
    list(pool.map(abs, range(9)))
=== an asyncio server
import asyncio
async def answer(reader, writer):
    writer.write(await reader.read(1))
    await writer.drain()
    writer.close()
async def main():
    server = await asyncio.start_server(answer, '127.0.0.1', 0)
    for _ in range(5):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b'x')
        await reader.read()
        writer.close()
    server.close()
    await server.wait_closed()
asyncio.run(main())
=== asyncio with a client that goes away
import asyncio
async def main():
    server = await asyncio.start_server(lambda r, w: None, '127.0.0.1', 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.transport.abort()
    server.close()
    await asyncio.sleep(0)
asyncio.run(main())
=== asyncio programs and threads
import asyncio
async def main():
    process = await asyncio.create_subprocess_exec('cat', stdin=-1, stdout=-1)
    await process.communicate(b'x')
    await asyncio.to_thread(os.getpid)
asyncio.run(main())
=== asyncio forgets a number that was closed
import asyncio
async def main():
    loop = asyncio.get_running_loop()
    one, other = socket.socketpair()
    loop.add_reader(one.fileno(), print)
    fd = one.fileno()
    one.close()
    loop.remove_reader(fd)
asyncio.run(main())
=== a web server
import http.server, urllib.request
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), http.server.BaseHTTPRequestHandler)
threading.Thread(target=server.serve_forever).start()
for _ in range(3):
    try:
        urllib.request.urlopen('http://127.0.0.1:%d/' % server.server_port)
    except urllib.error.HTTPError as error:
        error.close()
server.shutdown()
server.server_close()
=== a socket server whose handler closes
import socketserver
class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.close()
server = socketserver.TCPServer(('127.0.0.1', 0), Handler)
client = socket.create_connection(server.server_address)
server.handle_request()
client.close()
server.server_close()
=== a selector that forgets a closed socket
import selectors
waiting = selectors.DefaultSelector()
one, other = socket.socketpair()
waiting.register(one, selectors.EVENT_READ)
one.close()
waiting.unregister(one)
waiting.close()
=== a log that rotates, and one that is reopened by dup2
import logging.handlers, tempfile
with tempfile.TemporaryDirectory() as folder:
    handler = logging.handlers.RotatingFileHandler(folder + '/a', maxBytes=10, backupCount=2)
    log = logging.getLogger('a')
    log.addHandler(handler)
    for _ in range(5):
        log.error('xxxxxxxxxxxxxxx')
    handler.close()
    fd = os.open(folder + '/b', os.O_CREAT | os.O_WRONLY)
    other = os.open(folder + '/c', os.O_CREAT | os.O_WRONLY)
    os.dup2(other, fd)
    os.close(other)
    os.write(fd, b'x')
    os.close(fd)
=== standard output replaced and put back
saved = os.dup(1)
null = os.open(NULL, os.O_WRONLY)
os.dup2(null, 1)
os.close(null)
os.system('echo hidden')
os.dup2(saved, 1)
os.close(saved)
=== temporary files
import tempfile
with tempfile.TemporaryFile() as a, tempfile.NamedTemporaryFile() as b, tempfile.SpooledTemporaryFile(1) as c:
    c.write(b'12345')
fd, path = tempfile.mkstemp()
with os.fdopen(fd, 'w') as file:
    file.write('x')
os.unlink(path)
=== maps, archives and a database
import mmap, sqlite3, tarfile, tempfile, zipfile
with tempfile.TemporaryDirectory() as folder:
    with open(folder + '/a', 'w+b') as file:
        file.write(b'x' * 5000)
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0)
    mapped[0], mapped.close()
    with zipfile.ZipFile(folder + '/z', 'w') as archive:
        archive.write(folder + '/a')
    with tarfile.open(folder + '/t', 'w:gz') as archive:
        archive.add(folder + '/a')
    base = sqlite3.connect(folder + '/db')
    base.execute('create table a(b)')
    base.close()
=== a file object that does not own its number
fd = os.open(NULL, 0)
for _ in range(3):
    with os.fdopen(fd, 'rb', closefd=False) as file:
        file.read()
os.close(fd)
=== a descriptor handed over once
handed = []
def worker():
    turn(0); own(); done()
    turn(2); finish(handed[0]); done()
def own():
    fd = os.open(NULL, 0)
    os.close(fd)
def finish(fd):
    os.close(fd)
def maker():
    turn(1); handed.append(os.open('/dev/zero', 0)); done()
run(worker, maker)
=== a queue of descriptors
import queue
items = queue.Queue()
def worker():
    while (fd := items.get()) is not None:
        mine = os.open(NULL, 0)
        os.close(fd)
        os.close(mine)
def maker():
    for _ in range(200):
        items.put(os.open('/dev/zero', 0))
    items.put(None); items.put(None)
run(worker, worker, maker)
=== two threads hand descriptors to each other
import queue
def exchange(mine, theirs):
    for n in range(80):
        theirs.put(os.open(NULL, 0))
        if n % 3 == 0:
            fd = os.open('/dev/zero', 0); os.close(fd)
        os.close(mine.get())
one, two = queue.Queue(), queue.Queue()
run(lambda: exchange(one, two), lambda: exchange(two, one))
=== files left to the garbage collector
import gc
class Node:
    def __init__(self):
        self.me, self.file = self, open(NULL, 'rb', buffering=0)
def work():
    for n in range(150):
        Node()
        fd = os.open('/dev/zero', 0); os.close(fd)
        if n % 7 == 0:
            gc.collect()
run(work, work, work)
=== descriptors sent over a socket
one, other = socket.socketpair()
fd = os.open(NULL, 0)
socket.send_fds(one, [b'x'], [fd])
os.close(fd)
_, [copy], _, _ = socket.recv_fds(other, 1, 1)
os.read(copy, 1)
os.close(copy)
=== a terminal
import pty
pty.spawn(['true'])
main, worker = os.openpty()
os.close(main), os.close(worker)
=== a program that ends by an error of its own
file = open(NULL)
raise SystemExit(3)
=== h5py and numpy
import tempfile, h5py, numpy
with tempfile.TemporaryDirectory() as folder:
    with h5py.File(folder + '/a.h5', 'w') as file:
        file['x'] = numpy.arange(9)
    with h5py.File(folder + '/a.h5') as file:
        file['x'][:]
    del (mapped := [numpy.memmap(folder + '/m', mode='w+', shape=10)])[:]
=== a DataLoader of torch
import torch
loader = torch.utils.data.DataLoader(list(range(20)), num_workers=2, batch_size=4)
for _ in range(2):
    for batch in loader:
        pass
=== an import of tensorflow
import tensorflow
tensorflow.constant(1) + 1
""")
