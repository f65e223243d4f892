"""Every intact record of a damaged file, in a new one.

IN is read behind every damage: flipped bits, zeroed pages, cut ends, bytes
that do not belong there. What is intact goes to OUT, in its order; nothing is
invented, and IN is never touched. OUT appears when it is whole, or not at all;
it is packed if its name ends in .gz or .zlib.

Example:

  holdfast salvage train-00007.tfrecord train-00007.salvaged.tfrecord

With --json:

  {"records_kept": 4710, "records_lost_at_least": 1, "bytes_lost": 1733,
   "problems": [{"offset": 1234, "record": 17, "reason": "bad data CRC"}]}

How many records a damaged stretch held can't always be known, so what was
lost is a lower bound. A record whose length alone was damaged is kept.

Exit codes: 0 OUT is written, also where something had to be left out; 1
nothing could be kept, and OUT is not written; 3 IN cannot be read, OUT cannot
be written or is there already.
"""

from __future__ import annotations

import click

from .._base.units import format_bytes
from ..formats.tfrecord.salvage import Salvaged, salvage_file
from ..report.words import counted, printable
from .command import command
from .cores import total_bytes
from .exits import FINE, FOUND
from .progress import bar_for
from .screen import Screen
from .wrongs import show_problems


@command(__doc__)
@click.argument("damaged", metavar="IN")
@click.argument("out", metavar="OUT")
@click.option("-f", "--force", is_flag=True, help="Replace OUT if it is there.")
def salvage(screen: Screen, damaged: str, out: str, force: bool) -> int:
    with bar_for(screen, "salvaging", total_bytes([damaged])) as bar:
        found = salvage_file(damaged, out, overwrite=force, keep_empty=False, progress=bar.advance)
    screen.document(found.as_dict())
    if found.problems:
        show_problems(screen, found.problems)
    screen.print(_summary(found, printable(out)))
    return FOUND if found.problems and not found.records_kept else FINE


def _summary(found: Salvaged, out: str) -> str:
    kept = counted(found.records_kept, "record")
    lost = f"{counted(found.records_lost_at_least, 'record')} ({format_bytes(found.bytes_lost)})"
    if not found.problems:
        return f"nothing was damaged: kept all {kept} in {out}"
    if not found.records_kept:
        return f"nothing could be kept, {out} was not written; lost at least {lost}"
    if not found.records_lost_at_least and not found.bytes_lost:
        return f"kept all {kept} in {out}"
    return f"kept {kept} in {out}; lost at least {lost}"
