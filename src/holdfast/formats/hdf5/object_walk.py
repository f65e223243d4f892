"""In the child: objects that no readable group leads to any more, found by how their bytes look.

Newer files begin each object with `OHDR` and end its header with a checksum. Older ones have neither, but their groups
keep nodes that begin with `SNOD` and list addresses, and heaps that begin with `HEAP` and hold the names.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import h5py
import numpy as np

from .file_state import PatchedView, RootlessView, find_superblock

if TYPE_CHECKING:
    from .sandbox_main import Reporter


FOLDER = "/lost+found"
_ENTRY_BYTES = 40
_MOST_ENTRIES = 1024
_MOST_NAME = 255
_MOST_TRIES = 1_000_000


def find_orphans(path: str, base: int) -> dict[int, str]:
    """Addresses at which an object may begin, and its name where that can be told."""
    with open(path, "rb") as file:
        if not file.seek(0, 2):
            return {}
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
            found = {at - base: "" for at in _places(data, b"OHDR\x02")}
            heaps = [heap for at in _places(data, b"HEAP\0\0\0\0") if (heap := _heap(data, at, base)) is not None]
            nodes = list(_places(data, b"SNOD\x01\0"))
            if len(nodes) * len(heaps) > _MOST_TRIES:
                heaps = []  # each is tried for each node: names are not worth hours
            for at in nodes:
                found |= _node(data, at, base, heaps)
    return dict(sorted(found.items()))


def _places(data: mmap.mmap, mark: bytes) -> Iterator[int]:
    at = data.find(mark)
    while at >= 0:
        yield at
        at = data.find(mark, at + 1)


def _heap(data: mmap.mmap, at: int, base: int) -> bytes | None:
    """The names of one group, each with a zero behind it."""
    if at + 32 > len(data):
        return None
    size, _, address = struct.unpack_from("<QQQ", data, at + 8)
    start = address + base
    return data[start : start + size] if start + size <= len(data) else None


def _node(data: mmap.mmap, at: int, base: int, heaps: list[bytes]) -> dict[int, str]:
    (entries,) = struct.unpack_from("<H", data, at + 6) if at + 8 <= len(data) else (0,)
    if not entries or entries > _MOST_ENTRIES or at + 8 + entries * _ENTRY_BYTES > len(data):
        return {}
    rows = [struct.unpack_from("<QQ", data, at + 8 + i * _ENTRY_BYTES) for i in range(entries)]
    fits = [names for heap in heaps if (names := _names(heap, [offset for offset, _ in rows])) is not None]
    names = fits[0] if len(fits) == 1 else [""] * entries
    found = zip((address for _, address in rows), names, strict=True)
    return {address: name for address, name in found if _is_header(data, address + base)}


def _names(heap: bytes, offsets: list[int]) -> list[str] | None:
    """None: this is another group's heap. Names in a node are sorted, which hardly any other heap gives by chance."""
    names = []
    for offset in offsets:
        end = heap.find(b"\0", offset)
        if offset >= len(heap) or not 0 < end - offset <= _MOST_NAME:
            return None
        names.append(heap[offset:end])
    return [name.decode("utf-8", "replace") for name in names] if names == sorted(set(names)) else None


def _is_header(data: mmap.mmap, at: int) -> bool:
    """Whether a header of the older kind may begin here: version 1, some messages, few links to it."""
    if at + 16 > len(data):
        return False
    version, zero, messages, links, size = struct.unpack_from("<BBHII", data, at)
    return bool(version == 1 and zero == 0 and 0 < messages < 1000 and links < 1000 and 0 < size < 1 << 20)


def open_at(file: h5py.File, address: int) -> Any:
    """The object that begins there. h5py opens by reference, and a reference is an address."""
    with h5py.File("reference", "w", driver="core", backing_store=False) as scratch:
        made = scratch.create_dataset("r", (1,), dtype=h5py.ref_dtype)
        one = np.array([address], "u8")
        made.id.write(h5py.h5s.ALL, h5py.h5s.ALL, one, mtype=h5py.h5t.STD_REF_OBJ)
        return file[made[0]]


def path_of(address: int, name: str) -> str:
    plain = name.replace("/", "_")
    return f"{FOLDER}/{plain}-at-{address}" if plain else f"{FOLDER}/at-{address}"


# Every object of a file, however damaged: what cannot be listed or opened is told of and passed by.

NOT_OPENED = "cannot be opened"
NOT_LISTED = "what is in this group cannot be listed"
_MOST_OBJECTS = 10_000_000  # a damaged link may lead round in circles that no address shows


class ObjectRef(NamedTuple):
    """`kind`: group, dataset, datatype; or a link: soft, external, again (an object that has another name, too)."""

    path: str
    kind: str
    thing: Any = None
    target: str = ""
    target_file: str = ""
    address: int = -1


def open_file(path: str, *, mend: bool, stretch: bool = False) -> h5py.File:
    """For reading. `mend`: as if its writer had closed it; `stretch`: as if it were not cut."""
    if not mend:
        return h5py.File(path, "r")
    block = find_superblock(path)
    if block is None:
        return h5py.File(RootlessView(path, _empty_file()), "r")
    return h5py.File(PatchedView(path, block, stretch=stretch), "r")


