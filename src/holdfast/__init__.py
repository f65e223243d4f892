"""holdfast keeps multi-process ML data I/O alive and intact.

    import holdfast as hold

This module exports the public names. It imports only the standard library: a name's module is loaded on first use.
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
    from ._util.fds import raise_nofile as raise_nofile
    from .doctor.diagnose import diagnose as diagnose
    from .error_guide.explain import explain as explain
    from .error_guide.explanation import Explanation as Explanation
    from .fd_owners.agent import listen as listen
    from .fd_owners.owners import owners as owners
    from .fd_owners.owners import owners_summary as owners_summary
    from .fdtrace.tracer import Tracer as Tracer
    from .filelocks.h5py_guard import protect_h5py as protect_h5py
    from .filelocks.holders import locks as locks
    from .filelocks.lock import locked as locked
    from .formats.images import decode_image as decode_image
    from .formats.tfrecord import Records as Records
    from .formats.tfrecord import TFRecordReader as TFRecordReader
    from .formats.tfrecord import TFRecordWriter as TFRecordWriter
    from .guard.caps import Cap as Cap
    from .guard.guard import Guard as Guard
    from .leakcheck.no_leaks import no_leaks as no_leaks
    from .loader.dataset import Dataset as Dataset
    from .loader.dataset import concat as concat
    from .loader.dataset import mix as mix
    from .loader.dataset import read as read
    from .loader.progress import progress as progress
    from .procfs.snapshot import snapshot as snapshot
    from .rewrite.convert import convert as convert
    from .runlog.logger import Log as Log
    from .runlog.logger import log as log
    from .schema import Array as Array
    from .schema import Bytes as Bytes
    from .schema import Float32 as Float32
    from .schema import Int64 as Int64
    from .schema import Ragged as Ragged
    from .writer.dataset_writer import DatasetWriter as DatasetWriter
    from .writer.dataset_writer import write as write
    from .writer.server.client import connect as connect

__version__ = "0.1.0"

_HOMES = {
    "Array": "schema",
    "Bytes": "schema",
    "Cap": "guard.caps",
    "Dataset": "loader.dataset",
    "Explanation": "error_guide.explanation",
    "Float32": "schema",
    "Guard": "guard.guard",
    "HoldfastError": "errors",
    "Int64": "schema",
    "Log": "runlog.logger",
    "DatasetWriter": "writer.dataset_writer",
    "Ragged": "schema",
    "Records": "formats.tfrecord",
    "TFRecordReader": "formats.tfrecord",
    "TFRecordWriter": "formats.tfrecord",
    "Tracer": "fdtrace.tracer",
    "concat": "loader.dataset",
    "connect": "writer.server.client",
    "convert": "rewrite.convert",
    "decode_image": "formats.images",
    "diagnose": "doctor.diagnose",
    "errors": "",
    "explain": "error_guide.explain",
    "listen": "fd_owners.agent",
    "locked": "filelocks.lock",
    "locks": "filelocks.holders",
    "log": "runlog.logger",
    "mix": "loader.dataset",
    "no_leaks": "leakcheck.no_leaks",
    "owners": "fd_owners.owners",
    "owners_summary": "fd_owners.owners",
    "progress": "loader.progress",
    "protect_h5py": "filelocks.h5py_guard",
    "raise_nofile": "_util.fds",
    "read": "loader.dataset",
    "snapshot": "procfs.snapshot",
    "write": "writer.dataset_writer",
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
    """Raises the soft limit for a moment: `hold.explain` is often first used when no descriptor is left, and importing
    its module opens files."""
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


class _PickledByName(ModuleType):
    """Lets functions that use `hold` be pickled: dill would copy the contents of a module outside of site-packages."""

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (self.__name__,)


sys.modules[__name__].__class__ = _PickledByName
