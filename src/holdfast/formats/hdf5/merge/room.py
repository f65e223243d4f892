"""Descriptors for a view: whoever reads all of one has all of its sources open."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from ...._base.descriptors import raise_nofile
from ....errors import WriteError

_SPARE = 16


def make_room(target: Path, files: int) -> None:
    """HDF5 reads fill values where it cannot open a source, without a word.

    So this process's soft limit is raised for as many; where the hard one is below that, the view is refused.
    """
    wanted = files + len(os.listdir("/proc/self/fd")) + _SPARE
    raise_nofile(wanted)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and wanted > soft:
        text = f"reading it takes {wanted:,} open files at once, the limit is {soft:,}: merge them instead"
        raise WriteError(f"{target}: a view of {files:,} files: {text}")
