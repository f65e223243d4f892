"""holdfast keeps multi-process ML data I/O alive and intact.

    import holdfast as hold

This module exports the public names. It imports only the standard library: a name's module is loaded on first use.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import errors as errors
    from ._util.fds import raise_nofile as raise_nofile
    from .data.file_tools.inspect import Inspected as Inspected
    from .data.file_tools.inspect import InspectedFile as InspectedFile
    from .data.file_tools.inspect import inspect as inspect
    from .data.file_tools.merge import merge as merge
    from .data.file_tools.salvage import Salvaged as Salvaged
    from .data.file_tools.salvage import SalvagedFile as SalvagedFile
    from .data.file_tools.salvage import salvage as salvage
    from .data.file_tools.split import Shards as Shards
    from .data.file_tools.split import split as split
    from .data.file_tools.verify import Verified as Verified
    from .data.file_tools.verify import VerifiedRun as VerifiedRun
    from .data.file_tools.verify import verify as verify
    from .data.formats.base import FileEntry as FileEntry
    from .data.formats.base import Merged as Merged
    from .data.formats.base import Problem as Problem
    from .data.formats.base import VerifiedFile as VerifiedFile
    from .data.formats.images import decode_image as decode_image
    from .data.formats.tfrecord.public import Records as Records
    from .data.formats.tfrecord.public import TFRecordReader as TFRecordReader
    from .data.formats.tfrecord.public import TFRecordWriter as TFRecordWriter
    from .data.h5py_guard import protect_h5py as protect_h5py
    from .data.loader.dataset import Dataset as Dataset
    from .data.loader.dataset import concat as concat
    from .data.loader.dataset import mix as mix
    from .data.loader.dataset import read as read
    from .data.loader.progress import progress as progress
    from .data.rewrite.convert import Converted as Converted
    from .data.rewrite.convert import convert as convert
    from .data.runlog.logger import Log as Log
    from .data.runlog.logger import log as log
    from .data.writer.dataset_writer import DatasetWriter as DatasetWriter
    from .data.writer.dataset_writer import write as write
    from .data.writer.server.client import connect as connect
    from .process.doctor.diagnose import Diagnosed as Diagnosed
    from .process.doctor.diagnose import diagnose as diagnose
    from .process.error_guide.explain import explain as explain
    from .process.error_guide.explanation import Explanation as Explanation
    from .process.fd_owners.agent import listen as listen
    from .process.fd_owners.owners import owners as owners
    from .process.fd_owners.owners import owners_summary as owners_summary
    from .process.fd_owners.paths import OwnerGroup as OwnerGroup
    from .process.fd_owners.paths import OwnerPath as OwnerPath
    from .process.fdtrace.tracer import Tracer as Tracer
    from .process.filelocks.holders import Locks as Locks
    from .process.filelocks.holders import locks as locks
    from .process.filelocks.lock import locked as locked
    from .process.guard.caps import Cap as Cap
    from .process.guard.guard import Guard as Guard
    from .process.leakcheck.no_leaks import no_leaks as no_leaks
    from .procfs.snapshot import Snapshot as Snapshot
    from .procfs.snapshot import snapshot as snapshot
    from .schema import Array as Array
    from .schema import Bytes as Bytes
    from .schema import Float32 as Float32
    from .schema import Int64 as Int64
    from .schema import Ragged as Ragged

__version__ = "0.1.0"

_HOMES = {
    "Array": "schema",
    "Bytes": "schema",
    "Cap": "process.guard.caps",
    "Converted": "data.rewrite.convert",
    "Dataset": "data.loader.dataset",
    "DatasetWriter": "data.writer.dataset_writer",
    "Diagnosed": "process.doctor.diagnose",
    "Explanation": "process.error_guide.explanation",
    "FileEntry": "data.formats.base",
    "Float32": "schema",
    "Guard": "process.guard.guard",
    "HoldfastError": "errors",
    "Inspected": "data.file_tools.inspect",
    "InspectedFile": "data.file_tools.inspect",
    "Int64": "schema",
    "Locks": "process.filelocks.holders",
    "Log": "data.runlog.logger",
    "Merged": "data.formats.base",
    "OwnerGroup": "process.fd_owners.paths",
    "OwnerPath": "process.fd_owners.paths",
    "Problem": "data.formats.base",
    "Ragged": "schema",
    "Records": "data.formats.tfrecord.public",
    "Salvaged": "data.file_tools.salvage",
    "SalvagedFile": "data.file_tools.salvage",
    "Shards": "data.file_tools.split",
    "Snapshot": "procfs.snapshot",
    "TFRecordReader": "data.formats.tfrecord.public",
    "TFRecordWriter": "data.formats.tfrecord.public",
    "Tracer": "process.fdtrace.tracer",
    "Verified": "data.file_tools.verify",
    "VerifiedFile": "data.formats.base",
    "VerifiedRun": "data.file_tools.verify",
    "concat": "data.loader.dataset",
    "connect": "data.writer.server.client",
    "convert": "data.rewrite.convert",
    "decode_image": "data.formats.images",
    "diagnose": "process.doctor.diagnose",
    "errors": "",
    "explain": "process.error_guide.explain",
    "inspect": "data.file_tools.inspect",
    "listen": "process.fd_owners.agent",
    "locked": "process.filelocks.lock",
    "locks": "process.filelocks.holders",
    "log": "data.runlog.logger",
    "merge": "data.file_tools.merge",
    "mix": "data.loader.dataset",
    "no_leaks": "process.leakcheck.no_leaks",
    "owners": "process.fd_owners.owners",
    "owners_summary": "process.fd_owners.owners",
    "progress": "data.loader.progress",
    "protect_h5py": "data.h5py_guard",
    "raise_nofile": "_util.fds",
    "read": "data.loader.dataset",
    "salvage": "data.file_tools.salvage",
    "snapshot": "procfs.snapshot",
    "split": "data.file_tools.split",
    "verify": "data.file_tools.verify",
    "write": "data.writer.dataset_writer",
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


def _other_distribution() -> str | None:
    """Returns the metadata folder of a distribution called holdfast that is installed beside this one."""
    try:
        names = os.listdir(os.path.dirname(os.path.dirname(__file__)))
    except OSError:
        return None
    return next((name for name in names if name.startswith("holdfast-") and name.endswith(".dist-info")), None)


if _other_distribution():
    warnings.warn(
        f"this is holdfast-io {__version__}, and another distribution ({_other_distribution()}) installs into the same "
        "package: run `pip uninstall holdfast`, then `pip install --force-reinstall holdfast-io`",
        RuntimeWarning,
        stacklevel=2,
    )


class _PickledByName(ModuleType):
    """Lets functions that use `hold` be pickled: dill would copy the contents of a module outside of site-packages."""

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (self.__name__,)


sys.modules[__name__].__class__ = _PickledByName
