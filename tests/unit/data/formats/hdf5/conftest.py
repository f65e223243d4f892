from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.data.formats.hdf5 import sandbox


@pytest.fixture
def bad_library(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """The HDF5 library misbehaves as bad_child.py says."""

    def set_bad(how: str) -> None:
        monkeypatch.setattr(sandbox, "PROGRAM", [sys.executable, str(Path(__file__).with_name("bad_child.py"))])
        monkeypatch.setattr(sandbox, "_BASE_SPIN_S", 0.5)
        monkeypatch.setenv("BAD_CHILD", how)

    return set_bad
