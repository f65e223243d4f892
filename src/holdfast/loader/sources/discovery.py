"""Finds the shards that read() was given: paths, globs, braces, folders, URLs, and lists of them.

What a name says about a file is decided here too: a shard, a single sample, or neither.
"""

from __future__ import annotations

import difflib
import errno
import glob
import json
import os
import posixpath
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, NoReturn

from ..._util.remote_fs import Options, ask, open_store, url_of
from ...errors import InputError, MissingFileError, SchemaError
from ...formats.base import SAMPLE_SUFFIXES, Shard, is_shard_name
from ...schema import Column, schema_file_name, schema_from_json

Given = str | os.PathLike[str]
_EXPECTED = "expected a path, a glob, a folder, a URL or a list of them"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_LOCAL = re.compile(r"(file|local)://")
_BESIDE = re.compile(r"^\.|\.(index|json|partial|tmp|temp|part)$|~$", re.IGNORECASE)
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MAX_NAMES = 100_000  # that one pattern may expand to
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_MAX_COMPARED = 10_000  # names of a folder, to suggest a similar one


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """One shard to open: a file, a URL, or many small files that are one shard together.

    path:     the file, the URL, or the folder of the small files
    is_files: it is small files, one sample each
    files:    which ones; empty: all in the folder
    """

    path: str
    is_files: bool = False
    files: tuple[str, ...] = ()

    @property
    def is_remote(self) -> bool:
        return is_url(self.path)


def find_sources(what: Given | Iterable[Given], options: Mapping[str, Any] | None = None) -> list[SourceSpec]:
    """Returns the shards in the given order; those of a glob or a folder are sorted by the bytes of their names.

    options: storage options for URLs, as fsspec takes them
    """
    found = list(_join_small(spec for item in _items(what) for spec in _find(_text(item), options)))
    check_unique(
        (path if spec.is_remote else identify(path), path) for spec in found for path in spec.files or (spec.path,)
    )
    return found


def _items(what: Given | Iterable[Given]) -> list[Given]:
    if isinstance(what, (str, os.PathLike)):
        return [what]
    if isinstance(what, (bytes, bytearray, memoryview, Mapping)) or not isinstance(what, Iterable):
        raise TypeError(f"{_EXPECTED}, got {_shown(what)}")
    listed = list(what)
    if not listed:
        raise InputError(f"{_EXPECTED}, got an empty {type(what).__name__}")
    return listed


def _text(item: Given) -> str:
    text: object = os.fspath(item) if isinstance(item, (str, os.PathLike)) else item
    if not isinstance(text, str):
        raise TypeError(f"{_EXPECTED}, got {_shown(item)}")
    if not text or "\0" in text:
        raise InputError(f"{_EXPECTED}, got {_shown(text)}")
    return local_path(text)


def _shown(thing: object) -> str:
    text = repr(thing)
    return f"{text if len(text) < 60 else text[:59] + '…'} ({type(thing).__name__})"


def _find(text: str, options: Mapping[str, Any] | None) -> Iterator[SourceSpec]:
    if is_url(text):
        for one in expand_braces(text):
            yield from map(SourceSpec, find_remote(one, options))
    elif os.path.lexists(text):  # a file name may contain brackets and braces
        yield from _at(text)
    else:
        for one in expand_braces(text):
            yield from _match(one) if is_glob(one) and not os.path.lexists(one) else _at(one)


def _at(path: str) -> Iterator[SourceSpec]:
    if not os.path.isdir(path):
        yield _file(path)
        return
    shards, has_files = list_folder(path)
    if shards:
        yield from map(SourceSpec, shards)
    elif has_files:
        yield SourceSpec(path, True)
    else:
        raise InputError(f"{path}: expected a folder with shards or files in it, there are none")


def _match(pattern: str) -> Iterator[SourceSpec]:
    files, folders = match(pattern)
    for path in files or folders:
        yield from [_file(path)] if files else _at(path)


