"""Defines hold.salvage: copies what is intact in corrupt files to new ones, or puts it in their place."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ..._native.checksum import crc32c_of_file
from ..._util.atomic import FileStamp, check_not_input, replace_keeping
from ..._util.progress import Progress, scaled
from ..._util.text import counted
from ...errors import CorruptError, FormatError, HoldfastError, WriteError
from ...procfs.locks import writers_of
from ..formats.base import FileEntry, Problem
from ..formats.registry import format_of_name, format_to_report, titles
from ..formats.sections import SalvageReport
from ..formats.tfrecord.manifest import renew_in_manifest
from ..inputs import Given, expand_below, is_run
from .parallel_files import check_out, for_each_file
from .verify import verify_alone


@dataclass(frozen=True, slots=True)
class SalvagedFile:
    """What became of one file.

    Attributes:
        target: The file to write.
        out: The same if it was written, else None.
        backup: The name of the corrupt file that was replaced.
        error: Why nothing could be salvaged; None: `found` says what was.
    """

    __module__ = "holdfast"

    path: str
    target: str
    out: str | None
    backup: str | None = None
    error: HoldfastError | OSError | None = None
    found: SalvageReport | None = field(default=None, repr=False)  # as its format made it

    @property
    def problems(self) -> list[Problem]:
        return [] if self.found is None else list(self.found.problems)

    def as_dict(self) -> dict[str, object]:
        """Returns what `holdfast salvage --json` prints of the file."""
        facts = {"path": self.path, "out": self.out, "backup": self.backup, "problem": _reason(self.error)}
        return {**facts, **({} if self.found is None else self.found.as_dict())}


@dataclass(frozen=True, slots=True)
class Salvaged:
    """The result of hold.salvage. `to_file`: there was one file, and `out` was not a directory."""

    __module__ = "holdfast"

    files: list[SalvagedFile]
    to_file: bool = False

    def as_dict(self) -> dict[str, object]:
        """Returns what `holdfast salvage --json` prints."""
        if self.to_file:
            found = self.files[0].found
            assert found is not None
            return found.as_dict()
        return {"files": [one.as_dict() for one in self.files]}


def _reason(error: HoldfastError | OSError | None) -> str | None:
    if not isinstance(error, OSError) or isinstance(error, HoldfastError):
        return None if error is None else str(error)
    text = error.strerror or str(error)
    return text if error.filename is None else f"{os.fsdecode(error.filename)}: {text}"


def salvage(
    paths: Given | Iterable[Given],
    out: str | os.PathLike[str] | None = None,
    *,
    in_place: bool = False,
    only_corrupt: bool = False,
    keep_doubtful: bool = False,
    live: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Salvaged:
    """Copies everything intact of TFRecord and HDF5 files to new ones, as `holdfast salvage` does. The files themselves
    are not changed unless `in_place`. A file that cannot be salvaged raises an error; one of several is reported.

    Args:
        paths: A path, a glob, a folder, or a list of them.
        out: The file to write; for several, an existing directory, or a name that ends with / to create it.
        in_place: Replace each corrupt file, and keep it as FILE.corrupt; without `out`.
        only_corrupt: Verify each file first, and leave out intact ones.
        keep_doubtful: Of TFRecord, keep records that may be data of a corrupt one.
        live: Accept an HDF5 file that another process is writing.
        overwrite: Replace existing files in `out`.
        progress: Called with numbers of bytes, which add up to at most the size of the files.
    """
    if in_place and (overwrite or live):
        text = f"expected in_place= without {'overwrite=' if overwrite else 'live='}"
        raise ValueError(f"{text}: it keeps what it replaces")
    if in_place == (out is not None):
        raise ValueError("expected either out= or in_place=")
    names = inputs = expand_below(paths)
    target = "" if out is None else check_out(out)
    is_folder = target.endswith(os.sep) or os.path.isdir(target)
    tick = progress
    if only_corrupt or in_place:
        tick = scaled(progress, 1 / 2)
        reports = for_each_file(_verify, list(names), None, tick)
        names = {report.path: names[report.path] for report in reports if not report.ok}
        if not names:
            return Salvaged([])
    work = partial(_salvage, overwrite=overwrite, keep_doubtful=keep_doubtful, live=live, progress=tick)
    if in_place:
        return Salvaged([_reported(partial(_replace, work), path, path) for path in names])
    if is_folder:
        targets = _targets(names, target)
        check_not_input(inputs, targets.values())  # of any file: also of one that is salvaged later, or is intact
        return Salvaged([_reported(work, path, name) for path, name in targets.items()])
    if len(names) > 1:
        files = counted(len(names), "file")
        raise ValueError(f"expected a directory as OUT for {files}, got {target!r}; end it with / to create it")
    [path] = names
    return Salvaged([work(path, target)], to_file=True)


def _verify(file: str, /, *, progress: Progress | None) -> Any:
    return verify_alone(file, progress)


def _reported(work: Callable[[str, str], SalvagedFile], path: str, out: str) -> SalvagedFile:
    try:
        os.makedirs(os.path.dirname(out) or ".", exist_ok=True)
        return work(path, out)
    except (HoldfastError, OSError) as error:
        return SalvagedFile(path, out, None, error=error)


def _salvage(path: str, out: str, *, like_input: bool = False, **options: Any) -> SalvagedFile:
    kind = format_to_report(path)
    if kind.salvage is None:
        hint = f"Copy it again: a {kind.title} has no checksums that would tell what is intact"
        raise FormatError(path, None, None, f"expected {titles('salvage')} to salvage, this is a {kind.title}", hint)
    named = format_of_name(out)
    if named is not None and named is not kind:
        better = f"{os.path.basename(out).partition('.')[0]}{kind.written[0]}"
        raise ValueError(f"{out!r} is a name for {named.title}, {path} is {kind.title}: name it {better}")
    found = kind.salvage(path, out, like_input=like_input, **options)
    return SalvagedFile(path, out, None if found.is_empty else out, found=found)


def _targets(names: dict[str, str], folder: str) -> dict[str, str]:
    """Returns the target of each file: its path in the folder."""
    sources: dict[str, str] = {}
    for path, name in names.items():
        other = sources.setdefault(os.path.normpath(os.path.join(folder, name)), path)
        if other != path:
            raise ValueError(f"{other} and {path} have the same name: salvage them to two directories")
    return {path: os.path.join(folder, name) for path, name in names.items()}


# ---- in place


def _replace(salvage: Callable[..., SalvagedFile], file: str, _: str) -> SalvagedFile:
    target = Path(file)
    stamp = FileStamp.of(file)
    _check_replaceable(target)
    new = target.with_name(f".{target.name}.salvaged")  # hidden, so never data; a later run replaces one that is left
    try:
        done = salvage(file, str(new), overwrite=True, like_input=True)
        if not done.problems:
            reason = "what is in the file is intact, so it was not touched; `holdfast verify` says what is missing"
            raise CorruptError(file, None, None, reason)
        if done.out is None:
            return SalvagedFile(file, file, None, found=done.found)
        _copy_owner(target, new)

        records = getattr(done.found, "records_kept", 0)

        def renew() -> None:  # before it is replaced: a kill leaves a file that verify calls corrupt
            if format_to_report(file).has_manifest:
                with open(new, "rb") as opened:
                    crc, size = crc32c_of_file(opened.fileno())
                renew_in_manifest(FileEntry(file, records, size, crc))

        return SalvagedFile(file, file, file, str(replace_keeping(new, target, stamp, renew)), found=done.found)
    finally:
        new.unlink(missing_ok=True)


def _check_replaceable(target: Path) -> None:
    folder = target.absolute().parent
    if target.is_symlink():
        raise WriteError(f"{target}: expected a file to replace, this is a link; give {target.resolve()}")
    if folder.name == "parts" and is_run(str(folder.parent)):
        raise WriteError(f"{target}: {folder.parent.name} records the checksums of its parts; salvage it to a new file")
    if writers := writers_of(target):
        who = f"process {writers[0].pid} ({writers[0].command})"
        raise WriteError(f"{target}: {who} has it open for writing; wait until it is closed")
    info = target.lstat()
    beside = target.parent.glob(f"{glob.escape(target.name)}.corrupt*")
    backups = sum(os.path.samestat(one.lstat(), info) for one in beside)  # left by a run that was killed
    if others := info.st_nlink - 1 - backups:
        reason = f"it has {counted(others, 'other hard link')}, which would keep the corrupt data"
        raise WriteError(f"{target}: {reason}; salvage it to a new file")


def _copy_owner(old: Path, new: Path) -> None:
    info = old.stat()
    with suppress(OSError):  # only root may give a file away
        os.chown(new, info.st_uid, info.st_gid)
    os.chmod(new, stat.S_IMODE(info.st_mode))
