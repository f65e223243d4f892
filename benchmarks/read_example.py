"""tf.train.Example without TensorFlow: its definition given to protobuf, whose parser is in C."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "holdfast.bench"  # of its own: TensorFlow's names may be taken


def _example_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="holdfast_bench_example.proto", package=_PACKAGE, syntax="proto3")
    for name, kind in (("BytesList", "BYTES"), ("FloatList", "FLOAT"), ("Int64List", "INT64")):
        _field(file.message_type.add(name=name), "value", 1, kind, repeated=True)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("BytesList", "FloatList", "Int64List"), 1):
        field = _field(feature, name.replace("List", "_list").lower(), number, "MESSAGE", name)
        field.oneof_index = 0
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    _field(entry, "key", 1, "STRING")
    _field(entry, "value", 2, "MESSAGE", "Feature")
    _field(features, "feature", 1, "MESSAGE", "Features.FeatureEntry", repeated=True)
    _field(file.message_type.add(name="Example"), "features", 1, "MESSAGE", "Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Example"))


def _field(message: Any, name: str, number: int, kind: str, of: str = "", repeated: bool = False) -> Any:
    field = message.field.add(name=name, number=number)
    field.type = getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{kind}")
    proto = descriptor_pb2.FieldDescriptorProto
    field.label = proto.LABEL_REPEATED if repeated else proto.LABEL_OPTIONAL
    if of:
        field.type_name = f".{_PACKAGE}.{of}"
    return field


Example = _example_class()
