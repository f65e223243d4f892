"""holdfast keeps multi-process ML data I/O alive and intact.

    import holdfast as hold

This module is the public face and loads the standard library only: a name's module is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import errors as errors
    from .formats.tfrecord import Records as Records
    from .formats.tfrecord import TFRecordReader as TFRecordReader
    from .formats.tfrecord import TFRecordWriter as TFRecordWriter
    from .schema import Bytes as Bytes
    from .schema import Float32 as Float32
    from .schema import Int64 as Int64
    from .schema import Ragged as Ragged

__version__ = "0.1.0"

_HOMES = {
    "Bytes": "schema",
    "Float32": "schema",
    "HoldfastError": "errors",
    "Int64": "schema",
    "Ragged": "schema",
    "Records": "formats.tfrecord",
    "TFRecordReader": "formats.tfrecord",
    "TFRecordWriter": "formats.tfrecord",
    "errors": "",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    home = _HOMES[name]
    value = (
        importlib.import_module(f".{name}", __name__)
        if not home
        else getattr(importlib.import_module(f".{home}", __name__), name)
    )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
