"""What a name says about a file before anybody looks at it: a shard, a single sample, something beside them, a URL."""

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

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_LOCAL = re.compile(r"(file|local)://")
_BESIDE = re.compile(r"^\.|\.(index|json|partial|tmp|temp|part)$|~$", re.IGNORECASE)
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MOST = 100_000  # names that one pattern may stand for


def is_url(text: str) -> bool:
    return _URL.match(text) is not None


def local_path(text: str) -> str:
    """A file:// URL as the path it is; anything else as it was."""
    found = _LOCAL.match(text)
    if found:
        return text[found.end() :]
    return os.path.expanduser(text) if text.startswith("~") else text


def is_small_file(path: str) -> bool:
    """A sample by itself."""
    return path.lower().endswith(SAMPLE_SUFFIXES)


def is_beside(path: str) -> bool:
    """Hidden, unfinished, or about the data: never the data."""
    return _BESIDE.search(path.rpartition("/")[2]) is not None


def is_glob(text: str) -> bool:
    # In the address of a web page the question mark has another meaning.
    return re.search(r"[*\[]" if text.startswith("http") else r"[*?\[]", text) is not None


def committed(names: list[str]) -> list[str]:
    """Of the names in a `parts` folder those that are there for good: a .json beside them says so."""
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
    """`{a,b}` and `{000..031}`, as WebDataset and shells have them. Braces that hold neither stay."""
    for number, one in enumerate(_expand(text)):
        if number == _MOST:
            raise InputError(f"{text}: expected braces that stand for up to {_MOST:,} names, got more")
        yield one


def _expand(text: str) -> Iterator[str]:
    start = text.find("{")
    parts = _inside(text, start) if start >= 0 else None
    if parts is None:
        # Nothing, or an opening brace that none closes.
        yield text
        return
    end = start + sum(map(len, parts)) + len(parts) + 1
    for choice in _choices(parts):
        for rest in _expand(text[end:]):
            yield text[:start] + choice + rest


def _inside(text: str, start: int) -> list[str] | None:
    """What is between the commas of the braces that open at `start`; None when they do not close."""
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


# A folder of small files, or some of its files, as a shard.


def open_files_shard(spec: SourceSpec, labels: bool) -> Shard:
    """The images of a folder, or whatever is there when there are none. `labels`: folders are labels."""
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


# The schema of a run that hold.write made: its folder says it, and a TFRecord part cannot.


def run_schema(specs: Sequence[SourceSpec], options: Mapping[str, Any] | None = None) -> dict[str, Column] | None:
    """None: they are not all parts of one run."""
    folders = {posixpath.dirname(spec.path) for spec in specs if not spec.is_files}
    if len(folders) != 1 or any(spec.is_files for spec in specs):
        return None
    run, name = posixpath.split(folders.pop())
    if name != "parts":
        return None
    try:
        content = json.loads(_latest(run, specs[0].is_remote, options))
        return schema_from_json(content["schema"]) if "holdfast_write" in content else None
    except (OSError, InputError, SchemaError, ValueError, LookupError, TypeError, AttributeError):
        return None  # then it is as with any other files


def _latest(run: str, is_remote: bool, options: Mapping[str, Any] | None) -> bytes:
    """A log's schema grows with its columns: the latest version has all of them."""
    found = _read(posixpath.join(run, schema_file_name()), is_remote, options)
    for version in count(1):
        try:
            found = _read(posixpath.join(run, schema_file_name(version)), is_remote, options)
        except FileNotFoundError:
            break
    return found


def _read(path: str, is_remote: bool, options: Mapping[str, Any] | None) -> bytes:
    if not is_remote:
        with open(path, "rb") as file:
            return file.read()
    fs, inside = open_store(path, options)
    return bytes(ask(path, lambda: fs.cat_file(inside)))


# What a URL stands for in its store: a shard, a glob's shards, a folder's, a run's committed parts.


