"""In the child: files that an HDF5 file needs beside itself. The library reads fill values where one is missing."""

from __future__ import annotations

import os
from contextlib import ExitStack, chdir
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from .chunks import ChunkPiece, guessed_chunks, listed_chunks, read_piece, runs
from .filters import PACKAGE, lacking_filter
from .object_walk import ObjectRef, open_file, raw_of, reason_of, walk

if TYPE_CHECKING:
    from .sandbox_main import Reporter


def beside(path: str, name: str) -> str:
    """Where the library would look for a file that this one names."""
    return name if os.path.isabs(name) else os.path.join(os.path.dirname(os.path.abspath(path)), name)


def folder_of_values(dataset: h5py.Dataset, file: str) -> str:
    """The folder from which the library finds them: unlike links, it takes names of external storage as the working
    folder has them. Where they are not there, they may be beside the file."""
    names = [name for name, _, _ in dataset.external]
    return "." if all(map(os.path.exists, names)) else os.path.dirname(file)


def check_external_storage(dataset: h5py.Dataset, path: str, file: str, voice: Reporter) -> bool:
    """Whether something was wrong."""
    missing, folder = False, folder_of_values(dataset, file)
    for name, start, size in dataset.external:
        there = os.path.join(folder, name)
        if not os.path.exists(there):
            voice.wrong(path, f"its values are in {name!r}, which is not there")
            missing = True
        elif size != h5py.h5f.UNLIMITED and os.path.getsize(there) < start + size:
            got = os.path.getsize(there)
            voice.wrong(path, f"its values are in {name!r}, which has {got:,} bytes, expected {start + size:,}")
            missing = True
    return missing


def check_virtual(dataset: h5py.Dataset, path: str, file: str, own: h5py.File, voice: Reporter) -> None:
    """Each source is there, can be opened and has the shape the view was made for. Sources are not read."""
    try:
        sources = dataset.virtual_sources()
    except UnicodeDecodeError as error:
        voice.note(path, f"its sources were not looked for, as h5py cannot list them: {reason_of(error)}")
        return
    for source in sources:
        if "%" in source.file_name.replace("%%", "") or "%" in source.dset_name.replace("%%", ""):
            continue  # a pattern: any number of files
        wrong = _source_problem(source, dataset, file, own)
        if wrong:
            voice.wrong(path, wrong)


def _source_problem(source: Any, dataset: h5py.Dataset, file: str, own: h5py.File) -> str:
    if source.file_name == ".":
        return _compare(own, source, dataset)
    there = beside(file, source.file_name.replace("%%", "%"))
    if not os.path.exists(there):
        return f"its source {source.file_name!r} is not there: it reads as fill values"
    try:
        with h5py.File(there, "r") as other:
            return _compare(other, source, dataset)
    except Exception as error:
        return f"its source {source.file_name!r} cannot be opened: {reason_of(error)}"


def _compare(other: h5py.File, source: Any, dataset: h5py.Dataset) -> str:
    name = f"{source.dset_name!r} in its source {source.file_name!r}"
    found = other.get(source.dset_name)
    if not isinstance(found, h5py.Dataset):
        return f"{name} is not there: it reads as fill values"
    if found.dtype.kind != dataset.dtype.kind and {found.dtype.kind, dataset.dtype.kind} - set("iufb"):
        return f"{name} holds {found.dtype}, expected {dataset.dtype}"
    if source.src_space.get_select_type() == h5py.h5s.SEL_ALL:
        wanted = int(source.vspace.get_select_npoints())  # the shape it had is not kept
        fits = found.size == wanted
        return "" if fits else f"{name} has the shape {found.shape}: {found.size:,} values, expected {wanted:,}"
    _, last = source.src_space.get_select_bounds()
    if len(last) != found.ndim or any(at >= n for at, n in zip(last, found.shape, strict=True)):
        least = tuple(at + 1 for at in last)
        return f"{name} has the shape {found.shape}, expected at least {least}"
    return ""


# In the child: whether every object of a file can be opened, and every chunk of it read and decoded.

_SELF_CHECKING = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_FLETCHER32}


