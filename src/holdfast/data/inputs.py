"""Finds the files that hold.read, hold.convert and the others were given: paths, globs, braces, folders, URLs, lists.

Which files are data, and their order, is decided here alone. `find_sources` is for readers; `expand`, `expand_below`
and `expand_once` are for functions that report on files, and for commands.
"""

from __future__ import annotations

import difflib
import errno
import glob
import os
import posixpath
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice
from typing import Any, NamedTuple, NoReturn

from ..errors import InputError, MissingFileError, cannot_open
from ..schema import schema_file_name
from .formats.folder_index import FileKey
from .formats.part_record import order_of_part_name
from .formats.parts_manifest import check_parts, check_remote_parts, no_parts
from .formats.registry import FORMATS, SAMPLE_SUFFIXES, has_shard_content, is_shard_name, titles
from .remote_fs import Options, ask, open_store, url_of

Given = str | os.PathLike[str]
_EXPECTED = "expected a path, a glob, a folder, a URL or a list of them"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_LOCAL = re.compile(r"(file|local)://")
_NEVER_DATA = re.compile(r"\.(index|json|partial|tmp|temp|part|bak|corrupt(\.\d+)?)$|~$", re.IGNORECASE)
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_AS_ZEROS = str.maketrans("123456789", "0" * 9)
_MAX_NAMES = 10_000_000  # that one pattern may expand to
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
    is_run:   it is a dataset directory of hold.write, which only commands want as a whole
    key:      which version of a local file it is, if that was looked at
    """

    path: str
    is_files: bool = False
    files: tuple[str, ...] = ()
    is_run: bool = False
    key: FileKey | None = field(default=None, compare=False, repr=False)

    @property
    def is_remote(self) -> bool:
        return is_url(self.path)


def find_sources(what: Given | Iterable[Given], options: Mapping[str, Any] | None = None) -> list[SourceSpec]:
    """Returns the shards in the given order; those of a glob or a folder are sorted by the bytes of their names, and
    the parts of a dataset directory as consolidate() sorts them.

    options: storage options for URLs, as fsspec takes them
    """
    return list(_join_small(_find_all(what, _Search(options, seen={}))))


def find_files(what: Given | Iterable[Given], *, whole_runs: bool = False) -> list[SourceSpec]:
    """Returns the files that find_sources would return, for a command that reports on each of them.

    So a missing or unreadable one is returned too, as is one that is given twice. `whole_runs`: a dataset directory is
    returned instead of its parts, also one that lacks its schema.json.
    """
    found = []
    for spec in _find_all(what, _Search(whole_runs=whole_runs)):
        if spec.is_remote:
            raise InputError(f"{spec.path}: expected a local file, got a URL; download it first")
        if spec.is_files and not spec.files:
            raise InputError(f"{spec.path}: expected {titles()} files in this folder, there are none")
        found.append(SourceSpec(spec.files[0]) if spec.files else spec)
    return found


def find_files_below(what: Given | Iterable[Given]) -> list[tuple[str, str]]:
    """Returns the files that find_files returns, each with its path below the folder that was given, below the first
    folder of a glob without a wildcard, or with its name alone."""
    found = []
    for text in _checked(what):
        for one in [text] if os.path.lexists(text) else expand_braces(text):
            folder = one if os.path.isdir(one) else _plain_part(one)
            found += [(spec.path, os.path.relpath(spec.path, folder)) for spec in find_files(one)]
    return found


def _plain_part(pattern: str) -> str:
    """Returns the folder before the first part of a path with a wildcard; of a file, its folder."""
    folder = os.path.dirname(pattern)
    while is_glob(folder) and not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    return folder or "."


def _find_all(what: Given | Iterable[Given], search: _Search) -> Iterator[SourceSpec]:
    for item in _checked(what):
        yield from search.find(item)


def _checked(what: Given | Iterable[Given]) -> Iterator[str]:
    items = given_paths(what)
    for item in items:
        # In a list it comes from a shell's glob, which knows no data; alone, somebody means it.
        if len(items) > 1 and _NEVER_DATA.search(item) and os.path.isfile(item):
            text = "expected data files, by its name this is metadata, a backup or unfinished"
            raise InputError(f"{item}: {text}: leave it out, or quote the glob so that holdfast expands it")
        yield item


def given_paths(what: Given | Iterable[Given]) -> list[str]:
    """Returns what was given as a list of texts, not expanded."""
    return [_text(item) for item in _items(what)]


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


@dataclass(frozen=True, slots=True)
class _Search:
    """Finds the files that one path, glob, folder or URL means.

    seen:       raise an error for a file that cannot be read, or that is here by its identity; None: opening it
                reports what is wrong
    whole_runs: take a dataset directory as a whole, not its parts
    """

    options: Mapping[str, Any] | None = None
    seen: dict[object, str] | None = None
    whole_runs: bool = False

    def find(self, text: str) -> Iterator[SourceSpec]:
        if is_url(text):
            for one in expand_braces(text):
                for url in find_remote(one, self.options):
                    self._add(url, url)
                    yield SourceSpec(url)
        elif os.path.lexists(text):  # a file name may contain brackets and braces
            yield from self._at(text)
        else:
            for one in expand_braces(text):
                yield from self._match(one) if is_glob(one) and not os.path.lexists(one) else self._at(one)

    def _at(self, path: str) -> Iterator[SourceSpec]:
        if not os.path.isdir(path):
            yield self._file(path)
        elif self._is_run(path):
            parts = list(self._run(path))
            if not parts:
                raise no_parts(path)
            yield from parts
        else:
            yield from self._below(path)

    def _match(self, pattern: str) -> Iterator[SourceSpec]:
        files, folders = match(pattern)
        for path in files or folders:
            yield from [self._file(path)] if files else self._at(path)

    def _file(self, path: str, may_be_small: bool = True) -> SourceSpec:
        key = None
        if self.seen is not None:
            info = check_file(path)
            self._add((info.st_dev, info.st_ino), path)
            key = FileKey.of(info)
        if may_be_small and is_small_file(path):
            return SourceSpec(os.path.dirname(path) or ".", True, (path,))
        return SourceSpec(path, key=key)

    def _add(self, identity: object, path: str) -> None:
        """Raises an InputError for a file that came before: its samples would be read twice."""
        if self.seen is not None:
            if identity in self.seen:
                raise _given_twice(path, self.seen[identity])
            self.seen[identity] = path

    def _below(self, folder: str) -> Iterator[SourceSpec]:
        """Yields the shards in a folder and below it; the folder itself if it has only other files."""
        shards: list[tuple[str, bool]] = []
        has_files = False
        for path, is_run, kind in self._walk(folder):
            if is_run or kind.is_shard or (not kind.has_suffix and has_shard_content(path)):
                shards.append((path, is_run))
            else:
                has_files = True
        shards.sort(key=lambda shard: os.fsencode(shard[0]))
        found = [spec for path, is_run in shards for spec in (self._run(path) if is_run else [self._file(path, False)])]
        if not found and not has_files:
            raise InputError(f"{folder}: expected a folder with shards or files in it, there are none")
        yield from found or [SourceSpec(folder, True)]

    def _walk(self, folder: str) -> Iterator[tuple[str, bool, _Kind]]:
        """Yields all data files, and the dataset directories, with True. Links to folders are not followed."""
        for here, folders, files in os.walk(folder, onerror=_cannot_list):
            if here != folder and "parts" in folders and self._is_run(here):
                folders.clear()
                yield here, True, _kind_of_name(here)
                continue
            folders[:] = [name for name in folders if not is_beside(name)]
            prefix = os.path.join(here, "")
            for name in files:
                kind = _kind_of_name(name)
                if not kind.is_beside:
                    yield prefix + name, False, kind

    def _is_run(self, path: str) -> bool:
        return is_run(path, with_schema=not self.whole_runs)

    def _run(self, path: str) -> list[SourceSpec]:
        if self.whole_runs:
            return [SourceSpec(path, is_run=True)]
        parts = os.path.join(path, "parts")
        names = _names_in(parts)
        check_parts(path, names)
        return [self._file(os.path.join(parts, name)) for name in committed(names)]


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


# ---- for functions that report on files


class ExpandedPaths(list[str]):
    """Paths that were expanded before."""


def expand(arguments: Given | Iterable[Given]) -> list[str]:
    """Returns the files that the arguments denote, in order. A file that is given twice, under any name, raises
    InputError as in hold.read. A missing path stays in the list: opening it reports the error."""
    if isinstance(arguments, ExpandedPaths):
        return arguments
    listed = ExpandedPaths(spec.path for spec in find_files(arguments))
    check_unique((_identity(path), path) for path in listed)
    return listed


def expand_below(arguments: Given | Iterable[Given]) -> dict[str, str]:
    """Returns the files as `expand` does, each with its path below the folder that an argument names."""
    found = find_files_below(arguments)
    check_unique((_identity(path), path) for path, _ in found)
    return dict(found)


class ExpandedOnce(ExpandedPaths):
    """The dataset directories and files to report on, each once. `repeated`: what was given more than once."""

    def __init__(self, runs: Iterable[str], files: Iterable[str], repeated: list[str]) -> None:
        self.runs, self.files, self.repeated = list(runs), list(files), repeated
        super().__init__([*self.runs, *self.files])


def expand_once(arguments: Given | Iterable[Given], *, whole_runs: bool = True) -> ExpandedOnce:
    """Returns what the arguments denote, each file once. Without `whole_runs`, the parts of dataset directories."""
    if isinstance(arguments, ExpandedOnce):
        return arguments
    runs: dict[object, str] = {}
    files: dict[object, str] = {}
    repeated = []
    for spec in find_files(arguments, whole_runs=whole_runs):
        known, identity = runs if spec.is_run else files, _identity(spec.path)
        if identity in known:
            repeated.append(f"{spec.path} is the same as {known[identity]}")
        else:
            known[identity] = spec.path
    parts: dict[object, str] = {identify(os.path.join(run, "parts")): run for run in runs.values()}
    for identity, file in list(files.items() if parts else ()):
        run = parts.get(_identity(os.path.dirname(file) or "."))
        if run is not None:
            repeated.append(f"{file} is a part of {run}")
            del files[identity]
    return ExpandedOnce(runs.values(), files.values(), repeated)


def _identity(path: str) -> object:
    try:
        return identify(path)
    except OSError:
        return os.path.abspath(path)


# ---- dataset directories


def is_run(path: str, *, with_schema: bool = False) -> bool:
    """Whether it is a dataset directory of hold.write; also without its schema.json, which verify reports, unless
    `with_schema`."""
    if not os.path.isdir(os.path.join(path, "parts")):
        return False
    has_schema = os.path.isfile(os.path.join(path, schema_file_name()))
    return has_schema or (not with_schema and os.path.isdir(os.path.join(path, "tmp")))


def runs_in(path: str) -> list[str]:
    if is_run(path):
        return [path]
    if not os.path.isdir(path):
        return []
    with os.scandir(path) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    return [run for name in names if is_run(run := os.path.join(path, name))]


def size_of_run(path: str) -> int:
    try:
        with os.scandir(os.path.join(path, "parts")) as entries:
            return sum(entry.stat().st_size for entry in entries if entry.is_file())
    except OSError:
        return 0  # reading it later reports the error


# ---- what a name says


def is_url(text: str) -> bool:
    return "://" in text and _URL.match(text) is not None


def local_path(text: str) -> str:
    """Returns the path of a file:// URL, and anything else unchanged but for `~`."""
    found = _LOCAL.match(text)
    if found:
        return text[found.end() :]
    return os.path.expanduser(text) if text.startswith("~") else text


