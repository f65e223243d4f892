"""The entry point of the `holdfast` command: a Ctrl-C while its modules are loaded ends it without a traceback.

It is a module of its own because importing anything of a package loads the package first.
"""

# `signal` imports enum and more, which takes as long as all of holdfast/__init__.
import _signal  # type: ignore[import-not-found]
import os


def _stop(number: int, frame: object) -> None:
    os.write(2, b"holdfast: interrupted\n")
    os._exit(128 + number)  # nothing has begun that would need an end


_is_usual = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler  # else the caller ignores it
if _is_usual:
    _signal.signal(_signal.SIGINT, _stop)

from holdfast.cli import main as _run  # noqa: E402


def main() -> int:
    """Runs the command, which handles signals itself from here on."""
    if _is_usual:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    return _run()
