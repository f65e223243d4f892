"""What stands in for each compiled loop of a look where there is none."""

from __future__ import annotations

import pytest

from holdfast.procfs import descriptors, peers, procfs

_IN_PYTHON = (
    (procfs, "read_links", procfs._read_links),
    (procfs, "read_link_modes", procfs._read_link_modes),
    (descriptors, "make_rows", descriptors._make_rows),
    (procfs, "parse_common", procfs._parse_common),
    (peers, "ask", peers._ask),
    (peers, "ask_other", peers._ask_other),
    (peers, "pair", peers._pair),
)


def use_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here, and in processes that the test starts."""
    monkeypatch.setenv("HOLDFAST_NATIVE", "0")
    for module, name, twin in _IN_PYTHON:
        monkeypatch.setattr(module, name, twin)
