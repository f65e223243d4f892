"""New files of one folder that appear together, when all of them are whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..._base.atomic import PartialFile, sync_folder
from ...errors import TargetExistsError, WriteError, WriterBusyError
from .manifest import MANIFEST_NAME, FileEntry, read_manifest, write_manifest


def refuse_present(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        if os.path.lexists(folder / name):
            raise TargetExistsError(f"{folder / name} is there already; remove it, or choose another folder or name")
    if (folder / MANIFEST_NAME).exists():
        read_manifest(folder / MANIFEST_NAME)  # one that cannot be added to is better found now


@contextmanager
def staging_folder(folder: Path, stem: str) -> Iterator[Path]:
    """A hidden folder in the one the parts are for. It goes in any case, with all that was not moved out."""
    new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(f"cannot make the folder {folder}: {error.strerror}") from error
    try:
        with _only_one(folder, stem):
            staging = folder / f".{stem}.split"
            shutil.rmtree(staging, ignore_errors=True)  # of one that was killed
            staging.mkdir()
            try:
                yield staging
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    except BaseException:
        for path in new_folders:
            try:
                path.rmdir()
            except OSError:
                break  # somebody put something there
        raise


@contextmanager
def _only_one(folder: Path, stem: str) -> Iterator[None]:
    """A lock that dies with its process: one split of a name into a folder at a time."""
    try:
        lock = PartialFile(folder / f"{stem}.split", overwrite=True)
    except WriterBusyError:
        raise WriterBusyError(f"another split into {folder} under the name {stem} is at work") from None
    try:
        yield
    finally:
        lock.discard()


def publish(entries: Sequence[FileEntry], folder: Path) -> list[FileEntry]:
    """Gives finished parts their names, and the manifest its lines."""
    finished = [entry._replace(path=str(folder / os.path.basename(entry.path))) for entry in entries]
    refuse_present(folder, [os.path.basename(entry.path) for entry in entries])
    moved: list[str] = []
    try:
        for staged, entry in zip(entries, finished, strict=True):
            moved.append(entry.path)
            os.rename(staged.path, entry.path)
        sync_folder(folder)
        write_manifest(folder, finished)
    except BaseException as error:
        for path in moved:
            Path(path).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise WriteError(f"cannot write into {folder}: {error.strerror}") from error
        raise
    return finished
