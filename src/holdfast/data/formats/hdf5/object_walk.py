"""Walks every object of a file, however corrupt: what cannot be listed or opened is reported and skipped.

Objects that no readable group leads to any more are found by their bytes. Newer files begin each object with `OHDR` and
end its header with a checksum. In older files groups have nodes that begin with `SNOD` and list addresses, and heaps
that begin with `HEAP` and hold the names.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import h5py
import numpy as np

from .file_state import PatchedView, RootlessView, find_superblock
from .global_heaps import find_heap_ends

if TYPE_CHECKING:
    from .sandbox_main import Reporter

NOT_OPENED = "cannot be opened"
NOT_LISTED = "the members of this group cannot be listed"
_MAX_OBJECTS = 10_000_000  # corrupt links may form a cycle that no address shows
ORPHAN_GROUP = "/lost+found"
_ENTRY_BYTES = 40
_MAX_ENTRIES = 1024
_MAX_NAME = 255
_MAX_TRIES = 1_000_000


class WalkReporter(Protocol):
    """What a walk needs of a Reporter."""

    def at_object(self, path: str) -> None: ...

    def problem(self, path: str | None, reason: str) -> None: ...


class ObjectRef(NamedTuple):
    """`kind`: group, dataset, datatype; or a link: soft, external, again (an object that was listed under another
    name)."""

    path: str
    kind: str
    object: Any = None
    target: str = ""
    target_file: str = ""
    address: int = -1


def open_file(
    path: str, *, repair: bool, full_length: bool = False, ended_heap: Callable[[int], object] = lambda at: None
) -> h5py.File:
    """Opens a file so that the library cannot loop in its heaps; calls `ended_heap` with the offset of such a place.

    repair        as if its writer had closed it
    full_length   as if it were not truncated
    """
    block = find_superblock(path)
    heap_ends = find_heap_ends(path, 8 if block is None else block.size_bytes)
    if not repair and not heap_ends:
        return h5py.File(path, "r")
    if block is None:
        view: PatchedView = RootlessView(path, _empty_file())
    else:
        view = PatchedView(path, block, full_length=full_length)
    view.heap_ends, view.ended_heap = heap_ends, ended_heap
    return h5py.File(view, "r")


def open_reported(job: dict[str, Any], reporter: Reporter) -> h5py.File | None:
    """Opens the file of a job; returns None, and reports why, if it cannot be opened."""
    reporter.at_object("/")

    def ended_heap(at: int) -> None:
        reporter.problem(None, "a heap of variable-length values is corrupt: what follows in it is lost", offset=at)

    try:
        options = {"repair": job["repair"], "full_length": job.get("full_length", False)}
        return open_file(job["path"], **options, ended_heap=ended_heap)
    except Exception as error:
        reporter.problem(None, f"it cannot be opened: {reason_of(error)}")
        return None


def attribute_names(ref: ObjectRef, reporter: Reporter) -> list[str | bytes]:
    """Returns the names of an object's attributes; none, and reports why, if they cannot be listed."""
    try:
        return list(ref.object.attrs)
    except Exception as error:
        reporter.problem(ref.path, f"its attributes cannot be listed: {reason_of(error)}")
        return []


def _empty_file() -> bytes:
    with h5py.File("empty", "w", driver="core", backing_store=False, libver=("v110", "v110")) as file:
        file.flush()
        image: bytes = file.id.get_file_image()
    return image


def walk(
    file: h5py.File, reporter: WalkReporter, avoid: Collection[str] = (), *, by_creation: bool = False
) -> Iterator[ObjectRef]:
    """Yields parents before children, sorted by name. Paths in `avoid` are not opened.

    by_creation   sorted by creation order where a group tracks it
    """
    return _walk([(ObjectRef("/", "group"), partial(file.__getitem__, "/"))], reporter, avoid, {}, by_creation)


