"""Defines hold.merge: joins files of one format, or the parts of a dataset directory, to one file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from ..._util.progress import Progress
from ..formats.base import Merged
from ..formats.registry import FORMATS, find_format, format_of_name
from ..inputs import ExpandedPaths, Given, expand, given_paths, is_run
from .parallel_files import check_out

if TYPE_CHECKING:
    from ..writer.consolidate import Consolidated


def merge(
    paths: Given | Iterable[Given],
    out: str | os.PathLike[str],
    *,
    order: Literal["exact", "any"] | None = None,
    virtual: bool = False,
    attributes: Literal["same", "first", "error"] | None = None,
    codec: Literal["none", "gzip", "lzf", "zstd"] | None = None,
    verify_sources: bool = True,
    compression: Literal["none", "gzip", "zlib"] | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Merged:
    """Writes the records of TFRecord files, or the rows of HDF5 files, in order, to one new file, which is compared
    with its sources before it gets its name. A corrupt file is an error: salvage it first.

    Args:
        paths: A path, a glob, a folder, a list of them, or one dataset directory, whose committed parts are merged.
        order: The order of HDF5 rows: "exact" (the default), or "any", which puts full chunks first.
        virtual: Make an HDF5 file that shows the rows of the others, and holds none.
        attributes: What to do with attributes of HDF5 that differ between files: "same" (the default) drops them,
            "first" keeps those of the first file, "error" raises.
        codec: The codec of HDF5 chunks; None: as most rows have it.
        verify_sources: Decode copied HDF5 chunks that have no recorded checksum, so that their codec detects
            corruption.
        compression: The compression of a TFRecord; None: by the suffix of `out`.
        overwrite: Replace `out`.
        dry_run: Return what would be done, and write nothing.
        progress: Called with numbers of bytes, which add up to the size of the files.
    """
    target = check_out(out)
    listed = given_paths(paths)
    runs = [one for one in listed if is_run(one, with_schema=True)]
    given: dict[str, Any] = {"attributes": attributes, "codec": codec, "compression": compression}
    given = {name: value for name, value in given.items() if value is not None}
    given |= {} if verify_sources else {"verify_sources": False}
    if runs:
        if len(listed) > 1:
            text = f"{runs[0]!r} is a dataset directory: merge it alone"
            raise ValueError(f"{text}, or pass its files in {runs[0]}/parts")
        for name in given:
            raise ValueError(f"{name}= is for {_titles(name)} files that are passed by name")
        return _merge_run(runs[0], target, order or "exact", virtual, overwrite, dry_run, progress)
    files = expand(paths if isinstance(paths, ExpandedPaths) else listed)
    kinds = [find_format(file) for file in files]
    for file, kind in zip(files, kinds, strict=True):
        if kind is not kinds[0]:
            found = f"{files[0]} is {kinds[0].title}, {file} is {kind.title}"
            raise ValueError(f"expected files of one format: {found}; use `holdfast convert`")
    kind = kinds[0]
    if kind.merge is None:
        raise ValueError(f"{files[0]!r} is {kind.title}, which cannot be merged: `holdfast convert` joins such files")
    given |= {"order": order} if order is not None else {}
    given |= {"virtual": True} if virtual else {}
    for name in given:
        if name not in kind.merge_options:
            raise ValueError(f"{name}= is for {_titles(name)}, these are {kind.title} files")
    if virtual and (codec is not None or not verify_sources):
        raise ValueError("codec= and verify_sources= apply to copied rows; virtual= copies none")
    named = format_of_name(target)
    if named is not None and named is not kind:
        text = f"{target!r} is a name for {named.title}, these are {kind.title} files"
        raise ValueError(f"{text}; use `holdfast convert`")
    return kind.merge(files, target, **given, dry_run=dry_run, overwrite=overwrite, progress=progress)


def _titles(option: str) -> str:
    return " and ".join(kind.title for kind in FORMATS.values() if option in kind.merge_options)


def _merge_run(
    folder: str,
    out: str,
    order: Literal["exact", "any"],
    virtual: bool,
    overwrite: bool,
    dry_run: bool,
    progress: Progress | None,
) -> Merged:
    from ..writer.dataset_writer import write  # imports h5py, which is slow

    run = write(folder)
    if dry_run:
        return _of_parts(run.plan(order=order), out)
    if virtual:
        made = run.view(out, overwrite=overwrite)
        return replace(made, path=out, document=made.document | {"path": out})
    return _of_parts(run.consolidate(out, order=order, overwrite=overwrite, progress=progress), out)


def _of_parts(made: Consolidated, out: str) -> Merged:
    facts: dict[str, object] = {
        "format": made.format,
        "order": made.order,
        "parts": made.parts,
        "rows": made.rows,
        "bytes": made.bytes,
        "crc32c": f"{made.crc32c:08x}",
        "manifest": made.manifest,
        "datasets": [one._asdict() for one in made.datasets],
        "notes": made.notes,
        "path": out,
    }
    return Merged(
        path=out,
        format=made.format,
        files=made.parts,
        rows=made.rows,
        bytes=made.bytes,
        crc32c=made.crc32c,
        datasets=made.datasets,
        notes=made.notes,
        manifest=made.manifest,
        document=facts,
    )
