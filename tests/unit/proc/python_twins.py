"""What stands in for each compiled loop of a look where there is none."""

from __future__ import annotations

import pytest

from holdfast.proc import descriptors, netlink, pipes, poll, procfs

_IN_PYTHON = (
    (procfs, "read_links", procfs._read_links),
    (procfs, "read_link_modes", procfs._read_link_modes),
    (descriptors, "make_rows", descriptors._make_rows),
    (netlink, "parse_common", netlink._parse_common),
    (poll, "ask", poll._ask),
    (poll, "ask_other", poll._ask_other),
    (pipes, "pair", pipes._pair),
)


def use_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here, and in processes that the test starts."""
    monkeypatch.setenv("HOLDFAST_NATIVE", "0")
    for module, name, twin in _IN_PYTHON:
        monkeypatch.setattr(module, name, twin)
