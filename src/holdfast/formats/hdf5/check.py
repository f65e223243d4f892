"""In the child: whether every object of a file can be opened, and every chunk of it read and decoded."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import h5py

from .filters import PACKAGE, lacking_filter
from .pieces import Piece, guessed_chunks, listed_chunks, read_piece, runs
from .sources import check_external_link, check_external_storage, check_virtual
from .walk import Thing, open_file, reason_of, walk

if TYPE_CHECKING:
    from .child import Voice

_SELF_CHECKING = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_FLETCHER32}


def check_file(job: dict[str, Any], voice: Voice) -> None:
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
    def __init__(self, job: dict[str, Any], voice: Voice, file: h5py.File) -> None:
        self.path, self.voice, self.file = job["path"], voice, file
        self.size = os.path.getsize(self.path)
        self.done = set(job["done"])
        self.resume: dict[str, int] = job["resume"]

    def thing(self, thing: Thing) -> None:
        if thing.kind == "soft":
            self._soft(thing)
        elif thing.kind == "external":
            check_external_link(thing, self.path, self.voice)
        elif thing.kind in ("group", "dataset"):
            if thing.path not in self.resume:
                self._attributes(thing)
            if thing.kind == "dataset":
                self._dataset(thing)

    def _soft(self, thing: Thing) -> None:
        try:
            self.file[thing.path]
        except Exception:
            self.voice.wrong(thing.path, f"links to {thing.target!r}, which is not there")

    def _attributes(self, thing: Thing) -> None:
        try:
            names = list(thing.thing.attrs)
        except Exception as error:
            self.voice.wrong(thing.path, f"its attributes cannot be listed: {reason_of(error)}")
            return
        for name in names:
            try:
                thing.thing.attrs[name]
            except Exception as error:
                self.voice.wrong(thing.path, f"its attribute {name!r} cannot be read: {reason_of(error)}")

    def _dataset(self, thing: Thing) -> None:
        dataset, path = thing.thing, thing.path
        try:
            pieces = self._pieces(dataset, path)
        except Exception as error:
            self.voice.wrong(path, f"cannot be read: {reason_of(error)}")
            return
        first = self.resume.get(path, 0)
        if not first:
            self._count(path, dataset, pieces)
        for number, piece in enumerate(pieces[first:], start=first):
            self._piece(path, dataset, number, piece)

    def _pieces(self, dataset: h5py.Dataset, path: str) -> list[Piece]:
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
            if dataset.external:
                return [] if check_external_storage(dataset, path, self.path, self.voice) else list(runs(dataset))
            return list(runs(dataset))
        try:
            pieces = listed_chunks(dataset)
        except Exception as error:
            self.voice.wrong(path, f"its chunks cannot be listed: {reason_of(error)}")
            return guessed_chunks(dataset, self.size)
        self._places(path, dataset, pieces)
        return [piece for piece in pieces if all(piece.sizes)]

    def _places(self, path: str, dataset: h5py.Dataset, pieces: list[Piece]) -> None:
        """An index without checksums can be damaged and still be read: its chunks lie where none can."""
        last: Piece | None = None
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

    def _wrong(self, path: str, piece: Piece, reason: str) -> None:
        self.voice.wrong(path, reason, start=piece.start, offset=piece.offset)

    def _count(self, path: str, dataset: h5py.Dataset, pieces: list[Piece]) -> None:
        plist = dataset.id.get_create_plist()
        filters = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]
        checks = {i for i, code in enumerate(filters) if code in _SELF_CHECKING}
        blind = sum(p.stored for p in pieces if not any(not p.filter_mask >> i & 1 for i in checks))
        self.voice.say({"dataset": path, "pieces": len(pieces), "blind_bytes": blind})

    def _piece(self, path: str, dataset: h5py.Dataset, number: int, piece: Piece) -> None:
        if piece.offset + piece.stored > self.size and dataset.chunks is not None:
            return  # told of already
        self.voice.at_piece(number, piece.start, piece.offset)
        try:
            read_piece(dataset, piece)
        except TypeError as error:
            if number == 0:
                self.voice.say({"note": f"{path}: not read, {reason_of(error)}"})
        except Exception as error:
            self._wrong(path, piece, f"cannot be read: {reason_of(error)}")
        self.voice.done_piece(piece.stored)
