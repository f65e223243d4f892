"""The `holdfast` command: one module per command. Importing this package loads only the standard library."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

__all__ = ["main"]

_INTERRUPTED = 128 + signal.SIGINT


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code. Without `arguments`, the process belongs to the command and exits."""
    try:
        from .app import run

        code = run(list(sys.argv[1:] if arguments is None else arguments))
    except BaseException as error:
        if not isinstance(first_cause(error, KeyboardInterrupt), KeyboardInterrupt):
            raise
        print("holdfast: interrupted", file=sys.stderr)  # during an import, or while an error was reported
        code = _INTERRUPTED
    if code == _INTERRUPTED and arguments is None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C during Python's shutdown would print tracebacks
    return code


def first_cause(error: BaseException, *kinds: type[BaseException]) -> BaseException:
    """Returns the first error of these types in the cause chain, or else the error itself.

    A Ctrl-C during an import may be raised anywhere in it: Python wraps one in a `__set_name__` into a RuntimeError,
    and packages wrap what their modules raise into an ImportError.
    """
    found: BaseException | None = error
    for _ in range(100):  # the chain may be circular
        if found is None:
            break
        if isinstance(found, kinds):
            return found
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return error
