"""Bytes to a place in a file."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import TargetExistsError, WriteError, WriterBusyError, cannot_open


class FileStamp(NamedTuple):
    """Identifies one version of a file: changes when the file is written to or replaced."""

    size: int
    mtime_ns: int
    device: int
    inode: int

    @classmethod
    def of(cls, file: int | str | os.PathLike[str]) -> FileStamp:
        """Takes the stamp of a path or a descriptor. Raises an InputError if the file cannot be found."""
        try:
            info = os.stat(file)
        except OSError as error:
            raise cannot_open(str(file), error) from error
        return cls(info.st_size, info.st_mtime_ns, info.st_dev, info.st_ino)

    def as_dict(self) -> dict[str, int]:
        """Returns the fields that an index stores. A copy that keeps its times is as good as the original."""
        return {"size": self.size, "mtime_ns": self.mtime_ns}


def pwrite_all(fd: int, data: Any, offset: int) -> None:
    """All of them, however few are taken at a time."""
    view = memoryview(data)
    while view:
        n = os.pwrite(fd, view, offset)
        view, offset = view[n:], offset + n


# Locks of an open file (`F_OFD_SETLK`), on the whole of it.
#
# A lock of a process (`lockf`) is gone as soon as the process closes any descriptor of that file, wherever in its code.
# A lock of an open file goes with that open file alone, and threads exclude each other by it as processes do. A forked
# child shares it: closing there does no harm, unlocking frees the parent's.

# Linux's numbers: Python lacks the names where it was built against an old libc.
_SET = int(getattr(fcntl, "F_OFD_SETLK", 37))
_FLOCK = "hhqqi4x"  # struct flock: type, whence, start, length (0: to the end, wherever that will be), pid (must be 0)
_TAKEN = (errno.EAGAIN, errno.EACCES)

NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def try_lock(fd: int, *, shared: bool) -> bool:
    """True: it has the lock. False: another open file has it. OSError: locks do not work here.

    The descriptor must be open for writing, for a shared lock for reading.
    """
    try:
        fcntl.fcntl(fd, _SET, struct.pack(_FLOCK, fcntl.F_RDLCK if shared else fcntl.F_WRLCK, 0, 0, 0, 0))
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    return True


def unlock(fd: int) -> None:
    """Frees it, also for those who inherited it."""
    fcntl.fcntl(fd, _SET, struct.pack(_FLOCK, fcntl.F_UNLCK, 0, 0, 0, 0))


# Files that appear whole or not at all.
#
# A `PartialFile` is written beside its target as `.NAME.partial`, under an exclusive lock that dies with its process.
# One target has one partial file, so a second writer meets the first one's lock, and a dead writer's leftover is
# taken over.


def partial_path(target: str | os.PathLike[str]) -> Path:
    target = Path(target)
    return target.with_name(f".{target.name}.partial")


def target_of_partial(path: str | os.PathLike[str]) -> Path | None:
    """The file a partial file would have become, if `path` is named like one."""
    path = Path(path)
    if path.name.startswith(".") and path.name.endswith(".partial"):
        return path.with_name(path.name[1 : -len(".partial")])
    return None


def sync_file(path: str | os.PathLike[str]) -> None:
    """Makes what was written to a file survive a power cut, also what was written through other descriptors."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Makes the names in a folder survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_name(target: Path) -> None:
    """Makes a name that was just given survive a power cut. WriteError: the file is there, but may be gone then."""
    try:
        sync_folder(target.parent)
    except OSError as error:
        raise WriteError(f"{target} is there, but may not be on disk for good: {error.strerror}") from error


def close_synced(fd: int) -> None:
    """Closes a descriptor, if it is one, whose file is synced by now or given up: an error of close changes neither.
    Linux closes it all the same, and a second close could be of another file with the same number."""
    if fd >= 0:
        with suppress(OSError):
            os.close(fd)


