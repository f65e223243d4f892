"""Accesses an object store through fsspec: exclusive creation, which commits rely on, and small and large files.

In general, fsspec's `mode="create"` checks first and then writes, and another process may write in between. So only
stores are accepted that are known to create atomically.
"""

from __future__ import annotations

import inspect
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ....errors import InputError, MissingFileError, WriteError
from ... import remote_fs
from ...remote_fs import ask, is_final, open_store, reason_of

Create = Callable[[Any, str, bytes], None]

_BY_CONDITION = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl")
_DRAFT = ".partial"
_KNOWN = "s3://, gs://, az://, webhdfs:// or memory://"


def check_scheme(url: str) -> str:
    """Checks, without a request, that this kind of store can create a file exclusively."""
    scheme = url.partition("://")[0].lower()
    if scheme not in (*_BY_CONDITION, "webhdfs", "memory"):
        more = ": pyarrow overwrites files, so use webhdfs:// and the name node's HTTP port" * (scheme == "hdfs")
        text = f"expected a store that creates a file only if it does not exist ({_KNOWN}), got {scheme}://{more}"
        raise WriteError(f"{url}: {text}")
    return scheme


def is_draft(name: str) -> bool:
    """Returns whether a file is about to get its name, or was left by a writer that died then."""
    return name.endswith(_DRAFT)


def find_create(url: str, fs: Any) -> Create:
    """Returns the function that creates a file, or raises a FileExistsError if it exists."""
    scheme = check_scheme(url)
    if scheme == "memory":
        return _in_memory
    if scheme == "webhdfs":
        return _by_rename
    if scheme[:1] in "sg" and "mode" not in inspect.signature(fs._pipe_file).parameters:
        package = type(fs).__module__.partition(".")[0]
        raise WriteError(f"{url}: expected a {package} that can create files exclusively, got an older one")
    return _by_condition


def _by_condition(fs: Any, path: str, data: bytes) -> None:
    """Creates a file by one conditional request: If-None-Match, or the store's equivalent."""
    fs.pipe_file(path, data, mode="create")


def _in_memory(fs: Any, path: str, data: bytes) -> None:
    from fsspec.implementations.memory import MemoryFile

    path = fs._strip_protocol(path)
    made = MemoryFile(fs, path, data)
    if fs.store.setdefault(path, made) is not made:  # atomic, among threads too
        raise FileExistsError(path)


def _by_rename(fs: Any, path: str, data: bytes) -> None:
    """Creates a file by rename. HDFS shows a file while it is written, but renames atomically and never overwrites."""
    draft = f"{path.rpartition('/')[0]}/.{uuid.uuid4().hex}{_DRAFT}"
    fs.pipe_file(draft, data)
    try:
        moved = fs._call("RENAME", "put", path=draft, destination=fs._strip_protocol(path)).json()["boolean"]
        if not moved:
            raise FileExistsError(path) if fs.exists(path) else OSError(f"{path}: the store did not rename {draft}")
    except BaseException:
        fs.rm_file(draft)
        raise


_PIECE_BYTES = 8 << 20
_MAX_PIECES = 9_000  # a store accepts at most 10,000 pieces per upload
_TOGETHER = 8  # small files requested at a time


class InDoubtError(WriteError):
    """A store did not answer, so it is unknown whether it did what was requested."""


