"""Runs in a sandbox of its own: writes a new file from what the reader of the corrupt one sent. A full disk ends only
it.

Datasets get their original filters with the same parameters, and their chunks unchanged. Values that refer to other
objects are deferred until all objects exist.
"""

from __future__ import annotations

import errno
import os
import tempfile
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from ...._util.framing import Message, MessageReceiver, pack_message
from .chunks import merge_ranges
from .filters import filters_of, has_filter, is_own, register_stand_in, same_filters
from .object_walk import raw_of, reason_of
from .raw_values import ValueDecoder, set_chunk_options
from .sandbox import MAX_ADDRESS_BYTES

if TYPE_CHECKING:
    from .sandbox_main import Reporter

LOST_ROWS = "holdfast_lost_rows"
DOUBTFUL_ROWS = "holdfast_doubtful_rows"
_LIBVER = ("v110", "latest")  # readable by HDF5 1.10, unless the file has a newer type
_TYPES = "/.holdfast-type-"  # of committed datatypes whose path is not known yet
# Values that cannot be copied as chunks are compressed again with these codecs only.
_LOSSLESS = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32, 307, 32000, 32004, 32015}


def rebuild_file(job: dict[str, Any], reporter: Reporter) -> None:
    """Handles messages until `finish`. A write error ends the process at once: the library cannot be closed then."""
    try:
        with tempfile.TemporaryFile(dir=os.path.dirname(job["out"])) as deferred:
            build = _Build(job, deferred)
            while (message := reporter.incoming.receive()) is not None:
                if "finish" in message.head:
                    build.finish()
                    for path, reason in build.problems:  # only now: the parent does not read while it sends
                        reporter.problem(path, reason)
                    for path, ranges in build.lost.items():
                        for low, high in merge_ranges(ranges):
                            reporter.send({"lost": path, "rows": [low, high]})
                    reporter.send({"end": True})
                    return
                build.handle(message)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else reason_of(error)
        reporter.send({"failed": why})
    os._exit(1)


def _open(path: str, identity: tuple[int, int], **options: Any) -> h5py.File:
    """Opens the empty file that the parent created, and not one that replaced it since: `w` truncates."""
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        info = os.fstat(fd)
        if (info.st_dev, info.st_ino) != identity or info.st_size:
            raise OSError(errno.ESTALE, "the output was replaced by another file")
        return h5py.File(f"/proc/self/fd/{fd}", "w", libver=_LIBVER, **options)
    finally:
        os.close(fd)


