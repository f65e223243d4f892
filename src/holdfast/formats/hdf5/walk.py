"""Every object of a file, however damaged: what cannot be listed or opened is told of and passed by."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import h5py

from .overlay import Overlay
from .superblock import find_superblock

if TYPE_CHECKING:
    from .child import Voice

_MOST_OBJECTS = 10_000_000  # a damaged link may lead round in circles that no address shows


class Thing(NamedTuple):
    """`kind`: group, dataset, datatype; or a link: soft, external, again (an object that has another name, too)."""

    path: str
    kind: str
    thing: Any = None
    target: str = ""
    target_file: str = ""


def open_file(path: str, *, mend: bool) -> h5py.File:
    """For reading. `mend`: as if its writer had closed it."""
    if not mend:
        return h5py.File(path, "r")
    block = find_superblock(path)
    if block is None:
        raise OSError("no superblock")
    return h5py.File(Overlay(path, block), "r")


def walk(file: h5py.File, voice: Voice, avoid: Collection[str] = ()) -> Iterator[Thing]:
    """Parents before children, in the order of names. Paths in `avoid` are not opened."""
    seen: dict[tuple[Any, ...], str] = {}
    waiting = [Thing("/", "group")]
    for _ in range(_MOST_OBJECTS):
        if not waiting:
            return
        link = waiting.pop()
        if link.path in avoid:
            continue
        if link.kind in ("soft", "external"):
            yield link
            continue
        voice.at_object(link.path)
        try:
            thing = file[link.path]
            identity = _identity(thing)
        except Exception as error:  # noqa: BLE001 - damaged bytes raise anything
            voice.wrong(link.path, f"cannot be opened: {reason_of(error)}")
            continue
        if identity in seen:
            yield Thing(link.path, "again", target=seen[identity])
            continue
        seen[identity] = link.path
        yield Thing(link.path, _kind(thing), thing)
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


def _links(group: h5py.Group, path: str, voice: Voice) -> list[Thing]:
    names: list[bytes] = []
    try:
        group.id.links.iterate(names.append)  # the names up to a damage are kept
    except Exception as error:  # noqa: BLE001
        voice.wrong(path, f"what is in this group cannot be listed: {reason_of(error)}")
    return [link for name in sorted(set(names)) if (link := _link(group, path, name, voice)) is not None]


def _link(group: h5py.Group, path: str, raw: bytes, voice: Voice) -> Thing | None:
    name = raw.decode("utf-8", "surrogateescape")
    full = f"{path.rstrip('/')}/{name}"
    try:
        kind = group.id.links.get_info(raw).type
        if kind == h5py.h5l.TYPE_SOFT:
            return Thing(full, "soft", target=os.fsdecode(group.id.links.get_val(raw)))
        if kind == h5py.h5l.TYPE_EXTERNAL:
            file, target = group.id.links.get_val(raw)
            return Thing(full, "external", target=os.fsdecode(target), target_file=os.fsdecode(file))
    except Exception as error:  # noqa: BLE001
        voice.wrong(full, f"its link cannot be read: {reason_of(error)}")
        return None
    return Thing(full, "group")


def reason_of(error: BaseException) -> str:
    """`Unable to synchronously open object (bad object header)` -> `bad object header`."""
    text = " ".join(str(error.args[0] if error.args else error).split())
    inner = text.partition("(")[2].removesuffix(")")
    return inner or text or type(error).__name__
