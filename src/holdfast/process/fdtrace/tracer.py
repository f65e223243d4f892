"""Traces the descriptors of this process from within: `with hold.Tracer("run.hft"): …`."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from ...errors import TraceUnavailableError
from . import trace_file
from .collector import Collector, assemble
from .partial import TRACED_ALREADY, PartialRecorder
from .recording import LIBRARY, TraceOptions, has_library, log_folder
from .sites import Site, Statistics
from .trace_file import Trace

_STOPS_AFTER_S = 5.0


class Recorder(Protocol):
    """Records the descriptors of this process into a folder."""

    def start(self, folder: Path, options: int, arm_above: int) -> None: ...
    def stop(self) -> None: ...


@functools.cache
def _load_library() -> ctypes.CDLL:
    """Loads the tracing library, once: it stays, because the calls still pass through it after stop()."""
    return ctypes.CDLL(os.fspath(LIBRARY), mode=os.RTLD_NOW | os.RTLD_NODELETE)


class LibraryRecorder:
    """Records with the tracing library, which is loaded now and redirects the calls of everything that is loaded."""

    def __init__(self) -> None:
        self._library = _load_library()

    def start(self, folder: Path, options: int, arm_above: int) -> None:
        error = self._library.hf_trace_attach(os.fsencode(folder), options, arm_above)
        if error == errno.EBUSY:
            raise TraceUnavailableError(f"{TRACED_ALREADY} (by a Tracer, one of its parent's, or --attach)")
        if error:
            raise TraceUnavailableError(f"cannot trace this process: {os.strerror(error)}")

    def stop(self) -> None:
        self._library.hf_trace_stop()


def make_recorder() -> Recorder:
    """Returns the best recorder for this process: the library, or Python's own hooks where there is none."""
    if os.environ.get("HOLDFAST_FDTRACE_DIR") and is_preloaded():
        raise TraceUnavailableError(f"{TRACED_ALREADY} (by `holdfast trace`)")
    return LibraryRecorder() if has_library() else PartialRecorder()


def is_preloaded() -> bool:
    """Returns whether `holdfast trace` has loaded the library into this process."""
    try:
        return bool(ctypes.CDLL(None).hf_trace_is_on())
    except AttributeError:
        return False


class Tracer:
    """Records who opens and closes descriptors in this process and the processes that it forks.

    Descriptors that are open already are counted as found, without a stack. Only one Tracer can be active at a time.

    Args:
        path: Where to save the recording at the end, for `holdfast report`. None: it is only kept in `trace`.
        native: Also record C frames.
        ebadf: Also record calls that fail with EBADF.
        no_reuse: Give a descriptor number again as late as possible: after about 960 others.
        arm_above: Take stacks only while more descriptors than this are open.

    Attributes:
        trace: The recording, after the `with` block.
    """

    __module__ = "holdfast"

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        native: bool = False,
        ebadf: bool = True,
        no_reuse: bool = False,
        arm_above: int = 0,
    ) -> None:
        self._path = path
        self._options = TraceOptions(native=native, ebadf=ebadf, no_reuse=no_reuse, arm_above=arm_above, owners=False)
        self._warnings: list[str] = []
        self._stack = ExitStack()
        self._collector: Collector | None = None
        self._folder: Path | None = None
        self._is_over = threading.Event()
        self._pid = 0
        self.trace: Trace | None = None

    def __enter__(self) -> Self:
        if self._collector is not None:
            raise RuntimeError("this Tracer was used already; make a new one")
        if self._path is not None:
            self._path = Path(self._path).absolute()  # the program may change its folder
            trace_file.check_target(self._path)
        recorder = make_recorder()
        with ExitStack() as stack:
            self._folder = stack.enter_context(log_folder(self._warnings))
            self._collector = Collector(self._folder)
            recorder.start(self._folder, self._options.bits(), self._options.arm_above)
            stack.callback(self._stop, recorder)
            self._stack = stack.pop_all()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._sample, name="holdfast-tracer", daemon=True)
        self._thread.start()
        return self

    def _sample(self) -> None:
        assert self._collector is not None
        while not self._is_over.wait(self._collector.interval_s):
            self._collector.tick()

    def _stop(self, recorder: Recorder) -> None:
        if os.getpid() == self._pid:
            recorder.stop()

    def live(self) -> list[Site]:
        """Returns the sites that have descriptors open now, the fastest growing first."""
        return [site for site in Statistics(self._assemble()).sites if site.live]

    def _assemble(self) -> Trace:
        if self._folder is None or self._collector is None or self._is_over.is_set():
            raise RuntimeError("expected an active Tracer; use it in a with statement")
        return assemble(
            self._folder, self._collector, sys.orig_argv, self._warnings, exit_code=None, options=self._options
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._pid:
            return  # a forked child left the with block: the recording belongs to the parent
        with self._stack:
            # The end is the moment before the recorder stops: what is live now is live in the recording.
            self.trace = self._assemble()
            self._is_over.set()
            self._thread.join(_STOPS_AFTER_S)
        if self._path is not None:
            trace_file.save(self.trace, self._path)
