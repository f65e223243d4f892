"""Merges HDF5 files into one, or into a view of them, or says what would be done.

A child process writes to the target's partial file, whose lock both processes hold.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ....._util.atomic import PartialFile, check_not_input, check_unchanged
from ....._util.failpoints import failpoint
from ....._util.fds import raise_nofile
from .....errors import CorruptError, InputError, SchemaError, WriteError, WriterBusyError
from .....procfs.descriptors import count_own
from ...parts_manifest import check_not_only_copy
from ..filters import check_zstd
from ..sandbox import Progress, SandboxedProcess
from .inputs import check_sources

Order = Literal["exact", "any"]
Attributes = Literal["same", "first", "error"]
Codec = Literal["none", "gzip", "lzf", "zstd"]
Rows = tuple[int, int, int]  # source, from, to

_STEP_BYTES = 64 << 20
_ORPHAN_S = 3.0
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE of <linux/falloc.h>
_KILLED = f"({signal.Signals.SIGKILL.name})"
_SPARE_FDS = 16


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
    unpacked     those that were copied without a recorded checksum, and decoded (`verify_sources`)
    compared     those that were built from rows, and compared with the rows of their sources
    unchecked    datasets with chunks that no checksum covered, neither a recorded one nor that of a codec
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
    verify_sources: bool = True,
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
    verify_sources   decode every copied chunk that has no recorded checksum, so that its codec detects corruption;
              False copies a chunk that is corrupt already as it is, and names its dataset
    verified  called when the file is verified, before it gets its name
    """
    target = Path(os.path.abspath(os.fsdecode(out)))
    job = make_job(files, order, runs, virtual, attributes, codec, verify_sources)
    check_not_input(job["files"], [target])
    if overwrite:
        check_not_only_copy(job["files"], [target])
    stamps = check_sources(job["files"])
    if virtual:
        check_fd_limit(target, len(stamps))
    partial = _partial_file(target, overwrite)
    try:
        failpoint("merge-began")
        place = {"view_from": os.path.realpath(target.parent), "data": str(partial.path), "fd": partial.fd}
        with _preallocated(partial.fd, 0 if virtual else sum(stamp.size for stamp in stamps.values())):
            made = _run(job | place, target, progress)
        check_unchanged(stamps)
        if verified is not None:
            verified(made)
        failpoint("merge-result")
        partial.commit()
        failpoint("merge-linked")
        return made
    except OSError as error:
        if isinstance(error, InputError):
            raise
        raise WriteError(f"cannot write {target}: {error.strerror}") from error
    finally:
        partial.discard()


def _partial_file(target: Path, overwrite: bool) -> PartialFile:
    """Waits for the child of a merge that was killed: it ends soon after its parent, and has the lock until then."""
    until = time.monotonic() + _ORPHAN_S
    while True:
        try:
            return PartialFile(target, overwrite=overwrite)
        except WriterBusyError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.02)


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
    job = make_job(files, order, runs, virtual, attributes, codec)
    check_sources(job["files"])
    return _run(job | {"fd": None}, Path(), None)


def make_job(
    files: Sequence[str | os.PathLike[str]],
    order: str,
    runs: Sequence[Rows] | None,
    virtual: bool,
    attributes: str = "same",
    codec: str | None = None,
    verify_sources: bool = True,
) -> dict[str, Any]:
    if not files:
        raise InputError("expected at least one file to merge, got none")
    for name, value, allowed in (
        ("order", order, ("exact", "any")),
        ("attributes", attributes, ("same", "first", "error")),
        ("codec", codec, (None, "none", "gzip", "lzf", "zstd")),
    ):
        if value not in allowed:
            raise ValueError(f"expected {name} to be one of {allowed}, got {value!r}")
    if codec == "zstd":
        check_zstd()
    return {
        "work": "merge",
        "files": [os.path.abspath(os.fsdecode(file)) for file in files],
        "order": order,
        "runs": None if runs is None else [list(run) for run in runs],
        "virtual": virtual,
        "attributes": attributes,
        "codec": codec,
        "verify_sources": verify_sources,
    }


def _run(job: dict[str, Any], target: Path, progress: Progress | None) -> MergedHDF5:
    at, made = job["files"][0], None
    with SandboxedProcess(job, fds=[] if job["fd"] is None else [job["fd"]]) as child:
        child.close_stdin()
        for message in child.messages(progress):
            match message.head:
                case {"at": path}:
                    at = path
                case {"result": found}:
                    made = merged(found, target, len(job["files"]))
                case {"refused": [kind, path, reason, offset]}:
                    raise refusal(kind, path or str(target), reason, offset)
                case {"failed": why}:
                    raise WriteError(f"cannot write {target}: {why}; nothing of it was left behind")
    if made is not None:
        return made
    if _KILLED in child.exit_reason:
        raise WriteError(f"cannot write {target}: its worker process was killed; nothing of it was left behind")
    raise CorruptError(at, None, None, child.exit_reason, "`holdfast verify FILE` says where it is corrupt")


def refusal(kind: str, path: str, reason: str, offset: int | None) -> Exception:
    if kind == "corrupt":
        return CorruptError(path, None, offset, reason)
    return {"schema": SchemaError, "input": InputError}.get(kind, WriteError)(f"{path}: {reason}")


def merged(result: dict[str, Any], target: Path, files: int) -> MergedHDF5:
    datasets = [MergedDataset(**one) for one in result["datasets"]]
    return MergedHDF5(**(result | {"datasets": datasets, "path": str(target), "files": files}))


@contextmanager
def _preallocated(fd: int, size: int) -> Iterator[None]:
    """Allocates the space of a file in a thread while the child loads HDF5, which would be half of the time of a copy.
    For speed only: the writer reports a full disk."""
    stop, allocate = threading.Event(), ctypes.CDLL(None).fallocate

    def work() -> None:
        for at in range(0, size, _STEP_BYTES):
            if stop.is_set() or allocate(fd, _KEEP_SIZE, *map(ctypes.c_long, (at, min(_STEP_BYTES, size - at)))):
                return

    thread = threading.Thread(target=work, name="holdfast-preallocate", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        os.ftruncate(fd, os.fstat(fd).st_size)  # frees what was allocated after the end


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
