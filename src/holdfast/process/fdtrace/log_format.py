"""Constants of the log, as in native/fdtrace/fdtrace.h. Traced programs import them, so this module loads nothing."""

from __future__ import annotations

# The order of enum hf_kind.
KINDS = """
unknown file directory pipe socket eventfd timerfd signalfd epoll inotify fanotify memfd shm mq pidfd pty dup received
io_uring
""".split()  # noqa: SIM905
BIRTH, CLOSE, BAD, FAIL, CLOSE_UNSEEN, BIRTH_UNSEEN, FOUND = range(1, 8)
LIVE, INHERITED, BEFORE = 1, 2, 4
AT_EXIT = 8  # only in a recording: closed while the process shut down
NATIVE, EBADF, NO_REUSE, TIME_HOOKS, ATTACHED, PARTIAL = 1, 2, 4, 8, 16, 32
