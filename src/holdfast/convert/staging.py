"""New files that appear together, when all of them are whole.

They are made in a hidden folder beside their names-to-be. A kill leaves that folder and no target; the next to convert
to the same name takes it away.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .._base.atomic import PartialFile, sync_folder
from ..errors import DataError, SchemaError, TargetExistsError, WriteError, WriterBusyError

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def refuse_present(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        if os.path.lexists(folder / name):
            raise TargetExistsError(f"{folder / name} is there already; name another file or allow it to be replaced")


def refuse_others(folder: Path, names: Sequence[str], is_shard: Callable[[str], bool]) -> None:
    """Shards of another number of them: who reads the folder would get every sample twice."""
    others = sorted(set(filter(is_shard, os.listdir(folder))) - set(names)) if folder.is_dir() else []
    if others:
        text = f"{folder / others[0]} is of another number of shards: with {len(names):,} more beside it, samples would"
        raise TargetExistsError(f"{text} be read twice. Take it away first, or name another file")


@contextmanager
def staging_folder(folder: Path, name: str) -> Iterator[Path]:
    """One for each name: a second process that wants the same is refused. It goes in any case."""
    new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(f"cannot make the folder {folder}: {error.strerror}") from error
    try:
        with _only_one(folder, name):
            staging = folder / f".{name}.convert"
            shutil.rmtree(staging, ignore_errors=True)  # of one that was killed
            try:
                staging.mkdir()
            except OSError as error:
                raise WriteError(f"cannot make the folder {staging} to work in: {error.strerror}") from error
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
def naming(staging: Path, target: Path) -> Iterator[None]:
    """Errors name what a staged file is to be, not where it is made."""
    try:
        yield
    except DataError as error:
        path = _renamed(error.path, staging, target)
        raise type(error)(path, error.record, error.offset, error.reason, error.hint) from error
    except (SchemaError, WriteError) as error:
        raise type(error)(_renamed(str(error), staging, target)) from error


def _renamed(text: str, staging: Path, target: Path) -> str:
    return re.sub(rf"{re.escape(str(staging))}/[^ :,]+", lambda _: str(target), text)


@contextmanager
def _only_one(folder: Path, name: str) -> Iterator[None]:
    """A lock that dies with its process."""
    try:
        lock = PartialFile(folder / f"{name}.convert-lock", overwrite=True)
    except WriterBusyError:
        raise WriterBusyError(f"another conversion to {folder / name} is at work") from None
    try:
        yield
    finally:
        lock.discard()


def publish(staged: Sequence[Path], folder: Path, names: Sequence[str], *, overwrite: bool) -> None:
    """Gives synced files their names. An error: none of them has one, but for those that were replaced."""
    if not overwrite:
        refuse_present(folder, names)
    linked: list[Path] = []
    try:
        for path, name in zip(staged, names, strict=True):
            if overwrite:
                os.replace(path, folder / name)
            else:
                _link(path, folder / name)
                linked.append(folder / name)
        sync_folder(folder)
    except BaseException as error:
        for path in linked:
            path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise WriteError(f"cannot write into {folder}: {error.strerror}") from error
        raise


def _link(path: Path, target: Path) -> None:
    try:
        os.link(path, target)  # fails when the name is taken; rename would replace what somebody put there meanwhile
    except FileExistsError:
        raise TargetExistsError(f"{target} appeared while it was being written; it was not touched") from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.rename(path, target)
