"""In the child: files that an HDF5 file needs beside itself. The library reads fill values where one is missing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import h5py

from .walk import reason_of

if TYPE_CHECKING:
    from .child import Voice


def beside(path: str, name: str) -> str:
    """Where the library would look for a file that this one names."""
    return name if os.path.isabs(name) else os.path.join(os.path.dirname(os.path.abspath(path)), name)


def folder_of_values(dataset: h5py.Dataset, file: str) -> str:
    """The folder from which the library finds them: unlike links, it takes names of external storage as the working
    folder has them. Where they are not there, they may be beside the file."""
    names = [name for name, _, _ in dataset.external]
    return "." if all(map(os.path.exists, names)) else os.path.dirname(file)


def check_external_storage(dataset: h5py.Dataset, path: str, file: str, voice: Voice) -> bool:
    """Whether something was wrong."""
    missing, folder = False, folder_of_values(dataset, file)
    for name, start, size in dataset.external:
        there = os.path.join(folder, name)
        if not os.path.exists(there):
            voice.wrong(path, f"its values are in {name!r}, which is not there")
            missing = True
        elif size != h5py.h5f.UNLIMITED and os.path.getsize(there) < start + size:
            got = os.path.getsize(there)
            voice.wrong(path, f"its values are in {name!r}, which has {got:,} bytes, expected {start + size:,}")
            missing = True
    return missing


def check_virtual(dataset: h5py.Dataset, path: str, file: str, own: h5py.File, voice: Voice) -> None:
    """Each source is there, can be opened and has the shape the view was made for. Sources are not read."""
    try:
        sources = dataset.virtual_sources()
    except UnicodeDecodeError as error:
        voice.note(path, f"its sources were not looked for, as h5py cannot list them: {reason_of(error)}")
        return
    for source in sources:
        if "%" in source.file_name.replace("%%", "") or "%" in source.dset_name.replace("%%", ""):
            continue  # a pattern: any number of files
        wrong = _source_problem(source, dataset, file, own)
        if wrong:
            voice.wrong(path, wrong)


def _source_problem(source: Any, dataset: h5py.Dataset, file: str, own: h5py.File) -> str:
    if source.file_name == ".":
        return _compare(own, source, dataset)
    there = beside(file, source.file_name.replace("%%", "%"))
    if not os.path.exists(there):
        return f"its source {source.file_name!r} is not there: it reads as fill values"
    try:
        with h5py.File(there, "r") as other:
            return _compare(other, source, dataset)
    except Exception as error:
        return f"its source {source.file_name!r} cannot be opened: {reason_of(error)}"


def _compare(other: h5py.File, source: Any, dataset: h5py.Dataset) -> str:
    name = f"{source.dset_name!r} in its source {source.file_name!r}"
    found = other.get(source.dset_name)
    if not isinstance(found, h5py.Dataset):
        return f"{name} is not there: it reads as fill values"
    if found.dtype.kind != dataset.dtype.kind and {found.dtype.kind, dataset.dtype.kind} - set("iufb"):
        return f"{name} holds {found.dtype}, expected {dataset.dtype}"
    if source.src_space.get_select_type() == h5py.h5s.SEL_ALL:
        wanted = int(source.vspace.get_select_npoints())  # the shape it had is not kept
        fits = found.size == wanted
        return "" if fits else f"{name} has the shape {found.shape}: {found.size:,} values, expected {wanted:,}"
    _, last = source.src_space.get_select_bounds()
    if len(last) != found.ndim or any(at >= n for at, n in zip(last, found.shape, strict=True)):
        least = tuple(at + 1 for at in last)
        return f"{name} has the shape {found.shape}, expected at least {least}"
    return ""
