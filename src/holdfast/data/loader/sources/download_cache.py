"""Downloads remote shards into a folder of bounded size.

The name of a copy has a digest of its URL, size and version, so a changed object is another copy. A copy appears when
it is complete, and one of several processes downloads it. The least recently used copies are evicted by unlink, so a
process that has one open goes on reading.
"""

from __future__ import annotations

import errno
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
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from ...._util.atomic import PartialFile, partial_path, sync_file, sync_folder
from ....errors import InputError, WriteError, WriterBusyError
from ...remote_fs import ask, open_store
from .file_pool import OpenFile

MAX_BYTES = 20_000_000_000

_PARTIAL = ".partial"
_SCAN_SHARE = 64  # the folder is listed once for downloads of this fraction of the cache
_KEPT_FREE = 8  # of these fractions: so many processes may download at the same time without a look

# Keys of an object's info that change with its content.
_VERSIONS = ("ETag", "etag", "md5Hash", "generation", "VersionId", "checksum", "ino", "Content-MD5", "Digest")
_MAX_SECONDS = 1e11  # the year 5138
_TIMES = ("LastModified", "Last-Modified", "last_modified", "updated", "mtime", "modificationTime", "created")


def default_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast" / "remote"


@dataclass(frozen=True, slots=True)
class _RemoteObject:
    """What a store currently reports about an object."""

    size_bytes: int
    version: str
    modified_s: float | None

    @property
    def mtime_s(self) -> float:
        """The mtime of its copy. It must not be the time of the download: after an eviction the next copy would look
        like a changed file. Without a time in the store, it depends on the version."""
        if self.modified_s is not None:
            return self.modified_s
        return int.from_bytes(hashlib.sha256(self.version.encode("utf-8", "surrogateescape")).digest()[:3], "little")


class DownloadCache:
    """Copies of remote files in `folder`, of `max_bytes` in total. Processes and threads may share it.

    options: storage options, as fsspec takes them
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        max_bytes: int = MAX_BYTES,
        *,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 1:
            raise ValueError(f"expected a cache of at least one byte, got {max_bytes!r}")
        self.folder = str(default_folder() if folder is None else Path(folder).absolute())
        self.max_bytes = max_bytes
        self._options = dict(options or {})
        self._collected = False
        self._unseen_bytes: int | None = None  # downloaded since the folder was listed; None: it never was

    def fetch(self, url: str) -> str:
        """Returns the path of the copy, after downloading it if it is not here yet."""
        fs, path = open_store(url, self._options)
        remote = _stat(url, fs, path)
        if remote.size_bytes > self.max_bytes:
            raise InputError(
                f"{url}: {remote.size_bytes:,} bytes do not fit the cache of {self.max_bytes:,} in {self.folder}"
            )
        target = self._target(url, remote)
        if not self._collected:  # a process that finds all copies here never downloads, and so would never collect
            self._remove_stale()
            with suppress(OSError):  # no folder yet: a download reports if none can be made
                self._evict(0, target)
            self._collected = True
        while not self._has(target, remote):
            try:
                self._download(url, fs, path, remote, target)
            except WriterBusyError:
                _wait_for_other(target)
            except InputError as error:
                if getattr(error.__cause__, "errno", None) not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                hint = "free space there, or choose another folder with cache_folder="
                raise InputError(f"{url}: no space left in the cache folder {self.folder}: {hint}") from error
            except (OSError, WriteError) as error:
                raise InputError(f"{url}: cannot make a copy in {self.folder}: {error}") from error
        return target

    def touch(self, path: str) -> bool:
        """Marks a copy as used now, so that others are evicted first. Returns False if it is gone."""
        try:
            mtime_ns = os.stat(path).st_mtime_ns
        except OSError:
            return False
        try:
            os.utime(path, ns=(time.time_ns(), mtime_ns))  # an index of the copy depends on its mtime
        except FileNotFoundError:
            return False
        except OSError:
            pass  # another user's copy: readable, but not ours to touch
        return True

    def _target(self, url: str, remote: _RemoteObject) -> str:
        parts = "\n".join([url, str(remote.size_bytes), remote.version])
        digest = hashlib.sha256(parts.encode("utf-8", "surrogateescape")).hexdigest()[:24]
        # The suffix of the name says which format the file has.
        name = os.fsencode(os.path.basename(url.rstrip("/")))[-100:].decode(errors="ignore")
        return os.path.join(self.folder, f"{digest}-{name}")

    def _has(self, target: str, remote: _RemoteObject) -> bool:
        try:
            return self.touch(target) and os.path.getsize(target) == remote.size_bytes
        except FileNotFoundError:
            return False  # another process has just evicted it

    def _download(self, url: str, fs: Any, path: str, remote: _RemoteObject, target: str) -> None:
        os.makedirs(self.folder, exist_ok=True)
        lock = PartialFile(target, overwrite=True)
        try:
            if self._has(target, remote):  # another process has just finished it
                return
            share = self.max_bytes // _SCAN_SHARE
            is_small = remote.size_bytes <= share
            if not is_small or self._unseen_bytes is None or self._unseen_bytes + remote.size_bytes > share:
                self._remove_stale(lock.path.name)
                self._evict(remote.size_bytes + (_KEPT_FREE * share if is_small else 0), target)
                self._unseen_bytes = 0
            self._unseen_bytes += remote.size_bytes
            free_bytes = shutil.disk_usage(self.folder).free
            if remote.size_bytes > free_bytes:
                raise InputError(f"{url}: {remote.size_bytes:,} bytes, but {free_bytes:,} are free in {self.folder}")
            # fsspec writes by name, and after an interrupt a thread of its own may still do so. In a private folder,
            # which is removed by then, that is harmless.
            folder = tempfile.mkdtemp(prefix=f"{lock.path.name}.", dir=self.folder)
            try:
                copy = os.path.join(folder, "copy")
                ask(url, lambda: _get_file(url, fs, path, copy, remote), progress=lambda: _bytes_in(folder))
                os.utime(copy, (time.time(), remote.mtime_s))
                sync_file(copy)
                os.replace(copy, target)
                sync_folder(self.folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            if not is_small:
                self._evict(0, target)  # other processes may have added copies meanwhile
        finally:
            lock.discard()

    def _evict(self, needed_bytes: int, keep: str) -> None:
        """Removes the least recently used copies until so many bytes more fit."""
        copies = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                try:
                    info = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # another process has evicted it
                if entry.is_file(follow_symlinks=False) and not entry.name.startswith("."):
                    copies.append((info.st_atime_ns, info.st_size, entry.path))
        total = sum(size for _, size, _ in copies) + needed_bytes
        for _, size, path in sorted(copies):
            if total <= self.max_bytes:
                return
            if path != keep:
                Path(path).unlink(missing_ok=True)
                total -= size

    def _remove_stale(self, mine: str = "") -> None:
        """Removes unfinished downloads of killed processes: nobody holds their lock. `mine` is this process's own."""
        try:
            names = os.listdir(self.folder)
        except OSError:
            return  # there is no folder yet; a download reports if none can be made
        for name in names:
            head, partial, tail = name.rpartition(_PARTIAL)
            if not partial or not head.startswith(".") or name == mine:
                continue
            with suppress(OSError):  # still being downloaded, or already gone
                with _locked(os.path.join(self.folder, head + partial), mine):
                    path = os.path.join(self.folder, name)
                    shutil.rmtree(path) if tail else os.unlink(path)


