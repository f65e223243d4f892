"""How the bytes of limits(memory=…) are shared between blocks that are held and batches on their way.

What is made ready by prefetch() has its own part. Of the rest, the order of the windows and the batches on their way
take what they take, as there is no reading without them; blocks get what is left. But where batches are large, blocks
keep half: a packed shard cannot be read otherwise.
"""

from __future__ import annotations

from ..settings import Function, Settings


class Room:
    """`places`: of every stage, the function that says where it runs; None: here."""

    def __init__(self, settings: Settings, places: list[Function | None]) -> None:
        self._most = settings.memory_bytes - settings.prefetch_bytes
        self._under_way = sum(_under_way(place) for place in places)
        self._step_bytes = 0
        self._made_bytes = 0

    def step(self, size_bytes: int) -> None:
        """Steps are about so large as they are read."""
        self._step_bytes = max(self._step_bytes, size_bytes)

    def made(self, size_bytes: int) -> None:
        """A stage has made so much of one."""
        self._made_bytes = max(self._made_bytes, size_bytes)

    def for_blocks(self, order_bytes: int) -> int:
        """What blocks may take, beside the order of the windows in use."""
        if self._under_way and not self._made_bytes:  # what the functions make of a step is not known yet
            batches = self._most // 2
        else:
            step, made = self._step_bytes, max(self._step_bytes, self._made_bytes)
            # Two of the one that is read: where it was read to, and put together. Of one under way, the samples that
            # were made of it and the batch of these. And the one that the user has.
            batches = 2 * step + self._under_way * (step + 2 * made) + made
        return max(0, self._most - order_bytes - min(batches, self._most // 2))


def _under_way(place: Function | None) -> int:
    """Batches that are in a stage at once."""
    if place is None or place.where == "inline":
        return 1
    return place.workers + (1 if place.where == "threads" else 2)
