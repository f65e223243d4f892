"""Both ways of looking, compiled and in Python, for tests that hold for each of them."""

from __future__ import annotations

import pytest
from python_twins import use_python

from holdfast._native.c_modules import fdscan


@pytest.fixture(params=["compiled", "python"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        use_python(monkeypatch)
    elif not fdscan:
        pytest.skip("the compiled module was not built, or not expected")
