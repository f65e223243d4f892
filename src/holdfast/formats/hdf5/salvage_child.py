"""In the child: reads all that can be read of a damaged file, and sends it on, object by object and piece by piece.

A chunk is decoded to see that it is whole, and sent as it lies in the file: nothing is packed again, so no codec can
change a value. What is left to doubt is sent with the reason for it.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from .chunk_btree import ChunkBTree, read_tree
from .chunks import ChunkPiece, decode_piece, guessed_chunks, joined, listed_chunks, runs
from .file_state import find_superblock
from .filters import PACKAGE, lacking_filter
from .object_walk import ObjectRef, open_file, reason_of, text_of, walk, walk_orphans
from .raw_values import (
    UnknownTypeError,
    chunk_options,
    comment_of,
    has_references,
    is_plain,
    read_attribute,
    read_fill,
    read_values,
)
from .verify_child import check_external_storage

if TYPE_CHECKING:
    from .sandbox_main import Reporter

_DEFLATE, _SHUFFLE, _FLETCHER32 = h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32
_CHECKSUM_BYTES = 4
_SAME_SIZE = (_SHUFFLE, _FLETCHER32)
# Codecs that never make zeros alone: gzip, bzip2, lzf, blosc, lz4, bitshuffle, zstd, blosc2.
_NEVER_ZEROS = (_DEFLATE, 307, 32000, 32001, 32004, 32008, 32015, 32026)
_PLACES_A_SIGN = 1000
_CHUNK_BYTES = 1 << 20
_MOST_PLACES = 1 << 24
_SMALLEST_READ = 4096  # a disk gives no less: rows that cannot be read are not looked for in smaller pieces
_VIRTUAL = h5py.h5d.VIRTUAL


def read_file(job: dict[str, Any], voice: Reporter) -> None:
    """`avoid`, `done` and `resume` as in check.py."""
    voice.at_object("/")
    try:
        file = open_file(job["path"], mend=job["mend"], stretch=job["stretch"])
    except Exception as error:
        voice.wrong(None, f"it cannot be opened: {reason_of(error)}")
        return
    done, resume = set(job["done"]), job["resume"]
    fd = os.open(job["path"], os.O_RDONLY | os.O_CLOEXEC)
    block = find_superblock(job["path"])
    with file:
        avoid = set(job["avoid"])
        if job["orphans"]:
            things = walk_orphans(file, job["path"], voice, avoid, set(job["known"]))
        else:
            things = walk(file, voice, avoid, by_creation=True)
        sender = _Sender(voice, job["path"], fd, block.at if block else 0)
        for thing in things:
            if thing.path not in done:
                sender.send(thing, resume.get(thing.path, 0))
                voice.say({"done": thing.path, "address": thing.address})
    os.close(fd)
    voice.say({"end": True})


class _Sender:
    """`fd` is the file as it is on disk; `base` is where its addresses begin."""

    def __init__(self, voice: Reporter, path: str, fd: int, base: int) -> None:
        self.voice, self.path, self.fd, self.base = voice, path, fd, base
        self.file_bytes = os.fstat(fd).st_size

    def send(self, thing: ObjectRef, first: int) -> None:
        """`first`: the piece to begin with; those before it were sent."""
        if thing.kind in ("soft", "external", "again"):
            self.voice.say({"link": thing.kind, "path": thing.path, "target": thing.target, "file": thing.target_file})
            return
        try:
            if thing.kind == "dataset":
                dataset = _Dataset(thing, self)
                dataset.send_head()
            elif thing.kind == "datatype":
                kind = thing.thing.id
                self._make("datatype", thing, {"type": _hex(kind.copy().encode())})
            else:
                self._make("group", thing, _group_facts(thing.thing))
        except UnknownTypeError as error:
            self.voice.wrong(thing.path, f"not kept: it holds {error}")
            return
        except Exception as error:
            self.voice.wrong(thing.path, f"cannot be read: {reason_of(error)}")
            return
        if not first:
            self._send_attributes(thing)
        if thing.kind == "dataset":
            dataset.send_pieces(first)

    def _make(self, what: str, thing: ObjectRef, facts: dict[str, Any], body: bytes = b"") -> None:
        comment = comment_of(thing.thing.id)
        head = {"make": what, "path": thing.path, "address": thing.address, "comment": _hex(comment), **facts}
        self.voice.say(head, body)

    def _send_attributes(self, thing: ObjectRef) -> None:
        try:
            names = list(thing.thing.attrs)
        except Exception as error:
            self.voice.wrong(thing.path, f"its attributes cannot be listed: {reason_of(error)}")
            return
        for name in names:
            try:
                self._send_attribute(thing, name)
            except UnknownTypeError as error:
                self.voice.wrong(thing.path, f"its attribute {name!r} is not kept: it holds {error}")
            except Exception as error:
                self.voice.wrong(thing.path, f"its attribute {name!r} cannot be read: {reason_of(error)}")

    def _send_attribute(self, thing: ObjectRef, name: str | bytes) -> None:
        attribute = thing.thing.attrs.get_id(name)
        kind, space = attribute.get_type(), attribute.get_space()
        head = {"attribute": text_of(name), "path": thing.path, **_type_facts(kind), "space": _hex(space.encode())}
        empty = space.get_simple_extent_type() == h5py.h5s.NULL
        self.voice.say(head, b"" if empty else read_attribute(attribute, kind))


def _group_facts(group: h5py.Group) -> dict[str, Any]:
    plist = group.id.get_create_plist()
    return {"link_order": plist.get_link_creation_order(), "attribute_order": plist.get_attr_creation_order()}


def _type_facts(kind: Any) -> dict[str, Any]:
    """`type_at`: where the file has it as an object of its own."""
    at = int(h5py.h5o.get_info(kind).addr) if kind.committed() else None
    return {"type": _hex(kind.copy().encode()), "type_at": at, "references": has_references(kind)}


def _chunks_for(shape: tuple[int, ...], item_bytes: int) -> tuple[int, ...]:
    """Of about a megabyte, from the last axis on."""
    room = max(1, _CHUNK_BYTES // item_bytes)
    found: list[int] = []
    for n in reversed(shape):
        found.insert(0, max(1, min(n, room)))
        room = max(1, room // max(1, n))
    return tuple(found)


def _hex(data: bytes) -> str:
    return data.hex()


# ---- datasets


def _filter(found: tuple[Any, ...]) -> list[Any]:
    code, flags, values = found[:3]
    return [int(code), int(flags), [int(value) for value in values]]


def _fill(dataset: h5py.Dataset, plist: Any) -> bytes | None:
    if plist.fill_value_defined() != h5py.h5d.FILL_VALUE_USER_DEFINED or dataset.dtype.hasobject:
        return None
    return np.asarray(dataset.fillvalue, dataset.dtype).tobytes()


class _Dataset:
    def __init__(self, thing: ObjectRef, sender: _Sender) -> None:
        self.path, self.address, self.dataset = thing.path, thing.address, thing.thing
        self.thing, self.sender, self.voice = thing, sender, sender.voice
        self.kind = self.dataset.id.get_type()
        self.plain = is_plain(self.kind)
        self.item_bytes = self.kind.get_size()
        self.plist = self.dataset.id.get_create_plist()
        self.filters = [self.plist.get_filter(i) for i in range(self.plist.get_nfilters())]
        self.lacking: str | None = None
        self.virtual = self.plist.get_layout() == _VIRTUAL
        self.options = chunk_options(self.plist) if self.dataset.chunks else 0
        self.flawed = False  # whether its index does not fit together
        self.doubts: Counter[str] = Counter()
        self.blind = False  # whether there are values that no checksum speaks for

    def send_head(self) -> None:
        dataset, plist = self.dataset, self.plist
        space, layout, chunks, alloc_time = self._modest()
        head = {
            **_type_facts(self.kind),
            "space": _hex(space.encode()),
            "shape": dataset.shape,
            "chunks": chunks,
            "options": self.options,
            "layout": layout,
            "filters": [[*_filter(one), _hex(one[3])] for one in self.filters],
            "plain": self.plain,
            "alloc_time": alloc_time,
            "fill_time": plist.get_fill_time(),
            "attribute_order": plist.get_attr_creation_order(),
            "times": plist.get_obj_track_times(),
            "virtual": self._sources() if self.virtual else [],
        }
        fill = b""
        if plist.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED:
            fill = read_fill(plist, self.kind)
        self.sender._make("dataset", self.thing, head, fill)

    def _modest(self) -> tuple[Any, int, tuple[int, ...] | None, int]:
        """Dataspace, layout, chunks and time of allocation: as they are, unless the shape speaks of more than the file
        has, as a damaged one does. Then they are such that no room is taken for what is not there."""
        dataset = self.dataset
        space, layout, chunks = dataset.id.get_space(), self.plist.get_layout(), dataset.chunks
        alloc_time, shape, file_bytes = self.plist.get_alloc_time(), dataset.shape, self.sender.file_bytes
        if not shape or self.virtual or dataset.external:
            return space, layout, chunks, alloc_time
        too_large = math.prod(shape) * self.item_bytes > file_bytes
        if chunks is None:
            if too_large and dataset.id.get_storage_size():
                chunks, layout = _chunks_for(shape, self.item_bytes), h5py.h5d.CHUNKED
            return space, layout, chunks, h5py.h5d.ALLOC_TIME_DEFAULT if too_large else alloc_time
        # The index of a dataset with an end to every axis takes room for all chunks that it may ever have.
        most = [n if end is None else end for n, end in zip(shape, dataset.maxshape, strict=True)]
        places = math.prod(-(-n // c) for n, c in zip(most, chunks, strict=True))
        if places > max(file_bytes, _MOST_PLACES) and None not in dataset.maxshape:
            space = h5py.h5s.create_simple(shape, (h5py.h5s.UNLIMITED, *dataset.maxshape[1:]))
            self.voice.wrong(self.path, f"its largest shape {dataset.maxshape} is not kept: it may grow without end")
        if too_large and alloc_time == h5py.h5d.ALLOC_TIME_EARLY:
            alloc_time = h5py.h5d.ALLOC_TIME_INCR
        return space, layout, chunks, alloc_time

    def _sources(self) -> list[list[str]]:
        plist = self.plist
        found: list[list[str]] = []
        for i in range(plist.get_virtual_count()):
            there, source = plist.get_virtual_vspace(i), plist.get_virtual_srcspace(i)
            if source.get_select_type() == h5py.h5s.SEL_ALL:  # the shape it had is not kept
                source = h5py.h5s.create_simple((there.get_select_npoints(),))
            names = plist.get_virtual_filename(i), plist.get_virtual_dsetname(i)
            found.append([_hex(there.encode()), *names, _hex(source.encode())])
        return found

    def send_pieces(self, first: int) -> None:
        try:
            pieces = self._pieces()
        except Exception as error:
            self._lost(0, self.dataset.shape[0] if self.dataset.shape else 1)
            self.voice.wrong(self.path, f"cannot be read: {reason_of(error)}")
            return
        for number, piece in enumerate(pieces[first:], start=first):
            self.voice.at_piece(number, piece.start, piece.offset)
            if self.dataset.chunks is not None:
                self._send_chunk(piece)
            else:
                self.blind = True
                self._send_run(piece)
            self.voice.done_piece(piece.stored)
        self._say_doubts()
        if self.blind:
            self.voice.say({"blind": self.path})

    def _lost(self, low: int, high: int) -> None:
        self.voice.say({"lost": self.path, "rows": [low, high]})

    def _lose_all(self, pieces: list[ChunkPiece]) -> None:
        for low, high in joined([piece.rows for piece in pieces]):
            self._lost(low, high)

    def _wrong(self, piece: ChunkPiece, reason: str) -> None:
        self.voice.wrong(self.path, reason, start=piece.start, offset=piece.offset)

    def _doubt(self, pieces: list[ChunkPiece], reason: str) -> None:
        for low, high in joined([piece.rows for piece in pieces]):
            self.voice.say({"doubt": self.path, "rows": [low, high]})
        self.doubts[reason] += len(pieces)

    def _say_doubts(self) -> None:
        """Once for each reason: a dataset may be full of zeros."""
        for reason, chunks in self.doubts.items():
            self.voice.wrong(self.path, f"kept, but in doubt: {chunks:,} chunk{'s' * (chunks != 1)}: {reason}")

    def _pieces(self) -> list[ChunkPiece]:
        dataset = self.dataset
        if dataset.shape is None or self.virtual:
            return []
        if dataset.chunks is not None:
            return self._chunks()
        if self._offset() < 0 and not dataset.external and dataset.id.get_storage_size() == 0:
            return []  # nothing was ever written
        return list(self._before_cut())

    # ---- chunks

    def _chunks(self) -> list[ChunkPiece]:
        dataset = self.dataset
        self.lacking = lacking_filter(dataset)
        tree = read_tree(self.sender.fd, self.sender.base, self.address, dataset.shape, dataset.chunks)
        try:
            pieces = [piece for piece in listed_chunks(dataset) if all(piece.sizes)]
        except Exception as error:
            self.voice.wrong(self.path, f"its chunks cannot be listed, each is looked for: {reason_of(error)}")
            pieces = self._looked_for()
        if self.lacking is not None:
            self._say_lacking()
        shuffles = [values[0] for code, _, values, _ in self.filters if code == _SHUFFLE and values]
        if self.plain and any(size != self.item_bytes for size in shuffles):
            reason = f"its shuffle filter is for items of {shuffles[0]} bytes, its type has {self.item_bytes}"
            self.voice.wrong(self.path, f"kept, but in doubt: {reason}")
            self.voice.say({"doubt": self.path, "rows": [0, dataset.shape[0]]})
        if tree is None:
            return pieces
        return self._agreed(pieces, tree)

    def _say_lacking(self) -> None:
        if self.plain:
            text = f"not checked: it {self.lacking}: its chunks are copied as they are"
        else:
            text = f"cannot be read here: it {self.lacking}: pip install {PACKAGE}"
        self.voice.wrong(self.path, text)

    def _looked_for(self) -> list[ChunkPiece]:
        """Each place of a chunk by itself. Those that nothing is known of are lost."""
        pieces: list[ChunkPiece] = []
        unknown: list[ChunkPiece] = []
        places = guessed_chunks(self.dataset, self.sender.file_bytes)
        for number, piece in enumerate(places):
            if not number % _PLACES_A_SIGN:
                self.voice.at_object(self.path)  # a sign of life
            try:
                info = self.dataset.id.get_chunk_info_by_coord(piece.start)
            except Exception:
                unknown.append(piece)
                continue
            if info.byte_offset is not None:
                facts = int(info.byte_offset), int(info.size), int(info.filter_mask)
                pieces.append(ChunkPiece(piece.start, piece.sizes, *facts))
        self._lose_all(unknown)
        self._lose_behind(places)
        return pieces

    def _lose_behind(self, places: list[ChunkPiece]) -> None:
        """Places that were not looked at: more than the file can have chunks."""
        shape, chunks = self.dataset.shape, self.dataset.chunks
        all_of_them = math.prod(-(-n // c) for n, c in zip(shape, chunks, strict=True))
        if len(places) < all_of_them:
            low = places[-1].start[0] if places else 0
            self._lost(low, shape[0])
            self.voice.wrong(
                self.path, f"its shape {shape} has more chunks than the file can hold: not read behind row {low:,}"
            )

    def _agreed(self, pieces: list[ChunkPiece], tree: ChunkBTree) -> list[ChunkPiece]:
        """Without those that the library sees in a damaged index, and the index does not have."""
        if tree.flaw is not None:
            self.flawed = True
            offset, reason = tree.flaw
            self.voice.wrong(
                self.path, f"its index has no checksums and does not fit together: {reason}", offset=offset
            )
        known = {entry.start for entry in tree.entries if entry.sound}
        entries = [entry for entry in tree.entries if entry.sound or entry.start not in known]
        sure = {(e.start, e.offset, e.stored, e.filter_mask): e.sound for e in entries}
        found = [piece for piece in pieces if (piece.start, piece.offset, piece.stored, piece.filter_mask) in sure]
        if tree.flaw is None and len(found) == len(pieces):
            return pieces
        there = {piece.start for piece in found}
        places = guessed_chunks(self.dataset, self.sender.file_bytes)
        # Never written, or not in the index any more: nobody knows.
        self._lose_all([piece for piece in places if piece.start not in there])
        self._lose_behind(places)
        unsure = [piece for piece in found if not sure[piece.start, piece.offset, piece.stored, piece.filter_mask]]
        if unsure:
            self._doubt(unsure, "the part of the index that lists it is damaged")
        return found

    def _send_chunk(self, piece: ChunkPiece) -> None:
        try:
            mask, data = self.dataset.id.read_direct_chunk(piece.start)
            if self.flawed and bytes(data) != os.pread(self.sender.fd, piece.stored, piece.offset):
                raise ValueError("its index leads to another place than where it lists it")
            applied = self._applied(piece, mask)
            wrong = self._misfit(applied, data)
            if wrong:
                raise ValueError(wrong)
            if not self.plain:
                self._send_values(piece)
            elif self.lacking is None:
                decode_piece(self.dataset, piece, self.kind)
        except Exception as error:
            self._lost(*piece.rows)
            self._wrong(piece, f"cannot be read: {reason_of(error)}")
            return
        self.blind |= not {_DEFLATE, _FLETCHER32} & set(applied)
        doubt = self._doubtful(piece, mask, data)
        if doubt:
            self._doubt([piece], doubt)
        place = {"offset": piece.offset, "stored": len(data), "rows": list(piece.rows)}
        head = {"chunk": self.path, "start": piece.start, "mask": mask, **place}
        self.voice.say(head, bytes(data) if self.plain else b"")

    def _applied(self, piece: ChunkPiece, mask: int) -> list[int]:
        """The filters that this chunk went through."""
        if self.options and piece.sizes != tuple(self.dataset.chunks):
            return []
        return [found[0] for i, found in enumerate(self.filters) if not mask >> i & 1]

    def _misfit(self, applied: list[int], data: bytes) -> str:
        """Why these bytes cannot be those of the chunk; "": they can. The library does not look."""
        if all(code in _SAME_SIZE for code in applied) and self.plain:
            want = math.prod(self.dataset.chunks) * self.item_bytes + _CHECKSUM_BYTES * applied.count(_FLETCHER32)
            return (
                "" if len(data) == want else f"expected {want:,} bytes of a chunk that is not packed, got {len(data):,}"
            )
        if any(code in _NEVER_ZEROS for code in applied) and not any(data):
            return "all its bytes are zero, which its codec never writes"
        return ""

    def _doubtful(self, piece: ChunkPiece, mask: int, data: bytes) -> str:
        codes = [found[0] for found in self.filters]
        applied = self._applied(piece, mask)
        if any(code == _FLETCHER32 and mask >> i & 1 for i, code in enumerate(codes)):
            return "its index says that it was written without the checksum that this dataset has"
        if mask >> len(codes):
            return "its index says that filters were left out which this dataset does not have"
        if applied and not any(data):
            return "all its bytes are zero: a checksum of zeros is zero, so a page that was zeroed looks the same"
        return ""

    # ---- values

    def _before_cut(self) -> Iterator[ChunkPiece]:
        """Runs of rows, as far as there are bytes of them: a damaged shape may speak of any number."""
        dataset, shape = self.dataset, self.dataset.shape
        if dataset.external:
            there = 0 if check_external_storage(dataset, self.path, self.sender.path, self.voice) else None
        else:
            there = dataset.id.get_storage_size()
            offset = self._offset()
            if offset >= 0:
                there = min(there, max(0, self.sender.file_bytes - offset))
        if not shape or there is None:
            yield from runs(dataset)
            return
        row_bytes = max(1, math.prod(shape[1:]) * self.item_bytes)
        if not self.plain:  # which are of another size in memory
            row_bytes = max(1, dataset.id.get_storage_size() // max(1, shape[0]))
        rows = min(shape[0], there // row_bytes)
        for piece in runs(dataset):
            if piece.rows[1] > rows:
                if piece.rows[0] < rows:
                    n = rows - piece.rows[0]
                    yield piece._replace(sizes=(n, *piece.sizes[1:]), stored=n * row_bytes)
                break
            yield piece
        if rows < shape[0]:
            self._lost(rows, shape[0])
            reason = "cut here: the file has no bytes of the rows from here on"
            start, offset = (rows, *[0] * (len(shape) - 1)), self._offset()
            self.voice.wrong(self.path, reason, start=start, offset=-1 if offset < 0 else offset + rows * row_bytes)

    def _offset(self) -> int:
        """-1: nowhere. Behind a user block the library says the last address of all, plus its length."""
        offset = self.dataset.id.get_offset()
        return -1 if offset is None or offset == self.sender.base - 1 else offset

    def _send_run(self, piece: ChunkPiece) -> None:
        told = False
        for part, reason in self._read(piece):
            self._lost(*part.rows)
            if not told:
                self._wrong(part, f"cannot be read: {reason}")
            told = True

    def _read(self, piece: ChunkPiece) -> Iterator[tuple[ChunkPiece, str]]:
        """Sends the piece, or those halves of it that can be read; gives the others, and why."""
        try:
            self._send_values(piece)
            return
        except Exception as error:
            reason = reason_of(error)
        if not piece.start or piece.sizes[0] < 2 or piece.stored <= _SMALLEST_READ:
            yield piece, reason
            return
        half = piece.sizes[0] // 2
        stored = piece.stored // piece.sizes[0] * half
        yield from self._read(piece._replace(sizes=(half, *piece.sizes[1:]), stored=stored))
        rest = ChunkPiece(
            (piece.start[0] + half, *piece.start[1:]),
            (piece.sizes[0] - half, *piece.sizes[1:]),
            piece.offset + stored if piece.offset >= 0 else -1,
            piece.stored - stored,
        )
        yield from self._read(rest)

    def _send_values(self, piece: ChunkPiece) -> None:
        space = self.dataset.id.get_space()
        if piece.start:
            space.select_hyperslab(piece.start, piece.sizes)
        body = read_values(self.dataset, self.kind, space, math.prod(piece.sizes))
        self.voice.say({"values": self.path, "start": piece.start, "sizes": piece.sizes}, body)
