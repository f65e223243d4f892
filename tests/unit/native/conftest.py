"""Both codecs, for tests that hold for each of them."""

from __future__ import annotations

from typing import Any

import pytest
from codec_cases import IMPLEMENTATIONS, load


@pytest.fixture(params=IMPLEMENTATIONS)
def codec_impl(request: pytest.FixtureRequest) -> Any:
    return load(request.param)
