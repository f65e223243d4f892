"""A view: a file that shows the rows of all parts and holds none of its own."""

from __future__ import annotations

from pathlib import Path

from ..errors import SchemaError
from ..formats.hdf5.merge.merge import MergedHDF5, merge_hdf5
from .consolidate import Sources


def make_view(sources: Sources, target: Path, *, overwrite: bool) -> MergedHDF5:
    if sources.format != "hdf5":
        raise SchemaError(f"{sources.folder}: expected HDF5 parts for a view, these are {sources.format}")
    if sources.narrower:
        path = sources.paths[sources.narrower[0]]
        text = "it is from before columns were added, and a view shows parts as they are"
        raise SchemaError(f"{path}: {text}; make one file of them with consolidate or `holdfast merge`")
    return merge_hdf5(sources.paths, target, runs=sources.runs, virtual=True, overwrite=overwrite)
