"""Export a log of hold.log for TensorBoard.

LOG is the run.hold directory of hold.log, or a file that `holdfast merge`
made of it. Each worker becomes a run of its own in DIR, such as
DIR/worker-00000, with one event file. Its scalar metrics keep their names,
steps and times; a row without a metric has no point. TensorBoard stores
float32: ints above 16,777,216 and float64 values are rounded. Arrays, lists
and strings are left out, and are listed.

The same LOG gives the same file names: run the command again to replace them
by files with the new rows.

Example:

  holdfast log export logs/exp1/run.hold --tensorboard tb/exp1
  tensorboard --logdir tb

With --json:

  {"files": ["tb/exp1/worker-00000/events.out.tfevents.1700000000.holdfast"],
   "values": 200, "left_out": ["grad"]}

Exit codes: 0 the event files are written; 1 LOG is corrupt; 2 LOG is no log of
hold.log; 3 LOG cannot be read, or DIR cannot be written.
"""

from __future__ import annotations

import click

from .._util.text import counted, printable
from .app import FINE, command
from .console import Screen


@command(__doc__)
@click.argument("action", type=click.Choice(["export"]))
@click.argument("log_path", metavar="LOG")
@click.option("--tensorboard", "folder", required=True, metavar="DIR", help="Write TensorBoard event files to DIR.")
def log(screen: Screen, action: str, log_path: str, folder: str) -> int:
    from ..data.runlog.tensorboard import export

    done = export(log_path, folder)
    screen.document(
        {"files": [str(path) for path in done.paths], "values": done.values, "left_out": done.left_out},
    )
    workers = counted(len(done.paths), "worker")
    screen.print(f"exported {counted(done.values, 'value')} of {workers} to {printable(folder)}")
    if done.left_out:
        screen.print(f"left out, because they are no scalars: {printable(', '.join(done.left_out))}")
    return FINE
