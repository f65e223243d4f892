"""Records where descriptors are opened, to say of a leaked one which line made it."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from ...errors import TraceUnavailableError
from ..fdtrace.image import Frame, Stacks, read_folder
from ..fdtrace.log_format import BEFORE, LIVE
from ..fdtrace.partial import PartialRecorder
from ..fdtrace.recording import has_library, log_folder
from ..fdtrace.sites import is_library
from ..fdtrace.tracer import make_recorder

_MAX_FRAMES = 6
_MAX_SITES = 10


class Births:
    """Records this process from `start_recording` on. It has no thread: a check must not see descriptors of its own."""

    def __init__(self) -> None:
        with ExitStack() as stack:
            recorder = make_recorder() if has_library() else PartialRecorder(reconciles=False)
            self._folder: Path = stack.enter_context(log_folder([]))
            recorder.start(self._folder, 0, 0)
            stack.callback(recorder.stop)
            self._stack = stack.pop_all()
        self._pid = os.getpid()

    def stop(self) -> None:
        if os.getpid() == self._pid:
            self._stack.close()

    def describe(self, fds: Iterable[int]) -> list[str]:
        """Returns a line for each place that opened some of these descriptors, the one with the most first."""
        images, _ = read_folder(self._folder)
        image = next((image for key, image in images.items() if key[0] == os.getpid()), None)
        if image is None:
            return []
        stacks = Stacks(images)
        found: dict[tuple[Frame, ...], list[int]] = defaultdict(list)
        for fd in fds:
            if fd >= len(image.entries) or image.entries["flags"][fd] & (LIVE | BEFORE) != LIVE:
                continue
            frames = stacks.resolve(image, image.entries["stack"][fd]).frames
            if frames:
                found[tuple(frame for frame in frames if not is_library(frame.file)) or frames[:1]].append(fd)
        ordered = sorted(found.items(), key=lambda item: -len(item[1]))
        return [_describe(frames, numbers) for frames, numbers in ordered[:_MAX_SITES]]


def _describe(frames: tuple[Frame, ...], fds: list[int]) -> str:
    where = " ← ".join(f"{frame.file}:{frame.line} in {frame.function}" for frame in frames[:_MAX_FRAMES])
    numbers = ", ".join(map(str, fds[:_MAX_FRAMES])) + (", …" if len(fds) > _MAX_FRAMES else "")
    return f"{where} (fd {numbers})" if len(fds) == 1 else f"{where} ({len(fds)} descriptors: {numbers})"


_lock = threading.Lock()
_births: Births | None = None
_users = 0


def start_recording() -> Births | None:
    """Returns the recording of this process, shared by all checks; None if it is traced in another way already."""
    global _births, _users
    with _lock:
        if _births is None:
            try:
                _births = Births()
            except TraceUnavailableError:
                return None
        _users += 1
        return _births


def stop_recording(births: Births | None) -> None:
    """Ends the recording with its last user."""
    global _births, _users
    if births is None:
        return
    with _lock:
        _users -= 1
        if not _users:
            _births = None
            births.stop()
