"""A plan for people and for machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from ..diagnose.plan import Line, Plan, Setting, Wish
from .bars import bar
from .columns import GAP, lay_out
from .columns import Column as C
from .limits import finite, percent, quantity
from .verdicts import use_style
from .words import counted

_PAGE = 140
_IN_BYTES = {"/dev/shm", "memory"}
_COLUMNS = (C(""), C("needs", right=True), C("there is", right=True), C(""), C(""), C("why", cut=True))
_MARKS = {True: ("✓", "green"), False: ("✗", "bold red"), None: ("▲", "yellow")}


class PlanPage:
    """Lays itself out for the width it is given; reasons go under their line where there is no room beside it."""

    def __init__(self, plan: Plan, files: int | None) -> None:
        self._plan = plan
        self._files = files

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width = min(options.max_width, _PAGE)
        yield Text(describe(self._plan.wish, self._files), style="bold")
        yield ""
        rows = [_row(line, 20 if width >= 100 else 10) for line in self._plan.lines]
        for line in lay_out(_COLUMNS[:-1], rows, width - 2):
            yield Text("  ") + line
        yield ""
        yield from self._reasons(width)
        yield self._verdict()
        yield from _settings(self._plan.settings, width)

    def _reasons(self, width: int) -> Iterator[RenderableType]:
        shown = [line for line in self._plan.lines if line.need]
        long = max(len(line.name) for line in shown)
        for line in shown:
            yield from _hanging(Text(f"  {line.name:<{long}}{' ' * GAP}", style="dim"), line.why, width)
        if self._plan.wish.workers and self._plan.wish.batch_bytes is None:
            said = "not reckoned with: say how large a batch is with --batch-bytes 64MB"
            yield from _hanging(Text(f"  {'/dev/shm':<{long}}{' ' * GAP}", style="dim"), said, width)
        yield ""

    def _verdict(self) -> Text:
        if self._plan.fits:
            return Text("✓ it fits" + ("; better:" if self._plan.settings else ""), style="bold green")
        if self._plan.settled is None:
            return Text("✗ it does not fit, and nothing smaller does", style="bold red")
        return Text("✗ it does not fit as things are now; set:", style="bold red")


def describe(wish: Wish, files: int | None) -> str:
    """`4 workers, 16 open shards each of 1,024 files, 2 batches of each fetched ahead, shared by file_descriptor`."""
    of = "" if files is None else f" of {counted(files, 'file')}"
    shards = counted(wish.open_shards, "open shard")
    if not wish.workers:
        return f"no workers, {shards}{of}"
    loaders = f"{counted(wish.loaders, 'loader')} with " if wish.loaders > 1 else ""
    ahead = f"{counted(wish.prefetch, 'batch').replace('batchs', 'batches')} of each fetched ahead"
    return f"{loaders}{counted(wish.workers, 'worker')}, {shards} each{of}, {ahead}, shared by {wish.sharing.value}"


def _row(line: Line, long: int) -> list[Text]:
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


def _settings(settings: Sequence[Setting], width: int) -> Iterator[Text]:
    what = [f"{setting.name} {setting.value}".rstrip() for setting in settings]
    long = max(map(len, what), default=0)
    for said, setting in zip(what, settings, strict=True):
        head = Text.assemble("  ", (f"{said:<{long}}", "bold"), "  ")
        yield from _hanging(head, setting.why, width)


def _hanging(head: Text, said: str, width: int) -> Iterator[Text]:
    """A sentence beside its head, folded under itself."""
    room = max(20, width - head.cell_len)
    first = True
    for words in _fold(said, room):
        yield (head if first else Text(" " * head.cell_len)) + Text(words)
        first = False


def _fold(said: str, room: int) -> Iterator[str]:
    line = ""
    for word in said.split():
        if line and len(line) + 1 + len(word) > room:
            yield line
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield line


def plan_as_dict(plan: Plan, files: int | None) -> dict[str, Any]:
    """Unlimited and unknown are null."""
    return {
        "fits": plan.fits,
        "wish": _wish_as_dict(plan.wish) | {"files": files},
        "needs": [
            {"name": one.name, "need": one.need, "have": finite(one.have), "enough": one.enough, "must": one.must}
            for one in plan.lines
        ],
        "set": [{"name": one.name, "value": one.value, "why": one.why} for one in plan.settings],
        "settled": None if plan.settled is None else _wish_as_dict(plan.settled),
    }


def _wish_as_dict(wish: Wish) -> dict[str, Any]:
    return {
        "workers": wish.workers,
        "open_shards": wish.open_shards,
        "prefetch": wish.prefetch,
        "batch_bytes": wish.batch_bytes,
        "tensors": wish.tensors,
        "loaders": wish.loaders,
        "sharing": wish.sharing.value,
    }
