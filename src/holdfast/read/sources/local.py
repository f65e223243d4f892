"""Finding files on this machine, and saying what is wrong with those that cannot be read."""

from __future__ import annotations

import difflib
import errno
import glob
import os
import stat
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NoReturn

from ...errors import InputError, MissingFileError
from .names import committed, is_beside, is_shard

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_LOOKED_AT = 10_000  # names of a folder, for one that is near


def check_file(path: str) -> str:
    """The path of a file that can be read, or an InputError that says why it cannot."""
    try:
        info = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFileError(f"{path}: {_why_not_there(path)}", path) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be looked at: {error.strerror}") from error
    if not stat.S_ISREG(info.st_mode):
        kind = _KINDS.get(stat.S_IFMT(info.st_mode), "something else")
        raise InputError(f"{path}: expected a file, this is {kind}")
    if not os.access(path, os.R_OK, effective_ids=True):
        raise InputError(f"{path}: no permission to read it")
    return path


def identify(path: str) -> tuple[int, int]:
    """The same for two names of one file."""
    info = os.stat(path)
    return info.st_dev, info.st_ino


def match(pattern: str) -> tuple[list[str], list[str]]:
    """The files and the folders that a glob matches, one of them at least. What is about the data is left out."""
    found = glob.glob(pattern, recursive=True)
    folders = [name for name in found if os.path.isdir(name)]
    taken = set(folders)
    files = [name for name in found if name not in taken and not is_beside(name)]
    if not files and not folders:
        raise nothing_matches(pattern, f", but {found[0]}, which is not data" if found else "")
    return sorted(files, key=os.fsencode), sorted(folders, key=os.fsencode)


def list_folder(folder: str) -> tuple[list[str], bool]:
    """The shards in a folder and those below it, and whether there are other files."""
    run = _committed_parts(folder)
    if run is not None:
        if not run:
            raise InputError(f"{folder}: expected committed parts, this run has none yet")
        return run, False
    shards: list[str] = []
    has_files = False
    for name in _below(folder):
        if is_shard(name):
            shards.append(check_file(name))
        else:
            has_files = True
    return sorted(shards, key=os.fsencode), has_files


def _below(folder: str) -> Iterator[str]:
    """All files that are data, and of runs their committed parts. Links to folders are not followed."""
    for here, folders, files in os.walk(folder, onerror=_cannot_list):
        run = _committed_parts(here) if "parts" in folders and "schema.json" in files else None
        if run is not None:
            folders.clear()
            yield from run
            continue
        folders[:] = [name for name in folders if not is_beside(name)]
        yield from (os.path.join(here, name) for name in files if not is_beside(name))


def _committed_parts(folder: str) -> list[str] | None:
    """None: the folder is not one of a run."""
    parts = os.path.join(folder, "parts")
    if not os.path.isfile(os.path.join(folder, "schema.json")) or not os.path.isdir(parts):
        return None
    return [os.path.join(parts, name) for name in committed(_names_in(parts))]


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        _cannot_list(error)


def _cannot_list(error: OSError) -> NoReturn:
    raise InputError(f"{error.filename}: its files cannot be listed: {error.strerror}") from error


# ---- what is wrong


def refuse_twice(files: Iterable[tuple[object, str]]) -> None:
    """Raises an InputError for the first path whose identity was there before: its samples would count twice."""
    seen: dict[object, str] = {}
    for identity, path in files:
        if identity in seen:
            other = f": also as {seen[identity]}" if seen[identity] != path else ""
            raise InputError(f"{path}: expected every file once, got it twice{other}")
        seen[identity] = path


def nothing_matches(pattern: str, beside: str = "") -> MissingFileError:
    text = f"{pattern}: nothing matches{beside}; {_what_is_there(_before_glob(pattern))}"
    return MissingFileError(text, pattern)


def _why_not_there(path: str) -> str:
    if os.path.islink(path):
        return f"cannot open: a broken link to {os.readlink(path)}"
    return f"cannot open: {os.strerror(errno.ENOENT)}; {_what_is_there(os.path.dirname(path), path)}"


def _before_glob(pattern: str) -> str:
    """The folder that a glob begins in."""
    parts = pattern.split("/")
    first = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    return "/".join(parts[:first]) or ("/" if first else "")


def _what_is_there(folder: str, path: str = "") -> str:
    """The nearest folder that exists, and the name in it that is most like the one that was expected."""
    while folder and not os.path.exists(folder):
        folder, path = os.path.dirname(folder), folder
    if folder and not os.path.isdir(folder):
        return f"{folder} is a file, not a folder"
    shown = folder or "this folder"
    try:
        with os.scandir(folder or ".") as entries:
            there = sorted(entry.name for entry in islice(entries, _LOOKED_AT))
    except OSError as error:
        return f"{shown} cannot be listed: {error.strerror}"
    near = difflib.get_close_matches(os.path.basename(path.rstrip("/")), there, 1)
    if near:
        return f"{shown} has {near[0]!r}"
    names = ", ".join(map(repr, there[:3])) + (", …" if len(there) > 3 else "")
    return f"{shown} has {names}" if there else f"{shown} is empty"
