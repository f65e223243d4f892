"""The command `holdfast`: one module for each command, and what they share.

overview.py   the commands by purpose; loads a command's module when it is called
command.py    what a command is: its module's docstring is its --help; --json, --quiet, --debug
exits.py      exit codes; the one place where an error becomes a sentence on stderr
screen.py     what goes to stdout: text for people, or one JSON document
progress.py   the bar on stderr for so many bytes
waiting.py    the bar on stderr for so much time
durations.py  times as people type them
inputs.py     files, globs and folders
kinds.py      which files are HDF5 or tar; the files of a folder
runs.py       runs of hold.write, for verify and inspect
schema_file.py  a schema from a file
flaws.py      what is wrong with an HDF5 file, as a table
facts.py      names and values under each other
inspect_hdf5.py  what inspect shows of an HDF5 file
cores.py      the same work for many files, on all cores
version.py    the line `holdfast --version` prints

Importing this module loads the standard library only.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

__all__ = ["main"]

_INTERRUPTED = 128 + signal.SIGINT


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code. Without arguments the process is the command's, and about to end."""
    try:
        from .app import run

        code = run(list(sys.argv[1:] if arguments is None else arguments))
    except BaseException as error:
        if not isinstance(first_cause(error, KeyboardInterrupt), KeyboardInterrupt):
            raise
        print("holdfast: interrupted", file=sys.stderr)  # while loading, or while saying what went wrong
        code = _INTERRUPTED
    if code == _INTERRUPTED and arguments is None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would end in tracebacks of Python's own end
    return code


def first_cause(error: BaseException, *kinds: type[BaseException]) -> BaseException:
    """The one of these kinds that led to an error, or the error itself.

    A Ctrl-C that comes while a module is imported may be raised anywhere in it: Python wraps one in a `__set_name__`
    into a RuntimeError, and packages wrap what their parts raise into an ImportError.
    """
    found: BaseException | None = error
    for _ in range(100):  # a chain may be a circle
        if found is None:
            break
        if isinstance(found, kinds):
            return found
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return error
