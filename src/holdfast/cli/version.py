"""The line `holdfast --version` prints. Loads neither numpy nor any format: it must work where they do not."""

from __future__ import annotations

import os

from .. import __version__


def version_line() -> str:
    return f"holdfast {__version__} ({_codec()})"


def _codec() -> str:
    # The same choice as in _native/codec.py, which would load numpy for pure Python.
    wanted = os.environ.get("HOLDFAST_NATIVE", "")
    if wanted == "0":
        return "pure Python codec: HOLDFAST_NATIVE=0 asks for it; slower, same results"
    try:
        from .._native import _codec
    except ImportError as error:
        if wanted == "1":
            return f"no codec: HOLDFAST_NATIVE=1 asks for the compiled one, and {error}"
        return "pure Python codec: no compiler was there when it was installed; slower, same results"
    return f"compiled codec, {_codec.crc_kind()}"