class _Build:
    """`made`: paths in the new file by address in the old one. `deferred`: a file for messages that wait."""

    def __init__(self, job: dict[str, Any], deferred: Any) -> None:
        self._job, self._deferred = job, deferred
        self.file: h5py.File = None
        self.problems: dict[tuple[str, str], None] = {}
        self.lost: dict[str, list[tuple[int, int]]] = {}  # rows that could not be written
        self.made: dict[int, str] = {}
        self._kinds: dict[str, Any] = {}
        self._stand_ins: dict[int, Any] = {}
        self._with_references: set[str] = set()  # datasets whose values are deferred

    def _start(self, head: dict[str, Any]) -> None:
        """The first message is about the root group: whether it tracks order decides how the file is created."""
        options: dict[str, Any] = {"track_order": bool(head.get("link_order"))}
        if self._job.get("user_block"):
            options["userblock_size"] = self._job["user_block"]
        self.file = _open(self._job["out"], tuple(self._job["identity"]), **options)
        self._decoder = ValueDecoder(self.file, self.made.get)

    def handle(self, message: Message) -> None:
        head, body = message
        if self.file is None:
            self._start(head)
        waits = head.get("references") if "attribute" in head else head.get("values") in self._with_references
        if waits:
            self._deferred.write(pack_message(head, body))
        else:
            self._handle(head, body)

    def finish(self) -> None:
        self._deferred.seek(0)
        deferred = MessageReceiver(self._deferred.fileno(), MAX_ADDRESS_BYTES)
        while (message := deferred.receive()) is not None:
            before = self._decoder.dangling
            self._handle(*message)
            if (dangling := self._decoder.dangling - before) > 0:
                path = str(message.head.get("path") or message.head.get("values"))
                name = f"attribute {message.head['attribute']!r}: " if "attribute" in message.head else ""
                self.problems[
                    path, f"{name}{dangling:,} references point to objects that were not kept: they are empty"
                ] = None
        for path, ranges in self.lost.items():
            if self._has(path) and self.file[raw_of(path)].shape:
                known = self.file[raw_of(path)].attrs.get(LOST_ROWS, np.zeros((0, 2), np.int64)).tolist()
                self.file[raw_of(path)].attrs[LOST_ROWS] = np.array(
                    merge_ranges(ranges + [tuple(one) for one in known]), np.int64
                )
        for name in [name for name in self.file if f"/{name}".startswith(_TYPES)]:
            del self.file[name]  # datasets keep their types without a link
        self.file.close()

    def _handle(self, head: dict[str, Any], body: bytes) -> None:
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
        except Exception as error:  # one object that cannot be written must not lose the others
            if (
                isinstance(error, OSError) and error.errno
            ):  # the disk's error; h5py raises OSError without errno for others
                raise
            path = next(str(head[key]) for key in ("path", "chunk", "values", "mark") if key in head)
            self.problems[path, f"cannot be written: {reason_of(error)}"] = None
            if "chunk" in head or "values" in head or head.get("make") == "dataset":
                self.lost.setdefault(path, []).append(_rows_of(head))

    def _has(self, path: str) -> bool:
        """Works for names that are not UTF-8, unlike h5py's own `in`."""
        try:
            return path == "/" or bool(h5py.h5o.exists_by_name(self.file.id, raw_of(path)))
        except (KeyError, ValueError, RuntimeError):  # a parent group is missing
            return False

    def _has_link(self, path: str) -> bool:
        try:
            return bool(self.file.id.links.exists(raw_of(path)))
        except (KeyError, ValueError, RuntimeError):
            return False

    def _register(self, head: dict[str, Any]) -> None:
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
        self._register(head)

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
        self._register(head)

    def _kind(self, head: dict[str, Any]) -> Any:
        """Returns a type, as a committed one of the new file if it was one in the old file."""
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
                self.problems[
                    path, "its strings, lists or references are compressed with gzip instead of its own filters"
                ] = None
            self._create(path, kind, space, head, filters, fill)
            if head["references"]:
                self._with_references.add(path)
        self._kinds[path] = self.file[raw_of(path)].id.get_type()
        self._register(head)

    def _create(self, path: str, kind: Any, space: Any, head: dict[str, Any], filters: list[Any], fill: bytes) -> None:
        """Creates a dataset with exactly these filters. Some filters change the parameters they are given, and some are
        not installed: stand-ins take their place, under whose numbers chunks can be copied."""
        for stubs in (False, True):
            if stubs:
                self._register_stand_ins(filters)
            try:
                made = h5py.h5d.create(self.file.id, raw_of(path), kind, space, self._plist(head, filters, fill, kind))
            except (ValueError, RuntimeError):
                continue
            given = [(code, flags, tuple(values)) for code, flags, values, _ in filters]
            if same_filters(filters_of(made.get_create_plist()), given):
                return
            del made, self.file[raw_of(path)]
        h5py.h5d.create(self.file.id, raw_of(path), kind, space, self._plist(head, filters, fill, kind))
        raise ValueError(f"its filters {filters} cannot be recreated")

    def _register_stand_ins(self, filters: list[Any]) -> None:
        for code, _, _, name in filters:
            if not is_own(code) and code not in self._stand_ins:
                self._stand_ins[code] = register_stand_in(code, bytes.fromhex(name))

    def _plist(self, head: dict[str, Any], filters: list[Any], fill: bytes, kind: Any) -> Any:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_attr_creation_order(head["attribute_order"])
        if fill:
            self._decoder.set_fill(plist, kind, fill)
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
        obj, raw = self.file[raw_of(path)], raw_of(name)
        if h5py.h5a.exists(obj.id, raw):
            return
        kind = self._kind(head)
        made = h5py.h5a.create(obj.id, raw, kind, h5py.h5s.decode(bytes.fromhex(head["space"])))
        if body:
            self._decoder.write_attribute(made, made.get_type(), body)

    def _values(self, path: str, head: dict[str, Any], body: bytes) -> None:
        dataset = self.file[raw_of(path)]
        inside = dataset.id.get_space()
        if head["start"]:
            inside.select_hyperslab(tuple(head["start"]), tuple(head["sizes"]))
        self._decoder.write_values(dataset.id, self._kinds[path], inside, body)

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
    """Returns the rows of a message that could not be written."""
    if "make" in head:
        return 0, head["shape"][0] if head["shape"] else 1
    start, sizes = head["start"], head.get("sizes")
    low, high = head["rows"] if sizes is None else (start[0], start[0] + sizes[0]) if start else (0, 1)
    return low, high
