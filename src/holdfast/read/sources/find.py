"""What `read` was given, as a list of shards: paths, globs, folders, URLs, lists of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import InputError
from .local import check_file, identify, list_folder, match, refuse_twice
from .names import expand_braces, is_glob, is_small_file, is_url, local_path
from .stores import find_remote

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