def walk_orphans(
    file: h5py.File, path: str, reporter: WalkReporter, avoid: Collection[str], known: set[int]
) -> Iterator[ObjectRef]:
    """Yields objects whose groups cannot be read, and what is below them, without those at `known` addresses."""
    block = find_superblock(path)
    seen: dict[tuple[Any, ...], str] = {}
    groups: list[tuple[str, Any, tuple[Any, ...]]] = []
    others: list[tuple[str, Any, tuple[Any, ...]]] = []
    for address, name in find_orphans(path, block.at if block else 0).items():
        there = path_of(address, name)
        if address in known or there in avoid:
            continue
        reporter.at_object(there)
        try:
            obj = open_at(file, address)
            found = there, obj, _identity(obj)
        except Exception:  # these bytes were not an object's
            continue
        (groups if isinstance(obj, h5py.Group) else others).append(found)
    for there, obj, identity in groups + others:
        if identity not in seen:
            yield from _walk([(ObjectRef(there, "group"), partial(lambda one: one, obj))], reporter, avoid, seen, True)


def _walk(
    waiting: list[tuple[ObjectRef, Callable[[], Any]]],
    reporter: WalkReporter,
    avoid: Collection[str],
    seen: dict[tuple[Any, ...], str],
    by_creation: bool,
) -> Iterator[ObjectRef]:
    for _ in range(_MAX_OBJECTS):
        if not waiting:
            return
        link, opener = waiting.pop()
        if link.path in avoid:
            continue
        if link.kind in ("soft", "external"):
            yield link
            continue
        reporter.at_object(link.path)
        try:
            obj = opener()
            identity = _identity(obj)
        except Exception as error:
            reporter.problem(link.path, f"{NOT_OPENED}: {reason_of(error)}")
            continue
        if identity in seen:
            yield ObjectRef(link.path, "again", target=seen[identity])
            continue
        seen[identity] = link.path
        yield ObjectRef(link.path, _kind(obj), obj, address=identity[1])
        if isinstance(obj, h5py.Group):
            waiting += reversed(_links(obj, link.path, reporter, by_creation))
    reporter.problem("/", f"more than {_MAX_OBJECTS:,} objects; the rest was skipped")


def _identity(obj: Any) -> tuple[Any, ...]:
    info = h5py.h5o.get_info(obj.id)
    return info.fileno, info.addr


def _kind(obj: Any) -> str:
    if isinstance(obj, h5py.Dataset):
        return "dataset"
    return "group" if isinstance(obj, h5py.Group) else "datatype"


def _links(
    group: h5py.Group, path: str, reporter: WalkReporter, by_creation: bool
) -> list[tuple[ObjectRef, Callable[[], Any]]]:
    names: list[bytes] = []
    try:
        # Keeps the names before a corrupt entry. HDF5 1.14 crashes when it fails to sort the links of a corrupt group.
        group.id.links.iterate(names.append, order=h5py.h5.ITER_NATIVE)
    except Exception as error:
        reporter.problem(path, f"{NOT_LISTED}: {reason_of(error)}")
    links = [
        (_link(group, path, name, reporter), partial(group.__getitem__, name))
        for name in _ordered(group, names, by_creation)
    ]
    return [(link, opener) for link, opener in links if link is not None]


def _ordered(group: h5py.Group, names: list[bytes], by_creation: bool) -> list[bytes]:
    known = sorted(set(names))
    if not by_creation:
        return known
    with contextlib.suppress(Exception):  # an unreadable link is reported when it is opened
        made = {name: group.id.links.get_info(name) for name in known}
        known.sort(key=lambda name: made[name].corder if made[name].corder_valid else 0)
    return known


def text_of(name: str | bytes) -> str:
    """Returns a name as text: names that are not UTF-8 come from h5py as bytes."""
    return name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")


def raw_of(name: str) -> bytes:
    """Returns the bytes that text_of() decoded, which h5py accepts for any name."""
    return name.encode("utf-8", "surrogateescape")


def _link(group: h5py.Group, path: str, raw: bytes, reporter: WalkReporter) -> ObjectRef | None:
    name = text_of(raw)
    full = f"{path.rstrip('/')}/{name}"
    try:
        kind = group.id.links.get_info(raw).type
        if kind == h5py.h5l.TYPE_SOFT:
            return ObjectRef(full, "soft", target=os.fsdecode(group.id.links.get_val(raw)))
        if kind == h5py.h5l.TYPE_EXTERNAL:
            file, target = group.id.links.get_val(raw)
            return ObjectRef(full, "external", target=os.fsdecode(target), target_file=os.fsdecode(file))
    except Exception as error:
        reporter.problem(full, f"its link cannot be read: {reason_of(error)}")
        return None
    return ObjectRef(full, "group")


NEVER_WRITTEN = "no write intent on file"