def check_file(job: dict[str, Any], voice: Reporter) -> None:
    """`avoid`: objects that crashed the library; `done`: those checked before it; `resume`: from which piece on."""
    voice.at_object("/")
    try:
        file = open_file(job["path"], mend=job["mend"])
    except Exception as error:
        voice.wrong(None, f"it cannot be opened: {reason_of(error)}")
        return
    with file:
        check = _Check(job, voice, file)
        for thing in walk(file, voice, set(job["avoid"])):
            if thing.path not in check.done:
                check.thing(thing)
                voice.say({"done": thing.path})
    voice.say({"end": True})


class _Check:
    def __init__(self, job: dict[str, Any], voice: Reporter, file: h5py.File) -> None:
        self.path, self.voice, self.file = os.path.abspath(job["path"]), voice, file
        self.size = os.path.getsize(self.path)
        self.done = set(job["done"])
        self.resume: dict[str, int] = job["resume"]
        self._not_numpys: set[str] = set()

    def thing(self, thing: ObjectRef) -> None:
        if thing.kind in ("soft", "external"):
            self._link(thing)
        elif thing.kind in ("group", "dataset"):
            if thing.path not in self.resume:
                self._attributes(thing)
            if thing.kind == "dataset":
                self._dataset(thing)

    def _link(self, thing: ObjectRef) -> None:
        """HDF5 lets a link lead nowhere: the target may be made later, or elsewhere. That is no damage."""
        try:
            h5py.h5o.open(self.file.id, raw_of(thing.path))
        except Exception as error:
            target = f"{thing.target!r} in {thing.target_file!r}" if thing.target_file else repr(thing.target)
            self.voice.note(thing.path, f"links to {target}, which HDF5 allows not to be there: {reason_of(error)}")

    def _attributes(self, thing: ObjectRef) -> None:
        try:
            names = list(thing.thing.attrs)
        except Exception as error:
            self.voice.wrong(thing.path, f"its attributes cannot be listed: {reason_of(error)}")
            return
        for name in names:
            try:
                thing.thing.attrs[name]
            except Exception as error:
                try:
                    _read_attribute_unconverted(thing.thing, name)
                except Exception:
                    self.voice.wrong(thing.path, f"its attribute {name!r} cannot be read: {reason_of(error)}")
                else:
                    self._told_type(thing.path, error)

    def _dataset(self, thing: ObjectRef) -> None:
        dataset, path = thing.thing, thing.path
        try:
            pieces = self._pieces(dataset, path)
        except Exception as error:
            self.voice.wrong(path, f"cannot be read: {reason_of(error)}")
            return
        first = self.resume.get(path, 0)
        with ExitStack() as stack:
            if dataset.external:
                stack.enter_context(chdir(folder_of_values(dataset, self.path)))
            if not first:
                self._count(path, dataset, pieces)
            for number, piece in enumerate(pieces[first:], start=first):
                self._piece(path, dataset, number, piece)

    def _pieces(self, dataset: h5py.Dataset, path: str) -> list[ChunkPiece]:
        if dataset.shape is None:
            return []
        if dataset.is_virtual:
            check_virtual(dataset, path, self.path, self.file, self.voice)
            return []
        lacking = lacking_filter(dataset)
        if lacking is not None:
            self.voice.wrong(path, f"cannot be read here: it {lacking}: pip install {PACKAGE}")
            return []
        if dataset.chunks is None:
            stored = int(dataset.id.get_storage_size())
            if dataset.external:
                if check_external_storage(dataset, path, self.path, self.voice):
                    return []
            elif not stored:
                return []  # nothing was ever written: all values are the fill value
            elif stored > self.size:
                self.voice.wrong(path, f"cannot be read: it should have {stored:,} bytes, the file has {self.size:,}")
                return []
            return list(runs(dataset))
        try:
            pieces = listed_chunks(dataset)
        except Exception as error:
            self.voice.wrong(path, f"its chunks cannot be listed: {reason_of(error)}")
            return guessed_chunks(dataset, self.size)
        self._places(path, dataset, pieces)
        return [piece for piece in pieces if all(piece.sizes)]

    def _places(self, path: str, dataset: h5py.Dataset, pieces: list[ChunkPiece]) -> None:
        """An index without checksums can be damaged and still be read: its chunks lie where none can."""
        last: ChunkPiece | None = None
        for piece in pieces:
            if any(at % n for at, n in zip(piece.start, dataset.chunks, strict=True)) or not all(piece.sizes):
                self._wrong(path, piece, "its index has a chunk where none can be")
            elif last is not None and last.start == piece.start:
                self._wrong(path, piece, "its index has this chunk twice")
            last = piece
        end = 0
        for piece in sorted(pieces, key=lambda piece: piece.offset):
            if piece.offset < end:
                self._wrong(path, piece, "it shares bytes with another chunk")
            end = max(end, piece.offset + piece.stored)
        for piece in pieces:
            if piece.offset + piece.stored > self.size:
                cut = f"cut: it ends at byte {piece.offset + piece.stored:,}, the file at {self.size:,}"
                self._wrong(path, piece, cut)

    def _wrong(self, path: str, piece: ChunkPiece, reason: str) -> None:
        self.voice.wrong(path, reason, start=piece.start, offset=piece.offset)

    def _told_type(self, path: str, error: Exception) -> None:
        if path not in self._not_numpys:
            self._not_numpys.add(path)
            self.voice.note(path, f"read but not converted, as h5py cannot: {reason_of(error)}")

    def _count(self, path: str, dataset: h5py.Dataset, pieces: list[ChunkPiece]) -> None:
        plist = dataset.id.get_create_plist()
        filters = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]
        checks = {i for i, code in enumerate(filters) if code in _SELF_CHECKING}
        if _is_in_heap(dataset):
            checks = set()
        blind = sum(p.stored for p in pieces if not any(not p.filter_mask >> i & 1 for i in checks))
        self.voice.say({"dataset": path, "pieces": len(pieces), "blind_bytes": blind})

    def _piece(self, path: str, dataset: h5py.Dataset, number: int, piece: ChunkPiece) -> None:
        if piece.offset + piece.stored > self.size and dataset.chunks is not None:
            return  # told of already
        self.voice.at_piece(number, piece.start, piece.offset)
        try:
            if path in self._not_numpys:
                _read_unconverted(dataset, piece)
            else:
                read_piece(dataset, piece)
        except Exception as error:
            self._second_try(path, dataset, piece, error)
        self.voice.done_piece(piece.stored)

    def _second_try(self, path: str, dataset: h5py.Dataset, piece: ChunkPiece, error: Exception) -> None:
        """What h5py cannot convert may be whole all the same: types that numpy has not, opaque ones with a tag."""
        try:
            _read_unconverted(dataset, piece)
        except Exception:
            self._wrong(path, piece, f"cannot be read: {reason_of(error)}")
        else:
            self._told_type(path, error)


