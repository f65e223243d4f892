"""Which images a training saw, step by step; and whether it saw each of them once an epoch, kills and all.

python examples/seen.py run 384

A training that is killed after its last checkpoint goes on from there: what it saw behind it is undone, as the model's
steps are. So of each start only the steps up to where the next one began count.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path


class SeenLog:
    """One line a step. The file's name says at which step this start began, and whose it is."""

    def __init__(self, folder: Path, begin: int, rank: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"seen-from-{begin}-rank-{rank}.jsonl").open("w", buffering=1)

    def write(self, epoch: int, step: int, numbers: Iterable[int]) -> None:
        self._file.write(json.dumps({"epoch": epoch, "step": step, "ids": list(numbers)}) + "\n")

    def close(self) -> None:
        self._file.close()


def count_seen(folder: Path) -> dict[int, Counter[int]]:
    """How often each image was seen, by epoch."""
    starts = defaultdict(list)
    for path in folder.glob("seen-from-*.jsonl"):
        starts[int(path.name.split("-")[2])].append(path)
    begins = sorted(starts)
    found: dict[int, Counter[int]] = defaultdict(Counter)
    for begin, undone in zip(begins, [*begins[1:], None], strict=False):
        for path in starts[begin]:
            for line in map(json.loads, path.read_text().splitlines()):
                if undone is None or line["step"] <= undone:
                    found[line["epoch"]].update(line["ids"])
    return dict(found)


def main() -> None:
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    epochs = count_seen(folder)
    if not epochs:
        sys.exit(f"{folder}: no training has seen anything here")
    for epoch, seen in sorted(epochs.items()):
        for number in sorted(seen.keys() | set(range(count))):
            if seen[number] != (number < count):
                sys.exit(f"epoch {epoch}: image {number} was seen {seen[number]} times")
        print(f"epoch {epoch}: {count} images, each seen once")


if __name__ == "__main__":
    main()