def reason_of(error: BaseException) -> str:
    """Shortens `Unable to synchronously open object (bad object header)` to `bad object header`."""
    if isinstance(error, UnicodeDecodeError):
        return f"a name or text in it is not UTF-8: {bytes(error.object)[:40]!r}"
    message = error.args[-1] if isinstance(error, OSError) and error.args else error.args[0] if error.args else error
    text = " ".join(str(message).split())
    inner = text.partition("(")[2].removesuffix(")")
    if inner == NEVER_WRITTEN:
        cure = 'write them once, as in `file[name][:] = file[name][:]` in mode "r+"'
        return f"HDF5 cannot read strings that were never written where the dataset has a fill value: {cure}"
    return (inner if inner[:1].isalpha() else text) or type(error).__name__


def find_orphans(path: str, base: int) -> dict[int, str]:
    """Returns addresses at which an object may begin, with its name where it can be found."""
    with open(path, "rb") as file:
        if not file.seek(0, 2):
            return {}
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
            found = {at - base: "" for at in _find_all(data, b"OHDR\x02")}
            heaps = [heap for at in _find_all(data, b"HEAP\0\0\0\0") if (heap := _heap(data, at, base)) is not None]
            nodes = list(_find_all(data, b"SNOD\x01\0"))
            if len(nodes) * len(heaps) > _MAX_TRIES:
                heaps = []  # each heap is tried with each node, which would take hours
            for at in nodes:
                found |= _node(data, at, base, heaps)
    return dict(sorted(found.items()))


def _find_all(data: mmap.mmap, signature: bytes) -> Iterator[int]:
    at = data.find(signature)
    while at >= 0:
        yield at
        at = data.find(signature, at + 1)


def _heap(data: mmap.mmap, at: int, base: int) -> bytes | None:
    """Returns the names of one group, each followed by a zero."""
    if at + 32 > len(data):
        return None
    size, _, address = struct.unpack_from("<QQQ", data, at + 8)
    start = address + base
    return data[start : start + size] if start + size <= len(data) else None


def _node(data: mmap.mmap, at: int, base: int, heaps: list[bytes]) -> dict[int, str]:
    (entries,) = struct.unpack_from("<H", data, at + 6) if at + 8 <= len(data) else (0,)
    if not entries or entries > _MAX_ENTRIES or at + 8 + entries * _ENTRY_BYTES > len(data):
        return {}
    rows = [struct.unpack_from("<QQ", data, at + 8 + i * _ENTRY_BYTES) for i in range(entries)]
    fits = [names for heap in heaps if (names := _names(heap, [offset for offset, _ in rows])) is not None]
    names = fits[0] if len(fits) == 1 else [""] * entries
    found = zip((address for _, address in rows), names, strict=True)
    return {address: name for address, name in found if _is_header(data, address + base)}


def _names(heap: bytes, offsets: list[int]) -> list[str] | None:
    """Returns None for the heap of another group: names in a node are sorted, which hardly another heap matches."""
    names = []
    for offset in offsets:
        end = heap.find(b"\0", offset)
        if offset >= len(heap) or not 0 < end - offset <= _MAX_NAME:
            return None
        names.append(heap[offset:end])
    return [name.decode("utf-8", "replace") for name in names] if names == sorted(set(names)) else None


def _is_header(data: mmap.mmap, at: int) -> bool:
    """Returns whether an old object header may begin here: version 1, some messages, few links to it."""
    if at + 16 > len(data):
        return False
    version, zero, messages, links, size = struct.unpack_from("<BBHII", data, at)
    return bool(version == 1 and zero == 0 and 0 < messages < 1000 and links < 1000 and 0 < size < 1 << 20)


def open_at(file: h5py.File, address: int) -> Any:
    """Opens the object at an address. h5py opens by reference, and a reference is an address."""
    with h5py.File("reference", "w", driver="core", backing_store=False) as scratch:
        made = scratch.create_dataset("r", (1,), dtype=h5py.ref_dtype)
        one = np.array([address], "u8")
        made.id.write(h5py.h5s.ALL, h5py.h5s.ALL, one, mtype=h5py.h5t.STD_REF_OBJ)
        return file[made[0]]


def path_of(address: int, name: str) -> str:
    plain = name.replace("/", "_")
    return f"{ORPHAN_GROUP}/{plain}-at-{address}" if plain else f"{ORPHAN_GROUP}/at-{address}"
