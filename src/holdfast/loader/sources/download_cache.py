"""Shards from elsewhere: each is brought whole into a bounded folder of this machine, and read there.

A copy's name has a digest of its URL, size and version, so a changed object is another copy. It appears whole or not at
all; of several processes that want it one brings it. The copies that were used longest ago go when room is needed: by
unlink, so that whoever has one open goes on reading.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ..._util.atomic import PartialFile, partial_path, sync_file, sync_folder
from ..._util.remote_fs import ask, open_store
from ...errors import InputError, WriteError, WriterBusyError
from .file_pool import OpenFile

MOST_BYTES = 20_000_000_000

_PARTIAL = ".partial"

# What stores tell of an object that changes with it.
_VERSIONS = ("ETag", "etag", "md5Hash", "generation", "VersionId", "checksum", "ino")
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "modificationTime", "created")


def default_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast" / "remote"


@dataclass(frozen=True, slots=True)
class _Object:
    """What a store says about one object, now."""

    size_bytes: int
    version: str
    modified_s: float | None


class DownloadCache:
    """Copies of remote files, in `folder`, together not more than `most_bytes`. Processes and threads may share it.

    options: for the stores, as fsspec takes them
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        most_bytes: int = MOST_BYTES,
        *,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(most_bytes, bool) or not isinstance(most_bytes, int) or most_bytes < 1:
            raise ValueError(f"expected a cache of at least one byte, got {most_bytes!r}")
        self.folder = str(default_folder() if folder is None else Path(folder).absolute())
        self.most_bytes = most_bytes
        self._options = dict(options or {})
        self._swept = False

    def fetch(self, url: str) -> str:
        """The path of the copy, brought here if it is not here yet."""
        fs, path = open_store(url, self._options)
        there = _look_at(url, fs, path)
        if there.size_bytes > self.most_bytes:
            raise InputError(
                f"{url}: {there.size_bytes:,} bytes do not fit the cache of {self.most_bytes:,} in {self.folder}"
            )
        target = self._target(url, there)
        if not self._swept:  # what is here already is not brought, and would leave what the dead left where it is
            self._sweep()
            self._swept = True
        while not self._has(target, there):
            try:
                self._bring(url, fs, path, there, target)
            except WriterBusyError:
                _wait_for_other(target)
            except InputError:
                raise
            except (OSError, WriteError) as error:
                raise InputError(f"{url}: no copy can be made in {self.folder}: {error}") from error
        return target

    def touch(self, path: str) -> bool:
        """Notes that a copy is used now, so that others go first. False: it is gone."""
        try:
            mtime_ns = os.stat(path).st_mtime_ns
        except OSError:
            return False
        try:
            os.utime(path, ns=(time.time_ns(), mtime_ns))  # the mtime stays, as an index of the copy is bound to it
        except FileNotFoundError:
            return False
        except OSError:
            pass  # another user's copy: it can be read, if not be kept
        return True

    # ---- how

    def _target(self, url: str, there: _Object) -> str:
        parts = "\n".join([url, str(there.size_bytes), there.version])
        digest = hashlib.sha256(parts.encode("utf-8", "surrogateescape")).hexdigest()[:24]
        # The end of the name says what kind of file it is.
        return os.path.join(self.folder, f"{digest}-{os.path.basename(url.rstrip('/'))[-100:]}")

    def _has(self, target: str, there: _Object) -> bool:
        try:
            return self.touch(target) and os.path.getsize(target) == there.size_bytes
        except FileNotFoundError:
            return False  # another process made room just now

    def _bring(self, url: str, fs: Any, path: str, there: _Object, target: str) -> None:
        os.makedirs(self.folder, exist_ok=True)
        lock = PartialFile(target, overwrite=True)
        try:
            if self._has(target, there):  # somebody was quicker
                return
            self._sweep(lock.path.name)
            self._make_room(there.size_bytes, target)
            free_bytes = shutil.disk_usage(self.folder).free
            if there.size_bytes > free_bytes:
                raise InputError(f"{url}: {there.size_bytes:,} bytes, but {free_bytes:,} are free in {self.folder}")
            # Packages of stores write by name; one that was interrupted may do so later, from a thread of its own. In a
            # folder that nobody else has, and that is gone by then, this hurts nobody.
            folder = tempfile.mkdtemp(prefix=f"{lock.path.name}.", dir=self.folder)
            try:
                copy = os.path.join(folder, "copy")
                ask(url, lambda: _download(url, fs, path, copy, there))
                if there.modified_s is not None:
                    os.utime(copy, (time.time(), there.modified_s))
                sync_file(copy)
                os.replace(copy, target)
                sync_folder(self.folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            self._make_room(0, target)  # others may have done the same meanwhile
        finally:
            lock.discard()

    def _make_room(self, needed_bytes: int, keep: str) -> None:
        """Removes what was used longest ago until so many bytes more are within the bound."""
        copies = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                try:
                    info = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # another process makes room, too
                if entry.is_file(follow_symlinks=False) and not entry.name.startswith("."):
                    copies.append((info.st_atime_ns, info.st_size, entry.path))
        total = sum(size for _, size, _ in copies) + needed_bytes
        for _, size, path in sorted(copies):
            if total <= self.most_bytes:
                return
            if path != keep:
                Path(path).unlink(missing_ok=True)
                total -= size

    def _sweep(self, mine: str = "") -> None:
        """Removes what killed processes have left unfinished: nobody holds its lock but, of `mine`, this one."""
        try:
            names = os.listdir(self.folder)
        except OSError:
            return  # no copy is here yet, or none can be made: whoever brings one is told
        for name in names:
            head, partial, tail = name.rpartition(_PARTIAL)
            if not partial or not head.startswith(".") or name == mine:
                continue
            with suppress(OSError):  # at work, or gone by now
                with _locked(os.path.join(self.folder, head + partial), mine):
                    path = os.path.join(self.folder, name)
                    shutil.rmtree(path) if tail else os.unlink(path)


@contextmanager
def _locked(path: str, mine: str) -> Iterator[None]:
    """OSError: somebody else has the lock. Whoever lets go of one removes its folder before: without a lock, a folder
    is a dead one's."""
    if os.path.basename(path) == mine or not os.path.lexists(path):
        yield
        return
    with closing(OpenFile(path)) as file:
        fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _look_at(url: str, fs: Any, path: str) -> _Object:
    def question() -> Any:
        fs.invalidate_cache()  # what was there when somebody asked before is not what is there
        return fs.info(path)

    info = ask(url, question)
    if info.get("type") == "directory":
        raise InputError(f"{url}: expected a file, this is a folder")
    if not isinstance(info.get("size"), int):
        raise InputError(f"{url}: its store does not say how long it is")
    version = [f"{key}={info[key]}" for key in (*_VERSIONS, *_TIMES) if info.get(key)]
    return _Object(info["size"], " ".join(version), _seconds(info))


def _seconds(info: Mapping[str, Any]) -> float | None:
    for key in _TIMES:
        value = info.get(key)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    return None


def _download(url: str, fs: Any, path: str, copy: str, there: _Object) -> None:
    fs.get_file(path, copy)
    if _look_at(url, fs, path) != there:
        raise InputError(f"{url}: it was replaced in its store while it was brought here")
    got = os.path.getsize(copy) if os.path.exists(copy) else 0
    if got != there.size_bytes:
        raise ConnectionError(f"expected {there.size_bytes:,} bytes, got {got:,}")


def _wait_for_other(target: str) -> None:
    """Until whoever brings this copy has it here, or is dead."""
    try:
        with closing(OpenFile(str(partial_path(target)))) as file:
            fcntl.flock(file.fd, fcntl.LOCK_SH)
    except FileNotFoundError:
        pass  # it is done
