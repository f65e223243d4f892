"""What a worker process runs: one task after the other, until the pool closes its socket."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import pickle
import random
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

from ...._util.process import end_with
from .shared_memory import ProgressCell, SharedMemory
from .stack_dump import STACK_SIGNAL
from .wire_format import MessageKind, Payload, WorkerMessage, load, receive, send, unpack
from .worker_init import WorkerInit, apply_init, read_init

Work = Callable[[Any, ProgressCell], Any]


def serve(number: int, sock: socket.socket, *, forked: bool) -> int:
    """Returns the exit code. Raises whatever keeps it from loading the work."""
    setup, descriptors = receive(sock)
    if setup is None:
        return 0
    memory_file, stacks, init_file, pool_process = descriptors
    end_with(pool_process)
    # A signal handler in C dumps the stack also while C code holds the interpreter, and after a crash.
    faulthandler.enable(stacks)
    faulthandler.register(STACK_SIGNAL, stacks, all_threads=True)
    send(sock, WorkerMessage(MessageKind.HELLO))
    init = read_init(init_file)
    work = _load_work(init, forked)
    memory = SharedMemory(init.layout, memory_file)
    send(sock, WorkerMessage(MessageKind.READY))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the pool was closed, or its process died
        _serve_tasks(sock, work, memory, ProgressCell(memory.line(number)))
    return _finish()


def _load_work(init: WorkerInit, forked: bool) -> Work:
    apply_init(init)
    if forked:
        random.seed()
        numpy_random: Any = sys.modules.get("numpy.random")
        if numpy_random is not None:
            numpy_random.seed()  # otherwise all workers would draw the same numbers
    work: Work = load(init.work)
    return work


def _serve_tasks(sock: socket.socket, work: Work, memory: SharedMemory, progress: ProgressCell) -> None:
    while True:
        message, _ = receive(sock)
        if message is None:
            return
        kind = MessageKind.SKIPPED
        if message.run == memory.run:
            progress.begin(message.task)
            kind = _run_task(work, memory.slot(message.number), memory, progress)
        send(sock, WorkerMessage(kind, message.number, task=message.task))


def _run_task(work: Work, slot: memoryview, memory: SharedMemory, progress: ProgressCell) -> MessageKind:
    try:
        payload = Payload(work(unpack(slot), progress))
        memory.check_fits(payload.n_bytes, "a result")
        payload.write(slot)
        return MessageKind.RESULT
    except BaseException as error:  # noqa: BLE001 SystemExit too: a task must not end its worker
        _write_error(slot, error, progress.sample)
        return MessageKind.RAISED


def _write_error(slot: memoryview, error: BaseException, sample: int) -> None:
    name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    with contextlib.suppress(Exception):  # its `__str__` may raise
        name += f": {error}"
    description = (name, _format(error), sample)
    for pickled in (_pickle(error), None):
        payload = Payload((pickled, *description))
        if payload.n_bytes <= len(slot):
            payload.write(slot)
            return
    Payload((None, name[:500], name[:500], sample)).write(slot)


def _pickle(error: BaseException) -> bytes | None:
    """Returns None for an error that would not arrive as it was, or that would end the pool's process silently."""
    if not isinstance(error, Exception) or isinstance(error, StopIteration):
        return None
    try:
        data = pickle.dumps(error, protocol=5)
        return data if type(pickle.loads(data)) is type(error) else None
    except Exception:  # noqa: BLE001 a user's `__reduce__` may raise anything
        return None


def _format(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 its `__str__` may raise
        return type(error).__qualname__


def _finish() -> int:
    """Runs the exit functions and flushes, but no more: the frames below belong to the fork server's process."""
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    return 0