class _Kind(NamedTuple):
    is_beside: bool
    is_shard: bool
    is_small: bool
    has_suffix: bool


def is_small_file(path: str) -> bool:
    """Whether the file is one sample."""
    return _kind_of_name(path).is_small


def is_beside(path: str) -> bool:
    """Whether the file is hidden, a backup, unfinished or metadata, and so never data in a folder or a glob."""
    return _kind_of_name(path).is_beside


def _kind_of_name(path: str) -> _Kind:
    stem, dot, suffix = path.rpartition("/")[2].rpartition(".")
    return _kind_of(stem.translate(_AS_ZEROS), dot + suffix, len(FORMATS))


@lru_cache(maxsize=4096)
def _kind_of(stem: str, suffix: str, _: int) -> _Kind:
    """Shards of a dataset differ in the digits of their stems, which are zeros here: it is called once for all."""
    name = stem + suffix
    return _Kind(
        is_beside=name.startswith(".") or _NEVER_DATA.search(name) is not None,
        is_shard=is_shard_name(name),
        is_small=name.lower().endswith(SAMPLE_SUFFIXES),
        has_suffix="." in name,
    )


def is_glob(text: str) -> bool:
    # In an HTTP URL the question mark begins the query.
    return re.search(r"[*\[]" if text.startswith("http") else r"[*?\[]", text) is not None


