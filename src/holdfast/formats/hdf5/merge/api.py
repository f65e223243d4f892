"""Where a merge works until its file has its name: a hidden folder beside the target, under the target's own lock.

A killed merge leaves it there, and the next one of the same sources goes on with it; one of others begins anew.
"""

from __future__ import annotations

import ctypes
import errno
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

from ...._util.atomic import PartialFile, sync_name
from ...._util.failpoints import failpoint
from ...._util.fds import raise_nofile
from ....errors import CorruptError, InputError, SchemaError, TargetExistsError, WriteError
from ..sandbox import SandboxedProcess, WorkPosition
from .inputs import check_sources, take_stamps

_JOB, _RESULT, _ALIVE = "job.json", "result.json", "alive"
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def work_path(target: Path) -> Path:
    return target.with_name(f".{target.name}.merging")


class WorkDir:
    """`data` is the file to be. Use `commit`, `remove`, or `leave` for the next one to go on."""

    def __init__(self, target: Path, data: str, *, overwrite: bool) -> None:
        self.target, self.path = target, work_path(target)
        self.data = self.path / data
        self._overwrite = overwrite
        # A killed merge may have given its file the name already: that is looked at under the lock.
        again = overwrite or self._is_linked()
        self._lock = PartialFile(target, overwrite=again)

    def _is_linked(self) -> bool:
        try:
            return os.path.samefile(self.data, self.target)
        except OSError:
            return False

    def take_up(self, job: dict[str, Any]) -> dict[str, Any] | None:
        """The result, if a killed merge of the same job had only its tidying left."""
        with suppress(FileNotFoundError), being_alive(self.path):
            pass  # the child of a killed merge dies with it, but it may be in the middle of a write
        if _read(self.path / _JOB) == job:
            result = _read(self.path / _RESULT)
            if self._is_linked() and result is not None:
                return result
            (self.path / _RESULT).unlink(missing_ok=True)
        else:
            shutil.rmtree(self.path, ignore_errors=True)
        if not self._overwrite and os.path.lexists(self.target):
            raise TargetExistsError(f"{self.target} is there already; name another file or allow it to be replaced")
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
                self._link()
        except OSError as error:
            raise WriteError(f"cannot write {self.target}: {error.strerror}") from error
        sync_name(self.target)
        failpoint("merge-linked")

    def _link(self) -> None:
        # link fails when the name is taken; rename would replace what somebody put there meanwhile.
        try:
            os.link(self.data, self.target)
        except FileExistsError:
            raise TargetExistsError(f"{self.target} appeared while it was being written; it was not touched") from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            os.rename(self.data, self.target)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        failpoint("merge-cleaned")
        self._lock.discard()

    def leave(self) -> None:
        """As a kill would: what was done is there for the next one."""
        self._lock.discard()


