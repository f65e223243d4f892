"""Show which lines leak descriptors, from a recording.

Exit codes: 0 shown; 2 wrong usage; 3 the recording cannot be read.
"""

from __future__ import annotations

import click

from ..fdtrace import trace_file
from ..fdtrace.sites import Statistics
from .app import FINE, command
from .console import Screen


@command(__doc__)
@click.argument("file", type=click.Path())
def report(screen: Screen, file: str) -> int:
    screen.print(Statistics(trace_file.load(file)).verdict())
    return FINE
