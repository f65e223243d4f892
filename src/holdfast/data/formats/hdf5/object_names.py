"""Lists the objects of a file.

h5py's visit() asks the library for the size of each object's index, and HDF5 1.14 crashes where that is corrupt.
"""

from __future__ import annotations

import h5py


def object_names(group: h5py.Group) -> list[bytes]:
    """Returns the paths of all objects below a group, parents first, sorted. An object with several names has the
    first. One that cannot be opened is listed too."""
    seen = {h5py.h5g.get_objinfo(group.id, b".").objno[0]}  # addresses: hard links may form a cycle
    names: list[bytes] = []
    waiting = _links(group.id, b"")
    while waiting:
        name, address = waiting.pop()
        if address in seen:
            continue
        seen.add(address)
        names.append(name)
        try:
            is_group = h5py.h5g.get_objinfo(group.id, name).type == h5py.h5g.GROUP
        except Exception:  # noqa: BLE001 - opening it says what is wrong
            continue
        if is_group:
            waiting += _links(h5py.h5g.open(group.id, name), name + b"/")
    return names


def _links(group: h5py.h5g.GroupID, before: bytes) -> list[tuple[bytes, int]]:
    """Returns the names and addresses of what is in a group, the last name first."""
    found: list[bytes] = []
    # In native order, because HDF5 1.14 crashes when it fails to sort the links of a corrupt group.
    group.links.iterate(found.append, order=h5py.h5.ITER_NATIVE)
    links = ((name, group.links.get_info(name)) for name in sorted(found, reverse=True))
    return [(before + name, one.u) for name, one in links if one.type == h5py.h5l.TYPE_HARD]
