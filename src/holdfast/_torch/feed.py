"""What the thread that pins batches reads from, in the place of the queue's own `get`.

torch's thread reads with no end to its patience: a stopped worker keeps it, a dead one ends it with a traceback. It
waits here a little at a time, keeps the error for the one who asks for the batch, and ends when the crew does.
"""

from __future__ import annotations

import queue
import threading
from typing import Any

from .inbox import Inbox, Patience
from .unpack import unpack

_LOOK_S = 0.25
_ENDING_S = 5.0


class Feed:
    """`get` is called by one thread alone, `close` by any other."""

    def __init__(self, timeout_s: float | None, *, copy_batches: bool) -> None:
        self._timeout_s = timeout_s
        self._copy_batches = copy_batches
        self._inbox: Inbox | None = None
        self._reader: threading.Thread | None = None
        self._ended = threading.Event()
        self.error: OSError | EOFError | None = None

    def attach(self, result_queue: Any) -> None:
        self._inbox = Inbox(result_queue)
        result_queue.get = self.get

    def get(self, timeout: float) -> Any:
        """A batch, or queue.Empty: then the caller looks whether it is to end, and comes again."""
        self._reader = threading.current_thread()
        inbox = self._inbox
        if inbox is None or self._ended.is_set():
            raise SystemExit  # ends a thread without a word
        message = None if self.error else inbox.next_message(Patience(min(timeout, _LOOK_S)), ())
        if message is None:
            if self.error:
                self._ended.wait(_LOOK_S)
            raise queue.Empty
        try:
            return unpack(message, Patience(self._timeout_s), copy_batches=self._copy_batches)
        except (OSError, EOFError) as error:
            self.error = error.with_traceback(None)
            raise queue.Empty from None

    def close(self) -> None:
        """When workers have ended and before the pipe is closed: nothing waits for them, the thread is soon done."""
        self._ended.set()
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join(_ENDING_S)
        self._inbox = None  # it and the queue keep each other
