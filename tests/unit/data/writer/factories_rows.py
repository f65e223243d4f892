"""Numbered rows with a column of every kind."""

from __future__ import annotations

from typing import Any

import holdfast as hold

SCHEMA = {
    "seq": hold.Int64(),
    "emb": hold.Float32(2, 3),
    "text": hold.Bytes(),
    "pair": hold.Bytes(2),
    "boxes": hold.Ragged(hold.Float32(2)),
    "tags": hold.Ragged(hold.Bytes()),
    "lists": hold.Ragged(hold.Ragged(hold.Int64())),
}


def rows(first: int, count: int) -> dict[str, Any]:
    numbers = range(first, first + count)
    return {
        "seq": list(numbers),
        "emb": [[[i, 1, 2], [3, 4, 5]] for i in numbers],
        "text": [b"t" * (i % 4) for i in numbers],
        "pair": [[b"a", b"b" * (i % 3)] for i in numbers],
        "boxes": [[[i, 0.5]] * (i % 3) for i in numbers],
        "tags": [[b"x" * i for i in range(i % 4)] for i in numbers],
        "lists": [[[1] * (i % 2), [2, i]] * (i % 3) for i in numbers],
    }


def row(number: int) -> dict[str, Any]:
    return {name: column[0] for name, column in rows(number, 1).items()}
