"""Indexes a tar: groups its members to samples. The index of its folder stores it: as a JSON line, then arrays of
little-endian int64 and the samples' keys, joined. It is stale when some of its headers are not where they should be."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...._native import codec
from ....errors import FormatError
from ..columns import BytesColumn, Ints
from ..folder_index import find_places
from .scan import BLOCK_BYTES, TarScan, parts_of
from .source import PlainBytes, TarBytes
from .values import MARK

_MAGIC = "holdfast tar index 3"
_CHECKED_HEADERS = 16
_SHOWN = 3


@dataclass(frozen=True, slots=True, eq=False)
class TarIndex:
    """Sample i has the members first[i] to first[i + 1]; member m has the extension `extensions[kinds[m]]`.

    `strays` counts members of no sample, whose names have no extension; `first_strays` are some of them.
    """

    extensions: list[str]
    keys: BytesColumn
    first: Ints
    kinds: Ints
    offsets: Ints
    sizes: Ints
    strays: int = 0
    first_strays: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.first) - 1

    def members_of(self, rows: Ints) -> tuple[Ints, Ints]:
        """Returns all members of these samples, and for each the position of its sample in `rows`."""
        counts = self.first[rows + 1] - self.first[rows]
        places = np.repeat(np.arange(len(rows)), counts)
        return np.arange(len(places)) + np.repeat(self.first[rows] - np.cumsum(counts) + counts, counts), places

    def key(self, row: int) -> str:
        return bytes(self.keys[row]).decode("utf-8", "replace")


def build_index(source: TarBytes) -> TarIndex:
    keys, ends, hashes = bytearray(), array("q", [0]), array("q")
    # Arrays: Python objects would take ten times the memory.
    first, member_kinds, offsets, sizes = array("q"), array("q"), array("q"), array("q")
    extensions: dict[str, int] = {}
    known: dict[bytes, int] = {}  # by the spelling in the tar
    current, kinds = None, set[int]()
    strays, first_strays = 0, list[str]()
    for name, offset, size in TarScan(source):
        parts = parts_of(name)
        if parts is None:
            if name != MARK:
                strays += 1
                first_strays += [name.decode("utf-8", "replace")] if strays <= _SHOWN else []
            continue
        key, raw = parts
        kind = known.get(raw)
        if kind is None:
            lower = raw.decode("utf-8", "surrogateescape").lower()
            kind = known[raw] = extensions.setdefault(lower, len(extensions))
        if key != current:
            current, kinds = key, set()
            keys += key
            ends.append(len(keys))
            hashes.append(hash(key))
            first.append(len(offsets))
        if kind in kinds:
            shown = key.decode("utf-8", "replace")
            reason = f"sample {shown!r} has two members with the extension {list(extensions)[kind]!r}"
            raise FormatError(source.path, len(first) - 1, offset, reason)
        kinds.add(kind)
        member_kinds.append(kind)
        offsets.append(offset)
        sizes.append(size)
    first.append(len(offsets))
    index = TarIndex(
        list(extensions),
        BytesColumn(np.frombuffer(keys, np.uint8), np.frombuffer(ends, np.int64)),
        np.frombuffer(first, np.int64),
        np.frombuffer(member_kinds, np.int64),
        np.frombuffer(offsets, np.int64),
        np.frombuffer(sizes, np.int64),
        strays,
        first_strays,
    )
    if len(np.unique(np.frombuffer(hashes, np.int64))) < len(index):  # some key may occur twice
        _check_torn(source.path, index)
    return index


def _check_torn(path: str, index: TarIndex) -> None:
    """Raises an error if the members of a sample are in two places; two complete samples may have one key."""
    seen: dict[bytes, tuple[int, set[int]]] = {}
    for row in range(len(index)):
        kinds = set(index.kinds[index.first[row] : index.first[row + 1]].tolist())
        before, others = seen.setdefault(bytes(index.keys[row]), (row, kinds))
        if before != row and not kinds & others:
            names = [index.extensions[min(some)] for some in (others, kinds)]
            reason = f"sample {index.key(row)!r} is split: its {names[0]!r} is at sample {before:,}"
            hint = "Pack it again in the order of names: `tar --sort=name`"
            raise FormatError(path, row, int(index.offsets[index.first[row]]), f"{reason}, its {names[1]!r} here", hint)


# ---- as the index of its folder stores it


def find_index(source: PlainBytes, cache: bool) -> TarIndex:
    """Returns the index that is stored, or builds it."""
    for places, _ in find_places(source.path, source.fd) if cache else ():
        try:
            found = _unpack(bytes(places), source)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue  # of another format: it can be built again
        if found is not None:
            return found
    return build_index(source)


def pack_index(source: PlainBytes, index: TarIndex) -> bytes:
    arrays = (index.first, index.kinds, index.offsets, index.sizes, index.keys.offsets)
    body = b"".join(array.astype("<i8").tobytes() for array in arrays) + index.keys.values.tobytes()
    head = {
        "kind": _MAGIC,
        "samples": len(index),
        "members": len(index.offsets),
        "extensions": index.extensions,
        "strays": index.strays,
        "first_strays": list(index.first_strays),
        "headers": headers_of(source, index),
    }
    return json.dumps(head).encode() + b"\n" + body


def _unpack(content: bytes, source: PlainBytes) -> TarIndex | None:
    line, _, body = content.partition(b"\n")
    head = json.loads(line)
    if head["kind"] != _MAGIC:
        return None
    samples, members = head["samples"], head["members"]
    sizes = [samples + 1, members, members, members, samples + 1]
    numbers: npt.NDArray[np.int64] = np.frombuffer(body, "<i8", sum(sizes)).astype(np.int64, copy=False)
    first, kinds, offsets, lengths, ends = np.split(numbers, np.cumsum(sizes[:-1]))
    keys = BytesColumn(np.frombuffer(body, np.uint8, offset=8 * sum(sizes)), ends)
    strays: tuple[int, list[str]] = (head["strays"], head["first_strays"])
    index = TarIndex(list(head["extensions"]), keys, first, kinds, offsets, lengths, *strays)
    if members and (lengths.min() < 0 or offsets.min() < 0 or (offsets + lengths).max() > source.size()):
        return None
    return index if headers_of(source, index) == head["headers"] else None


def headers_of(source: PlainBytes, index: TarIndex) -> list[int]:
    """Returns CRCs of some headers, spread over the file: reveals a file that was rewritten in place."""
    count = len(index.offsets)
    some = sorted({round(k * (count - 1) / (_CHECKED_HEADERS - 1)) for k in range(_CHECKED_HEADERS)}) if count else []
    return [codec.crc32c(source.read_at(int(index.offsets[m]) - BLOCK_BYTES, BLOCK_BYTES)) for m in some]
