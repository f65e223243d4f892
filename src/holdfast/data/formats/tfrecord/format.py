"""What holdfast can do with TFRecord files. Imports little: every reader and command imports this module."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...._native import codec
from ....errors import WriteError
from ..base import Format, Lazy, Merged

SUFFIXES = (".tfrecord", ".tfrecords", ".tfrec")
TFRECORD_COMPRESSION = {".gz": "gzip", ".gzip": "gzip", ".zlib": "zlib", ".zz": "zlib"}  # by a further suffix
COMPRESSED_NAME = rf"({'|'.join(map(re.escape, TFRECORD_COMPRESSION))})?$"
_NAME = re.compile(rf"({'|'.join(map(re.escape, SUFFIXES))})([-._]\d+(-of-\d+)?)?{COMPRESSED_NAME}", re.IGNORECASE)


def _salvage(path: str, out: str, *, live: bool, like_input: bool, **options: Any) -> Any:
    from .salvage import salvage_file
    from .source import open_source

    compression: Any = "auto"
    if like_input:
        with open_source(path) as source:
            compression = source.compression
    return salvage_file(path, out, compression=compression, keep_empty=False, **options)


def _merge(
    paths: list[str],
    out: str,
    *,
    dry_run: bool,
    overwrite: bool,
    progress: Any,
    runs: Any = None,
    verified: Any = None,
    compression: Any = "auto",
) -> Merged:
    from .merge import merge_files

    if runs is not None:
        numbers = [number for number, _, _ in runs]
        if len(set(numbers)) != len(numbers):
            text = 'cannot reorder rows inside a TFRecord part, and one has rows of several producers; use order="any"'
            raise WriteError(f"{out}: {text}")
        paths = [paths[number] for number in numbers]

    if dry_run:
        size = sum(map(os.path.getsize, paths))
        facts: dict[str, object] = {"files": paths, "bytes": size, "out": out}
        return Merged(path=out, format="tfrecord", files=len(paths), rows=None, bytes=size, document=facts)
    entry = merge_files(
        paths,
        out,
        compression=compression,
        overwrite=overwrite,
        progress=progress,
        verified=None if verified is None else lambda entry: verified(entry.records, entry.bytes, entry.crc32c),
    )
    facts = {"records": entry.records, "files": [entry.as_dict()]}
    return Merged(
        path=out,
        format="tfrecord",
        files=len(paths),
        rows=entry.records,
        bytes=entry.bytes,
        crc32c=entry.crc32c,
        document=facts,
    )


@contextmanager
def _unpack(path: str) -> Iterator[Callable[[int, int], bytes] | None]:
    from .source import open_source

    with open_source(path) as source:
        yield None if source.compression == "none" else lambda at, size: _read(source, at, size)


def _read(source: Any, at: int, size: int) -> bytes:
    view = memoryview(bytearray(size))
    return bytes(view[: source.read_at(at, view)])


TFRECORD = Format(
    name="tfrecord",
    title="TFRecord",
    suffixes=SUFFIXES,
    is_name=lambda name: _NAME.search(name) is not None,
    is_start=lambda head: codec.find_header(head, 0, min(len(head), codec.HEADER_BYTES)) == 0,
    open=Lazy(f"{__package__}.shard:open_tfrecord_shard"),
    verify=Lazy(f"{__package__}.verify:verify_file"),
    inspect=Lazy(f"{__package__}.inspect:survey_file"),
    index=Lazy(f"{__package__}.index:find_records"),
    open_damaged=Lazy(f"{__package__}.salvage:open_damaged"),
    salvage=_salvage,
    merge=_merge,
    merge_options=frozenset({"compression"}),
    split=Lazy(f"{__package__}.split:split_files"),
    written=(*SUFFIXES, *(one + more for one in SUFFIXES for more in TFRECORD_COMPRESSION)),
    write=Lazy(f"{__package__}.writer:converted_tfrecord"),
    write_options=frozenset({"compression"}),
    conversion=Lazy(f"{__package__}.conversion:TFRecordConversion"),
    unpack=_unpack,
    has_manifest=True,
    widens_ints=False,
    part=Lazy(f"{__package__}.writer:TFRecordPart"),
    check_part=Lazy(f"{__package__}.writer:check_part"),
)