def _empty_file() -> bytes:
    with h5py.File("empty", "w", driver="core", backing_store=False, libver=("v110", "v110")) as file:
        file.flush()
        image: bytes = file.id.get_file_image()
    return image


def walk(
    file: h5py.File, voice: Reporter, avoid: Collection[str] = (), *, by_creation: bool = False
) -> Iterator[ObjectRef]:
    """Parents before children, in the order of names. Paths in `avoid` are not opened.

    by_creation   in the order in which they were made, where a group knows it
    """
    return _walk([(ObjectRef("/", "group"), partial(file.__getitem__, "/"))], voice, avoid, {}, by_creation)


def walk_orphans(
    file: h5py.File, path: str, voice: Reporter, avoid: Collection[str], known: set[int]
) -> Iterator[ObjectRef]:
    """Objects whose groups cannot be read, and what is below them; those at `known` addresses are not among them."""
    block = find_superblock(path)
    seen: dict[tuple[Any, ...], str] = {}
    groups: list[tuple[str, Any, tuple[Any, ...]]] = []
    others: list[tuple[str, Any, tuple[Any, ...]]] = []
    for address, name in find_orphans(path, block.at if block else 0).items():
        there = path_of(address, name)
        if address in known or there in avoid:
            continue
        voice.at_object(there)
        try:
            thing = open_at(file, address)
            found = there, thing, _identity(thing)
        except Exception:  # it only looked like one
            continue
        (groups if isinstance(thing, h5py.Group) else others).append(found)
    for there, thing, identity in groups + others:
        if identity not in seen:
            yield from _walk([(ObjectRef(there, "group"), partial(_itself, thing))], voice, avoid, seen, True)


def _itself(thing: Any) -> Any:
    return thing


def _walk(
    waiting: list[tuple[ObjectRef, Callable[[], Any]]],
    voice: Reporter,
    avoid: Collection[str],
    seen: dict[tuple[Any, ...], str],
    by_creation: bool,
) -> Iterator[ObjectRef]:
    for _ in range(_MOST_OBJECTS):
        if not waiting:
            return
        link, opener = waiting.pop()
        if link.path in avoid:
            continue
        if link.kind in ("soft", "external"):
            yield link
            continue
        voice.at_object(link.path)
        try:
            thing = opener()
            identity = _identity(thing)
        except Exception as error:
            voice.wrong(link.path, f"{NOT_OPENED}: {reason_of(error)}")
            continue
        if identity in seen:
            yield ObjectRef(link.path, "again", target=seen[identity])
            continue
        seen[identity] = link.path
        yield ObjectRef(link.path, _kind(thing), thing, address=identity[1])
        if isinstance(thing, h5py.Group):
            waiting += reversed(_links(thing, link.path, voice, by_creation))
    voice.wrong("/", f"more than {_MOST_OBJECTS:,} objects; not gone through to the end")


def _identity(thing: Any) -> tuple[Any, ...]:
    info = h5py.h5o.get_info(thing.id)
    return info.fileno, info.addr


def _kind(thing: Any) -> str:
    if isinstance(thing, h5py.Dataset):
        return "dataset"
    return "group" if isinstance(thing, h5py.Group) else "datatype"


def _links(
    group: h5py.Group, path: str, voice: Reporter, by_creation: bool
) -> list[tuple[ObjectRef, Callable[[], Any]]]:
    names: list[bytes] = []
    try:
        # The names up to a damage are kept; HDF5 1.14 crashes when it fails to sort the links of a damaged group.
        group.id.links.iterate(names.append, order=h5py.h5.ITER_NATIVE)
    except Exception as error:
        voice.wrong(path, f"{NOT_LISTED}: {reason_of(error)}")
    links = [
        (_link(group, path, name, voice), partial(group.__getitem__, name))
        for name in _ordered(group, names, by_creation)
    ]
    return [(link, opener) for link, opener in links if link is not None]


def _ordered(group: h5py.Group, names: list[bytes], by_creation: bool) -> list[bytes]:
    known = sorted(set(names))
    if not by_creation:
        return known
    with contextlib.suppress(Exception):  # a link that cannot be read is told of when its turn comes
        made = {name: group.id.links.get_info(name) for name in known}
        known.sort(key=lambda name: made[name].corder if made[name].corder_valid else 0)
    return known


def text_of(name: str | bytes) -> str:
    """A name as text: HDF5 has names that are not UTF-8, and h5py gives those as bytes."""
    return name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")


def raw_of(name: str) -> bytes:
    """The name that text_of() made the text of, which is what h5py wants to be asked for."""
    return name.encode("utf-8", "surrogateescape")


def _link(group: h5py.Group, path: str, raw: bytes, voice: Reporter) -> ObjectRef | None:
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
        voice.wrong(full, f"its link cannot be read: {reason_of(error)}")
        return None
    return ObjectRef(full, "group")


def reason_of(error: BaseException) -> str:
    """`Unable to synchronously open object (bad object header)` -> `bad object header`."""
    if isinstance(error, UnicodeDecodeError):
        return f"a name or text in it is not UTF-8: {bytes(error.object)[:40]!r}"
    said = error.args[-1] if isinstance(error, OSError) and error.args else error.args[0] if error.args else error
    text = " ".join(str(said).split())
    inner = text.partition("(")[2].removesuffix(")")
    return (inner if inner[:1].isalpha() else text) or type(error).__name__
