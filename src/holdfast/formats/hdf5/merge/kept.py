"""Datasets that do not grow with the rows, such as what stands along another axis: they must be the same everywhere."""

from __future__ import annotations

import hashlib

from .agree import Agreement
from .facts import Dataset, Refusal
from .rows import Rows


def check_kept(made: Agreement, rows: Rows) -> None:
    for target in made.targets.values():
        if not target.kept:
            continue
        first = target.sources[0]
        wanted = _digest(first, rows)
        for other in target.sources[1:]:
            if other.shape != first.shape or _digest(other, rows) != wanted:
                text = f"dataset {target.path!r} is the scale of an axis, and another than in {made.sources[0].path}"
                raise Refusal("schema", made.sources[other.file].path, text)


def _digest(dataset: Dataset, rows: Rows) -> bytes:
    found = hashlib.sha256()
    for piece in rows.read(dataset, 0, dataset.rows):
        found.update(piece.tobytes())
    return found.digest()
