"""What a log's folder holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import holdfast as hold


def rows(folder: Path, *columns: str) -> list[tuple[Any, ...]]:
    """Returns the rows after verifying that each byte is as it was committed."""
    assert hold.write(folder).verify().ok
    with hold.read(str(folder)).shard(None).batch(100).iterate() as batches:
        return [row for batch in batches for row in zip(*(batch[name].tolist() for name in columns), strict=True)]


def pieces(folder: Path) -> list[tuple[str, int]]:
    return [(record.task, record.rows) for record in hold.write(folder).parts()]
