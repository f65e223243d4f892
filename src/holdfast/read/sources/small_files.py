"""A folder of small files, or some of its files, as a shard."""

from __future__ import annotations

import os

from ...formats.shard import Shard
from .find import SourceSpec


def open_files_shard(spec: SourceSpec, labels: bool) -> Shard:
    """The images of a folder, or whatever is there when there are none. `labels`: folders are labels."""
    from ...formats.files import FilesShard, list_files

    if spec.files:
        names = [_below(spec.path, file) for file in spec.files]
        folders = sorted({name.partition("/")[0] for name in names if "/" in name}, key=os.fsencode)
        return FilesShard(names, root=spec.path, classes=folders if labels else None)
    images = list_files(spec.path, classes_from_folder=labels)
    return images if len(images) else list_files(spec.path, None, labels)


def _below(folder: str, file: str) -> str:
    if file.startswith(f"{folder}/"):
        return file[len(folder) + 1 :]
    return file if folder == "." and not os.path.isabs(file) else os.path.relpath(file, folder)
