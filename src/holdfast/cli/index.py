"""Build a record index for random access.

With an index, holdfast.Records opens at once and readers can seek to any
record. A folder has one index for all its files: .holdfast.index beside
them, or with --cache a file in ~/.cache/holdfast ($XDG_CACHE_HOME). What it
says of a FILE is discarded when FILE changes. Compressed files have no
index: merge them into an uncompressed one first.

FILE is a path, a glob, or a directory with TFRecord files at any depth.

Example:

  holdfast index 'data/train-*.tfrecord'

With --json:

  {"files": [{"path": "data/train-00000.tfrecord",
   "index": "data/.holdfast.index", "records": 4711, "problem": null}]}

  problem   why there is no index; "index" and "records" are then null

Exit codes: 0 all files have an index; 1 a file is corrupt and has none; 3 a
file cannot be read, or its index cannot be written.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import click

from .._util.progress import Progress
from .._util.text import counted, printable
from ..data.file_tools.parallel_files import for_each_file, total_bytes
from ..data.file_tools.split import UNSPLIT
from ..data.formats.folder_index import Entry, Place, save
from ..data.formats.registry import format_able
from ..data.formats.tfrecord.inspect import without_path
from ..data.inputs import expand_once
from ..errors import DataError, HoldfastError
from .app import FINE, command, describe, jobs_option, worst_code
from .console import Screen, bar_for, show_repeated, show_rest

_SHOWN = 20


class Indexed(NamedTuple):
    path: str
    where: str | None
    records: int | None
    problem: str | None = None
    code: int = FINE
    entry: Entry | None = None

    def as_dict(self) -> dict[str, object]:
        return {"path": self.path, "index": self.where, "records": self.records, "problem": self.problem}


@command(__doc__)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--cache", is_flag=True, help="Store the index in the user's cache directory, not beside FILE.")
@jobs_option
def index(screen: Screen, files: tuple[str, ...], cache: bool, jobs: int) -> int:
    paths = expand_once(files, whole_runs=False)
    with bar_for(screen, f"indexing {counted(len(paths), 'file')}", total_bytes(paths)) as bar:
        done = _save(for_each_file(_index, paths, jobs, bar.advance), "cache" if cache else "beside")
    screen.document({"files": [one.as_dict() for one in done]})
    failed = [one for one in done if one.problem is not None]
    good = [one for one in done if one.problem is None]
    _show(screen, good, failed, cache)
    show_repeated(screen, paths.repeated, "indexed")
    return worst_code(one.code for one in done)


def _index(path: str, /, *, progress: Progress | None) -> Indexed:
    try:
        find_places = format_able(path, "index", UNSPLIT).index
        assert find_places is not None
        key, places = find_places(path, progress)
    except (HoldfastError, OSError) as error:
        return _failed(path, error)
    return Indexed(path, None, len(places) - 1, entry=Entry(os.path.basename(path), key, places=places.tobytes()))


def _failed(path: str, error: Exception) -> Indexed:
    message, code = describe(error)
    if isinstance(error, DataError):
        message = without_path(error)
    return Indexed(path, None, None, message.removeprefix(f"{path}: "), code)


def _save(done: list[Indexed], place: Place) -> list[Indexed]:
    """Stores what was found, in one file a folder."""
    folders: dict[str, list[Entry]] = {}
    for one in done:
        if one.entry is not None:
            folders.setdefault(os.path.dirname(one.path) or ".", []).append(one.entry)
    saved: dict[str, Any] = {}
    for folder, entries in folders.items():
        try:
            saved[folder] = save(folder, entries, place)
        except (HoldfastError, OSError) as error:
            saved[folder] = error
    found = []
    for one in done:
        where = saved.get(os.path.dirname(one.path) or ".") if one.entry is not None else None
        if isinstance(where, Exception):
            found.append(_failed(one.path, where))
        else:
            found.append(one._replace(where=where and str(where), entry=None))
    return found


def _show(screen: Screen, good: list[Indexed], failed: list[Indexed], cache: bool) -> None:
    if good:
        screen.table(["file", ">records"], [(one.path, f"{one.records:,}") for one in good[:_SHOWN]])
        show_rest(screen, len(good) - _SHOWN, "file")
        screen.print()
    if failed:
        screen.table(["no index for", "reason"], [(one.path, one.problem or "") for one in failed])
        screen.print()
    records = counted(sum(one.records or 0 for one in good), "record")
    files = f"{len(good):,} of {counted(len(good) + len(failed), 'file')}" if failed else counted(len(good), "file")
    screen.print(f"indexed {records} of {files}")
    if good:
        places = sorted({one.where or "" for one in good})
        screen.print(f"the index is {', '.join(map(printable, places[:3]))}{', …' * (len(places) > 3)}")
