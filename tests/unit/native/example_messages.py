"""tf.train.Example and SequenceExample in the protobuf library itself, without TensorFlow.

MAPS        the messages of TensorFlow's feature.proto and example.proto
ENTRIES     the same on the wire, with each map<string, X> as what it stands for there: repeated entries of a
            key and a value. With these, only the wire counts. With a map, protobuf also refuses keys that
            are not UTF-8, and some of its libraries, not all, drop an entry that has unknown fields.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Kind
from google.protobuf.message import DecodeError

_PACKAGE = "holdfast.test"
_ONE = Kind.LABEL_OPTIONAL
_MANY = Kind.LABEL_REPEATED


def _add(messages: Any, name: str, *fields: tuple[str, int, int, Any]) -> Any:
    message = messages.add(name=name)
    for number, (field, label, kind, of) in enumerate(fields, 1):
        proto = message.field.add(name=field, number=number, label=label, type=kind)
        if of:
            proto.type_name = f".{_PACKAGE}.{of}"
    return message


def _add_map(file: Any, name: str, field: str, of: str, as_map: bool) -> None:
    entry_name = "".join([word.title() for word in field.split("_")]) + "Entry"
    message = _add(file.message_type, name, (field, _MANY, Kind.TYPE_MESSAGE, f"{name}.{entry_name}"))
    key = ("key", _ONE, Kind.TYPE_STRING if as_map else Kind.TYPE_BYTES, "")
    entry = _add(message.nested_type, entry_name, key, ("value", _ONE, Kind.TYPE_MESSAGE, of))
    entry.options.map_entry = as_map


def _add_feature(file: Any) -> None:
    _add(file.message_type, "BytesList", ("value", _MANY, Kind.TYPE_BYTES, ""))
    for name, kind in (("FloatList", Kind.TYPE_FLOAT), ("Int64List", Kind.TYPE_INT64)):
        numbers = _add(file.message_type, name, ("value", _MANY, kind, ""))
        numbers.field[0].options.packed = True
    lists = (("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List"))
    feature = _add(file.message_type, "Feature", *[(field, _ONE, Kind.TYPE_MESSAGE, name) for field, name in lists])
    feature.oneof_decl.add(name="kind")
    for field in feature.field:
        field.oneof_index = 0


def _build(as_maps: bool) -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package=_PACKAGE, syntax="proto3")
    _add_feature(file)
    _add_map(file, "Features", "feature", "Feature", as_maps)
    _add(file.message_type, "FeatureList", ("feature", _MANY, Kind.TYPE_MESSAGE, "Feature"))
    _add_map(file, "FeatureLists", "feature_list", "FeatureList", as_maps)
    _add(file.message_type, "Example", ("features", _ONE, Kind.TYPE_MESSAGE, "Features"))
    _add(
        file.message_type,
        "SequenceExample",
        ("context", _ONE, Kind.TYPE_MESSAGE, "Features"),
        ("feature_lists", _ONE, Kind.TYPE_MESSAGE, "FeatureLists"),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("Example", "SequenceExample", "Feature", "FeatureList")
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in names}


MAPS = _build(as_maps=True)
ENTRIES = _build(as_maps=False)


def parse(record: bytes, messages: dict[str, Any] = ENTRIES) -> Any:
    """As a SequenceExample, of which an Example is the first half; None where protobuf refuses it."""
    try:
        return messages["SequenceExample"].FromString(record)
    except DecodeError:
        return None


def contents(record: bytes) -> tuple[dict[bytes, Any], dict[bytes, list[Any]]] | None:
    """(Features of the context, lists of Features), by key: the last entry of a key wins."""
    message = parse(record)
    if message is None:
        return None
    features = {entry.key: entry.value for entry in message.context.feature}
    lists = {entry.key: list(entry.value.feature) for entry in message.feature_lists.feature_list}
    return features, lists
