"""Merges HDF5 files into one, or into a view of them, or says what would be done.

A merge works in a hidden directory beside the target, under the target's lock. If it is killed, the next merge of the
same sources resumes it; one of other sources starts over.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

from ....._util.atomic import FileStamp, PartialFile, check_not_input, check_unchanged, link_or_rename, sync_name
from ....._util.failpoints import failpoint
from ....._util.fds import raise_nofile
from .....errors import CorruptError, InputError, SchemaError, TargetExistsError, WriteError
from .....procfs.descriptors import count_own
from ...parts_manifest import check_not_only_copy
from ..filters import check_zstd
from ..sandbox import Progress, SandboxedProcess
from .inputs import check_sources, take_stamps

Order = Literal["exact", "any"]
Attributes = Literal["same", "first", "error"]
Codec = Literal["none", "gzip", "lzf", "zstd"]
Rows = tuple[int, int, int]  # source, from, to

DATA = "data.h5"  # the unfinished file in the work directory
_VERSION = 3
_KILLED = f"({signal.Signals.SIGKILL.name})"
_JOB, _RESULT, _LOCK = "job.json", "result.json", "alive"
_SPARE_FDS = 16
_STEP_BYTES = 64 << 20
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE of <linux/falloc.h>


class MergedDataset(NamedTuple):
    """`method`: "copy" (chunks unchanged), "build" (from rows), "copy and build", "objects" (strings and lists of any
    length, one by one), "view", "nothing" (no rows)."""

    dataset: str
    rows: int
    method: str
    copied_bytes: int
    built_bytes: int


@dataclass(frozen=True, slots=True)
class MergedHDF5:
    """The result of a merge, or of a plan.

    rows         None if datasets differ in length
    attributes   those that differ between files, and whether one was kept
    checked      of `chunks`, those that were copied and compared with a recorded checksum
    unpacked     those that were copied without a recorded checksum, and decoded to check them
    compared     those that were built from rows, and compared with the rows of their sources
    unchecked    datasets with chunks that have no checksum, neither recorded nor in their codec
    kept         chunks that an earlier, killed merge had finished
    unrecorded   sources without recorded checksums
    """

    path: str
    files: int
    rows: int | None
    datasets: list[MergedDataset]
    notes: list[str] = field(default_factory=list)
    bytes: int = 0
    crc32c: int = 0
    chunks: int = 0
    checked: int = 0
    kept: int = 0
    unrecorded: int = 0
    attributes: list[dict[str, Any]] = field(default_factory=list)
    unpacked: int = 0
    compared: int = 0
    unchecked: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, object]:
        facts = asdict(self)
        return facts | {"datasets": [one._asdict() for one in self.datasets], "crc32c": f"{self.crc32c:08x}"}


def merge_hdf5(
    files: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    order: Order = "exact",
    runs: Sequence[Rows] | None = None,
    virtual: bool = False,
    attributes: Attributes = "same",
    codec: Codec | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    verified: Callable[[MergedHDF5], None] | None = None,
) -> MergedHDF5:
    """Joins datasets of the same name along their first axis, in a new file that appears once it is verified.

    order     "exact": all rows of the first file, then those of the next. "any": full chunks first, then the remaining
              rows of each file, which avoids recompression; rows of different datasets stay together
    runs      which rows of which file, in which order, instead; each row once
    virtual   create a view: a file that shows the others' rows and holds none of its own
    attributes   what to do with attributes that differ between files: "same" drops them, "first" keeps those of the
              first file that has them, "error" raises
    codec     how to compress all chunks; None: as most rows are, and files that differ are recompressed
    verified  called when the file is verified, before it gets its name
    """
    sources, target = [os.path.abspath(os.fsdecode(file)) for file in files], Path(os.path.abspath(os.fsdecode(out)))
    job = _job(sources, target, order, runs, virtual, attributes, codec)
    check_not_input(sources, [target])
    if overwrite:
        check_not_only_copy(sources, [target])
    if virtual:
        check_fd_limit(target, len(sources))
    workdir = WorkDir(target, overwrite=overwrite)
    keep = False
    try:
        result = workdir.resume_or_start(job)
        if result is None:
            size = 0 if virtual else sum(stamp[0] for stamp in job["stamps"])
            with Preallocation(workdir.data, size):
                result = _run(job | {"folder": str(workdir.path), "plan": False}, sources, target, progress)
            check_unchanged({path: FileStamp(*stamp) for path, stamp in zip(sources, job["stamps"], strict=True)})
            if verified is not None:
                verified(_merged(result, target, len(sources)))
            workdir.commit(result)
        return _merged(result, target, len(sources))
    except _KilledError as error:
        keep = True
        raise WriteError(str(error)) from None
    except InputError:
        raise
    except OSError as error:
        raise WriteError(f"cannot write {target}: {error.strerror}") from error
    except Exception:
        raise
    except BaseException:
        keep = True  # interrupted: the next call resumes
        raise
    finally:
        workdir.leave() if keep else workdir.remove()


def plan_hdf5(
    files: Sequence[str | os.PathLike[str]],
    *,
    order: Order = "exact",
    runs: Sequence[Rows] | None = None,
    virtual: bool = False,
    attributes: Attributes = "same",
    codec: Codec | None = None,
) -> MergedHDF5:
    """Returns what merge_hdf5 would do; writes nothing."""
    sources = [os.path.abspath(os.fsdecode(file)) for file in files]
    target = Path()
    job = _job(sources, target, order, runs, virtual, attributes, codec)
    result = _run(job | {"folder": "", "plan": True}, sources, target, None)
    return _merged(result, target, len(sources))


class _KilledError(Exception):
    """The child was killed from outside."""


def _job(
    sources: list[str],
    target: Path,
    order: str,
    runs: Sequence[Rows] | None,
    virtual: bool,
    attributes: str = "same",
    codec: str | None = None,
) -> dict[str, Any]:
    """Returns everything that identifies a merge."""
    if not sources:
        raise InputError("expected at least one file to merge, got none")
    if order not in ("exact", "any"):
        raise ValueError(f'expected order to be "exact" or "any", got {order!r}')
    if attributes not in ("same", "first", "error"):
        raise ValueError(f'expected attributes to be "same", "first" or "error", got {attributes!r}')
    if codec not in (None, "none", "gzip", "lzf", "zstd"):
        raise ValueError(f'expected codec to be None, "none", "gzip", "lzf" or "zstd", got {codec!r}')
    if codec == "zstd":
        check_zstd()
    stamps = take_stamps(sources)
    check_sources(sources, stamps)
    return {
        "work": "merge",
        "version": _VERSION,
        "files": sources,
        "stamps": stamps,
        "target": str(target),
        "view_from": os.path.realpath(target.parent),
        "order": order,
        "runs": None if runs is None else [list(run) for run in runs],
        "virtual": virtual,
        "attributes": attributes,
        "codec": codec,
    }


def _run(job: dict[str, Any], sources: list[str], target: Path, progress: Progress | None) -> dict[str, Any]:
    at, result = sources[0], None
    with SandboxedProcess(job) as child:
        child.close_stdin()
        for message in child.messages(progress):
            match message.head:
                case {"at": path}:
                    at = path
                case {"result": found}:
                    result = dict(found)
                case {"refused": [kind, path, reason, offset]}:
                    raise _error(kind, path, reason, offset)
                case {"failed": why}:
                    raise WriteError(f"cannot write {target}: {why}; nothing of it was left behind")
        if result is not None:
            return result
        if _KILLED in child.exit_reason:
            raise _KilledError(f"cannot write {target}: its worker process was killed; call it again to resume")
    raise CorruptError(at, None, None, child.exit_reason, "`holdfast verify FILE` says where it is corrupt")


def _error(kind: str, path: str, reason: str, offset: int | None) -> Exception:
    match kind:
        case "schema":
            return SchemaError(f"{path}: {reason}")
        case "corrupt":
            return CorruptError(path, None, offset, reason)
        case "input":
            return InputError(f"{path}: {reason}")
    return WriteError(f"{path}: {reason}")


def _merged(result: dict[str, Any], target: Path, files: int) -> MergedHDF5:
    datasets = [MergedDataset(**one) for one in result["datasets"]]
    return MergedHDF5(**(result | {"datasets": datasets, "path": str(target), "files": files}))


def work_path(target: Path) -> Path:
    return target.with_name(f".{target.name}.merging")


class WorkDir:
    """`data` is the unfinished file. End with `commit`, `remove`, or `leave` to let the next merge resume."""

    def __init__(self, target: Path, *, overwrite: bool) -> None:
        self.target, self.path = target, work_path(target)
        self.data = self.path / DATA
        self._overwrite = overwrite
        # A killed merge may have linked its file already, which is checked under the lock.
        again = overwrite or self._is_linked()
        self._lock = PartialFile(target, overwrite=again)

    def _is_linked(self) -> bool:
        try:
            return os.path.samefile(self.data, self.target)
        except OSError:
            return False

    def resume_or_start(self, job: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the result if a killed merge of the same job had only its cleanup left."""
        with suppress(FileNotFoundError), exclusive(self.path):
            pass  # the child of a killed merge dies with it, but may be within a write
        if _read(self.path / _JOB) == job:
            result = _read(self.path / _RESULT)
            if self._is_linked() and result is not None:
                return result
            (self.path / _RESULT).unlink(missing_ok=True)
        else:
            shutil.rmtree(self.path, ignore_errors=True)
        if not self._overwrite and os.path.lexists(self.target):
            raise TargetExistsError(f"{self.target} exists already; name another file or allow it to be replaced")
        self.path.mkdir(exist_ok=True)
        (self.path / _JOB).write_text(json.dumps(job))
        failpoint("merge-began")
        return None

    def commit(self, result: dict[str, Any]) -> None:
        (self.path / _RESULT).write_text(json.dumps(result))
        failpoint("merge-result")
        try:
            if self._overwrite:
                os.replace(self.data, self.target)
            else:
                link_or_rename(self.data, self.target)
        except OSError as error:
            raise WriteError(f"cannot write {self.target}: {error.strerror}") from error
        sync_name(self.target)
        failpoint("merge-linked")

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        failpoint("merge-cleaned")
        self._lock.discard()

    def leave(self) -> None:
        """Keeps what was done for the next merge."""
        self._lock.discard()


