"""The face of merging: many HDF5 files in, one out, or a view of them, or what would be done."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ....errors import CorruptError, InputError, SchemaError, WriteError
from ..apart import Apart
from ..place import Place
from .ahead import RoomAhead
from .room import make_room
from .stamps import check_sources, take_stamps
from .workfolder import WorkFolder

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
    folder = WorkFolder(target, _DATA, overwrite=overwrite)
    keep = False
    try:
        result = folder.take_up(job)
        if result is None:
            size = 0 if virtual else sum(stamp[0] for stamp in job["stamps"])
            with RoomAhead(folder.data, size):
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

    def tick(place: Place) -> None:
        nonlocal told
        if progress is not None and place.done_bytes > told:
            progress(place.done_bytes - told)
            told = place.done_bytes

    with Apart(job) as child:
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
