"""The child behind tensorflow_client.py: answers with what TensorFlow itself writes, reads and parses.

Bytes cross as base64. It runs by hand too: `python tests/support/tensorflow_peer.py`, then {"op": "version"}.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from line_server import serve

DTYPES = {"bytes": tf.string, "float": tf.float32, "int": tf.int64}


# ---- writing -----------------------------------------------------------------------------------------------


def feature(given: dict[str, Any]) -> tf.train.Feature:
    values = given["values"]
    match given["kind"]:
        case "bytes":
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[base64.b64decode(v) for v in values]))
        case "float":
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        case "int":
            return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        case None:
            return tf.train.Feature()
        case other:
            raise ValueError(f"expected a kind of {list(DTYPES)} or null, got {other!r}")


def features(given: Iterable[dict[str, Any]]) -> tf.train.Features:
    return tf.train.Features(feature={item["name"]: feature(item) for item in given})


def sequence_example(given: dict[str, Any]) -> tf.train.SequenceExample:
    lists = {
        name: tf.train.FeatureList(feature=[feature(step) for step in steps])
        for name, steps in given["feature_lists"].items()
    }
    return tf.train.SequenceExample(
        context=features(given["context"]), feature_lists=tf.train.FeatureLists(feature_list=lists)
    )


def write_all(ask: dict[str, Any], records: Iterable[bytes]) -> None:
    with tf.io.TFRecordWriter(ask["path"], tf.io.TFRecordOptions(compression_type=ask["compression"])) as writer:
        for record in records:
            writer.write(record)


def write(ask: dict[str, Any]) -> None:
    examples = [tf.train.Example(features=features(given)) for given in ask.get("examples", [])]
    sequences = [sequence_example(given) for given in ask.get("sequence_examples", [])]
    write_all(ask, (message.SerializeToString() for message in examples + sequences))


def write_raw(ask: dict[str, Any]) -> None:
    write_all(ask, (base64.b64decode(record) for record in ask["records"]))


# ---- reading -----------------------------------------------------------------------------------------------


def records(ask: dict[str, Any]) -> Iterator[bytes]:
    yield from tf.data.TFRecordDataset(ask["path"], compression_type=ask["compression"]).as_numpy_iterator()


def read_raw(ask: dict[str, Any]) -> list[str]:
    return [base64.b64encode(record).decode() for record in records(ask)]


def default(spec: dict[str, Any]) -> Any:
    if "default" not in spec or spec["kind"] != "bytes":
        return spec.get("default")
    given = spec["default"]
    return base64.b64decode(given) if isinstance(given, str) else [base64.b64decode(value) for value in given]


def ragged(spec: dict[str, Any]) -> tf.io.RaggedFeature:
    inner = [tf.io.RaggedFeature.UniformRowLength(size) for size in spec.get("shape", [])]
    return tf.io.RaggedFeature(DTYPES[spec["kind"]], partitions=inner)


def parser(spec: dict[str, Any]) -> Any:
    if spec.get("ragged"):
        return ragged(spec)
    return tf.io.FixedLenFeature(spec.get("shape", []), DTYPES[spec["kind"]], default(spec))


def step_parser(spec: dict[str, Any]) -> Any:
    if spec.get("ragged"):
        return ragged(spec)
    return tf.io.FixedLenSequenceFeature(spec.get("shape", []), DTYPES[spec["kind"]], allow_missing=True)


def plain(value: Any) -> Any:
    """Nested lists JSON can carry."""
    value = value.to_list() if isinstance(value, tf.RaggedTensor) else value
    value = value.numpy() if isinstance(value, tf.Tensor) else value
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list):
        return [plain(item) for item in value]
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def parse(ask: dict[str, Any]) -> dict[str, Any]:
    wanted = {name: parser(spec) for name, spec in ask["features"].items()}
    got = tf.io.parse_example(list(records(ask)), wanted)
    return {name: plain(column) for name, column in got.items()}


def parse_sequence(ask: dict[str, Any]) -> dict[str, Any]:
    context = {name: parser(spec) for name, spec in ask["context"].items()}
    lists = {name: step_parser(spec) for name, spec in ask["feature_lists"].items()}
    parsed = [
        tf.io.parse_single_sequence_example(record, context_features=context, sequence_features=lists)
        for record in records(ask)
    ]
    return {
        "context": {name: [plain(row[0][name]) for row in parsed] for name in context},
        "feature_lists": {name: [plain(row[1][name]) for row in parsed] for name in lists},
    }


OPS = {
    "version": lambda ask: tf.__version__,
    "write": write,
    "write_raw": write_raw,
    "read_raw": read_raw,
    "parse": parse,
    "parse_sequence": parse_sequence,
}


if __name__ == "__main__":
    serve(lambda ask: OPS[ask["op"]](ask))
