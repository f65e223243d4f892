"""Files that the tests of several commands read, and a folder for what workers show of themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_process import write_shards


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    return write_shards(tmp_path / "in")


@pytest.fixture
def guard_runtime(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of heartbeat pages and sockets; its path is short, because that of a socket has to be."""
    folder = tmp_path_factory.mktemp("g")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder / "holdfast"
