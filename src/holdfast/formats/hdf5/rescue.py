"""In the child: reads all that can be read of a damaged file, and sends it on, object by object and piece by piece."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from .filters import PACKAGE, lacking_filter
from .pieces import Piece, guessed_chunks, listed_chunks, read_piece, runs
from .walk import Thing, open_file, reason_of, walk, walk_orphans

if TYPE_CHECKING:
    from .child import Voice

_REFERENCES = "it holds references, which mean nothing in another file: not kept"


def read_file(job: dict[str, Any], voice: Voice) -> None:
    """`avoid`, `done` and `resume` as in check.py."""
    voice.at_object("/")
    try:
        file = open_file(job["path"], mend=job["mend"], stretch=job["stretch"])
    except Exception as error:
        voice.wrong(None, f"it cannot be opened: {reason_of(error)}")
        return
    done, resume, file_bytes = set(job["done"]), job["resume"], os.path.getsize(job["path"])
    with file:
        avoid = set(job["avoid"])
        if job["orphans"]:
            things = walk_orphans(file, job["path"], voice, avoid, set(job["known"]))
        else:
            things = walk(file, voice, avoid)
        for thing in things:
            if thing.path not in done:
                _send(thing, voice, resume.get(thing.path, 0), file_bytes)
                voice.say({"done": thing.path, "address": thing.address})
    voice.say({"end": True})


def _send(thing: Thing, voice: Voice, first: int, file_bytes: int) -> None:
    if thing.kind in ("soft", "external", "again"):
        voice.say({"link": thing.kind, "path": thing.path, "target": thing.target, "file": thing.target_file})
        return
    try:
        if thing.kind == "datatype":
            voice.say({"make": "datatype", "path": thing.path}, thing.thing.id.encode())
            return
        if thing.kind == "dataset":
            if not _send_head(thing, voice):
                return
        else:
            voice.say({"make": "group", "path": thing.path})
    except Exception as error:
        voice.wrong(thing.path, f"cannot be read: {reason_of(error)}")
        return
    if not first:
        _send_attributes(thing, voice)
    if thing.kind == "dataset":
        _send_pieces(thing, voice, first, file_bytes)


def _send_head(thing: Thing, voice: Voice) -> bool:
    dataset = thing.thing
    kind = dataset.id.get_type()
    if kind.detect_class(h5py.h5t.REFERENCE):
        voice.wrong(thing.path, _REFERENCES)
        return False
    if dataset.shape is not None and dataset.is_virtual:
        names = sorted({source.file_name for source in dataset.virtual_sources()})
        more = " …" if len(names) > 4 else ""
        voice.wrong(thing.path, f"virtual, not kept: its values are in {', '.join(names[:4])}{more}")
        return False
    plist = dataset.id.get_create_plist()
    head = {
        "make": "dataset",
        "path": thing.path,
        "shape": dataset.shape,
        "maxshape": dataset.maxshape,
        "chunks": dataset.chunks,
        "filters": [_filter(plist.get_filter(i)) for i in range(plist.get_nfilters())],
    }
    voice.say(head, pickle.dumps((kind.encode(), _fill(dataset, plist))))
    return True


def _filter(found: tuple[Any, ...]) -> list[Any]:
    code, flags, values = found[:3]
    return [int(code), int(flags), [int(value) for value in values]]


def _fill(dataset: h5py.Dataset, plist: Any) -> bytes | None:
    if plist.fill_value_defined() != h5py.h5d.FILL_VALUE_USER_DEFINED or dataset.dtype.hasobject:
        return None
    return np.asarray(dataset.fillvalue, dataset.dtype).tobytes()


def _send_attributes(thing: Thing, voice: Voice) -> None:
    try:
        names = list(thing.thing.attrs)
    except Exception as error:
        voice.wrong(thing.path, f"its attributes cannot be listed: {reason_of(error)}")
        return
    for name in names:
        try:
            kind = thing.thing.attrs.get_id(name).get_type()
            if kind.detect_class(h5py.h5t.REFERENCE):
                voice.wrong(thing.path, f"attribute {name!r}: {_REFERENCES}")
                continue
            value = thing.thing.attrs[name]
            if isinstance(value, h5py.Empty):
                value = None
            voice.say({"attribute": name, "path": thing.path}, pickle.dumps((kind.encode(), value)))
        except Exception as error:
            voice.wrong(thing.path, f"its attribute {name!r} cannot be read: {reason_of(error)}")


# ---- values


def _send_pieces(thing: Thing, voice: Voice, first: int, file_bytes: int) -> None:
    dataset, path = thing.thing, thing.path
    try:
        pieces = _pieces(dataset, path, voice, file_bytes)
    except Exception as error:
        rows = dataset.shape[0] if dataset.shape else 1
        voice.say({"lost": path, "rows": [0, rows]})
        voice.wrong(path, f"cannot be read: {reason_of(error)}")
        return
    for number, piece in enumerate(pieces[first:], start=first):
        voice.at_piece(number, piece.start, piece.offset)
        told = False
        for part, values, reason in _read(dataset, piece):
            if reason:
                voice.say({"lost": path, "rows": list(part.rows)})
                if not told:
                    voice.wrong(path, f"cannot be read: {reason}", start=part.start, offset=part.offset)
                told = True
            else:
                raw = not dataset.dtype.hasobject
                body = np.ascontiguousarray(values).tobytes() if raw else pickle.dumps(values)
                voice.say({"piece": path, "start": part.start, "sizes": part.sizes, "raw": raw}, body)
        voice.done_piece(piece.stored)


def _pieces(dataset: h5py.Dataset, path: str, voice: Voice, file_bytes: int) -> list[Piece]:
    if dataset.shape is None:
        return []
    if dataset.chunks is None:
        if dataset.id.get_offset() is None and not dataset.external and dataset.id.get_storage_size() == 0:
            return []  # nothing was ever written
        return list(_before_cut(path, runs(dataset), voice, file_bytes))
    lacking = lacking_filter(dataset)
    if lacking is not None:
        voice.wrong(path, f"cannot be read here: it {lacking}: pip install {PACKAGE}")
    try:
        return [piece for piece in listed_chunks(dataset) if all(piece.sizes)]
    except Exception as error:
        voice.wrong(path, f"its chunks cannot be listed, each is tried: {reason_of(error)}")
        return guessed_chunks(dataset)


def _before_cut(path: str, pieces: Iterator[Piece], voice: Voice, file_bytes: int) -> Iterator[Piece]:
    """Runs of rows, as far as the file goes."""
    told = False
    for piece in pieces:
        if piece.offset + piece.stored <= file_bytes or not piece.start:
            yield piece
            continue
        row_bytes = piece.stored // piece.sizes[0]
        there = max(0, file_bytes - piece.offset) // row_bytes
        if there:
            yield piece._replace(sizes=(there, *piece.sizes[1:]), stored=there * row_bytes)
        low, high = piece.rows
        voice.say({"lost": path, "rows": [low + there, high]})
        if not told:
            start = (low + there, *piece.start[1:])
            voice.wrong(path, "the file is cut here", start=start, offset=piece.offset + there * row_bytes)
        told = True


def _read(dataset: h5py.Dataset, piece: Piece) -> Iterator[tuple[Piece, Any, str]]:
    """The piece, or those halves of it that can be read: a chunk is whole or lost, a run of rows may be damaged."""
    try:
        yield piece, read_piece(dataset, piece), ""
        return
    except Exception as error:
        reason = reason_of(error)
    if dataset.chunks is not None or not piece.start or piece.sizes[0] < 2:
        yield piece, None, reason
        return
    half = piece.sizes[0] // 2
    stored = piece.stored // piece.sizes[0] * half
    yield from _read(dataset, piece._replace(sizes=(half, *piece.sizes[1:]), stored=stored))
    rest = Piece(
        (piece.start[0] + half, *piece.start[1:]),
        (piece.sizes[0] - half, *piece.sizes[1:]),
        piece.offset + stored if piece.offset >= 0 else -1,
        piece.stored - stored,
    )
    yield from _read(dataset, rest)
