"""What holdfast can do with HDF5 files. Imports no h5py: every reader and command imports this module."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..base import Format, GivenSchema, Lazy, Merged, Shard

if TYPE_CHECKING:
    from .merging.merge_files import MergedHDF5

MAGIC = b"\x89HDF\r\n\x1a\n"
_LAST_SIGNATURE = 1 << 16  # it may follow a user block of 512 bytes, 1,024 bytes, …
_SUFFIXES = (".h5", ".hdf5", ".hdf")


def _has_user_block(fd: int) -> bool:
    at = 512
    while at <= _LAST_SIGNATURE and os.pread(fd, len(MAGIC), at) != MAGIC:
        at *= 2
    return at <= _LAST_SIGNATURE


def _open(
    path: str, schema: GivenSchema | None = None, *, fd: int | None = None, allow_external: bool = False, **_: Any
) -> Shard:
    if fd is not None:
        os.close(fd)  # libhdf5 opens files by name
    from .shard import HDF5Shard

    return HDF5Shard(path, schema, allow_external=allow_external)


def _inspect(path: str, sample: int, progress: Any) -> Any:
    from .inspect import inspect_hdf5

    return inspect_hdf5(path, progress)


def _salvage(path: str, out: str, *, overwrite: bool, live: bool, progress: Any, **_: Any) -> Any:
    from .salvage import salvage_hdf5

    return salvage_hdf5(path, out, overwrite=overwrite, live=live, progress=progress)


def _merge(
    paths: list[str], out: str, *, dry_run: bool, overwrite: bool, progress: Any, verified: Any = None, **options: Any
) -> Merged:
    from .merging.merge_files import merge_hdf5, plan_hdf5

    if dry_run:
        options.pop("verify_sources", None)
        made = plan_hdf5(paths, **options)
    else:

        def report(made: MergedHDF5) -> None:
            if verified is not None:
                verified(made.rows, made.bytes, made.crc32c)

        made = merge_hdf5(paths, out, **options, overwrite=overwrite, progress=progress, verified=report)
    same = ("files", "rows", "bytes", "crc32c", "datasets", "notes", "unchecked", "unrecorded")
    facts: dict[str, Any] = {name: getattr(made, name) for name in same}
    return Merged(path=out, format="hdf5", **facts, document={"format": "hdf5", **made.as_dict(), "path": out})


HDF5 = Format(
    name="hdf5",
    title="HDF5",
    suffixes=_SUFFIXES,
    is_start=lambda head: head.startswith(MAGIC),
    is_later=_has_user_block,
    open=_open,
    verify=Lazy(f"{__package__}.verify:verify_hdf5"),
    inspect=_inspect,
    salvage=_salvage,
    merge=_merge,
    merge_options=frozenset({"order", "virtual", "attributes", "codec", "verify_sources"}),
    written=_SUFFIXES,
    write=Lazy(f"{__package__}.writer:ConvertedHDF5"),
    write_options=frozenset({"codec"}),
    conversion=Lazy(f"{__package__}.conversion:HDF5Conversion"),
    part=Lazy(f"{__package__}.writer:HDF5Part"),
    check_part=Lazy(f"{__package__}.writer:check_part"),
)
