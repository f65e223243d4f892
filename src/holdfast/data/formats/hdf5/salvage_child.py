"""Runs in the sandbox: reads what can be read of a corrupt file, and sends it object by object and piece by piece.

A chunk is decoded to check it, and sent as it is stored: nothing is compressed again, so no codec can change a value.
What is doubtful is sent with the reason.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import h5py

from ...._native import codec
from ..part_record import find_record
from .chunk_btree import ChunkBTree, read_tree
from .chunks import ChunkPiece, chunk_grid, listed_chunks, merge_ranges, possible_chunks, read_unconverted, runs
from .file_state import find_superblock
from .filters import FLETCHER32, NEVER_ZEROS, PACKAGE, SHUFFLE, filter_names_of, filters_of, lacking_filter
from .object_walk import ObjectRef, attribute_names, open_reported, reason_of, text_of, walk, walk_orphans
from .other_files import external_storage
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
from .verify_child import SELF_CHECKING

if TYPE_CHECKING:
    from .sandbox_main import Reporter

_CHECKSUM_BYTES = 4
_SAME_SIZE = (SHUFFLE, FLETCHER32)
_POSITIONS_PER_HEARTBEAT = 1000
_CHUNK_BYTES = 1 << 20
_MAX_POSITIONS = 1 << 24
_MIN_READ_BYTES = 4096  # a disk block: unreadable rows are not searched in smaller pieces
_VIRTUAL = h5py.h5d.VIRTUAL


def salvage_file(job: dict[str, Any], reporter: Reporter) -> None:
    """`avoid`, `done` and `resume` as in verify_child.py."""
    file = open_reported(job, reporter)
    if file is None:
        return
    done, resume = set(job["done"]), job["resume"]
    fd = os.open(job["path"], os.O_RDONLY | os.O_CLOEXEC)
    block = find_superblock(job["path"])
    with file:
        avoid = set(job["avoid"])
        if job["orphans"]:
            refs = walk_orphans(file, job["path"], reporter, avoid, set(job["known"]))
        else:
            refs = walk(file, reporter, avoid, by_creation=True)
        sender = _Sender(reporter, job["path"], fd, block.at if block else 0)
        for ref in refs:
            if ref.path not in done:
                sender.send(ref, resume.get(ref.path, 0))
                reporter.send({"done": ref.path, "address": ref.address})
    os.close(fd)
    reporter.send({"end": True})


class _Sender:
    """`fd` is the file as it is on disk; `base` is the offset that its addresses count from."""

    def __init__(self, reporter: Reporter, path: str, fd: int, base: int) -> None:
        self.reporter, self.path, self.fd, self.base = reporter, path, fd, base
        self.file_bytes = os.fstat(fd).st_size
        record = find_record(path)  # of a part: the checksum of every chunk
        self.crcs = {(one.dataset, one.offset): one.crc32c for one in (record.chunks if record is not None else [])}

    def send(self, ref: ObjectRef, first: int) -> None:
        """`first`: the first piece to send."""
        if ref.kind in ("soft", "external", "again"):
            self.reporter.send({"link": ref.kind, "path": ref.path, "target": ref.target, "file": ref.target_file})
            return
        try:
            if ref.kind == "dataset":
                dataset = _Dataset(ref, self)
                dataset.send_head()
            elif ref.kind == "datatype":
                kind = ref.object.id
                self._make("datatype", ref, {"type": kind.copy().encode().hex()})
            else:
                self._make("group", ref, _group_facts(ref.object))
        except UnknownTypeError as error:
            self.reporter.problem(ref.path, f"not kept: it holds {error}")
            return
        except Exception as error:
            self.reporter.problem(ref.path, f"cannot be read: {reason_of(error)}")
            return
        if not first:
            self._send_attributes(ref)
        if ref.kind == "dataset":
            dataset.send_pieces(first)

    def _make(self, what: str, ref: ObjectRef, facts: dict[str, Any], body: bytes = b"") -> None:
        comment = comment_of(ref.object.id)
        head = {"make": what, "path": ref.path, "address": ref.address, "comment": comment.hex(), **facts}
        self.reporter.send(head, body)

    def _send_attributes(self, ref: ObjectRef) -> None:
        for name in attribute_names(ref, self.reporter):
            try:
                self._send_attribute(ref, name)
            except UnknownTypeError as error:
                self.reporter.problem(ref.path, f"its attribute {name!r} is not kept: it holds {error}")
            except Exception as error:
                self.reporter.problem(ref.path, f"its attribute {name!r} cannot be read: {reason_of(error)}")

    def _send_attribute(self, ref: ObjectRef, name: str | bytes) -> None:
        attribute = ref.object.attrs.get_id(name)
        kind, space = attribute.get_type(), attribute.get_space()
        head = {"attribute": text_of(name), "path": ref.path, **_type_facts(kind), "space": space.encode().hex()}
        empty = space.get_simple_extent_type() == h5py.h5s.NULL
        self.reporter.send(head, b"" if empty else read_attribute(attribute, kind))


def _group_facts(group: h5py.Group) -> dict[str, Any]:
    plist = group.id.get_create_plist()
    return {"link_order": plist.get_link_creation_order(), "attribute_order": plist.get_attr_creation_order()}


def _type_facts(kind: Any) -> dict[str, Any]:
    """`type_at`: the address of a committed datatype."""
    at = int(h5py.h5o.get_info(kind).addr) if kind.committed() else None
    return {"type": kind.copy().encode().hex(), "type_at": at, "references": has_references(kind)}


def _chunks_for(shape: tuple[int, ...], item_bytes: int) -> tuple[int, ...]:
    """Returns chunks of about a megabyte, filled from the last axis on."""
    room = max(1, _CHUNK_BYTES // item_bytes)
    found: list[int] = []
    for n in reversed(shape):
        found.insert(0, max(1, min(n, room)))
        room = max(1, room // max(1, n))
    return tuple(found)


# ---- datasets


class _Dataset:
    def __init__(self, ref: ObjectRef, sender: _Sender) -> None:
        self.path, self.address, self.dataset = ref.path, ref.address, ref.object
        self.ref, self.sender, self.reporter = ref, sender, sender.reporter
        self.kind = self.dataset.id.get_type()
        self.plain = is_plain(self.kind)
        self.item_bytes = self.kind.get_size()
        self.plist = self.dataset.id.get_create_plist()
        self.filters = filters_of(self.plist)
        self.lacking: str | None = None
        self.virtual = self.plist.get_layout() == _VIRTUAL
        self.options = chunk_options(self.plist) if self.dataset.chunks else 0
        self.index_corrupt = False
        self.doubts: Counter[str] = Counter()
        self.unprotected = False  # whether some values have no checksum

    def send_head(self) -> None:
        dataset, plist, names = self.dataset, self.plist, filter_names_of(self.plist)
        space, layout, chunks, alloc_time = self._bounded_layout()
        head = {
            **_type_facts(self.kind),
            "space": space.encode().hex(),
            "shape": dataset.shape,
            "chunks": chunks,
            "options": self.options,
            "layout": layout,
            "filters": [[*found, names[found[0]].hex()] for found in self.filters],
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
        self.sender._make("dataset", self.ref, head, fill)

    def _bounded_layout(self) -> tuple[Any, int, tuple[int, ...] | None, int]:
        """Returns dataspace, layout, chunks and allocation time; changed if the shape, as a corrupt one may, claims
        more than the file holds, so that the new file allocates nothing for it."""
        dataset = self.dataset
        space, layout, chunks = dataset.id.get_space(), self.plist.get_layout(), dataset.chunks
        alloc_time, shape, file_bytes = self.plist.get_alloc_time(), dataset.shape, self.sender.file_bytes
        if not shape or self.virtual:
            return space, layout, chunks, alloc_time
        too_large = math.prod(shape) * self.item_bytes > file_bytes
        if chunks is None:
            if too_large and dataset.id.get_storage_size():
                chunks, layout = _chunks_for(shape, self.item_bytes), h5py.h5d.CHUNKED
            return space, layout, chunks, h5py.h5d.ALLOC_TIME_DEFAULT if too_large else alloc_time
        # The index of a dataset without an unlimited axis allocates all chunks that it may ever have.
        maximum = [n if end is None else end for n, end in zip(shape, dataset.maxshape, strict=True)]
        if math.prod(chunk_grid(maximum, chunks)) > max(file_bytes, _MAX_POSITIONS) and None not in dataset.maxshape:
            space = h5py.h5s.create_simple(shape, (h5py.h5s.UNLIMITED, *dataset.maxshape[1:]))
            self.reporter.problem(
                self.path, f"its maximum shape {dataset.maxshape} is not kept: the new dataset is unlimited"
            )
        if too_large and alloc_time == h5py.h5d.ALLOC_TIME_EARLY:
            alloc_time = h5py.h5d.ALLOC_TIME_INCR
        return space, layout, chunks, alloc_time

    def _sources(self) -> list[list[str]]:
        plist = self.plist
        found: list[list[str]] = []
        for i in range(plist.get_virtual_count()):
            there, source = plist.get_virtual_vspace(i), plist.get_virtual_srcspace(i)
            if source.get_select_type() == h5py.h5s.SEL_ALL:  # the file does not keep its shape
                source = h5py.h5s.create_simple((there.get_select_npoints(),))
            names = plist.get_virtual_filename(i), plist.get_virtual_dsetname(i)
            found.append([there.encode().hex(), *names, source.encode().hex()])
        return found

    def send_pieces(self, first: int) -> None:
        try:
            pieces = self._pieces()
        except Exception as error:
            self._lost(0, self.dataset.shape[0] if self.dataset.shape else 1)
            self.reporter.problem(self.path, f"cannot be read: {reason_of(error)}")
            return
        for number, piece in enumerate(pieces[first:], start=first):
            self.reporter.at_piece(number, piece.start, piece.offset)
            if self.dataset.chunks is not None:
                self._send_chunk(piece)
            else:
                self.unprotected = True
                self._send_run(piece)
            self.reporter.done_piece(piece.stored)
        self._report_doubts()
        if self.unprotected:
            self.reporter.send({"unprotected": self.path})

    def _lost(self, low: int, high: int) -> None:
        self.reporter.send({"lost": self.path, "rows": [low, high]})

    def _lose_all(self, pieces: list[ChunkPiece]) -> None:
        for low, high in merge_ranges([piece.rows for piece in pieces]):
            self._lost(low, high)

    def _report(self, piece: ChunkPiece, reason: str) -> None:
        self.reporter.problem(self.path, reason, start=piece.start, offset=piece.offset)

    def _doubt(self, pieces: list[ChunkPiece], reason: str) -> None:
        for low, high in merge_ranges([piece.rows for piece in pieces]):
            self.reporter.send({"doubt": self.path, "rows": [low, high]})
        self.doubts[reason] += len(pieces)

    def _report_doubts(self) -> None:
        """Reports each reason once: a dataset may be full of zeros."""
        for reason, chunks in self.doubts.items():
            self.reporter.problem(self.path, f"kept, but doubtful: {chunks:,} chunk{'s' * (chunks != 1)}: {reason}")

    def _pieces(self) -> list[ChunkPiece]:
        dataset = self.dataset
        if dataset.shape is None or self.virtual:
            return []
        if dataset.chunks is not None:
            return self._chunks()
        if stored := external_storage(dataset):
            self._lost(0, dataset.shape[0] if dataset.shape else 1)
            self.reporter.problem(self.path, f"not kept: its values are in {stored[0][0]!r}, another file")
            return []
        if self._offset() < 0 and dataset.id.get_storage_size() == 0:
            return []  # never written
        return list(self._readable_runs())

    # ---- chunks

    def _chunks(self) -> list[ChunkPiece]:
        dataset = self.dataset
        self.lacking = lacking_filter(dataset)
        tree = read_tree(self.sender.fd, self.sender.base, self.address, dataset.shape, dataset.chunks)
        try:
            pieces = [piece for piece in listed_chunks(dataset) if all(piece.sizes)]
        except Exception as error:
            self.reporter.problem(self.path, f"its chunks cannot be listed, each is searched for: {reason_of(error)}")
            pieces = self._probed_chunks()
        if self.lacking is not None:
            self._report_lacking()
        shuffles = [values[0] for code, _, values in self.filters if code == SHUFFLE and values]
        if self.plain and any(size != self.item_bytes for size in shuffles):
            reason = f"its shuffle filter is for items of {shuffles[0]} bytes, its type has {self.item_bytes}"
            self.reporter.problem(self.path, f"kept, but doubtful: {reason}")
            self.reporter.send({"doubt": self.path, "rows": [0, dataset.shape[0]]})
        if tree is None:
            return pieces
        return self._checked_against(pieces, tree)

    def _report_lacking(self) -> None:
        if self.plain:
            text = f"not checked: it {self.lacking}: its chunks are copied unchanged"
        else:
            text = f"cannot be read here: it {self.lacking}: pip install {PACKAGE}"
        self.reporter.problem(self.path, text)

    def _probed_chunks(self) -> list[ChunkPiece]:
        """Asks for the chunk at each position. Where the library fails, the rows are lost."""
        pieces: list[ChunkPiece] = []
        unknown: list[ChunkPiece] = []
        positions = possible_chunks(self.dataset, self.sender.file_bytes)
        for number, piece in enumerate(positions):
            if not number % _POSITIONS_PER_HEARTBEAT:
                self.reporter.at_object(self.path)  # a heartbeat
            try:
                info = self.dataset.id.get_chunk_info_by_coord(piece.start)
            except Exception:
                unknown.append(piece)
                continue
            if info.byte_offset is not None:
                facts = int(info.byte_offset), int(info.size), int(info.filter_mask)
                pieces.append(ChunkPiece(piece.start, piece.sizes, *facts))
        self._lose_all(unknown)
        self._lose_unprobed(positions)
        return pieces

    def _lose_unprobed(self, positions: list[ChunkPiece]) -> None:
        """Reports positions that were not tried, since the file cannot have that many chunks."""
        shape, chunks = self.dataset.shape, self.dataset.chunks
        if len(positions) < math.prod(chunk_grid(shape, chunks)):
            low = positions[-1].start[0] if positions else 0
            self._lost(low, shape[0])
            self.reporter.problem(
                self.path,
                f"its shape {shape} has more chunks than the file can hold: rows from {low:,} on were not read",
            )

    def _checked_against(self, pieces: list[ChunkPiece], tree: ChunkBTree) -> list[ChunkPiece]:
        """Drops chunks that the library lists from a corrupt index, and that are not in it."""
        if tree.problem is not None:
            self.index_corrupt = True
            offset, reason = tree.problem
            self.reporter.problem(self.path, f"its index is inconsistent: {reason}", offset=offset)
        known = {entry.start for entry in tree.entries if entry.sound}
        entries = [entry for entry in tree.entries if entry.sound or entry.start not in known]
        sure = {(e.start, e.offset, e.stored, e.filter_mask): e.sound for e in entries}
        found = [piece for piece in pieces if (piece.start, piece.offset, piece.stored, piece.filter_mask) in sure]
        if tree.problem is None and len(found) == len(pieces):
            return pieces
        there = {piece.start for piece in found}
        positions = possible_chunks(self.dataset, self.sender.file_bytes)
        # They may never have been written, or be gone from the index.
        self._lose_all([piece for piece in positions if piece.start not in there])
        self._lose_unprobed(positions)
        unsure = [piece for piece in found if not sure[piece.start, piece.offset, piece.stored, piece.filter_mask]]
        if unsure:
            self._doubt(unsure, "the part of the index that lists it is corrupt")
        return found

    def _send_chunk(self, piece: ChunkPiece) -> None:
        try:
            mask, data = self.dataset.id.read_direct_chunk(piece.start)
            if self.index_corrupt and bytes(data) != os.pread(self.sender.fd, piece.stored, piece.offset):
                raise ValueError("the library reads it from another offset than its index lists")
            applied = self._applied(piece, mask)
            problem = self._impossible(applied, data)
            if problem:
                raise ValueError(problem)
            if not self.plain:
                self._send_values(piece)
            elif self.lacking is None:
                read_unconverted(self.dataset, piece.start, piece.sizes)
        except Exception as error:
            self._lost(*piece.rows)
            self._report(piece, f"cannot be read: {reason_of(error)}")
            return
        self.unprotected |= not SELF_CHECKING & set(applied)
        doubt = self._doubtful(piece, mask, data)
        if doubt:
            self._doubt([piece], doubt)
        extent = {"offset": piece.offset, "stored": len(data), "rows": list(piece.rows)}
        head = {"chunk": self.path, "start": piece.start, "mask": mask, **extent}
        self.reporter.send(head, bytes(data) if self.plain else b"")

    def _applied(self, piece: ChunkPiece, mask: int) -> list[int]:
        """Returns the filters that were applied to this chunk."""
        if self.options and piece.sizes != tuple(self.dataset.chunks):
            return []
        return [found[0] for i, found in enumerate(self.filters) if not mask >> i & 1]

    def _impossible(self, applied: list[int], data: bytes) -> str:
        """Says why these bytes cannot be this chunk's, which the library does not check; "" if they can."""
        if all(code in _SAME_SIZE for code in applied) and self.plain:
            want = math.prod(self.dataset.chunks) * self.item_bytes + _CHECKSUM_BYTES * applied.count(FLETCHER32)
            return "" if len(data) == want else f"expected {want:,} bytes in an uncompressed chunk, got {len(data):,}"
        if any(code in NEVER_ZEROS for code in applied) and not any(data):
            return "all its bytes are zero, which its codec never writes"
        return ""

    def _doubtful(self, piece: ChunkPiece, mask: int, data: bytes) -> str:
        codes = [found[0] for found in self.filters]
        applied = self._applied(piece, mask)
        if any(code == FLETCHER32 and mask >> i & 1 for i, code in enumerate(codes)):
            return "its index says that it was written without this dataset's checksum filter"
        if mask >> len(codes):
            return "its index says that filters were skipped which this dataset does not have"
        if self.sender.crcs.get((self.path, piece.offset), crc := codec.crc32c(data)) != crc:
            return "its checksum is not the one that the part's record has"
        if applied and not any(data):
            return "all its bytes are zero, and so is their checksum: a page that was zeroed looks the same"
        return ""

    # ---- values

    def _readable_runs(self) -> Iterator[ChunkPiece]:
        """Yields runs of rows as far as the file has bytes for them: a corrupt shape may claim any number."""
        dataset, shape = self.dataset, self.dataset.shape
        there = dataset.id.get_storage_size()
        offset = self._offset()
        if offset >= 0:
            there = min(there, max(0, self.sender.file_bytes - offset))
        if not shape:
            yield from runs(dataset)
            return
        row_bytes = max(1, math.prod(shape[1:]) * self.item_bytes)
        if not self.plain:  # whose values have another size in memory
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
            reason = "truncated here: the file does not contain the following rows"
            start, offset = (rows, *[0] * (len(shape) - 1)), self._offset()
            self.reporter.problem(
                self.path, reason, start=start, offset=-1 if offset < 0 else offset + rows * row_bytes
            )

    def _offset(self) -> int:
        """Returns -1 if nothing is stored. With a user block the library then returns the highest address plus its
        size."""
        offset = self.dataset.id.get_offset()
        return -1 if offset is None or offset == self.sender.base - 1 else offset

    def _send_run(self, piece: ChunkPiece) -> None:
        reported = False
        for part, reason in self._read(piece):
            self._lost(*part.rows)
            if not reported:
                self._report(part, f"cannot be read: {reason}")
            reported = True

    def _read(self, piece: ChunkPiece) -> Iterator[tuple[ChunkPiece, str]]:
        """Sends the piece, or those halves of it that can be read; yields the others with the reason."""
        try:
            self._send_values(piece)
            return
        except Exception as error:
            reason = reason_of(error)
        if not piece.start or piece.sizes[0] < 2 or piece.stored <= _MIN_READ_BYTES:
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
        self.reporter.send({"values": self.path, "start": piece.start, "sizes": piece.sizes}, body)
