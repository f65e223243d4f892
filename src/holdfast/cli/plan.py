"""What a run will need, against what this machine gives.

Ask before the run starts, where it will run. torch DataLoaders are reckoned
with: W workers cost 4·W + 2 pipes in the main process, a descriptor for every
tensor on its way, threads for the queues and shared memory for every batch
fetched ahead, and each worker has its own shards open. That is set against
the limits of this shell, this user, this control group and /dev/shm.

Without --workers there is one for each core, and without --open-shards each
worker has its part of the files open, but 16 at most.

Example:

  holdfast plan --data 'data/train-*.tfrecord' --workers 8 --batch-bytes 64MB
  holdfast plan --workers 16 && torchrun train.py

With --json (unlimited and unknown are null):

  {"fits": false, "wish": {"workers": 8, "open_shards": 16, "prefetch": 2,
   "batch_bytes": 64000000, "tensors": 2, "loaders": 1,
   "sharing": "file_descriptor", "files": 1024},
   "needs": [{"name": "/dev/shm", "need": 1024000000, "have": 67108864,
   "enough": false, "must": true}], "set": [{"name": "num_workers",
   "value": "1", "why": "…"}], "settled": {"workers": 1, …}}

  must      false where too little only makes it slow
  settled   the nearest to the wish that fits once `set` is set, or null

Exit codes: 0 it fits; 1 it does not fit as things are now, and what to set is
said; 2 wrong usage; 3 a PATH of --data is not there.
"""

from __future__ import annotations

import math

import click

from ..diagnose.plan import Sharing, Wish, make_plan
from ..look.plan import read_room
from .command import command, size_of
from .exits import FINE, FOUND
from .screen import Screen

_MOST_OPEN = 16
_MOST = 10**9  # of anything: more is a slip of the finger, and no number for a table
_AT_LEAST_1 = click.IntRange(1, _MOST)


@command(__doc__)
@click.option("--data", multiple=True, metavar="GLOB", help="The files to be read: paths, globs or folders.")
@click.option("--workers", type=click.IntRange(0, 100_000), metavar="N", help="num_workers of each loader.")
@click.option("--open-shards", type=click.IntRange(0, _MOST), metavar="H", help="Files each worker has open at once.")
@click.option("--prefetch", type=_AT_LEAST_1, default=2, show_default=True, help="prefetch_factor.")
@click.option("--batch-bytes", metavar="SIZE", callback=size_of, help="The size of a batch, such as 64MB.")
@click.option("--tensors", type=_AT_LEAST_1, default=2, show_default=True, help="Tensors in a batch.")
@click.option("--loaders", type=_AT_LEAST_1, default=1, show_default=True, help="Loaders alive at once.")
@click.option(
    "--sharing",
    type=click.Choice([one.value for one in Sharing]),
    default=Sharing.DESCRIPTOR.value,
    show_default=True,
    help="torch's sharing strategy.",
)
def plan(
    screen: Screen,
    data: tuple[str, ...],
    workers: int | None,
    open_shards: int | None,
    prefetch: int,
    batch_bytes: int | None,
    tensors: int,
    loaders: int,
    sharing: str,
) -> int:
    files = _count_files(data) if data else None
    room = read_room()
    many = max(1, math.floor(room.cores)) if workers is None else workers
    wish = Wish(
        workers=many,
        open_shards=_open_shards(files, many) if open_shards is None else open_shards,
        prefetch=prefetch,
        batch_bytes=batch_bytes,
        tensors=tensors,
        loaders=loaders,
        sharing=Sharing(sharing),
    )
    made = make_plan(wish, room)
    if screen.as_json or screen.talks:
        from ..report.ascii import AnyTerminal
        from ..report.plan import PlanPage, plan_as_dict

        screen.document(plan_as_dict(made, files))
        screen.print(AnyTerminal(PlanPage(made, files)))
    return FINE if made.fits else FOUND


def _count_files(data: tuple[str, ...]) -> int:
    from ..read.sources.local import check_file
    from .inputs import expand  # knows the formats, which takes a while to load

    return len([check_file(file) for file in expand(data)])


def _open_shards(files: int | None, workers: int) -> int:
    if files is None:
        return _MOST_OPEN
    return min(_MOST_OPEN, math.ceil(files / max(1, workers)))
