"""Files that the tests of several commands read."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_process import write_shards


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    return write_shards(tmp_path / "in")