def _file(path: str) -> SourceSpec:
    check_file(path)
    return SourceSpec(os.path.dirname(path) or ".", True, (path,)) if is_small_file(path) else SourceSpec(path)


def _join_small(specs: Iterable[SourceSpec]) -> Iterator[SourceSpec]:
    """Joins consecutive single files into one shard."""
    files: list[str] = []
    for spec in specs:
        if spec.files and (not files or os.path.isabs(spec.files[0]) == os.path.isabs(files[0])):
            files += spec.files
            continue
        if files:
            yield _one_shard(files)
        files = list(spec.files)
        if not files:
            yield spec
    if files:
        yield _one_shard(files)


def _one_shard(files: list[str]) -> SourceSpec:
    return SourceSpec(os.path.commonpath([os.path.dirname(file) for file in files]) or ".", True, tuple(files))


# ---- what a name says


def is_url(text: str) -> bool:
    return _URL.match(text) is not None


def local_path(text: str) -> str:
    """Returns the path of a file:// URL, and anything else unchanged but for `~`."""
    found = _LOCAL.match(text)
    if found:
        return text[found.end() :]
    return os.path.expanduser(text) if text.startswith("~") else text


def is_small_file(path: str) -> bool:
    """Whether the file is one sample."""
    return path.lower().endswith(SAMPLE_SUFFIXES)


def is_beside(path: str) -> bool:
    """Whether the file is hidden, unfinished or metadata, and so never a shard."""
    return _BESIDE.search(path.rpartition("/")[2]) is not None


def is_glob(text: str) -> bool:
    # In an HTTP URL the question mark begins the query.
    return re.search(r"[*\[]" if text.startswith("http") else r"[*?\[]", text) is not None


def committed(names: list[str]) -> list[str]:
    """Returns the committed parts among the names in a `parts` folder: those with a .json beside them."""
    there = set(names)
    return sorted(
        (
            name
            for name in names
            if not is_beside(name) and (f"{name}.json" in there or f"{os.path.splitext(name)[0]}.json" in there)
        ),
        key=os.fsencode,
    )


def expand_braces(text: str) -> Iterator[str]:
    """Expands `{a,b}` and `{000..031}`, as WebDataset and shells do. Other braces stay."""
    for number, one in enumerate(_expand(text)):
        if number == _MAX_NAMES:
            raise InputError(f"{text}: expected braces that expand to up to {_MAX_NAMES:,} names, got more")
        yield one


def _expand(text: str) -> Iterator[str]:
    start = text.find("{")
    parts = _inside(text, start) if start >= 0 else None
    if parts is None:
        yield text
        return
    end = start + sum(map(len, parts)) + len(parts) + 1
    for choice in _choices(parts):
        for rest in _expand(text[end:]):
            yield text[:start] + choice + rest


