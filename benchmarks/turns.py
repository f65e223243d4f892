"""Rounds in which every side has its turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

K = TypeVar("K")
Turn = dict[str, float]


def take_turns(
    sides: Sequence[K], rounds: int, turn: Callable[[K], Turn], most: Mapping[K, int] | None = None
) -> dict[K, list[Turn]]:
    """Every side's turns. `most`: how many rounds a slow one takes part in, where that is fewer."""
    turns: dict[K, list[Turn]] = {side: [] for side in sides}
    for number in range(rounds):
        # A busy minute of the machine hits all sides; and none is always the one to follow the same other.
        for side in sides if number % 2 == 0 else reversed(sides):
            if number < (most or {}).get(side, rounds):
                turns[side].append(turn(side))
    return turns
