"""Descriptors that nobody can use any more: what a leak consists of and a working set does not."""

from __future__ import annotations

from .facts import Match, Structure, Trend

MANY = 64
_MANY_LOADERS = 8
_MANY_ENDS = 256
_MANY_HALF_OPEN = 1024
_LEAST = 16
# What makes its queues and pools for longer than that is not starting.
_START_S = 600.0
_NONE = Structure(fds=0)


def count_dead(structure: Structure) -> int:
    """Pipe ends whose far end is closed everywhere, pipes that only this process has, connections left half open."""
    return _count_pipes(structure) + structure.close_wait


def _count_pipes(structure: Structure) -> int:
    return structure.dead_pipes + 2 * structure.self_pairs


def are_many(structure: Structure) -> bool:
    """Whether they are worth a sentence: half of all at least."""
    return count_dead(structure) >= MANY and 2 * count_dead(structure) >= structure.fds


def are_mostly_dead_pipes(structure: Structure) -> bool:
    """Whether more than half of all descriptors are pipes that nobody can use: suspicious, and no proof of a leak.

    Fewer than 16 do not count: of a process whose parent has died, stdin, stdout and stderr are dead pipes.
    """
    pipes = _dead_pipes_and_pairs(structure)
    return pipes >= _LEAST and 2 * pipes > structure.fds


def _dead_pipes_and_pairs(structure: Structure) -> int:
    """Threads may talk through a pipe that only this process has: it counts only beside dead ones."""
    pipes = _count_pipes(structure)
    return pipes if 3 * structure.dead_pipes >= pipes else structure.dead_pipes


def are_most_at_once(structure: Structure) -> bool:
    """Whether one look is enough: they are half of all at least, and more than a healthy process ever has."""
    proof = _proven_pipes(structure) + _proven_connections(structure)
    return proof > 0 and 2 * proof >= structure.fds


def _proven_pipes(structure: Structure) -> int:
    """Threads may talk through a pipe that only this process has: without dead ones beside them these prove nothing.

    Healthy are as well a trainer that keeps its used up iterators, one for each of its few loaders, until the next
    epoch, and a batch of processes, all but the last of them ended, before it is dropped.
    """
    pipes = _count_pipes(structure)
    loaders = min(structure.self_pairs, structure.hup, structure.err)
    enough = pipes >= MANY and (loaders >= _MANY_LOADERS or structure.dead_pipes >= _MANY_ENDS)
    return pipes if enough and 3 * structure.dead_pipes >= pipes else 0


def _proven_connections(structure: Structure) -> int:
    """A pool keeps idle connections that the server gave up, and a client may close its side and wait for the answer.

    Neither is a leak, and neither is there a thousand times.
    """
    return structure.close_wait if structure.close_wait >= _MANY_HALF_OPEN else 0


def are_most_of_growth(trend: Trend, structure: Structure | None, first: Structure | None, match: Match | None) -> bool:
    """Whether they are half or more of what the floor rose by.

    Between two looks a burst may have come or gone: the floor's rise counts where it is the smaller one. Seen once,
    what was dead before cannot be told from what grew, so there must be many.
    """
    if structure is None:
        return match is not None and match.dead >= max(MANY, trend.rise / 2)
    if first is None:
        return _proof_of_growth(structure, _NONE, trend.span_s) >= max(MANY, trend.rise / 2)
    grown = _proof_of_growth(structure, first, trend.span_s)
    return grown >= max(_LEAST, min(structure.fds - first.fds, trend.rise) / 2)


def _proof_of_growth(structure: Structure, first: Structure, span_s: float) -> int:
    """How many more are dead; in the time of a start only what was in use and is not any more: queues between threads
    are made then, and as more clients come, more of them have closed their side and wait for the answer."""
    if span_s >= _START_S:
        return count_dead(structure) - count_dead(first)
    ends = structure.dead_pipes - first.dead_pipes
    pipes = _count_pipes(structure) - _count_pipes(first)
    return pipes if 3 * ends >= pipes else ends
