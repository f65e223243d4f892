"""Every object of a file, however damaged: what cannot be listed or opened is told of and passed by."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import h5py

from .orphans import find_orphans, open_at, path_of
from .overlay import Overlay, Rootless
from .superblock import find_superblock

if TYPE_CHECKING:
    from .child import Voice

NOT_OPENED = "cannot be opened"
NOT_LISTED = "what is in this group cannot be listed"
_MOST_OBJECTS = 10_000_000  # a damaged link may lead round in circles that no address shows


class Thing(NamedTuple):
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
        return h5py.File(Rootless(path, _empty_file()), "r")
    return h5py.File(Overlay(path, block, stretch=stretch), "r")


def _empty_file() -> bytes:
    with h5py.File("empty", "w", driver="core", backing_store=False, libver=("v110", "v110")) as file:
        file.flush()
        image: bytes = file.id.get_file_image()
    return image


def walk(file: h5py.File, voice: Voice, avoid: Collection[str] = ()) -> Iterator[Thing]:
    """Parents before children, in the order of names. Paths in `avoid` are not opened."""
    return _walk([(Thing("/", "group"), partial(file.__getitem__, "/"))], voice, avoid, {})


def walk_orphans(file: h5py.File, path: str, voice: Voice, avoid: Collection[str], known: set[int]) -> Iterator[Thing]:
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
            yield from _walk([(Thing(there, "group"), partial(_itself, thing))], voice, avoid, seen)


def _itself(thing: Any) -> Any:
    return thing


def _walk(
    waiting: list[tuple[Thing, Callable[[], Any]]],
    voice: Voice,
    avoid: Collection[str],
    seen: dict[tuple[Any, ...], str],
) -> Iterator[Thing]:
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
            yield Thing(link.path, "again", target=seen[identity])
            continue
        seen[identity] = link.path
        yield Thing(link.path, _kind(thing), thing, address=identity[1])
        if isinstance(thing, h5py.Group):
            waiting += reversed(_links(thing, link.path, voice))
    voice.wrong("/", f"more than {_MOST_OBJECTS:,} objects; not gone through to the end")


def _identity(thing: Any) -> tuple[Any, ...]:
    info = h5py.h5o.get_info(thing.id)
    return info.fileno, info.addr


def _kind(thing: Any) -> str:
    if isinstance(thing, h5py.Dataset):
        return "dataset"
    return "group" if isinstance(thing, h5py.Group) else "datatype"


def _links(group: h5py.Group, path: str, voice: Voice) -> list[tuple[Thing, Callable[[], Any]]]:
    names: list[bytes] = []
    try:
        # The names up to a damage are kept; HDF5 1.14 crashes when it fails to sort the links of a damaged group.
        group.id.links.iterate(names.append, order=h5py.h5.ITER_NATIVE)
    except Exception as error:
        voice.wrong(path, f"{NOT_LISTED}: {reason_of(error)}")
    links = [(_link(group, path, name, voice), partial(group.__getitem__, name)) for name in sorted(set(names))]
    return [(link, opener) for link, opener in links if link is not None]


def text_of(name: str | bytes) -> str:
    """A name as text: HDF5 has names that are not UTF-8, and h5py gives those as bytes."""
    return name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")


def raw_of(name: str) -> bytes:
    """The name that text_of() made the text of, which is what h5py wants to be asked for."""
    return name.encode("utf-8", "surrogateescape")


def _link(group: h5py.Group, path: str, raw: bytes, voice: Voice) -> Thing | None:
    name = text_of(raw)
    full = f"{path.rstrip('/')}/{name}"
    try:
        kind = group.id.links.get_info(raw).type
        if kind == h5py.h5l.TYPE_SOFT:
            return Thing(full, "soft", target=os.fsdecode(group.id.links.get_val(raw)))
        if kind == h5py.h5l.TYPE_EXTERNAL:
            file, target = group.id.links.get_val(raw)
            return Thing(full, "external", target=os.fsdecode(target), target_file=os.fsdecode(file))
    except Exception as error:
        voice.wrong(full, f"its link cannot be read: {reason_of(error)}")
        return None
    return Thing(full, "group")


def reason_of(error: BaseException) -> str:
    """`Unable to synchronously open object (bad object header)` -> `bad object header`."""
    if isinstance(error, UnicodeDecodeError):
        return f"a name or text in it is not UTF-8: {bytes(error.object)[:40]!r}"
    said = error.args[-1] if isinstance(error, OSError) and error.args else error.args[0] if error.args else error
    text = " ".join(str(said).split())
    inner = text.partition("(")[2].removesuffix(")")
    return (inner if inner[:1].isalpha() else text) or type(error).__name__