@contextmanager
def being_alive(folder: Path) -> Iterator[None]:
    """One process at a time works in the folder: who comes next waits for the last to be gone."""
    fd = os.open(folder / _ALIVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
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


# Descriptors for a view: whoever reads all of one has all of its sources open.

_SPARE = 16


def make_room(target: Path, files: int) -> None:
    """HDF5 reads fill values where it cannot open a source, without a word.

    So this process's soft limit is raised for as many; where the hard one is below that, the view is refused.
    """
    wanted = files + len(os.listdir("/proc/self/fd")) + _SPARE
    raise_nofile(wanted)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and wanted > soft:
        text = f"reading it takes {wanted:,} open files at once, the limit is {soft:,}: merge them instead"
        raise WriteError(f"{target}: a view of {files:,} files: {text}")


# Room on the disk for the result, taken while the child still loads the HDF5 library.

_STEP_BYTES = 64 << 20
_KEEP_SIZE = 1  # of <linux/falloc.h>: the file seems as short as before


class Preallocation:
    """A thread for as long as the block lasts. What a filesystem cannot do is left out: this is for speed alone."""

    def __init__(self, path: Path, size: int) -> None:
        self._path, self._size = path, size
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._take, name="holdfast-room", daemon=True)

    def _take(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError:
            return
        try:
            for at in range(0, self._size, _STEP_BYTES):
                size = min(_STEP_BYTES, self._size - at)
                if self._stop.is_set() or libc.fallocate(fd, _KEEP_SIZE, ctypes.c_long(at), ctypes.c_long(size)):
                    return  # a full disk, too: whoever writes finds out
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
            os.truncate(self._path, os.path.getsize(self._path))  # what was taken behind the end is given back


# The face of merging: many HDF5 files in, one out, or a view of them, or what would be done.

Order = Literal["exact", "any"]
Attributes = Literal["same", "first", "error"]
Codec = Literal["none", "gzip", "lzf", "zstd"]
Progress = Callable[[int], None]
Rows = tuple[int, int, int]  # of which source, from, to

_DATA = "data.h5"
_VERSION = 3
_KILLED = f"({signal.Signals.SIGKILL.name})"


class MergedDataset(NamedTuple):
    """`method`: "copy" (chunks as they are), "build" (from rows), "copy and build", "objects" (one by one: strings and
    lists of any length), "view", "nothing" (it has no rows)."""

    dataset: str
    rows: int
    method: str
    copied_bytes: int
    built_bytes: int


@dataclass(frozen=True, slots=True)
class MergedHDF5:
    """What was made; of a plan, what would be.

    rows         None where datasets differ in length
    attributes   those that are not the same in all files, and whether one was kept
    checked      of `chunks`, those that were copied and whose source had a record of its checksum
    unpacked     those that were copied without such a record, and were unpacked to see whether they are intact
    compared     those that were built from rows, and were compared with the rows of their sources
    unchecked    datasets with chunks that neither a record nor their codec has a checksum of
    kept         chunks that an earlier, killed merge had done
    unrecorded   sources without any record of checksums
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
    proven: Callable[[MergedHDF5], None] | None = None,
) -> MergedHDF5:
    """Joins datasets of the same name along their first axis, in a new file that appears when it is whole and proven.

    order     "exact": all rows of the first file, then those of the next. "any": whole chunks first, what is left of
              each file behind them, which spares packing anew; a row of one dataset stays with those of the others
    runs      which rows of which file, in which order, instead; each row once
    virtual   a view: a file that shows the others' rows and holds none of its own
    attributes   what becomes of attributes that are not the same in all files: "same" leaves them out, "first" keeps
              those of the first file that has them, "error" refuses to merge
    codec     how to pack all chunks; None: as most rows are packed, those of other files are packed again
    proven    called when the file is whole, before it gets its name
    """
    sources, target = [os.path.abspath(os.fsdecode(file)) for file in files], Path(os.path.abspath(os.fsdecode(out)))
    job = _job(sources, target, order, runs, virtual, attributes, codec)
    _refuse_own_output(sources, target)
    if virtual:
        make_room(target, len(sources))
    folder = WorkDir(target, _DATA, overwrite=overwrite)
    keep = False
    try:
        result = folder.take_up(job)
        if result is None:
            size = 0 if virtual else sum(stamp[0] for stamp in job["stamps"])
            with Preallocation(folder.data, size):
                result = _run(job | {"folder": str(folder.path), "plan": False}, sources, target, progress)
            if take_stamps(sources) != job["stamps"]:
                raise InputError("a source changed while it was read; nothing was kept. Wait for its writer")
            if proven is not None:
                proven(_merged(result, target, len(sources)))
            folder.commit(result)
        return _merged(result, target, len(sources))
    except _DiedError as error:
        keep = True
        raise WriteError(str(error)) from None
    except InputError:
        raise
    except OSError as error:
        raise WriteError(f"cannot write {target}: {error.strerror}") from error
    except Exception:
        raise
    except BaseException:
        keep = True  # interrupted: what was done is there when it is called again
        raise
    finally:
        folder.leave() if keep else folder.remove()


def plan_hdf5(
    files: Sequence[str | os.PathLike[str]],
    *,
    order: Order = "exact",
    runs: Sequence[Rows] | None = None,
    virtual: bool = False,
    attributes: Attributes = "same",
    codec: Codec | None = None,
) -> MergedHDF5:
    """What merge_hdf5 would do; nothing is written."""
    sources = [os.path.abspath(os.fsdecode(file)) for file in files]
    target = Path()
    job = _job(sources, target, order, runs, virtual, attributes, codec)
    result = _run(job | {"folder": "", "plan": True}, sources, target, None)
    return _merged(result, target, len(sources))


class _DiedError(Exception):
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
    """All that makes two merges the same one."""
    if not sources:
        raise InputError("expected at least one file to merge, got none")
    if order not in ("exact", "any"):
        raise ValueError(f'expected order to be "exact" or "any", got {order!r}')
    if attributes not in ("same", "first", "error"):
        raise ValueError(f'expected attributes to be "same", "first" or "error", got {attributes!r}')
    if codec not in (None, "none", "gzip", "lzf", "zstd"):
        raise ValueError(f'expected codec to be None, "none", "gzip", "lzf" or "zstd", got {codec!r}')
    if codec == "zstd":
        from ..filters import PACKAGE, ZSTD, has_filter

        if not has_filter(ZSTD):
            raise WriteError(f'codec "zstd" needs the Python package {PACKAGE}: pip install {PACKAGE}')
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


def _refuse_own_output(sources: list[str], target: Path) -> None:
    if target.exists() and any(os.path.samefile(source, target) for source in sources):
        raise WriteError(f"{target} is also an input; name another output")


def _run(job: dict[str, Any], sources: list[str], target: Path, progress: Progress | None) -> dict[str, Any]:
    told, at = 0, sources[0]

    def tick(place: WorkPosition) -> None:
        nonlocal told
        if progress is not None and place.done_bytes > told:
            progress(place.done_bytes - told)
            told = place.done_bytes

    with SandboxedProcess(job) as child:
        child.no_more()
        for frame in child.frames(tick):
            match frame.head:
                case {"at": path}:
                    at = path
                case {"result": result}:
                    tick(child.place)
                    return dict(result)
                case {"refused": [kind, path, reason, offset]}:
                    raise _error(kind, path, reason, offset)
                case {"failed": why}:
                    raise WriteError(f"cannot write {target}: {why}; nothing of it was left behind")
        if _KILLED in child.fate:
            raise _DiedError(f"cannot write {target}: the process at work was killed; call it again and it goes on")
    raise CorruptError(at, None, None, child.fate, "`holdfast verify FILE` says where it is damaged")


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
