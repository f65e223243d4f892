"""What can still be read of a damaged shard."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from .shard import kind_of

if TYPE_CHECKING:
    from .tfrecord.mended import Layout, MendedShard


def open_damaged(
    path: str | os.PathLike[str],
    *,
    verify: Literal["all", "header"] = "all",
    salvage: bool = False,
    most: int = 1000,
    keep_doubtful: bool = False,
) -> MendedShard | None:
    """The good samples around the damages, in a format that has a way to find them: TFRecord. None for others.

    `salvage`, `most` and `keep_doubtful` as mend() has them, whose errors this raises.
    """
    if kind_of(path) != "tfrecord":
        return None
    from .tfrecord.mended import MendedShard, mend

    layout = mend(path, salvage=salvage, most=most, keep_doubtful=keep_doubtful)
    return MendedShard(path, layout, verify=verify)


def open_mended(
    path: str | os.PathLike[str], layout: Layout, *, verify: Literal["all", "header"] = "all"
) -> MendedShard:
    """The same again, without another search. The file must be the one that was searched."""
    from .tfrecord.mended import MendedShard

    return MendedShard(path, layout, verify=verify)
