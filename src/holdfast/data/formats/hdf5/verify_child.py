"""Runs in the sandbox: opens every object of a file, and reads and decodes every chunk of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from .chunks import ChunkPiece, listed_chunks, possible_chunks, read_piece, read_unconverted, runs
from .filters import FLETCHER32, GZIP, PACKAGE, filters_of, lacking_filter
from .object_walk import ObjectRef, attribute_names, open_reported, raw_of, reason_of, walk
from .other_files import NEEDS_PERMISSION, external_dir, external_problems, external_storage

if TYPE_CHECKING:
    from .sandbox_main import Reporter

SELF_CHECKING = {GZIP, FLETCHER32}


def verify_file(job: dict[str, Any], reporter: Reporter) -> None:
    """`avoid`: objects that crashed the library; `done`: those verified before; `resume`: by object, the first piece to
    read."""
    file = open_reported(job, reporter)
    if file is None:
        return
    with file:
        check = _Check(job, reporter, file)
        for ref in walk(file, reporter, set(job["avoid"])):
            if ref.path not in check.done:
                check.object(ref)
                reporter.send({"done": ref.path})
    reporter.send({"end": True})


class _Check:
    def __init__(self, job: dict[str, Any], reporter: Reporter, file: h5py.File) -> None:
        self.path, self.reporter, self.file = os.path.abspath(job["path"]), reporter, file
        self.size = os.path.getsize(self.path)
        self.done = set(job["done"])
        self.resume: dict[str, int] = job["resume"]
        self._unconvertible: set[str] = set()

    def object(self, ref: ObjectRef) -> None:
        if ref.kind in ("soft", "external"):
            self._link(ref)
        elif ref.kind in ("group", "dataset"):
            if ref.path not in self.resume:
                self._attributes(ref)
            if ref.kind == "dataset":
                self._dataset(ref)

    def _link(self, ref: ObjectRef) -> None:
        """Notes a link into another file, and a dangling one, which HDF5 allows: its target may be created later."""
        target = f"{ref.target!r} in {ref.target_file!r}" if ref.target_file else repr(ref.target)
        try:
            h5py.h5o.open(self.file.id, raw_of(ref.path))
            if ref.target_file:
                self.reporter.note(ref.path, f"links to {target}, another file: {NEEDS_PERMISSION}")
        except Exception as error:
            self.reporter.note(
                ref.path, f"links to {target}, which does not exist (HDF5 allows that): {reason_of(error)}"
            )

    def _attributes(self, ref: ObjectRef) -> None:
        for name in attribute_names(ref, self.reporter):
            try:
                ref.object.attrs[name]
            except Exception as error:
                try:
                    _read_attribute_unconverted(ref.object, name)
                except Exception:
                    self.reporter.problem(ref.path, f"its attribute {name!r} cannot be read: {reason_of(error)}")
                else:
                    self._note_unconvertible(ref.path, error)

    def _dataset(self, ref: ObjectRef) -> None:
        dataset, path = ref.object, ref.path
        try:
            pieces = self._pieces(dataset, path)
        except Exception as error:
            self.reporter.problem(path, f"cannot be read: {reason_of(error)}")
            return
        first = self.resume.get(path, 0)
        if not first:
            self._report_counts(path, dataset, pieces)
        for number, piece in enumerate(pieces[first:], start=first):
            self._piece(path, dataset, number, piece)

    def _pieces(self, dataset: h5py.Dataset, path: str) -> list[ChunkPiece]:
        if dataset.shape is None:
            return []
        if dataset.is_virtual:
            check_virtual(dataset, path, self.path, self.file, self.reporter)
            return []
        lacking = lacking_filter(dataset)
        if lacking is not None:
            self.reporter.problem(path, f"cannot be read here: it {lacking}: pip install {PACKAGE}")
            return []
        if dataset.chunks is None:
            stored = int(dataset.id.get_storage_size())
            if external_storage(dataset):
                self._external(dataset, path)
                return []
            if not stored:
                return []  # never written: all values are the fill value
            if stored > self.size:
                self.reporter.problem(
                    path, f"cannot be read: expected {stored:,} bytes of values, the file has {self.size:,}"
                )
                return []
            return list(runs(dataset))
        try:
            pieces = listed_chunks(dataset)
        except Exception as error:
            self.reporter.problem(path, f"its chunks cannot be listed: {reason_of(error)}")
            return possible_chunks(dataset, self.size)
        self._check_index(path, dataset, pieces)
        return [piece for piece in pieces if all(piece.sizes)]

    def _external(self, dataset: h5py.Dataset, path: str) -> None:
        for problem in external_problems(dataset, external_dir(dataset, self.path)):
            self.reporter.problem(path, problem)
        name = external_storage(dataset)[0][0]
        self.reporter.note(path, f"its values are in {name!r}, another file, which was not read: {NEEDS_PERMISSION}")

    def _check_index(self, path: str, dataset: h5py.Dataset, pieces: list[ChunkPiece]) -> None:
        """An index without checksums can be corrupt and still be read: it then has impossible chunks."""
        last: ChunkPiece | None = None
        for piece in pieces:
            if any(at % n for at, n in zip(piece.start, dataset.chunks, strict=True)) or not all(piece.sizes):
                self._report(path, piece, "its index has a chunk outside of the grid")
            elif last is not None and last.start == piece.start:
                self._report(path, piece, "its index has this chunk twice")
            last = piece
        end = 0
        for piece in sorted(pieces, key=lambda piece: piece.offset):
            if piece.offset < end:
                self._report(path, piece, "it shares bytes with another chunk")
            end = max(end, piece.offset + piece.stored)
        for piece in pieces:
            if piece.offset + piece.stored > self.size:
                cut = f"truncated: it ends at byte {piece.offset + piece.stored:,}, the file at {self.size:,}"
                self._report(path, piece, cut)

    def _report(self, path: str, piece: ChunkPiece, reason: str) -> None:
        self.reporter.problem(path, reason, start=piece.start, offset=piece.offset)

    def _note_unconvertible(self, path: str, error: Exception) -> None:
        if path not in self._unconvertible:
            self._unconvertible.add(path)
            self.reporter.note(path, f"read without conversion, because h5py cannot convert it: {reason_of(error)}")

    def _report_counts(self, path: str, dataset: h5py.Dataset, pieces: list[ChunkPiece]) -> None:
        filters = filters_of(dataset.id.get_create_plist())
        checks = {i for i, (code, _, _) in enumerate(filters) if code in SELF_CHECKING}
        if _is_in_heap(dataset):
            checks = set()
        unprotected = sum(p.stored for p in pieces if not any(not p.filter_mask >> i & 1 for i in checks))
        rows = 0 if dataset.shape is None else (*dataset.shape, 1)[0]
        self.reporter.send({"dataset": path, "pieces": len(pieces), "unprotected_bytes": unprotected, "rows": rows})

    def _piece(self, path: str, dataset: h5py.Dataset, number: int, piece: ChunkPiece) -> None:
        if piece.offset + piece.stored > self.size and dataset.chunks is not None:
            return  # reported already
        self.reporter.at_piece(number, piece.start, piece.offset)
        try:
            if path in self._unconvertible:
                read_unconverted(dataset, piece.start, piece.sizes)
            else:
                read_piece(dataset, piece)
        except Exception as error:
            self._retry_unconverted(path, dataset, piece, error)
        self.reporter.done_piece(piece.stored)

    def _retry_unconverted(self, path: str, dataset: h5py.Dataset, piece: ChunkPiece, error: Exception) -> None:
        """Values that h5py cannot convert may be intact: types that numpy lacks, opaque types with a tag."""
        try:
            read_unconverted(dataset, piece.start, piece.sizes)
        except Exception:
            self._report(path, piece, f"cannot be read: {reason_of(error)}")
        else:
            self._note_unconvertible(path, error)


def _is_in_heap(dataset: h5py.Dataset) -> bool:
    """Returns whether chunks hold references into a heap instead of values: lists, strings of any length, regions."""
    kind = dataset.id.get_type()
    return bool(kind.detect_class(h5py.h5t.VLEN) or _has_any_string(kind) or kind.equal(h5py.h5t.STD_REF_DSETREG))


def _has_any_string(kind: h5py.h5t.TypeID) -> bool:
    if isinstance(kind, h5py.h5t.TypeStringID):
        return bool(kind.is_variable_str())
    if isinstance(kind, h5py.h5t.TypeCompoundID):
        return any(_has_any_string(kind.get_member_type(i)) for i in range(kind.get_nmembers()))
    return isinstance(kind, h5py.h5t.TypeArrayID) and _has_any_string(kind.get_super())


def _read_attribute_unconverted(obj: Any, name: str | bytes) -> None:
    attribute = h5py.h5a.open(obj.id, name if isinstance(name, bytes) else raw_of(name))
    kind, space = attribute.get_type(), attribute.get_space()
    if space.get_simple_extent_type() != h5py.h5s.NULL:
        attribute.read(np.empty(space.get_simple_extent_dims(), f"V{kind.get_size()}"), mtype=kind)


def _source_path(path: str, name: str) -> str:
    """Returns where the library looks for a file that this one names."""
    return name if os.path.isabs(name) else os.path.join(os.path.dirname(os.path.abspath(path)), name)


def check_virtual(dataset: h5py.Dataset, path: str, file: str, own: h5py.File, reporter: Reporter) -> None:
    """Reports sources that cannot be opened or have another shape than the view needs. Sources are not read."""
    try:
        sources = dataset.virtual_sources()
    except UnicodeDecodeError as error:
        reporter.note(path, f"its sources were not checked, because h5py cannot list them: {reason_of(error)}")
        return
    for source in sources:
        if "%" in source.file_name.replace("%%", "") or "%" in source.dset_name.replace("%%", ""):
            continue  # a pattern for any number of files
        problem = _source_problem(source, dataset, file, own)
        if problem:
            reporter.problem(path, problem)


def _source_problem(source: Any, dataset: h5py.Dataset, file: str, own: h5py.File) -> str:
    if source.file_name == ".":
        return _compare(own, source, dataset)
    there = _source_path(file, source.file_name.replace("%%", "%"))
    if not os.path.exists(there):
        return f"its source {source.file_name!r} does not exist: it reads as fill values"
    try:
        with h5py.File(there, "r") as other:
            return _compare(other, source, dataset)
    except Exception as error:
        return f"its source {source.file_name!r} cannot be opened: {reason_of(error)}"


def _compare(other: h5py.File, source: Any, dataset: h5py.Dataset) -> str:
    name = f"{source.dset_name!r} in its source {source.file_name!r}"
    found = other.get(source.dset_name)
    if not isinstance(found, h5py.Dataset):
        return f"{name} does not exist: it reads as fill values"
    if found.dtype.kind != dataset.dtype.kind and {found.dtype.kind, dataset.dtype.kind} - set("iufb"):
        return f"{name} holds {found.dtype}, expected {dataset.dtype}"
    if source.src_space.get_select_type() == h5py.h5s.SEL_ALL:
        expected = int(source.vspace.get_select_npoints())  # the file does not keep its shape
        fits = found.size == expected
        return "" if fits else f"{name} has the shape {found.shape}: {found.size:,} values, expected {expected:,}"
    _, last = source.src_space.get_select_bounds()
    if len(last) != found.ndim or any(at >= n for at, n in zip(last, found.shape, strict=True)):
        least = tuple(at + 1 for at in last)
        return f"{name} has the shape {found.shape}, expected at least {least}"
    return ""