def _inside(text: str, start: int) -> list[str] | None:
    """Returns the comma-separated parts of the braces that open at `start`; None if they do not close."""
    parts, depth, begin = [], 0, start + 1
    for at in range(start, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0 or (depth == 1 and text[at] == ","):
            parts.append(text[begin:at])
            begin = at + 1
        if depth == 0:
            return parts
    return None


def _choices(parts: list[str]) -> Iterator[str]:
    if len(parts) > 1:
        for part in parts:
            yield from _expand(part)
    elif found := _RANGE.fullmatch(parts[0]):
        first, last = int(found[1]), int(found[2])
        width = max(len(found[1]), len(found[2])) if "0" in (found[1][0], found[2][0]) else 0
        step = 1 if last >= first else -1
        yield from (f"{number:0{width}}" for number in range(first, last + step, step))
    else:
        yield from (f"{{{one}}}" for one in _expand(parts[0]))


# ---- files on this machine


def check_file(path: str) -> str:
    """Returns the path. Raises an InputError if it is not a file that can be read."""
    try:
        info = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFileError(f"{path}: {_why_not_there(path)}", path) from None
    except OSError as error:
        raise InputError(f"{path}: cannot stat: {error.strerror}") from error
    if not stat.S_ISREG(info.st_mode):
        kind = _KINDS.get(stat.S_IFMT(info.st_mode), "something else")
        raise InputError(f"{path}: expected a file, this is {kind}")
    if not os.access(path, os.R_OK, effective_ids=True):
        raise InputError(f"{path}: no permission to read it")
    return path


def identify(path: str) -> tuple[int, int]:
    """Returns device and inode, which two names of one file share."""
    info = os.stat(path)
    return info.st_dev, info.st_ino


def match(pattern: str) -> tuple[list[str], list[str]]:
    """Returns the files and the folders that a glob matches, without metadata. Raises if there are none."""
    found = glob.glob(pattern, recursive=True)
    folders = [name for name in found if os.path.isdir(name)]
    taken = set(folders)
    files = [name for name in found if name not in taken and not is_beside(name)]
    if not files and not folders:
        raise nothing_matches(pattern, f", but {found[0]}, which is not data" if found else "")
    return sorted(files, key=os.fsencode), sorted(folders, key=os.fsencode)


def list_folder(folder: str) -> tuple[list[str], bool]:
    """Returns the shards in a folder and below it, and whether there are other files."""
    parts = _committed_parts(folder)
    if parts is not None:
        if not parts:
            raise InputError(f"{folder}: expected committed parts, this dataset directory has none yet")
        return parts, False
    shards: list[str] = []
    has_files = False
    for name in _below(folder):
        if is_shard_name(name):
            shards.append(check_file(name))
        else:
            has_files = True
    return sorted(shards, key=os.fsencode), has_files


def _below(folder: str) -> Iterator[str]:
    """Yields all data files, and of dataset directories the committed parts. Links to folders are not followed."""
    for here, folders, files in os.walk(folder, onerror=_cannot_list):
        parts = _committed_parts(here) if "parts" in folders and "schema.json" in files else None
        if parts is not None:
            folders.clear()
            yield from parts
            continue
        folders[:] = [name for name in folders if not is_beside(name)]
        yield from (os.path.join(here, name) for name in files if not is_beside(name))


def _committed_parts(folder: str) -> list[str] | None:
    """Returns None for a folder that hold.write did not make."""
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
    raise InputError(f"{error.filename}: cannot list its files: {error.strerror}") from error


# ---- remote stores


def find_remote(url: str, options: Options | None = None) -> list[str]:
    """Returns the URLs of the shards behind a URL, a glob or a folder."""
    if is_shard_name(url) and not is_glob(url) and not url.endswith("/"):
        return [url]  # checking that it exists would take as long as opening it
    fs, path = open_store(url, options)
    fs.invalidate_cache()  # earlier listings may be out of date
    if is_glob(url):
        found = ask(url, lambda: fs.glob(path, detail=True))
        names = [name for name, info in found.items() if info["type"] == "file" and not is_beside(name)]
    elif ask(url, lambda: fs.info(path))["type"] == "file":
        return [url]
    else:
        names = _in_folder(url, fs, path.rstrip("/"))
    if not names:
        raise MissingFileError(f"{url}: expected shards, nothing matches", url)
    small = [name for name in names if is_small_file(name)]
    if small:
        raise InputError(
            f"{url}: expected shards, got single samples such as {small[0]}: pack them into shards, or copy them to a "
            "local folder"
        )
    return [url_of(url, name) for name in sorted(names, key=os.fsencode)]


def _in_folder(url: str, fs: Any, path: str) -> list[str]:
    every: list[str] = ask(url, lambda: fs.find(path))
    if f"{path}/schema.json" in every:
        start = f"{path}/parts/"
        parts = committed([name for name in every if name.startswith(start)])
        if not parts:
            raise InputError(f"{url}: expected committed parts, this dataset directory has none yet")
        return parts
    inside = [name for name in every if not any(is_beside(part) for part in name[len(path) + 1 :].split("/"))]
    return [name for name in inside if is_shard_name(name)] or [name for name in inside if is_small_file(name)]


# ---- messages


def check_unique(files: Iterable[tuple[object, str]]) -> None:
    """Raises an InputError for the first path whose identity came before: its samples would be read twice."""
    seen: dict[object, str] = {}
    for identity, path in files:
        if identity in seen:
            other = f": {seen[identity]} is the same file" if seen[identity] != path else ""
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
    """Returns the folder that a glob begins in."""
    parts = pattern.split("/")
    first = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    return "/".join(parts[:first]) or ("/" if first else "")


def _what_is_there(folder: str, path: str = "") -> str:
    """Describes the nearest folder that exists, with the name in it that is most like the expected one."""
    while folder and not os.path.exists(folder):
        folder, path = os.path.dirname(folder), folder
    if folder and not os.path.isdir(folder):
        return f"{folder} is a file, not a folder"
    shown = folder or "this folder"
    try:
        with os.scandir(folder or ".") as entries:
            there = sorted(entry.name for entry in islice(entries, _MAX_COMPARED))
    except OSError as error:
        return f"{shown} cannot be listed: {error.strerror}"
    near = difflib.get_close_matches(os.path.basename(path.rstrip("/")), there, 1)
    if near:
        return f"{shown} has {near[0]!r}"
    names = ", ".join(map(repr, there[:3])) + (", …" if len(there) > 3 else "")
    return f"{shown} has {names}" if there else f"{shown} is empty"


# ---- shards of small files, and the schema of a dataset directory


def open_files_shard(spec: SourceSpec, labels: bool) -> Shard:
    """Opens the images of a folder, or all of its files when there are none. `labels`: folders are labels."""
    from ...formats.files import FilesShard, list_files

    if spec.files:
        names = [_small_below(spec.path, file) for file in spec.files]
        folders = sorted({name.partition("/")[0] for name in names if "/" in name}, key=os.fsencode)
        return FilesShard(names, root=spec.path, classes=folders if labels else None)
    images = list_files(spec.path, classes_from_folder=labels)
    return images if len(images) else list_files(spec.path, None, labels)


def _small_below(folder: str, file: str) -> str:
    if file.startswith(f"{folder}/"):
        return file[len(folder) + 1 :]
    return file if folder == "." and not os.path.isabs(file) else os.path.relpath(file, folder)


def directory_schema(specs: Sequence[SourceSpec], options: Mapping[str, Any] | None = None) -> dict[str, Column] | None:
    """Returns the schema that hold.write saved beside the parts, which a TFRecord part does not hold.

    None: the shards are not all parts of one dataset directory.
    """
    folders = {posixpath.dirname(spec.path) for spec in specs if not spec.is_files}
    if len(folders) != 1 or any(spec.is_files for spec in specs):
        return None
    directory, name = posixpath.split(folders.pop())
    if name != "parts":
        return None
    try:
        content = json.loads(_latest(directory, specs[0].is_remote, options))
        return schema_from_json(content["schema"]) if "holdfast_write" in content else None
    except (OSError, InputError, SchemaError, ValueError, LookupError, TypeError, AttributeError):
        return None  # then they are read as any other files


def _latest(directory: str, is_remote: bool, options: Mapping[str, Any] | None) -> bytes:
    """Reads the latest version of the schema: that of a log grows with its columns."""
    found = _read(posixpath.join(directory, schema_file_name()), is_remote, options)
    for version in count(1):
        try:
            found = _read(posixpath.join(directory, schema_file_name(version)), is_remote, options)
        except FileNotFoundError:
            break
    return found


def _read(path: str, is_remote: bool, options: Mapping[str, Any] | None) -> bytes:
    if not is_remote:
        with open(path, "rb") as file:
            return file.read()
    fs, inside = open_store(path, options)
    return bytes(ask(path, lambda: fs.cat_file(inside)))
