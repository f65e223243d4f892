"""Damage that is found while the shards are looked at: what it costs, said before the first batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...errors import CorruptError, DataError, DecodeError, HoldfastError, UnfinishedError
from ...proc.holders import writers_of
from ..flow.losses import Loss
from .budget import is_full

if TYPE_CHECKING:
    from ...formats.tfrecord.problems import Problem


def is_damage(error: HoldfastError, file: str) -> bool:
    """Whether it lies in the file, and will on every rank.

    A schema that does not fit is a mistake; no free descriptor is another shard's trouble on another rank; and what a
    live process still writes will be another file when the next rank looks at it.
    """
    if isinstance(error, DecodeError) or is_full(error):
        return False
    return not (isinstance(error, UnfinishedError) and writers_of(file))


def losses_around(path: str, problems: Iterable[Problem]) -> tuple[Loss, ...]:
    found = []
    for problem in problems:
        reason = problem.reason
        if reason.endswith("left out") and problem.records_doubtful:
            reason += "; keep_doubtful=True reads them, which is right if no record holds TFRecords"
        found.append(Loss(path, problem.record or 0, "damaged", reason, problem.offset, problem.bytes_lost))
    return tuple(found)


def loss_of_shard(path: str, local: str, size_bytes: int, error: HoldfastError) -> Loss:
    """A shard that is left out as a whole. `local` is the file that was tried."""
    reason = error.reason if isinstance(error, DataError) else str(error).removeprefix(f"{local}: ")
    return Loss(path, 0, "unreadable", reason, 0, size_bytes)


def one_too_many(loss: Loss, most: int) -> CorruptError:
    return CorruptError(
        loss.path,
        None if loss.kind == "unreadable" else loss.record,
        loss.offset,
        f"{loss.reason}; that is one more than the {most:,} that max_corrupt lets be skipped",
        "Raise max_corrupt, or look at the files with `holdfast verify`",
    )
