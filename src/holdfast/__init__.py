"""holdfast keeps multi-process ML data I/O alive and intact.

    import holdfast as hold

This module is the public face and loads the standard library only: a name's module is imported when it is first used.
"""

from __future__ import annotations

import errno
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import errors as errors
    from ._base.descriptors import raise_nofile as raise_nofile
    from .convert.entry import convert as convert
    from .diagnose.explain.explanation import Explanation as Explanation
    from .formats.hdf5.protect import protect_h5py as protect_h5py
    from .formats.images.decode import decode_image as decode_image
    from .formats.tfrecord import Records as Records
    from .formats.tfrecord import TFRecordReader as TFRecordReader
    from .formats.tfrecord import TFRecordWriter as TFRecordWriter
    from .guard.locked import locked as locked
    from .guard.locks import locks as locks
    from .guard.no_leaks import no_leaks as no_leaks
    from .log.entry import Log as Log
    from .log.entry import log as log
    from .look.diagnose import diagnose as diagnose
    from .look.explain import explain as explain
    from .look.snapshot import snapshot as snapshot
    from .read.dataset import Dataset as Dataset
    from .read.dataset import concat as concat
    from .read.entry import mix as mix
    from .read.entry import read as read
    from .report.progress import progress as progress
    from .schema import Array as Array
    from .schema import Bytes as Bytes
    from .schema import Float32 as Float32
    from .schema import Int64 as Int64
    from .schema import Ragged as Ragged
    from .trace.listen import listen as listen
    from .trace.owners import owners as owners
    from .trace.owners import owners_summary as owners_summary
    from .write.central.producer import connect as connect
    from .write.out import Out as Out
    from .write.out import write as write

__version__ = "0.1.0"

_HOMES = {
    "Array": "schema",
    "Bytes": "schema",
    "Dataset": "read.dataset",
    "Explanation": "diagnose.explain.explanation",
    "Float32": "schema",
    "HoldfastError": "errors",
    "Int64": "schema",
    "Log": "log.entry",
    "Out": "write.out",
    "Ragged": "schema",
    "Records": "formats.tfrecord",
    "TFRecordReader": "formats.tfrecord",
    "TFRecordWriter": "formats.tfrecord",
    "concat": "read.dataset",
    "connect": "write.central.producer",
    "convert": "convert.entry",
    "decode_image": "formats.images.decode",
    "diagnose": "look.diagnose",
    "errors": "",
    "explain": "look.explain",
    "listen": "trace.listen",
    "locked": "guard.locked",
    "locks": "guard.locks",
    "log": "log.entry",
    "mix": "read.entry",
    "no_leaks": "guard.no_leaks",
    "owners": "trace.owners",
    "owners_summary": "trace.owners",
    "progress": "report.progress",
    "protect_h5py": "formats.hdf5.protect",
    "raise_nofile": "_base.descriptors",
    "read": "read.entry",
    "snapshot": "look.snapshot",
    "write": "write.out",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    try:
        value = _load(name)
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        with _more_descriptors():
            value = _load(name)
    globals()[name] = value
    return value


def _load(name: str) -> Any:
    home = _HOMES[name]
    module = importlib.import_module(f".{home or name}", __name__)
    return getattr(module, name) if home else module


@contextmanager
def _more_descriptors() -> Iterator[None]:
    """`hold.explain` is first expected when there are none left, and a module must be opened to be loaded."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    goal = soft + 32 if hard < 0 else min(soft + 32, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (goal, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


class _Face(ModuleType):
    """Keeps public names: importing the room `holdfast.diagnose` would else put it in the place of the function."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and _HOMES.get(name)):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the module by its name: functions that use `hold` carry it along in cloudpickle, dill and joblib."""
        return importlib.import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Face