class ObjectStore:
    """The directory at a URL. It holds nothing open and gets the filesystem from fsspec each time, so that it can be
    pickled and used in a forked child."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self.url = url.rstrip("/")
        self.options = dict(options or {})

    def shown(self, name: str) -> str:
        return f"{self.url}/{name}".rstrip("/")

    def _at(self, name: str) -> tuple[Any, str]:
        fs, path = open_store(self.url, self.options)
        return fs, f"{path.rstrip('/')}/{name}".rstrip("/")

    # ---- listing and reading

    def names(self, below: str = "") -> list[str]:
        """Returns the names of all files below a directory, relative to it."""
        fs, path = self._at(below)

        def look() -> list[str]:
            fs.invalidate_cache()  # an earlier listing may be stale
            try:
                return list(fs.find(path))
            except FileNotFoundError:
                return []

        found = ask(self.shown(below), look)
        return sorted(name[len(path) :].lstrip("/") for name in found if name.startswith(f"{path}/"))

    def get(self, name: str) -> bytes | None:
        """Reads a small file. None: there is none."""
        fs, path = self._at(name)

        def read() -> bytes | None:
            try:
                return bytes(fs.cat_file(path))
            except FileNotFoundError:
                return None

        return ask(self.shown(name), read)

    def get_all(self, names: Sequence[str]) -> list[bytes]:
        """Reads many small files, some at a time. InputError: one cannot be read."""
        with ThreadPoolExecutor(_TOGETHER, "holdfast-records") as threads:
            found = list(threads.map(self.get, names))
        for name, data in zip(names, found, strict=True):
            if data is None:
                raise MissingFileError(f"{self.shown(name)}: the store has no such file", self.shown(name))
        return [data for data in found if data is not None]

    def size_bytes(self, name: str) -> int | None:
        """Returns the size of a file. None: there is no such file."""
        fs, path = self._at(name)
        fs.invalidate_cache()
        try:
            return int(ask(self.shown(name), lambda: fs.info(path))["size"])
        except MissingFileError:
            return None

    def modified_s(self, name: str) -> float:
        """Returns when a file was last written, by the store's own clock."""
        fs, path = self._at(name)
        return float(ask(self.shown(name), lambda: fs.modified(path)).timestamp())

    # ---- small files

    def put(self, name: str, data: bytes) -> None:
        """Writes a small file, and replaces an existing one."""
        fs, path = self._at(name)
        ask(self.shown(name), lambda: fs.pipe_file(path, data), WriteError)

    def create(self, name: str, data: bytes) -> bool:
        """Creates a small file. Returns whether this call created it. InDoubtError: that is unknown.

        A store may create the file and its answer may be lost. A retry then says that the file exists: so its content
        is compared. No other attempt's content is the same, as a record names its attempt.
        """
        fs, path = self._at(name)
        make = find_create(self.url, fs)
        doubt = False
        for pause_s in (*remote_fs.PAUSES_S, None):
            try:
                make(fs, path, data)
                return True
            except FileExistsError:
                return self._is_there(name, data)
            except Exception as error:
                if is_final(error) and not doubt:
                    raise WriteError(f"{self.shown(name)}: {_describe(error)}") from error
                doubt = True
                if pause_s is None:
                    raise InDoubtError(f"{self.shown(name)}: {reason_of(error)}") from error
                time.sleep(pause_s)
        raise AssertionError

    def _is_there(self, name: str, data: bytes) -> bool:
        try:
            return self.get(name) == data
        except InputError as error:
            raise InDoubtError(str(error)) from error

    def check_exclusive(self, name: str, data: bytes) -> None:
        """Checks that the store honours the condition: some ignore it, and two attempts would both commit. `data`: the
        present content of the file, so that nothing changes if the store overwrites it."""
        fs, path = self._at(name)
        make = find_create(self.url, fs)

        def is_refused() -> bool:
            try:
                make(fs, path, data)
            except FileExistsError:
                return True
            return False

        if not ask(self.shown(name), is_refused, WriteError):
            text = "expected a store that refuses to create a file that exists, but this one replaced it"
            raise WriteError(f"{self.shown(name)}: {text}: parts cannot be committed there")

    def remove(self, name: str) -> None:
        """Removes a file. A failure is ignored: nobody reads data without a record."""
        fs, path = self._at(name)
        try:
            ask(self.shown(name), lambda: fs.rm_file(path), WriteError)
        except WriteError:
            pass

    # ---- large files

    def upload(self, local: Path, name: str) -> None:
        size_bytes = os.path.getsize(local)
        fs, path = self._at(name)
        piece = _PIECE_BYTES * max(1, -(-size_bytes // (_MAX_PIECES * _PIECE_BYTES)))

        def send() -> None:
            with open(local, "rb") as source, fs.open(path, "wb", block_size=piece) as target:
                while data := source.read(_PIECE_BYTES):
                    target.write(data)

        ask(self.shown(name), send, WriteError)
        fs.invalidate_cache()
        there = ask(self.shown(name), lambda: fs.info(path), WriteError)["size"]
        if there != size_bytes:
            raise WriteError(f"{self.shown(name)}: expected {size_bytes:,} bytes in the store, got {there:,}")

    def download(self, name: str, local: Path) -> bool:
        """Downloads a file. Returns False if there is none."""
        fs, path = self._at(name)
        size_bytes = self.size_bytes(name)
        if size_bytes is None:
            return False
        try:
            with open(local, "xb") as target:
                for first in range(0, size_bytes, _PIECE_BYTES):
                    last = min(first + _PIECE_BYTES, size_bytes)
                    target.write(ask(self.shown(name), lambda: fs.cat_file(path, start=first, end=last)))  # noqa: B023
        except InputError:  # of the store: a MissingFileError is an OSError too
            raise
        except OSError as error:
            raise InputError(f"cannot download to {local.parent}: {error.strerror}") from error
        return True


def _describe(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"the store has no such bucket or folder: {error}"
    return reason_of(error)