def link_or_rename(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    shown: str | os.PathLike[str] | None = None,
    dir_fd: int | None = None,
) -> bool:
    """Gives a finished file its name, unless that name is taken: TargetExistsError, which calls the target `shown`.
    Returns whether the file has its old name as well.

    A link fails when the name exists, while a rename would replace what another process put there meanwhile. Only on
    a filesystem without hard links the file is renamed.
    """
    try:
        os.link(source, target, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except FileExistsError:
        text = f"{target if shown is None else shown} appeared while it was being written; it was not touched"
        raise TargetExistsError(text) from None
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        os.rename(source, target, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        return False
    return True


class PartialFile:
    """The unfinished file of one target: `write`, then `commit` or `discard`.

    Holds two descriptors until then, the file's and its folder's: what is needed to finish must not be lacking when
    hours of work are to be given their name, and a relative path must not lead elsewhere after a chdir.
    """

    def __init__(self, target: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        self.target = Path(target)
        self.path = partial_path(target)
        self.overwrite = overwrite
        self.fd = self._folder = -1
        try:
            if not overwrite and os.path.lexists(self.target):
                raise TargetExistsError(f"{self.target} is there already; name another file or allow it to be replaced")
            if self.target.is_dir():
                raise WriteError(f"{self.target} is a folder; expected the name of a file")
            self._folder = os.open(self.target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self.fd = self._open()
        except OSError as error:
            self._close()
            raise WriteError(f"cannot write {self.target}: {error.strerror}") from error
        except BaseException:
            self._close()
            raise

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        while True:
            fd = os.open(self.path.name, flags, 0o666, dir_fd=self._folder)
            try:
                if self._own(fd):
                    return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    def _own(self, fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                text = f"another writer is at work on {self.target} and holds {self.path.name}"
                raise WriterBusyError(text) from None
            raise WriteError(f"cannot lock {self.path}: {error.strerror}") from error
        # Between our open and our lock its owner may have committed it: then the name leads elsewhere by now.
        try:
            here = os.stat(self.path.name, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        mine = os.fstat(fd)
        if (here.st_dev, here.st_ino) != (mine.st_dev, mine.st_ino):
            return False
        if mine.st_nlink > 1:  # its writer was killed between giving it its name and taking this one away
            os.unlink(self.path.name, dir_fd=self._folder)
            return False
        os.ftruncate(fd, 0)
        return True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data).cast("B")
        while view:
            view = view[os.write(self.fd, view) :]

    def commit(self) -> None:
        """fsync, give it its name, fsync the folder. Afterwards it is there, also after a power cut."""
        os.fsync(self.fd)
        self._must_be_mine()
        if self.overwrite:
            os.replace(self.path.name, self.target.name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        else:
            if link_or_rename(self.path.name, self.target.name, shown=self.target, dir_fd=self._folder):
                os.unlink(self.path.name, dir_fd=self._folder)
        os.fsync(self._folder)
        self._close()

    def _must_be_mine(self) -> None:
        """Names are given to names: what is under this one must still be what was written."""
        here, mine = os.stat(self.path.name, dir_fd=self._folder, follow_symlinks=False), os.fstat(self.fd)
        if (here.st_dev, here.st_ino) != (mine.st_dev, mine.st_ino):
            raise WriteError(f"{self.path} was taken away and replaced while {self.target} was being written")

    def discard(self) -> None:
        """Leaves nothing behind. Safe to call twice, and after a failed commit."""
        if self.fd >= 0:
            try:
                self._must_be_mine()
                os.unlink(self.path.name, dir_fd=self._folder)
            except (OSError, WriteError):
                pass  # the folder may be gone or read-only by now; a leftover is taken over by the next writer
            self._close()

    def detach(self) -> None:
        """Lets go of the descriptors, and with them of this process's share in the lock, but touches no file: for a
        forked child, whose parent still writes."""
        self._close()

    def _close(self) -> None:
        fds, self.fd, self._folder = (self.fd, self._folder), -1, -1
        for fd in fds:
            close_synced(fd)


def write_atomically(target: str | os.PathLike[str], data: bytes, *, overwrite: bool = True) -> None:
    """A small file in one go."""
    partial = PartialFile(target, overwrite=overwrite)
    try:
        partial.write(data)
        partial.commit()
    finally:
        partial.discard()


# Several new files that appear together: they are written to a hidden directory beside their final names. A kill leaves
# that directory and no target; the next staging_dir of the same name removes it.


def check_absent(
    folder: Path, names: Sequence[str], hint: str = "name another file or allow it to be replaced"
) -> None:
    for name in names:
        if os.path.lexists(folder / name):
            raise TargetExistsError(f"{folder / name} is there already; {hint}")


@contextmanager
def staging_dir(folder: Path, name: str, *, busy: str) -> Iterator[Path]:
    """Makes the hidden directory `.NAME` in `folder`, under a lock that dies with the process, and removes it at the
    end. Raises a WriterBusyError that begins with `busy` if another process holds the lock."""
    new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(f"cannot make the folder {folder}: {error.strerror}") from error
    try:
        try:
            lock = PartialFile(folder / f"{name}-lock", overwrite=True)
        except WriterBusyError:
            raise WriterBusyError(f"{busy} is at work") from None
        staging = folder / f".{name}"
        try:
            shutil.rmtree(staging, ignore_errors=True)  # of a process that was killed
            try:
                staging.mkdir()
            except OSError as error:
                raise WriteError(f"cannot make the folder {staging} to work in: {error.strerror}") from error
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            lock.discard()
    except BaseException:
        for path in new_folders:
            try:
                path.rmdir()
            except OSError:
                break  # it is not empty: somebody else put something there
        raise


def publish_files(
    staged: Sequence[Path], folder: Path, names: Sequence[str] | None = None, *, overwrite: bool = False
) -> None:
    """Moves synced files into `folder`, by default under their own names. After an error none of them is there, except
    those that replaced another file."""
    names = [path.name for path in staged] if names is None else names
    if not overwrite:
        check_absent(folder, names)
    moved: list[Path] = []
    try:
        for path, name in zip(staged, names, strict=True):
            if overwrite:
                os.replace(path, folder / name)
            else:
                has_both = link_or_rename(path, folder / name)
                moved.append(folder / name)
                if has_both:
                    path.unlink()
        sync_folder(folder)
    except BaseException as error:
        for path in moved:
            path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise WriteError(f"cannot write into {folder}: {error.strerror}") from error
        raise
