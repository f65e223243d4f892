"""A path from what keeps a descriptor alive to the object that owns it, and many such paths as one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

ARROW = " → "
# A path is told apart from others by its names; which element of a list it goes through does not matter.
_SUBSCRIPT = re.compile(r"\[[^\[\]]*\]")


class Held(StrEnum):
    """By what a descriptor is kept open."""

    MODULE = "module"  # a variable of a module
    FRAME = "frame"  # a local variable of a running function
    OUTSIDE = "outside"  # something that Python cannot show
    CYCLE = "cycle"  # nothing but itself
    NOBODY = "nobody"  # no Python object owns it
    UNKNOWN = "unknown"  # an object owns it; what holds that was not found within the bound


ROOTS = {
    Held.OUTSIDE: "a running statement, or C code",
    Held.CYCLE: "only a reference cycle: gc.collect() frees it",
    Held.NOBODY: "no Python object owns it: opened by C code or as a bare number, or its owner is lost",
    Held.UNKNOWN: "not found within the bound",
}
TORCH_STORAGE = (
    "no Python object can be found by it: a torch tensor's shared storage, open as long as a tensor of a worker's "
    "batch is kept; clone() what is kept"
)


@dataclass(frozen=True, slots=True)
class OwnerPath:
    """`str()` is the line for people:

    worker.py:31 module variable 'keep'[3] → _MultiProcessingDataLoaderIter._index_queues[0] → Queue._reader
    → Connection(fd 17)
    """

    fd: int
    held: Held
    root: str
    steps: tuple[str, ...] = ()
    owner: str = ""  # the type of the object that owns it; "" where none does

    def __str__(self) -> str:
        if not self.owner:
            return f"fd {self.fd}: {self.root}"
        return ARROW.join((self.root, *self.steps, f"{self.owner}(fd {self.fd})"))

    @property
    def shape(self) -> str:
        """The path without numbers and keys: the same for all that one line of a program leaks."""
        return _SUBSCRIPT.sub("[…]", ARROW.join(filter(None, (self.root, *self.steps, self.owner))))


@dataclass(frozen=True, slots=True)
class OwnerGroup:
    """Descriptors held in the same way. `count` is that of all of them, estimated where `exact` is False."""

    shape: str
    held: Held
    count: int
    example: OwnerPath
    exact: bool = True

    def __str__(self) -> str:
        return f"{self.shape}  [{'' if self.exact else 'about '}{self.count:,} ×]"


def group_paths(paths: Iterable[OwnerPath], asked: int | None = None) -> list[OwnerGroup]:
    """One group for each shape, the largest first. `asked`: how many descriptors the ones looked at stand for."""
    shapes: dict[str, list[OwnerPath]] = {}
    looked: set[int] = set()
    for path in paths:
        # A descriptor with two owners is still one descriptor: it counts where its first path goes.
        if path.fd not in looked:
            looked.add(path.fd)
            shapes.setdefault(path.shape, []).append(path)
    scale = 1.0 if asked is None or not looked else asked / len(looked)
    groups = [
        OwnerGroup(shape, members[0].held, round(len(members) * scale), members[0], scale == 1.0)
        for shape, members in shapes.items()
    ]
    return sorted(groups, key=lambda group: -group.count)
