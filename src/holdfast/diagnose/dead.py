"""Descriptors that nobody can use any more: what a leak consists of and a working set does not."""

from __future__ import annotations

from .facts import Match, Structure, Trend

MANY = 64
_LEAST_GROWN = 16


def count_dead(structure: Structure) -> int:
    """Pipe ends whose far end is closed everywhere, pipes that only this process has, connections left half open."""
    return count_surely_dead(structure) + 2 * structure.self_pairs


def count_surely_dead(structure: Structure) -> int:
    """Without pipes that only this process has: its threads may be talking through them."""
    return structure.dead_pipes + structure.close_wait


def are_most_at_once(structure: Structure) -> bool:
    """Whether one look is enough: they are many, half of all at least, and not only pipes between threads.

    Of a dead DataLoader iterator, with one worker or more, half or more are surely dead.
    """
    dead = count_dead(structure)
    return dead >= MANY and 2 * dead >= structure.fds and 3 * count_surely_dead(structure) >= dead


def are_most_of_growth(trend: Trend, structure: Structure | None, first: Structure | None, match: Match | None) -> bool:
    """Whether they are half or more of what the floor rose by.

    Between two looks a burst may have come or gone: the floor's rise counts where it is the smaller one. Seen once,
    what was dead before cannot be told from what grew, so there must be many.
    """
    if structure is None:
        return match is not None and match.dead >= max(MANY, trend.rise / 2)
    if first is None:
        return count_dead(structure) >= max(MANY, trend.rise / 2)
    grown = count_dead(structure) - count_dead(first)
    return grown >= max(_LEAST_GROWN, min(structure.fds - first.fds, trend.rise) / 2)