@contextmanager
def _locked(path: str, mine: str) -> Iterator[None]:
    """Raises OSError if another process has the lock. A folder without a lock file is stale: its owner removes the
    folder before it releases the lock."""
    if os.path.basename(path) == mine or not os.path.lexists(path):
        yield
        return
    with closing(OpenFile(path)) as file:
        fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _stat(url: str, fs: Any, path: str) -> _RemoteObject:
    def query() -> Any:
        fs.invalidate_cache()  # earlier answers may be out of date
        return fs.info(path)

    info = ask(url, query)
    if info.get("type") == "directory":
        raise InputError(f"{url}: expected a file, this is a folder")
    if not isinstance(info.get("size"), int):
        raise InputError(f"{url}: its store does not report its size")
    version = [f"{key}={info[key]}" for key in (*_VERSIONS, *_TIMES) if info.get(key)]
    return _RemoteObject(info["size"], " ".join(version), _modified_s(info))


def _modified_s(info: Mapping[str, Any]) -> float | None:
    for key in _TIMES:
        value = info.get(key)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value / 1000 if value > _MAX_SECONDS else float(value)  # HDFS counts milliseconds
        if isinstance(value, str):
            with suppress(TypeError, ValueError):  # as in an HTTP header; other texts stay part of the version
                return parsedate_to_datetime(value).timestamp()
    return None


def _get_file(url: str, fs: Any, path: str, copy: str, remote: _RemoteObject) -> None:
    fs.get_file(path, copy)
    if _stat(url, fs, path) != remote:
        raise InputError(f"{url}: it was replaced in its store during the download")
    got = os.path.getsize(copy) if os.path.exists(copy) else 0
    if got != remote.size_bytes:
        raise ConnectionError(f"expected {remote.size_bytes:,} bytes, got {got:,}")


def _bytes_in(folder: str) -> int:
    """Returns the size of all files, whatever the store's package names them during the download."""
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        return sum(entry.stat().st_size for entry in entries)
    return 0


def _wait_for_other(target: str) -> None:
    """Waits until the process that downloads this copy has finished or died."""
    try:
        with closing(OpenFile(str(partial_path(target)))) as file:
            fcntl.flock(file.fd, fcntl.LOCK_SH)
    except FileNotFoundError:
        pass  # it is done
