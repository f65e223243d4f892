"""In a child of its own: writes a new file from what a reader of the damaged one sent. A full disk ends only it.

Datasets get the filters they had, with the same parameters, and their chunks as they were. What refers to other objects
waits until all of them are there.
"""

from __future__ import annotations

import errno
import os
import tempfile
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from .chunks import joined
from .filters import filters_of, has_filter, is_own, register_stand_in, same_filters
from .object_walk import raw_of, reason_of
from .raw_values import ValueDecoder, set_chunk_options
from .sandbox import SandboxMessage, pack_frame, read_frame

if TYPE_CHECKING:
    from .sandbox_main import Reporter

LOST_ROWS = "holdfast_lost_rows"
DOUBTFUL_ROWS = "holdfast_doubtful_rows"
_LIBVER = ("v110", "latest")  # what HDF5 1.10 and newer read, unless the file has a type that is newer
_TYPES = "/.holdfast-type-"  # of types whose own place in the file is not known yet
# Codecs that give back what they were given: values that cannot be copied as chunks are packed with them again.
_LOSSLESS = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32, 307, 32000, 32004, 32015}


def build_file(job: dict[str, Any], voice: Reporter) -> None:
    """Frames until `finish`. What the disk refuses ends this process at once: the library cannot be left then."""
    try:
        with tempfile.TemporaryFile(dir=os.path.dirname(job["out"])) as later:
            build = _Build(job, later)
            while (frame := read_frame(voice.stdin)) is not None:
                if "finish" in frame.head:
                    build.finish()
                    for path, reason in build.wrong:  # only now: nobody reads while frames are sent
                        voice.wrong(path, reason)
                    for path, ranges in build.lost.items():
                        for low, high in joined(ranges):
                            voice.say({"lost": path, "rows": [low, high]})
                    voice.say({"end": True})
                    return
                build.take(frame)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else reason_of(error)
        voice.say({"failed": why})
    os._exit(1)


def _open(path: str, identity: tuple[int, int], **options: Any) -> h5py.File:
    """The empty file that the parent made and holds, and no other that may have its name by now: `w` truncates."""
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        info = os.fstat(fd)
        if (info.st_dev, info.st_ino) != identity or info.st_size:
            raise OSError(errno.ESTALE, "another file has its name by now")
        return h5py.File(f"/proc/self/fd/{fd}", "w", libver=_LIBVER, **options)
    finally:
        os.close(fd)


