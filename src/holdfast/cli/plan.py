"""Check whether a run fits the limits of this machine.

Run it where the job will run, before it starts. It counts the costs of torch
DataLoaders: W workers cost 4·W + 2 pipes in the main process, a descriptor for
every tensor in flight, threads for the queues and shared memory for every batch
fetched ahead, and each worker has its own shards open. It compares them with
the limits of this shell, this user, this control group and /dev/shm.

The defaults are one worker per core, and per worker its share of the files
open, 16 at most.

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
  settled   the nearest request that fits once `set` is set, or null

Exit codes: 0 it fits; 1 it does not fit with the current limits (the page says
what to set); 2 wrong usage; 3 a path of --data does not exist.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.constrain import Constrain
from rich.padding import Padding
from rich.text import Text

from .._util.terminal import TableColumn as C
from .._util.terminal import bar, make_grid, make_table, use_style
from .._util.text import counted
from ..process.capacity import CapacityPlan, CapacityRequest, Requirement, Sharing, make_plan, read_limits
from ..procfs.limits import finite, percent, quantity
from .app import FINE, FOUND, command, size_of
from .console import Screen

_PAGE = 140
_IN_BYTES = {"/dev/shm", "memory"}
_COLUMNS = (C(""), C("needs", right=True), C("there is", right=True), C(""), C(""))
_MARKS = {True: ("✓", "green"), False: ("✗", "bold red"), None: ("▲", "yellow")}


class PlanPage:
    """The page of one plan, laid out for the given width."""

    def __init__(self, plan: CapacityPlan, files: int | None) -> None:
        self._plan = plan
        self._files = files

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width = min(options.max_width, _PAGE)
        yield Text(describe(self._plan.request, self._files), style="bold")
        yield ""
        rows = [_row(line, 20 if width >= 100 else 10) for line in self._plan.requirements]
        yield Padding(make_table(_COLUMNS, rows, width - 2), (0, 0, 0, 2), expand=False)
        yield ""
        yield _beside(self._reasons(), "dim", width)
        yield ""
        yield self._verdict()
        yield _beside([(f"{one.name} {one.value}".rstrip(), one.why) for one in self._plan.settings], "bold", width)

    def _reasons(self) -> list[tuple[str, str]]:
        reasons = [(line.name, line.why) for line in self._plan.requirements if line.need]
        if self._plan.request.workers and self._plan.request.batch_bytes is None:
            reasons.append(("/dev/shm", "not counted: pass the size of a batch with --batch-bytes 64MB"))
        return reasons

    def _verdict(self) -> Text:
        if self._plan.fits:
            return Text("✓ it fits" + ("; better:" if self._plan.settings else ""), style="bold green")
        if self._plan.adjusted is None:
            return Text("✗ it does not fit, and nothing smaller does", style="bold red")
        return Text("✗ it does not fit with the current limits; set:", style="bold red")


def describe(request: CapacityRequest, files: int | None) -> str:
    """`4 workers, 16 open shards each of 1,024 files, 2 batches of each prefetched, shared by file_descriptor`."""
    of = "" if files is None else f" of {counted(files, 'file')}"
    shards = counted(request.open_shards, "open shard")
    if not request.workers:
        return f"no workers, {shards}{of}"
    loaders = f"{counted(request.loaders, 'loader')} with " if request.loaders > 1 else ""
    ahead = f"{counted(request.prefetch, 'batch')} of each prefetched"
    return (
        f"{loaders}{counted(request.workers, 'worker')}, {shards} each{of}, {ahead}, shared by {request.sharing.value}"
    )


def _row(line: Requirement, long: int) -> list[Text]:
    in_bytes = line.name in _IN_BYTES
    mark, style = _MARKS[True if line.enough else (False if line.must else None)]
    used = line.need / line.have if line.have else (1.0 if line.have == 0 and line.need else 0.0)
    picture = Text("") if line.have is None else Text(bar(used, long), style=use_style(used))
    return [
        Text(line.name),
        Text(quantity(line.need, in_bytes=in_bytes)),
        Text(quantity(line.have, in_bytes=in_bytes)),
        picture,
        Text.assemble((mark, style), "" if line.have is None else f" {percent(used)}"),
    ]


def _beside(lines: Sequence[tuple[str, str]], style: str, width: int) -> RenderableType:
    """Wraps each sentence beside its label."""
    grid = make_grid(style=style)
    for label, sentence in lines:
        grid.add_row(label, sentence)
    return Constrain(Padding(grid, (0, 0, 0, 2), expand=False), width)


def plan_as_dict(plan: CapacityPlan, files: int | None) -> dict[str, Any]:
    """Unlimited and unknown are null."""
    return {
        "fits": plan.fits,
        "wish": asdict(plan.request) | {"files": files},
        "needs": [
            {"name": one.name, "need": one.need, "have": finite(one.have), "enough": one.enough, "must": one.must}
            for one in plan.requirements
        ],
        "set": [{"name": one.name, "value": one.value, "why": one.why} for one in plan.settings],
        "settled": None if plan.adjusted is None else asdict(plan.adjusted),
    }


_MAX_OPEN = 16
_MAX = 10**9  # more is a typing error
_AT_LEAST_1 = click.IntRange(1, _MAX)


@command(__doc__)
@click.option("--data", multiple=True, metavar="GLOB", help="The files to be read: paths, globs or folders.")
@click.option("--workers", type=click.IntRange(0, 100_000), metavar="N", help="num_workers of each loader.")
@click.option("--open-shards", type=click.IntRange(0, _MAX), metavar="H", help="Files each worker has open at once.")
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
    limits = read_limits()
    many = max(1, math.floor(limits.cores)) if workers is None else workers
    request = CapacityRequest(
        workers=many,
        open_shards=_open_shards(files, many) if open_shards is None else open_shards,
        prefetch=prefetch,
        batch_bytes=batch_bytes,
        tensors=tensors,
        loaders=loaders,
        sharing=Sharing(sharing),
    )
    made = make_plan(request, limits)
    if screen.as_json or screen.talks:
        from .tables import AnyTerminal

        screen.document(plan_as_dict(made, files))
        screen.print(AnyTerminal(PlanPage(made, files)))
    return FINE if made.fits else FOUND


def _count_files(data: tuple[str, ...]) -> int:
    from ..data.inputs import check_file, expand  # knows the formats, which takes a while to load

    return len([check_file(file) for file in expand(data)])


def _open_shards(files: int | None, workers: int) -> int:
    if files is None:
        return _MAX_OPEN
    return min(_MAX_OPEN, math.ceil(files / max(1, workers)))