def _is_in_heap(dataset: h5py.Dataset) -> bool:
    """Whether chunks hold no values but where in a heap they are: lists, strings of any length, regions."""
    kind = dataset.id.get_type()
    return bool(kind.detect_class(h5py.h5t.VLEN) or _has_any_string(kind) or kind.equal(h5py.h5t.STD_REF_DSETREG))


def _has_any_string(kind: h5py.h5t.TypeID) -> bool:
    if isinstance(kind, h5py.h5t.TypeStringID):
        return bool(kind.is_variable_str())
    if isinstance(kind, h5py.h5t.TypeCompoundID):
        return any(_has_any_string(kind.get_member_type(i)) for i in range(kind.get_nmembers()))
    return isinstance(kind, h5py.h5t.TypeArrayID) and _has_any_string(kind.get_super())


def _read_unconverted(dataset: h5py.Dataset, piece: ChunkPiece) -> None:
    """Read and unpacked, as the type that the file has."""
    kind, there = dataset.id.get_type(), dataset.id.get_space()
    here = h5py.h5s.create(h5py.h5s.SCALAR)
    if piece.start:
        there.select_hyperslab(piece.start, piece.sizes)
        here = h5py.h5s.create_simple(piece.sizes)
    dataset.id.read(here, there, np.empty(piece.sizes, f"V{kind.get_size()}"), mtype=kind)


def _read_attribute_unconverted(thing: Any, name: str | bytes) -> None:
    attribute = h5py.h5a.open(thing.id, name if isinstance(name, bytes) else raw_of(name))
    kind, space = attribute.get_type(), attribute.get_space()
    if space.get_simple_extent_type() != h5py.h5s.NULL:
        attribute.read(np.empty(space.get_simple_extent_dims(), f"V{kind.get_size()}"), mtype=kind)