@contextmanager
def exclusive(workdir: Path) -> Iterator[None]:
    """Lets one process at a time work in the directory; the next one waits until the last has ended."""
    fd = os.open(workdir / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def check_fd_limit(target: Path, files: int) -> None:
    """Raises the soft limit for a view, or an error if the hard one is too low.

    A reader of a view has all its sources open; where HDF5 cannot open one, it silently reads fill values.
    """
    wanted = files + count_own() + _SPARE_FDS
    raise_nofile(wanted)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and wanted > soft:
        text = f"reading it needs {wanted:,} open files at once, but the limit is {soft:,}: merge them instead"
        raise WriteError(f"{target}: a view of {files:,} files: {text}")


class Preallocation:
    """Allocates disk blocks in a thread while the child loads the HDF5 library. For speed only: errors are ignored."""

    def __init__(self, path: Path, size: int) -> None:
        self._path, self._size = path, size
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._allocate, name="holdfast-preallocate", daemon=True)

    def _allocate(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError:
            return
        try:
            for at in range(0, self._size, _STEP_BYTES):
                size = min(_STEP_BYTES, self._size - at)
                if self._stop.is_set() or libc.fallocate(fd, _KEEP_SIZE, ctypes.c_long(at), ctypes.c_long(size)):
                    return  # also on a full disk, which the writer will report
        finally:
            os.close(fd)

    def __enter__(self) -> Self:
        if self._size >= _STEP_BYTES:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        if kind is None:
            os.truncate(self._path, os.path.getsize(self._path))  # frees what was allocated after the end