def find_remote(url: str, options: Options | None = None) -> list[str]:
    """The URLs of the shards that a URL, a glob or a folder stands for."""
    if is_shard_name(url) and not is_glob(url) and not url.endswith("/"):
        return [url]  # to ask for each of a thousand whether it is there takes as long as to open it
    fs, path = open_store(url, options)
    fs.invalidate_cache()  # what was there when somebody asked before is not what is there
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
            f"{url}: expected shards, got single samples such as {small[0]}: pack them into shards or copy them here"
        )
    return [url_of(url, name) for name in sorted(names, key=os.fsencode)]


def _in_folder(url: str, fs: Any, path: str) -> list[str]:
    every: list[str] = ask(url, lambda: fs.find(path))
    if f"{path}/schema.json" in every:
        start = f"{path}/parts/"
        parts = committed([name for name in every if name.startswith(start)])
        if not parts:
            raise InputError(f"{url}: expected committed parts, this run has none yet")
        return parts
    inside = [name for name in every if not any(is_beside(part) for part in name[len(path) + 1 :].split("/"))]
    return [name for name in inside if is_shard_name(name)] or [name for name in inside if is_small_file(name)]


# Finding files on this machine, and saying what is wrong with those that cannot be read.

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
        if is_shard_name(name):
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


# What `read` was given, as a list of shards: paths, globs, folders, URLs, lists of them.

Given = str | os.PathLike[str]
_WANTED = "expected a path, a glob, a folder, a URL or a list of them"


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """One shard to be: a file, a URL, or many small files that are one shard together.

    path:     the file, the URL, or the folder that the small files are in
    is_files: it is small files, a sample each
    files:    which ones; none named: all in the folder
    """

    path: str
    is_files: bool = False
    files: tuple[str, ...] = ()

    @property
    def is_remote(self) -> bool:
        return is_url(self.path)


def find_sources(what: Given | Iterable[Given], options: Mapping[str, Any] | None = None) -> list[SourceSpec]:
    """The shards in the order given; inside a glob or a folder sorted by the bytes of their names.

    options: for the stores of URLs, as fsspec takes them
    """
    found = list(_joined(spec for item in _items(what) for spec in _find(_text(item), options)))
    _once_each(found)
    return found


# ---- what was given


def _items(what: Given | Iterable[Given]) -> list[Given]:
    if isinstance(what, (str, os.PathLike)):
        return [what]
    if isinstance(what, (bytes, bytearray, memoryview, Mapping)) or not isinstance(what, Iterable):
        raise TypeError(f"{_WANTED}, got {_shown(what)}")
    listed = list(what)
    if not listed:
        raise InputError(f"{_WANTED}, got an empty {type(what).__name__}")
    return listed


def _text(item: Given) -> str:
    text: object = os.fspath(item) if isinstance(item, (str, os.PathLike)) else item
    if not isinstance(text, str):
        raise TypeError(f"{_WANTED}, got {_shown(item)}")
    if not text or "\0" in text:
        raise InputError(f"{_WANTED}, got {_shown(text)}")
    return local_path(text)


def _shown(thing: object) -> str:
    text = repr(thing)
    return f"{text if len(text) < 60 else text[:59] + '…'} ({type(thing).__name__})"


# ---- what it stands for


def _find(text: str, options: Mapping[str, Any] | None) -> Iterator[SourceSpec]:
    if is_url(text):
        for one in expand_braces(text):
            yield from map(SourceSpec, find_remote(one, options))
    elif os.path.lexists(text):  # a name may have brackets and braces of its own
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


def _joined(specs: Iterable[SourceSpec]) -> Iterator[SourceSpec]:
    """Single files that come one after the other are one shard."""
    run: list[str] = []
    for spec in specs:
        if spec.files and (not run or os.path.isabs(spec.files[0]) == os.path.isabs(run[0])):
            run += spec.files
            continue
        if run:
            yield _one_shard(run)
        run = list(spec.files)
        if not run:
            yield spec
    if run:
        yield _one_shard(run)


def _one_shard(files: list[str]) -> SourceSpec:
    return SourceSpec(os.path.commonpath([os.path.dirname(file) for file in files]) or ".", True, tuple(files))


def _once_each(specs: list[SourceSpec]) -> None:
    refuse_twice(
        (path if spec.is_remote else identify(path), path) for spec in specs for path in spec.files or (spec.path,)
    )
