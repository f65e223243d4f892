"""The formats, and which one a file is of: by its content and its name. A new format is one line in FORMATS."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from typing import Literal

from ...errors import FormatError, InputError, cannot_open
from .base import Format, GivenSchema, Lazy, Shard
from .hdf5.format import HDF5
from .tar.format import TAR
from .tfrecord.format import COMPRESSED_NAME, TFRECORD

FORMATS: dict[str, Format] = {}  # by name, in the order in which content is compared

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's
SAMPLE_SUFFIXES = (*IMAGE_SUFFIXES, ".gif", ".pbm", ".pnm", ".txt")  # files that are one sample each

_NUMBERED_NAME = re.compile(rf"-\d{{5}}-of-\d{{5}}{COMPRESSED_NAME}", re.IGNORECASE)


def register(new: Format) -> None:
    """Adds a format: all functions and commands know its files from then on."""
    if new.name in FORMATS:
        raise ValueError(f"expected a new format, {new.name!r} is registered already")
    FORMATS[new.name] = new


register(TAR)
register(HDF5)
register(TFRECORD)


def titles(able: str = "") -> str:
    """Names the formats in an error message, those alone that have the function `able`: "TFRecord, HDF5 or tar"."""
    found = [one.title for one in reversed(FORMATS.values()) if not able or getattr(one, able) is not None]
    return " or ".join(filter(None, [", ".join(found[:-1]), *found[-1:]]))


def format_of_name(name: str) -> Format | None:
    """Returns the format that a name has the suffix of; None: the name does not say."""
    return next((one for one in FORMATS.values() if one.has_name(name)), None)


def is_shard_name(name: str) -> bool:
    """Returns whether a name is one of a format. TensorFlow's tools number shards `-00000-of-00010`, often without a
    suffix."""
    return format_of_name(name) is not None or _NUMBERED_NAME.search(name) is not None


def find_format(path: str | os.PathLike[str]) -> Format:
    """Returns the format of a file: by its name, else by its content, else TFRecord.

    Raises a FormatError if the name has the suffix of one format and the content is of another.
    """
    name = os.fsdecode(path)
    fd = _open(name)
    try:
        return _find(name, fd)
    finally:
        os.close(fd)


def format_to_report(path: str) -> Format:
    """Returns the format as find_format does; of a file that cannot be opened, by its name: opening it later reports
    the error."""
    try:
        return find_format(path)
    except InputError:
        return format_of_name(path) or TFRECORD


def format_able(path: str, able: str, hint: str) -> Format:
    """Returns the format of a file. Raises a FormatError with this hint if it lacks the function `able`."""
    kind = format_to_report(path)
    if getattr(kind, able) is None:
        find_format(path)  # raises if it cannot be opened
        raise FormatError(path, None, None, f"expected {titles(able)}, this is {kind.title}", hint)
    return kind


def has_shard_content(path: str) -> bool:
    """Whether the content of a file shows that it is a shard, whatever its name is."""
    try:
        fd = _open(path)
    except InputError:
        return False
    try:
        return _format_of_content(fd, later=True) is not None
    except OSError:
        return False
    finally:
        os.close(fd)


def open_shard(
    path: str | os.PathLike[str],
    schema: GivenSchema | None = None,
    *,
    verify: Literal["all", "header"] = "all",
    allow_external: bool = False,
) -> Shard:
    """Opens a file of any format, compressed or not.

    `schema` names the columns that will be read: an HDF5 file may have datasets that are no columns. `verify` says
    which CRCs of a TFRecord are checked, `allow_external` whether an HDF5 file may have values in other files.
    """
    name = os.fsdecode(path)
    fd = _open(name)
    try:
        kind = _find(name, fd)
        opener: Callable[..., Shard] = kind.open.load() if isinstance(kind.open, Lazy) else kind.open
    except BaseException:  # an import may fail when no descriptor is free
        os.close(fd)
        raise
    return opener(path, schema, verify=verify, allow_external=allow_external, cache=True, fd=fd)


def _open(name: str) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a FIFO would block otherwise
    except OSError as error:
        raise cannot_open(name, error) from error


def _find(name: str, fd: int) -> Format:
    named = format_of_name(name)
    try:
        found = _format_of_content(fd, later=named is None)
    except OSError:
        found = None  # reading it later reports the error
    if named is not None and found is not None and named is not found:
        reason = f"expected {named.title} by its name, its content is {found.title}"
        raise FormatError(name, None, None, reason, "Rename it, or check what wrote it")
    return named or found or TFRECORD


def _format_of_content(fd: int, *, later: bool) -> Format | None:
    """Returns None if the bytes show no format: of a compressed or corrupt file, for example."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return None  # the shard reports that
    head = os.pread(fd, 512, 0)
    for kind in FORMATS.values():
        if kind.is_start(head):
            return kind
    return next((kind for kind in FORMATS.values() if later and kind.is_later is not None and kind.is_later(fd)), None)
