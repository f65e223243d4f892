"""What a worker runs: one task after the other, until its socket says that nobody wants more."""

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

from ..._util.process import end_with
from .messages import MessageKind, Payload, WorkerMessage, load, receive, send, unpack
from .shared_memory import ProgressCell, SharedMemory
from .stack_dump import STACK_SIGNAL
from .worker_init import WorkerInit, follow, read_brief

Work = Callable[[Any, ProgressCell], Any]


def serve(number: int, sock: socket.socket, *, forked: bool) -> int:
    """The exit code. What it raises is why the work cannot be begun."""
    setup, descriptors = receive(sock)
    if setup is None:
        return 0
    file, words, brief_file, owner = descriptors
    end_with(owner)
    # Written by a signal handler in C: it works also while the interpreter is held, and when it crashes.
    faulthandler.enable(words)
    faulthandler.register(STACK_SIGNAL, words, all_threads=True)
    send(sock, WorkerMessage(MessageKind.HELLO))
    brief = read_brief(brief_file)
    work = _get_ready(brief, forked)
    memory = SharedMemory(brief.layout, file)
    send(sock, WorkerMessage(MessageKind.READY))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the pool was closed, or its process died
        _work_on(sock, work, memory, ProgressCell(memory.line(number)))
    return _finish()


def _get_ready(brief: WorkerInit, forked: bool) -> Work:
    follow(brief)
    if forked:
        random.seed()
        numpy_random: Any = sys.modules.get("numpy.random")
        if numpy_random is not None:
            numpy_random.seed()  # else all workers draw the same
    work: Work = load(brief.work)
    return work


def _work_on(sock: socket.socket, work: Work, memory: SharedMemory, note: ProgressCell) -> None:
    while True:
        message, _ = receive(sock)
        if message is None:
            return
        kind = MessageKind.SKIPPED
        if message.run == memory.run:
            note.begin(message.task)
            kind = _do(work, memory, message.number, note)
        send(sock, WorkerMessage(kind, message.number, task=message.task))


def _do(work: Work, memory: SharedMemory, number: int, note: ProgressCell) -> MessageKind:
    slot = memory.slot(number)
    try:
        parcel = Payload(work(unpack(slot), note))
        memory.check_fits(parcel.n_bytes, "a result")
        parcel.write(slot)
        return MessageKind.RESULT
    except BaseException as error:  # noqa: BLE001 also SystemExit: a worker does not end because a task asks for it
        _write_error(slot, error, note.sample)
        return MessageKind.RAISED


def _write_error(slot: memoryview, error: BaseException, sample: int) -> None:
    name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    with contextlib.suppress(Exception):  # one without words
        name += f": {error}"
    told = (name, _tell(error), sample)
    for sent in (_pickled(error), None):
        parcel = Payload((sent, *told))
        if parcel.n_bytes <= len(slot):
            parcel.write(slot)
            return
    Payload((None, name[:500], name[:500], sample)).write(slot)


def _pickled(error: BaseException) -> bytes | None:
    """None: it would not arrive as it left, or it would end the pool's process without a word."""
    if not isinstance(error, Exception) or isinstance(error, StopIteration):
        return None
    try:
        data = pickle.dumps(error, protocol=5)
        return data if type(pickle.loads(data)) is type(error) else None
    except Exception:  # noqa: BLE001 the user's own `__reduce__` may do anything
        return None


def _tell(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 its `__str__` may raise
        return type(error).__qualname__


def _finish() -> int:
    """What an orderly end does; not more, as the frames below are of the process this one was forked from."""
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    return 0
