"""Describes what is wrong with a TFRecord file: corrupt, unfinished, or not a TFRecord at all."""

from __future__ import annotations

import os
import shlex

from ...._native import codec
from ...._util.atomic import target_of_partial
from ....errors import CorruptError, DataError, FormatError, InputError, UnfinishedError
from ....procfs.locks import writers_of
from .manifest import find_manifest
from .source import RecordSource, describe_magic

BAD_LENGTH = "bad length CRC"
BAD_DATA = "bad data CRC"
TRUNCATED = "truncated"

_SEARCH_BYTES = 1 << 20


def describe(status: int, needed: int, left: int) -> str:
    """Describes why a scan of frames stopped, with `left` bytes from there to the end of the file."""
    if status == codec.BAD_LENGTH_CRC:
        return BAD_LENGTH
    if status == codec.BAD_DATA_CRC:
        return BAD_DATA
    if left < codec.HEADER_BYTES:
        return f"{TRUNCATED}: the file ends inside a record's header, after {left} of {codec.HEADER_BYTES} bytes"
    return f"{TRUNCATED}: the record needs {needed:,} bytes, the file ends after {left:,}"


def error_for(source: RecordSource, record: int, offset: int, reason: str) -> DataError:
    """Returns the error for a corrupt place: corrupt, unfinished or not a TFRecord, with the next step."""
    path = source.path
    if reason.startswith(TRUNCATED):
        unfinished = _why_unfinished(path)
        if unfinished:
            return UnfinishedError(path, record, offset, f"{reason}; {unfinished[0]}", unfinished[1])
    if reason == BAD_LENGTH and offset == 0:
        foreign = _describe_foreign(source)
        if foreign is not None:
            return FormatError(path, record, offset, foreign, "Check it with `file`, and check what wrote it")
    hint = f"The file is corrupt: `holdfast salvage {shlex.quote(path)} OUT` copies the intact records"
    return CorruptError(path, record, offset, reason, hint)


def _why_unfinished(path: str) -> tuple[str, str] | None:
    """Returns why a truncated file may only be unfinished, and what to do; None if nothing says so."""
    writers = writers_of(path)
    if writers:
        who = writers[0]
        return f"still being written by process {who.pid} ({who.command})", "Wait for it to end"
    if target_of_partial(path) is not None:
        return "its writer died before it was finished", "Write it again, or salvage it"
    try:
        manifest = find_manifest(path)
    except InputError:
        manifest = None  # verify reports that
    if manifest is not None and os.path.basename(path) not in manifest.entries:
        return (
            f"it is not in {manifest.path.name}: its writer has not finished, or died",
            "Wait for it, or write it again",
        )
    return None


def check_is_tfrecord(source: RecordSource) -> None:
    """Raises a FormatError if no record begins in the first, the middle and the last megabyte of a plain file.

    Without this, all of a disk image or a sparse file would be searched for a record.
    """
    size = source.size()
    if size is None or _describe_foreign(source) is None:
        return
    if size > _SEARCH_BYTES and any(_has_record(source, at) for at in (size // 2, size - _SEARCH_BYTES)):
        return  # only its beginning is destroyed
    error = error_for(source, 0, 0, BAD_LENGTH)
    if size > _SEARCH_BYTES and isinstance(error, FormatError):
        raise error


def _has_record(source: RecordSource, at: int) -> bool:
    buf = bytearray(_SEARCH_BYTES)
    return codec.find_header(buf, 0, source.read_at(at, memoryview(buf))) >= 0


def _describe_foreign(source: RecordSource) -> str | None:
    """Returns what the file seems to be if there is no record in its first megabyte, else None."""
    buf = bytearray(_SEARCH_BYTES)
    n = source.read_at(0, memoryview(buf))
    if codec.find_header(buf, 0, n) >= 0:
        return None
    kind = describe_magic(bytes(buf[:512]))
    where = "in its first megabyte" if n == _SEARCH_BYTES else "anywhere in it"
    return "not a TFRecord" + (f": this looks like {kind}" if kind else f": no record begins {where}")