class _Build:
    """`made`: what is in the new file, by its address in the old one. `later`: a file for frames that wait."""

    def __init__(self, job: dict[str, Any], later: Any) -> None:
        self._job, self._later = job, later
        self.file: h5py.File = None
        self.wrong: dict[tuple[str, str], None] = {}
        self.lost: dict[str, list[tuple[int, int]]] = {}  # rows that could not be written
        self.made: dict[int, str] = {}
        self._kinds: dict[str, Any] = {}
        self._stand_ins: dict[int, Any] = {}
        self._refer: set[str] = set()  # datasets whose values wait

    def _start(self, head: dict[str, Any]) -> None:
        """The first thing that is said is of the root group: whether it keeps an order decides how the file is made."""
        options: dict[str, Any] = {"track_order": bool(head.get("link_order"))}
        if self._job.get("user_block"):
            options["userblock_size"] = self._job["user_block"]
        self.file = _open(self._job["out"], tuple(self._job["identity"]), **options)
        self._unpacker = ValueDecoder(self.file, self._where)

    def take(self, frame: SandboxMessage) -> None:
        head, body = frame
        if self.file is None:
            self._start(head)
        waits = head.get("references") if "attribute" in head else head.get("values") in self._refer
        if waits:
            self._later.write(pack_frame(head, body))
        else:
            self._take(head, body)

    def finish(self) -> None:
        self._later.seek(0)
        while (frame := read_frame(self._later)) is not None:
            before = self._unpacker.unmet
            self._take(*frame)
            if (unmet := self._unpacker.unmet - before) > 0:
                path = str(frame.head.get("path") or frame.head.get("values"))
                name = f"attribute {frame.head['attribute']!r}: " if "attribute" in frame.head else ""
                self.wrong[path, f"{name}{unmet:,} references lead to what is not kept: they are empty"] = None
        for path, ranges in self.lost.items():
            if self._has(path) and self.file[raw_of(path)].shape:
                known = self.file[raw_of(path)].attrs.get(LOST_ROWS, np.zeros((0, 2), np.int64)).tolist()
                self.file[raw_of(path)].attrs[LOST_ROWS] = np.array(
                    joined(ranges + [tuple(one) for one in known]), np.int64
                )
        for name in [name for name in self.file if f"/{name}".startswith(_TYPES)]:
            del self.file[name]  # datasets keep their types without a name
        self.file.close()

    def _take(self, head: dict[str, Any], body: bytes) -> None:
        try:
            match head:
                case {"make": "group"}:
                    self._group(head)
                case {"make": "datatype"}:
                    self._datatype(head)
                case {"make": "dataset"}:
                    self._dataset(head, body)
                case {"attribute": name}:
                    self._attribute(head["path"], name, head, body)
                case {"chunk": path}:
                    if body:
                        self.file[raw_of(path)].id.write_direct_chunk(tuple(head["start"]), body, head["mask"])
                case {"values": path}:
                    self._values(path, head, body)
                case {"link": kind}:
                    self._link(kind, head)
                case {"mark": path, "name": name}:
                    self.file[raw_of(path)].attrs[name] = np.array(head["rows"], np.int64)
        except Exception as error:  # one object that cannot be made again must not lose the others
            if isinstance(error, OSError) and error.errno:  # the disk's; h5py raises OSError for other things as well
                raise
            path = next(str(head[key]) for key in ("path", "chunk", "values", "mark") if key in head)
            self.wrong[path, f"cannot be written again: {reason_of(error)}"] = None
            if "chunk" in head or "values" in head or head.get("make") == "dataset":
                self.lost.setdefault(path, []).append(_rows_of(head))

    def _has(self, path: str) -> bool:
        """h5py's own `in` takes no names that are not UTF-8."""
        try:
            return path == "/" or bool(h5py.h5o.exists_by_name(self.file.id, raw_of(path)))
        except (KeyError, ValueError, RuntimeError):  # a group on the way there is missing
            return False

    def _has_link(self, path: str) -> bool:
        try:
            return bool(self.file.id.links.exists(raw_of(path)))
        except (KeyError, ValueError, RuntimeError):
            return False

    def _where(self, address: int) -> str | None:
        return self.made.get(address)

    def _note(self, head: dict[str, Any]) -> None:
        """What was just made."""
        self.made[head.get("address", -1)] = head["path"]
        if head.get("comment"):
            h5py.h5o.set_comment(self.file[raw_of(head["path"])].id, bytes.fromhex(head["comment"]))

    def _group(self, head: dict[str, Any]) -> None:
        path = head["path"]
        if not self._has(path):
            self._parent(path)
            plist = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
            plist.set_link_creation_order(head.get("link_order", 0))
            plist.set_attr_creation_order(head.get("attribute_order", 0))
            h5py.h5g.create(self.file.id, raw_of(path), gcpl=plist)
        self._note(head)

    def _parent(self, path: str) -> None:
        parent = path.rpartition("/")[0] or "/"
        if not self._has(parent):
            self.file.require_group(raw_of(parent))

    def _datatype(self, head: dict[str, Any]) -> None:
        path = head["path"]
        if not self._has(path):
            self._parent(path)
            waiting = f"{_TYPES}{head['address']}"
            if self._has(waiting):
                self.file.move(waiting, raw_of(path))
            else:
                h5py.h5t.decode(bytes.fromhex(head["type"])).commit(self.file.id, raw_of(path))
        self._note(head)

    def _kind(self, head: dict[str, Any]) -> Any:
        """A type, as an object of the new file if it was one in the old file."""
        kind, at = h5py.h5t.decode(bytes.fromhex(head["type"])), head["type_at"]
        if at is None:
            return kind
        path = self.made.get(at, f"{_TYPES}{at}")
        if not self._has(path):
            kind.commit(self.file.id, raw_of(path))
        return self.file[raw_of(path)].id

    # ---- datasets

    def _dataset(self, head: dict[str, Any], fill: bytes) -> None:
        path = head["path"]
        if not self._has(path):
            self._parent(path)
            kind, space = self._kind(head), h5py.h5s.decode(bytes.fromhex(head["space"]))
            filters = head["filters"]
            known = [has_filter(f[0]) and f[0] in _LOSSLESS and f[0] not in self._stand_ins for f in filters]
            if not head["plain"] and not all(known):
                filters = [[h5py.h5z.FILTER_DEFLATE, h5py.h5z.FLAG_OPTIONAL, [4], ""]]
                self.wrong[path, "its strings, lists or references are packed with gzip: not with its own filters"] = (
                    None
                )
            self._create(path, kind, space, head, filters, fill)
            if head["references"]:
                self._refer.add(path)
        self._kinds[path] = self.file[raw_of(path)].id.get_type()
        self._note(head)

    def _create(self, path: str, kind: Any, space: Any, head: dict[str, Any], filters: list[Any], fill: bytes) -> None:
        """With exactly these filters. Some work out their parameters anew from the parameters they are given, and some
        are not installed: in their place stands one that does nothing, under whose number chunks can be copied."""
        for stubs in (False, True):
            if stubs:
                self._stand_in(filters)
            try:
                made = h5py.h5d.create(self.file.id, raw_of(path), kind, space, self._plist(head, filters, fill, kind))
            except (ValueError, RuntimeError):
                continue
            given = [(code, flags, tuple(values)) for code, flags, values, _ in filters]
            if same_filters(filters_of(made.get_create_plist()), given):
                return
            del made, self.file[raw_of(path)]
        h5py.h5d.create(self.file.id, raw_of(path), kind, space, self._plist(head, filters, fill, kind))
        raise ValueError(f"its filters {filters} cannot be given again")

    def _stand_in(self, filters: list[Any]) -> None:
        for code, _, _, name in filters:
            if not is_own(code) and code not in self._stand_ins:
                self._stand_ins[code] = register_stand_in(code, bytes.fromhex(name))

    def _plist(self, head: dict[str, Any], filters: list[Any], fill: bytes, kind: Any) -> Any:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_attr_creation_order(head["attribute_order"])
        if fill:
            self._unpacker.set_fill(plist, kind, fill)
        plist.set_fill_time(head["fill_time"])
        plist.set_obj_track_times(head["times"])
        if head["virtual"]:
            for there, file, name, space in head["virtual"]:
                ends = h5py.h5s.decode(bytes.fromhex(there)), h5py.h5s.decode(bytes.fromhex(space))
                plist.set_virtual(ends[0], raw_of(file), raw_of(name), ends[1])
            return plist
        plist.set_alloc_time(head["alloc_time"])
        if head["chunks"]:
            plist.set_chunk(tuple(head["chunks"]))
            if head["options"]:
                set_chunk_options(plist, head["options"])
            for code, flags, values, _ in filters:
                plist.set_filter(code, flags, tuple(values))
        elif head["layout"] == h5py.h5d.COMPACT:
            plist.set_layout(h5py.h5d.COMPACT)
        return plist

    def _attribute(self, path: str, name: str, head: dict[str, Any], body: bytes) -> None:
        thing, raw = self.file[raw_of(path)], raw_of(name)
        if h5py.h5a.exists(thing.id, raw):
            return
        kind = self._kind(head)
        made = h5py.h5a.create(thing.id, raw, kind, h5py.h5s.decode(bytes.fromhex(head["space"])))
        if body:
            self._unpacker.write_attribute(made, made.get_type(), body)

    def _values(self, path: str, head: dict[str, Any], body: bytes) -> None:
        dataset = self.file[raw_of(path)]
        inside = dataset.id.get_space()
        if head["start"]:
            inside.select_hyperslab(tuple(head["start"]), tuple(head["sizes"]))
        self._unpacker.write_values(dataset.id, self._kinds[path], inside, body)

    def _link(self, kind: str, head: dict[str, Any]) -> None:
        path = head["path"]
        if self._has_link(path):
            return
        self._parent(path)
        if kind == "soft":
            self.file.id.links.create_soft(raw_of(path), raw_of(head["target"]))
        elif kind == "external":
            self.file.id.links.create_external(raw_of(path), raw_of(head["file"]), raw_of(head["target"]))
        elif self._has(head["target"]):
            self.file[raw_of(path)] = self.file[raw_of(head["target"])]


def _rows_of(head: dict[str, Any]) -> tuple[int, int]:
    """Those of a frame that could not be written."""
    if "make" in head:
        return 0, head["shape"][0] if head["shape"] else 1
    start, sizes = head["start"], head.get("sizes")
    low, high = head["rows"] if sizes is None else (start[0], start[0] + sizes[0]) if start else (0, 1)
    return low, high