def committed(names: list[str]) -> list[str]:
    """Returns the committed parts among the names in a `parts` folder: those with a .json beside them, by task."""
    there = set(names)
    return sorted(
        (
            name
            for name in names
            if not is_beside(name) and (f"{name}.json" in there or f"{os.path.splitext(name)[0]}.json" in there)
        ),
        key=order_of_part_name,
    )


def expand_braces(text: str) -> Iterator[str]:
    """Expands `{a,b}` and `{000..031}`, as WebDataset and shells do. Other braces stay."""
    if _count(text) > _MAX_NAMES:
        raise InputError(f"{text}: expected braces that expand to up to {_MAX_NAMES:,} names, got {_count(text):,}")
    yield from _expand(text)


def _count(text: str) -> int:
    """Counts the names that a pattern expands to, without making them."""
    start = text.find("{")
    parts = _inside(text, start) if start >= 0 else None
    if parts is None:
        return 1
    found = _RANGE.fullmatch(parts[0]) if len(parts) == 1 else None
    here = abs(int(found[2]) - int(found[1])) + 1 if found else sum(map(_count, parts))
    return here * _count(text[start + sum(map(len, parts)) + len(parts) + 1 :])


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


def check_file(path: str) -> os.stat_result:
    """Returns what the file is. Raises an InputError if it is not one that can be read."""
    try:
        info = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFileError(f"{path}: {_why_not_there(path)}", path) from None
    except OSError as error:
        raise InputError(f"{path}: cannot stat: {error.strerror}") from error
    if not stat.S_ISREG(info.st_mode):
        kind = _KINDS.get(stat.S_IFMT(info.st_mode), "something else")
        raise InputError(f"{path}: expected a file, this is {kind}")
    if info.st_mode & 0o444 != 0o444 and not os.access(path, os.R_OK, effective_ids=True):
        raise InputError(f"{path}: no permission to read it")
    return info


