"""tf.train.Example and SequenceExample in the protobuf library itself, without TensorFlow.

The messages are those of TensorFlow's feature.proto and example.proto. In `LENIENT`, the keys are not checked to be
UTF-8, as they are in proto3, and all else is the same: there a message fails only for what is on the wire.
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


def _add_map(file: Any, name: str, field: str, of: str) -> None:
    entry_name = "".join([word.title() for word in field.split("_")]) + "Entry"
    message = _add(file.message_type, name, (field, _MANY, Kind.TYPE_MESSAGE, f"{name}.{entry_name}"))
    entry = _add(
        message.nested_type,
        entry_name,
        ("key", _ONE, Kind.TYPE_STRING, ""),
        ("value", _ONE, Kind.TYPE_MESSAGE, of),
    )
    entry.options.map_entry = True


def _add_feature(file: Any) -> None:
    _add(file.message_type, "BytesList", ("value", _MANY, Kind.TYPE_BYTES, ""))
    for name, kind in (("FloatList", Kind.TYPE_FLOAT), ("Int64List", Kind.TYPE_INT64)):
        numbers = _add(file.message_type, name, ("value", _MANY, kind, ""))
        numbers.field[0].options.packed = True
    lists = (("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List"))
    feature = _add(
        file.message_type, "Feature", *[(field, _ONE, Kind.TYPE_MESSAGE, name) for field, name in lists]
    )
    feature.oneof_decl.add(name="kind")
    for field in feature.field:
        field.oneof_index = 0


def _build(syntax: str) -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package=_PACKAGE, syntax=syntax)
    _add_feature(file)
    _add_map(file, "Features", "feature", "Feature")
    _add(file.message_type, "FeatureList", ("feature", _MANY, Kind.TYPE_MESSAGE, "Feature"))
    _add_map(file, "FeatureLists", "feature_list", "FeatureList")
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
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in names
    }


STRICT = _build("proto3")
LENIENT = _build("proto2")


def parse(record: bytes, messages: dict[str, Any] = LENIENT) -> Any:
    """The record as a SequenceExample, of which an Example is the first half; None where protobuf refuses it."""
    try:
        return messages["SequenceExample"].FromString(record)
    except DecodeError:
        return None
