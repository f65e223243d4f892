"""Writes files atomically: under a hidden name and a lock, then fsync, then link or rename.

A `PartialFile` is written beside its target as `.NAME.partial`, under an exclusive lock that the kernel releases when
the process ends. A target has one partial file: a second writer finds it locked, and that of a dead writer is reused.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError, TargetExistsError, WriteError, WriterBusyError, cannot_open

_MAX_NAME_BYTES = 255  # of a file name on Linux


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
        """Returns what a copy that keeps its times has in common with the original."""
        return {"size": self.size, "mtime_ns": self.mtime_ns}


def cache_key(fd: int) -> dict[str, int]:
    """Identifies one version of an open file on this machine, for what is cached about it.

    Nix, Bazel and `tar --mtime` give a rebuilt file the size and mtime of the one before. Nobody sets inode and ctime;
    but ctime also changes with a mode or a hard link, so a FileStamp has none.
    """
    info = os.fstat(fd)
    return {
        "size": info.st_size,
        "mtime_ns": info.st_mtime_ns,
        "inode": info.st_ino,
        "ctime_ns": info.st_ctime_ns,
    }


def check_unchanged(stamps: Mapping[str, FileStamp]) -> None:
    """Raises an InputError if an input file, given by its path, has another stamp than before it was read."""
    for path, stamp in stamps.items():
        if FileStamp.of(path) != stamp:
            raise InputError(f"{path}: it changed while it was read; nothing was kept. Wait for its writer")


def check_not_input(inputs: Iterable[str | os.PathLike[str]], outputs: Iterable[str | os.PathLike[str]]) -> None:
    """Raises a WriteError if an output is one of the inputs, or a link to one."""
    existing = [output for output in outputs if os.path.exists(output)]
    inodes = {FileStamp.of(path)[2:] for path in inputs} if existing else set()
    for output in existing:
        if FileStamp.of(output)[2:] in inodes:
            raise WriteError(f"{os.fspath(output)} is also an input; name another output")


def is_still(path: str | os.PathLike[str], fd: int, *, dir_fd: int | None = None) -> bool:
    """Returns whether a path is still the open file: somebody may have deleted or replaced it meanwhile."""
    try:
        here = os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(here, os.fstat(fd))


def pwrite_all(fd: int, data: Any, offset: int) -> None:
    """Writes all of `data` at `offset`, in as many calls as it takes."""
    view = memoryview(data)
    while view:
        n = os.pwrite(fd, view, offset)
        view, offset = view[n:], offset + n


def pread_into(fd: int, view: memoryview, offset: int) -> int:
    """Fills the view from `offset` on and returns how many bytes there were: fewer only at the end of the file."""
    done = 0
    while done < len(view) and (n := os.preadv(fd, [view[done:]], offset + done)):
        done += n
    return done


# ---- locks of an open file description (`F_OFD_SETLK`), over all its bytes
#
# The kernel drops a POSIX lock of a process (`lockf`) when the process closes any descriptor of that file. An OFD lock
# lasts as long as its own open file description, and excludes threads as well as processes. A forked child shares it:
# closing the descriptor there does not release the lock, but unlocking there releases the parent's.

# Python lacks these names where it was built against an old libc; the numbers are Linux's.
_SET = int(getattr(fcntl, "F_OFD_SETLK", 37))
_FLOCK = "hhqqi4x"  # struct flock: type, whence, start, length (0: to the end, wherever that will be), pid (must be 0)
_TAKEN = (errno.EAGAIN, errno.EACCES)

NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def try_lock(fd: int, *, shared: bool) -> bool:
    """Returns whether the lock was taken; False if another open file holds it. OSError: this filesystem has no locks.

    An exclusive lock needs a descriptor open for writing, a shared lock one open for reading.
    """
    try:
        fcntl.fcntl(fd, _SET, struct.pack(_FLOCK, fcntl.F_RDLCK if shared else fcntl.F_WRLCK, 0, 0, 0, 0))
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    return True


def unlock(fd: int) -> None:
    """Releases the lock, also in processes that inherited it."""
    fcntl.fcntl(fd, _SET, struct.pack(_FLOCK, fcntl.F_UNLCK, 0, 0, 0, 0))


# ---- one file that appears complete or not at all


def check_replaceable(target: Path) -> None:
    """Raises a WriteError for a name that a new file must not take over: a folder, a device, a pipe or a socket."""
    if target.is_dir():
        raise WriteError(f"{target} is a folder; expected the name of a file")
    # /dev/stdout is a link to /proc, which may lead to a regular file.
    is_stream = target.is_symlink() and os.readlink(target).startswith("/proc/")
    if is_stream or (target.exists() and not target.is_file()):
        raise WriteError(f"{target} is a device, a pipe or a socket; expected the name of a file")


def partial_path(target: str | os.PathLike[str]) -> Path:
    target = Path(target)
    name = os.fsencode(target.name)
    if _MAX_NAME_BYTES - len("..partial") < len(name) <= _MAX_NAME_BYTES:  # the system refuses a longer one at once
        digest = hashlib.sha256(name).hexdigest()[:16]
        name = name[: _MAX_NAME_BYTES - len("..partial") - len(digest)] + digest.encode()
    return target.with_name(f".{os.fsdecode(name)}.partial")


def target_of_partial(path: str | os.PathLike[str]) -> Path | None:
    """Returns the target of a partial file, or None if `path` is not named like one. A very long name is shortened."""
    path = Path(path)
    if path.name.startswith(".") and path.name.endswith(".partial"):
        return path.with_name(path.name[1 : -len(".partial")])
    return None


def sync_file(path: str | os.PathLike[str]) -> None:
    """Syncs a file to disk, also what was written through other descriptors."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Syncs the names in a folder to disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path) -> list[Path]:
    """Makes a folder and its missing parents, and syncs their names to disk. Returns the new ones, the lowest first."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in reversed(new):
        sync_folder(path.parent)
    return new


def _not_durable(target: Path, error: OSError) -> WriteError:
    return WriteError(f"{target} exists, but may not be durable: {error.strerror}")


def close_synced(fd: int) -> None:
    """Closes a descriptor of a file that is synced or discarded; -1 is ignored.

    An error is ignored too: Linux closes the descriptor anyway, and a second close could hit another file.
    """
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
    """Gives a finished file its name. TargetExistsError, which calls the target `shown`: that name is taken.
    Returns whether the file still has its old name as well.

    A link fails when the name exists, while a rename would replace what another process created meanwhile. So the file
    is renamed only on a filesystem without hard links.
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

    It keeps the descriptors of the file and its folder until then: a commit after hours of work must not fail for want
    of a descriptor, and a relative path must not point elsewhere after a chdir.
    """

    def __init__(self, target: str | os.PathLike[str], *, overwrite: bool = False, private: bool = False) -> None:
        self.private = private
        self.target = Path(target)
        self.path = partial_path(target)
        self.overwrite = overwrite
        self.fd = self._folder = -1
        try:
            if not overwrite and os.path.lexists(self.target):
                raise TargetExistsError(f"{self.target} exists already; name another file or allow it to be replaced")
            check_replaceable(self.target)
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
                text = f"another writer has {self.target} open and holds the lock on {self.path.name}"
                raise WriterBusyError(text) from None
            raise WriteError(f"cannot lock {self.path}: {error.strerror}") from error
        # Its owner may have committed it between our open and our lock: then the name is free, or another file's.
        if not is_still(self.path.name, fd, dir_fd=self._folder):
            return False
        if os.fstat(fd).st_nlink > 1:  # its writer was killed between the link to the target and this unlink
            os.unlink(self.path.name, dir_fd=self._folder)
            return False
        if self.private:
            if os.fstat(fd).st_uid != os.geteuid():  # another user made it, to read what is written
                os.unlink(self.path.name, dir_fd=self._folder)
                return False
            os.fchmod(fd, 0o600)
        os.ftruncate(fd, 0)
        return True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data).cast("B")
        while view:
            view = view[os.write(self.fd, view) :]

    def commit(self) -> None:
        """Syncs the file, gives it its name and syncs the folder. From then on it survives a power cut."""
        os.fsync(self.fd)
        self._must_be_mine()
        if self.overwrite:
            os.replace(self.path.name, self.target.name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        else:
            if link_or_rename(self.path.name, self.target.name, shown=self.target, dir_fd=self._folder):
                os.unlink(self.path.name, dir_fd=self._folder)
        try:
            os.fsync(self._folder)
        except OSError as error:
            raise _not_durable(self.target, error) from error
        self._close()

    def _must_be_mine(self) -> None:
        """Checks that the partial name is still that of this file, because link and rename go by the name."""
        here = os.stat(self.path.name, dir_fd=self._folder, follow_symlinks=False)
        if not os.path.samestat(here, os.fstat(self.fd)):
            raise WriteError(f"another process replaced {self.path} while {self.target} was being written")

    def discard(self) -> None:
        """Removes the partial file. It may be called twice, and after a failed commit."""
        if self.fd >= 0:
            try:
                self._must_be_mine()
                os.unlink(self.path.name, dir_fd=self._folder)
            except (OSError, WriteError):
                pass  # the folder may be gone or read-only by now; the next writer reuses a leftover
            self._close()

    def detach(self) -> None:
        """Closes the descriptors without removing the file: for a forked child, whose parent still writes."""
        self._close()

    def _close(self) -> None:
        fds, self.fd, self._folder = (self.fd, self._folder), -1, -1
        for fd in fds:
            close_synced(fd)


def replace_keeping(new: Path, target: Path, stamp: FileStamp, before: Callable[[], None]) -> Path:
    """Replaces `target`, of which `stamp` was taken, by a synced file beside it, and returns its backup.

    `before` is called when the backup is made, and `target` not yet replaced.

    That is NAME.corrupt, or NAME.corrupt.1 and so on if the name is taken. A kill leaves the old file or both, also
    where it comes between the two steps: then the old file has both names, and the next call uses that backup.
    """
    for number in count():
        backup = target.with_name(f"{target.name}.corrupt{f'.{number}' * (number > 0)}")
        if FileStamp.of(target) != stamp:
            raise WriteError(f"{target} changed while its replacement was being written; it was not touched")
        try:
            os.link(target, backup)
        except FileExistsError:
            if not os.path.lexists(backup) or not os.path.samestat(os.lstat(backup), os.stat(target)):
                continue
        except OSError as error:
            raise WriteError(f"cannot make the backup {backup}: {error.strerror}; {target} was not touched") from error
        break
    sync_folder(target.parent)  # the backup is durable before the target is replaced
    before()
    os.replace(new, target)
    try:
        sync_folder(target.parent)
    except OSError as error:
        raise _not_durable(target, error) from error
    return backup


def write_atomically(target: str | os.PathLike[str], data: bytes, *, private: bool = False) -> None:
    """Writes, or replaces, a small file with one call. Only its owner can read a `private` one (mode 0600)."""
    partial = PartialFile(target, overwrite=True, private=private)
    try:
        partial.write(data)
        partial.commit()
    finally:
        partial.discard()


# ---- several new files that appear together
#
# They are written to a hidden directory beside their final names. A kill leaves that directory and no target; the next
# staging_dir of the same name removes it.


def check_absent(
    folder: Path, names: Sequence[str], hint: str = "name another file or allow it to be replaced"
) -> None:
    for name in names:
        if os.path.lexists(folder / name):
            raise TargetExistsError(f"{folder / name} exists already; {hint}")


@contextmanager
def staging_dir(folder: Path, name: str, *, busy: str) -> Iterator[Path]:
    """Makes the hidden directory `.NAME` in `folder`, under a lock that ends with the process, and removes it at the
    end. Raises a WriterBusyError that begins with `busy` if another process holds the lock."""
    try:
        new_folders = make_folder(folder)
    except OSError as error:
        raise WriteError(f"cannot make the folder {folder}: {error.strerror}") from error
    try:
        try:
            lock = PartialFile(folder / f"{name}-lock", overwrite=True)
        except WriterBusyError:
            raise WriterBusyError(f"{busy} is running; wait until it ends, or stop it") from None
        staging = folder / f".{name}"
        try:
            shutil.rmtree(staging, ignore_errors=True)  # left by a process that was killed
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
                break  # it is not empty: another process created something there
        raise


def publish_files(
    staged: Sequence[Path],
    folder: Path,
    names: Sequence[str],
    *,
    overwrite: bool = False,
    then: Callable[[], object] | None = None,
) -> None:
    """Moves synced files into `folder`, and calls `then`. After an error, also of `then`, none of them is there, except
    those that replaced another file."""
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
        if then is not None:
            then()
    except BaseException as error:
        for path in moved:
            path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise WriteError(f"cannot write into {folder}: {error.strerror}") from error
        raise
