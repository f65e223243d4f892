"""The files that an error or a text speaks of."""

from __future__ import annotations

import os
import re
from functools import cache
from types import TracebackType

_MOST = 8
_MOST_CHARS = 1024
_SURE = 2  # of the patterns: what they find is a name, whatever it looks like
_NOT_DATA = ("/proc/", "/sys/", "/dev/", "http:/", "https:/")


@cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    return (
        re.compile(r"""(?:name|filename|path|file)\s*=\s*['"]([^'"\n]+)['"]"""),  # HDF5: name = '/data/a.h5'
        re.compile(r"""File\(\s*['"]([^'"\n]+)['"]"""),  # a traceback's line: h5py.File("a.h5", "a")
        re.compile(r"""['"]([^'"\n]{1,1024})(?=['"])"""),  # an apostrophe is no opening quote: the next may be
        re.compile(r"""(?:^|[\s=(\[])(/[^\s'"<>:,;)\]]+)"""),
        re.compile(r"""(?:^|[\s=(\[])([\w.-][\w./-]*\.(?:h5|hdf5|he5|nc|tfrecords?|tfrec|lock)(?:\.gz)?)\b"""),
    )


def paths_in(text: str) -> list[str]:
    """What looks like the name of a file, the surest first; whether it is one, who can look will see.

    The lines `File "…", line 7` of a traceback are left out: they name programs.
    """
    text = "\n".join(line for line in text.splitlines() if not re.match(r'\s*File ".*", line \d+', line))
    found: dict[str, None] = {}
    for at, pattern in enumerate(_patterns()):
        for match in pattern.finditer(text):
            if _may_be_data(match[1]) and (at < _SURE or "/" in match[1] or "." in match[1]):
                found.setdefault(match[1])
            if len(found) >= _MOST:
                return list(found)
    return list(found)


def _may_be_data(name: str) -> bool:
    return len(name) <= _MOST_CHARS and not f"{name}/".startswith(_NOT_DATA) and not name.endswith(".py")


def paths_of(error: BaseException) -> list[str]:
    """The names an OSError carries; and that of h5py's frames, whose errors carry none."""
    found: dict[str, None] = {}
    for name in ("filename", "filename2"):
        _add(found, getattr(error, name, None) if isinstance(error, OSError) else None)
    _add(found, _name_in_h5py(error.__traceback__))
    return list(found)


def _name_in_h5py(traceback: TracebackType | None) -> object:
    steps = 0
    while traceback is not None and steps < 1000:
        frame = traceback.tb_frame
        if str(frame.f_globals.get("__name__", "")).startswith("h5py."):
            name = frame.f_locals.get("name")
            if isinstance(name, (str, bytes, os.PathLike)):
                return name
        traceback, steps = traceback.tb_next, steps + 1
    return None


def _add(found: dict[str, None], name: object) -> None:
    if isinstance(name, (str, bytes, os.PathLike)):
        try:
            found.setdefault(os.fsdecode(name))
        except (TypeError, ValueError):
            return
