"""Runs in the sandbox: describes every object of a file without reading its values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from ....errors import HoldfastError
from ....schema import as_code
from .filters import GZIP, filter_name, filters_of
from .object_walk import ObjectRef, open_reported, reason_of, text_of, walk
from .other_files import external_storage
from .schema_layout import describe
from .shard import HDF5Shard

if TYPE_CHECKING:
    from .sandbox_main import Reporter

_CLASSES = {
    h5py.h5t.INTEGER: "integer",
    h5py.h5t.FLOAT: "float",
    h5py.h5t.TIME: "time",
    h5py.h5t.OPAQUE: "opaque",
    h5py.h5t.COMPOUND: "compound",
    h5py.h5t.ENUM: "enum",
    h5py.h5t.VLEN: "list",
    h5py.h5t.ARRAY: "array",
}
_MAX_VALUES = 16
_MAX_TEXT = 200


def inspect_file(job: dict[str, Any], reporter: Reporter) -> None:
    file = open_reported(job, reporter)
    if file is None:
        return
    with file:
        for ref in walk(file, reporter, set(job["avoid"])):
            reporter.send({"object": _facts(ref, reporter)})
    reporter.at_object("/")
    reporter.send(_schema(job["path"]) if not job["repair"] else {"no_schema": "it was not closed properly"})


def _schema(path: str) -> dict[str, Any]:
    try:
        with HDF5Shard(path) as shard:
            found = shard.schema
            return {
                "schema": {name: repr(column) for name, column in found.items()},
                "code": as_code(found),
                "rows": len(shard),
            }
    except HoldfastError as error:
        reason = str(getattr(error, "reason", error))
        return {"no_schema": reason.removeprefix(f"{path}: ")}


def _facts(ref: ObjectRef, reporter: Reporter) -> dict[str, Any]:
    facts: dict[str, Any] = {"path": ref.path, "kind": ref.kind}
    if ref.target:
        facts["target"] = f"{ref.target_file}:{ref.target}" if ref.target_file else ref.target
    try:
        if ref.kind == "dataset":
            facts |= _dataset(ref.object)
        if ref.kind in ("dataset", "group"):
            facts["attributes"] = {text_of(name): _attribute(ref.object, name) for name in ref.object.attrs}
    except Exception as error:
        reporter.problem(ref.path, f"cannot be read: {reason_of(error)}")
    return facts


def _dataset(dataset: h5py.Dataset) -> dict[str, Any]:
    plist = dataset.id.get_create_plist()
    shape = dataset.shape
    kind = dataset.id.get_type()
    stored = int(dataset.id.get_storage_size())
    virtual = shape is not None and bool(dataset.is_virtual)
    return {
        "shape": shape,
        "maxshape": dataset.maxshape,
        "type": _type(dataset, kind),
        "bytes": 0 if shape is None else math.prod(shape) * kind.get_size(),
        "stored_bytes": stored,
        "chunks": dataset.chunks,
        "filters": [_filter(code, values) for code, _, values in filters_of(plist)],
        "sources": plist.get_virtual_count() if virtual else None,
        "external": [name for name, _, _ in external_storage(dataset)],
    }


def _type(dataset: h5py.Dataset, kind: h5py.h5t.TypeID) -> str:
    try:
        return describe(dataset.dtype)
    except Exception:  # numpy has no such type
        name = _CLASSES.get(kind.get_class(), "type")
        return f"{name} of {kind.get_size()} bytes"


def _filter(code: int, values: tuple[int, ...]) -> str:
    name = filter_name(code)
    return f"{name} {values[0]}" if code == GZIP and values else name


def _attribute(thing: Any, name: str | bytes) -> Any:
    """Returns one value, a list, or `{"length": …, "values": […]}`."""
    try:
        value = thing.attrs[name]
    except Exception as error:
        return f"(cannot be read: {reason_of(error)})"
    if isinstance(value, h5py.Empty):
        return None
    flat = np.asarray(value).reshape(-1)
    shown = [_plain(item) for item in flat[:_MAX_VALUES].tolist()]
    if np.ndim(value) == 0:
        return shown[0]
    return shown if len(flat) <= _MAX_VALUES else {"length": len(flat), "values": shown}


def _plain(item: Any) -> Any:
    if isinstance(item, bytes):
        item = item.decode("utf-8", "backslashreplace")
    if isinstance(item, (int, bool)):
        return item
    if isinstance(item, float) and math.isfinite(item):
        return item
    text = str(item)
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"