def stat_file(path: str) -> FileKey:
    """Returns which version of a file is there. Raises an InputError if it cannot be found."""
    try:
        return FileKey.of(os.stat(path))
    except OSError as error:
        raise cannot_open(path, error) from error


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
        names.sort(key=os.fsencode)
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
    return [url_of(url, name) for name in names]


def _in_folder(url: str, fs: Any, path: str) -> list[str]:
    """Returns the shards below a folder as a local one's are; without a look into files whose names have no suffix."""
    every: list[str] = ask(url, lambda: fs.find(path))
    has_schema = {posixpath.dirname(name) for name in every if posixpath.basename(name) == schema_file_name()}
    units: dict[str, list[str]] = {}  # a file, or a dataset directory and its parts
    for name in every:
        run = name.rpartition("/parts/")[0]
        if run in has_schema:
            units.setdefault(run, []).append(name)
        elif not any(map(is_beside, name[len(path) + 1 :].split("/"))):
            units[name] = []
    runs = {unit for unit, parts in units.items() if parts}
    names = []
    for unit in sorted(units, key=os.fsencode):
        if unit in runs:
            listed = map(posixpath.basename, units[unit])
            check_remote_parts(url_of(url, unit), listed, partial(_names_below, url, fs, f"{unit}/parts"))
            names += committed(units[unit])
        elif not any(unit.startswith(f"{run}/") for run in runs):
            names.append(unit)
    names = [name for name in names if is_shard_name(name)] or [name for name in names if is_small_file(name)]
    if not names and path in has_schema:
        raise no_parts(url)
    return names


def _names_below(url: str, fs: Any, path: str) -> list[str]:
    fs.invalidate_cache()
    return [posixpath.basename(name) for name in ask(url, lambda: fs.find(path))]


# ---- messages


def check_unique(files: Iterable[tuple[object, str]]) -> None:
    """Raises an InputError for the first path whose identity came before: its samples would be read twice."""
    seen: dict[object, str] = {}
    for identity, path in files:
        if identity in seen:
            raise _given_twice(path, seen[identity])
        seen[identity] = path


def _given_twice(path: str, before: str) -> InputError:
    other = f": {before} is the same file" if before != path else ""
    return InputError(f"{path}: expected every file once, got it twice{other}")


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
