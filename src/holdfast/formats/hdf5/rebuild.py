"""In a child of its own: writes a new file from what a reader of the damaged one sent. A full disk ends only it."""

from __future__ import annotations

import errno
import os
import pickle
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from .filters import has_filter
from .frames import Frame, read_frame
from .walk import reason_of

if TYPE_CHECKING:
    from .child import Voice

LOST_ROWS = "holdfast_lost_rows"
# Their values are made anew from the type when a dataset is created, and not all of them can be given again.
_NOT_GIVEN_AGAIN = {h5py.h5z.FILTER_SZIP, h5py.h5z.FILTER_NBIT, h5py.h5z.FILTER_SCALEOFFSET}


def build_file(job: dict[str, Any], voice: Voice) -> None:
    """Frames until `finish`. What the disk refuses ends this process at once: the library cannot be left then."""
    try:
        file = _open(job["out"], tuple(job["identity"]))
        build = _Build(file)
        while (frame := read_frame(voice.stdin)) is not None:
            if "finish" in frame.head:
                file.close()
                for path, reason in build.wrong:  # only now: nobody reads while frames are sent
                    voice.wrong(path, reason)
                voice.say({"end": True})
                return
            build.take(frame)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else reason_of(error)
        voice.say({"failed": why})
    os._exit(1)


def _open(path: str, identity: tuple[int, int]) -> h5py.File:
    """The empty file that the parent made and holds, and no other that may have its name by now: `w` truncates."""
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        info = os.fstat(fd)
        if (info.st_dev, info.st_ino) != identity or info.st_size:
            raise OSError(errno.ESTALE, "another file has its name by now")
        return h5py.File(f"/proc/self/fd/{fd}", "w", libver=("v110", "v110"))
    finally:
        os.close(fd)


class _Build:
    def __init__(self, file: h5py.File) -> None:
        self.file = file
        self.wrong: dict[tuple[str, str], None] = {}

    def take(self, frame: Frame) -> None:
        head, body = frame
        try:
            match head:
                case {"make": "group"}:
                    self.file.require_group(head["path"])
                case {"make": "datatype"}:
                    self._datatype(head["path"], body)
                case {"make": "dataset"}:
                    self._dataset(head, body)
                case {"attribute": name}:
                    self._attribute(head["path"], name, body)
                case {"piece": path}:
                    self._piece(path, head, body)
                case {"link": kind}:
                    self._link(kind, head)
                case {"mark": path}:
                    self.file[path].attrs[LOST_ROWS] = np.array(head["rows"], np.int64)
        except OSError:
            raise
        except Exception as error:  # one object that cannot be made again must not lose the others
            path = str(head.get("path") or head.get("piece") or head.get("mark"))
            self.wrong[path, f"cannot be written again: {reason_of(error)}"] = None

    def _datatype(self, path: str, body: bytes) -> None:
        if path not in self.file:
            self._parent(path)
            h5py.h5t.decode(body).commit(self.file.id, path.encode("utf-8", "surrogateescape"))

    def _parent(self, path: str) -> None:
        self.file.require_group(path.rpartition("/")[0] or "/")

    def _dataset(self, head: dict[str, Any], body: bytes) -> None:
        path = head["path"]
        if path in self.file:
            return
        self._parent(path)
        encoded, fill = pickle.loads(body)
        kind = h5py.h5t.decode(encoded)
        space = _space(head)
        name = path.encode("utf-8", "surrogateescape")
        filters = [f for f in head["filters"] if f[0] not in _NOT_GIVEN_AGAIN and has_filter(f[0])]
        try:
            h5py.h5d.create(self.file.id, name, kind, space, _plist(head, filters, fill, kind))
        except (ValueError, RuntimeError):  # a filter that can read but not write
            h5py.h5d.create(self.file.id, name, kind, space, _plist(head, [], fill, kind))

    def _attribute(self, path: str, name: str, body: bytes) -> None:
        encoded, value = pickle.loads(body)
        dtype = h5py.h5t.decode(encoded).dtype
        attributes = self.file[path].attrs
        if name in attributes:
            return
        if value is None:
            attributes[name] = h5py.Empty(dtype)
        elif h5py.check_string_dtype(dtype) is not None:
            attributes.create(name, value, dtype=dtype)
        else:
            attributes.create(name, np.asarray(value, dtype if not dtype.subdtype else None), dtype=dtype)

    def _piece(self, path: str, head: dict[str, Any], body: bytes) -> None:
        """By the library's own call: h5py's assignment guesses shapes, and guesses wrong where all lists are empty."""
        dataset = self.file[path]
        start, sizes = tuple(head["start"]), tuple(head["sizes"])
        values = np.empty(sizes, dataset.dtype)
        if head["raw"]:
            values = np.frombuffer(body, dataset.dtype).reshape(sizes).copy()
        else:
            values.reshape(-1)[:] = _listed(pickle.loads(body))
        inside = dataset.id.get_space()
        if start:
            inside.select_hyperslab(start, sizes)
        memory = h5py.h5s.create_simple(sizes) if start else h5py.h5s.create(h5py.h5s.SCALAR)
        dataset.id.write(memory, inside, values)

    def _link(self, kind: str, head: dict[str, Any]) -> None:
        path = head["path"]
        if self.file.get(path, getlink=True, default=None) is not None:
            return
        self._parent(path)
        if kind == "soft":
            self.file[path] = h5py.SoftLink(head["target"])
        elif kind == "external":
            self.file[path] = h5py.ExternalLink(head["file"], head["target"])
        elif head["target"] in self.file:
            self.file[path] = self.file[head["target"]]


def _listed(value: Any) -> Any:
    """One after the other, whatever each of them is."""
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return value.reshape(-1)
    only = np.empty(1, object)
    only[0] = value
    return only


def _space(head: dict[str, Any]) -> Any:
    if head["shape"] is None:
        return h5py.h5s.create(h5py.h5s.NULL)
    if not head["shape"]:
        return h5py.h5s.create(h5py.h5s.SCALAR)
    most = tuple(h5py.h5s.UNLIMITED if n is None else n for n in head["maxshape"])
    return h5py.h5s.create_simple(tuple(head["shape"]), most)


def _plist(head: dict[str, Any], filters: list[Any], fill: bytes | None, kind: Any) -> Any:
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if head["chunks"]:
        plist.set_chunk(tuple(head["chunks"]))
        for code, flags, values in filters:
            plist.set_filter(code, flags, tuple(values))
    if fill is not None:
        plist.set_fill_value(np.frombuffer(fill, kind.dtype).reshape(()))
    return plist
