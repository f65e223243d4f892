"""The files of a folder and all below it, with their sizes, sorted by their paths."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence

from ...errors import InputError
from .problems import MOST_BYTES, check_size
from .shard import FilesShard

# Those torchvision's ImageFolder takes.
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

Found = tuple[bytes, int]  # a path below the folder, and the file's size


def list_files(
    folder: str | os.PathLike[str],
    suffixes: Sequence[str] | None = IMAGE_SUFFIXES,
    classes_from_folder: bool = False,
) -> FilesShard:
    """All files below a folder whose names end so (None: all), in the order of their paths' bytes.

    With `classes_from_folder` the folders right below it are the classes, in the order of their names, as torchvision's
    ImageFolder has it; files beside them are left out. Hidden names are skipped. Links are followed to files in the
    folder, and are errors where they lead out of it; links to folders in it are skipped: their files are there already.
    """
    root = os.fsencode(folder)
    ends = None if suffixes is None else tuple(_suffix(suffix) for suffix in suffixes)
    walk = _Walk(root, ends)
    if not classes_from_folder:
        return _shard(root, sorted(walk.below(b"")), None)
    classes = sorted(walk.folders(b""))
    found: list[Found] = []
    for name in classes:
        some = sorted(walk.below(name + b"/"))
        if not some:
            wanted = "file" if suffixes is None else f"file that ends in {', '.join(suffixes)}"
            raise InputError(f"{os.fsdecode(root)}: the class {os.fsdecode(name)!r} has no {wanted}")
        found += some
    return _shard(root, sorted(found), [os.fsdecode(name) for name in classes])


def _shard(root: bytes, found: list[Found], classes: list[str] | None) -> FilesShard:
    return FilesShard(
        [name for name, _ in found], root=os.fsdecode(root), classes=classes, _sizes=[size for _, size in found]
    )


def _suffix(suffix: object) -> bytes:
    if not isinstance(suffix, str) or not suffix:
        raise TypeError(f"expected suffixes such as '.png', got {suffix!r}")
    return os.fsencode(suffix.lower())


class _Walk:
    """Goes through a folder by scandir, which knows files from folders without asking for each."""

    def __init__(self, root: bytes, ends: tuple[bytes, ...] | None) -> None:
        self._root = root
        self._ends = ends
        self._real = os.path.join(os.path.realpath(root), b"")

    def folders(self, below: bytes) -> list[bytes]:
        return [entry.name for entry in self._entries(below) if entry.is_dir(follow_symlinks=False)]

    def below(self, folder: bytes) -> Iterator[Found]:
        """`folder` ends in a slash, or is nothing."""
        folders, ends = [folder], self._ends
        while folders:
            here = folders.pop()
            for entry in self._entries(here):
                name = entry.name
                if entry.is_file(follow_symlinks=False):
                    if ends is None or name.lower().endswith(ends):
                        size = _stat(entry).st_size
                        if not 0 < size <= MOST_BYTES:
                            check_size(entry.path, stat.S_IFREG, size)
                        yield here + name, size
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(here + name + b"/")
                else:
                    info = self._look(entry)
                    if info is not None:
                        yield here + name, info.st_size

    def _entries(self, folder: bytes) -> list[os.DirEntry[bytes]]:
        path = self._root + b"/" + folder if folder else self._root
        try:
            with os.scandir(path) as entries:
                return [entry for entry in entries if entry.name[0] != ord(".")]
        except OSError as error:
            raise InputError(f"{os.fsdecode(path)}: cannot list the folder: {error.strerror}") from error

    def _look(self, entry: os.DirEntry[bytes]) -> os.stat_result | None:
        """What is neither a file nor a folder: what a link leads to, or an error; None for what is not expected."""
        named = self._ends is None or entry.name.lower().endswith(self._ends)
        try:
            info = entry.stat()
        except OSError as error:
            if not named:
                return None
            raise InputError(f"{os.fsdecode(entry.path)}: the link leads nowhere: {error.strerror}") from error
        is_folder = stat.S_ISDIR(info.st_mode)
        if not named and not is_folder:
            return None
        self._must_stay(entry)
        if is_folder:
            return None
        check_size(entry.path, info.st_mode, info.st_size)
        return info

    def _must_stay(self, entry: os.DirEntry[bytes]) -> None:
        if not (os.path.realpath(entry.path) + b"/").startswith(self._real):
            target = os.fsdecode(os.readlink(entry.path))
            raise InputError(
                f"{os.fsdecode(entry.path)}: the link leads out of {os.fsdecode(self._root)}, to {target}. "
                "Give the files' own folder, or a list of files"
            )


def _stat(entry: os.DirEntry[bytes]) -> os.stat_result:
    try:
        return entry.stat(follow_symlinks=False)
    except OSError as error:
        raise InputError(f"{os.fsdecode(entry.path)}: cannot look at it: {error.strerror}") from error
