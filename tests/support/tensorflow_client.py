"""A real TensorFlow in a child process: the judge of what holdfast writes, the source of what it reads.

A feature is (name, kind, values): kind "bytes", "float", "int", or None for an empty Feature. A spec says how
TensorFlow shall parse one: {"kind": …, "shape": [3], "default": …}, {"kind": …, "ragged": True}; ragged with
a shape is a list of rows.
"""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from line_child import LineChild

Compression = Literal["", "GZIP", "ZLIB"]
Feature = tuple[str, str | None, Sequence[Any]]
Spec = Mapping[str, Any]

# What a sanitized run of the tests sets is for our code, not for TensorFlow's.
_NOT_FOR_IT = ("LD_PRELOAD", "ASAN_OPTIONS", "UBSAN_OPTIONS", "PYTHONMALLOC", "PYTHONPATH")


class TensorFlowPeer:
    """Raises line_child.ChildError, with TensorFlow's own class and text, where TensorFlow raises."""

    def __init__(self, said: Path) -> None:
        env = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_IT}
        env |= {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1", "TF_ENABLE_ONEDNN_OPTS": "0"}
        server = Path(__file__).with_name("tensorflow_peer.py")
        self._child = LineChild([sys.executable, str(server)], said, env=env)

    def version(self) -> str:
        return str(self._child.ask({"op": "version"}))

    def write(self, path: Path, examples: Iterable[Iterable[Feature]], compression: Compression = "") -> None:
        """One tf.train.Example each."""
        lists = [[_feature(*feature) for feature in example] for example in examples]
        self._ask("write", path, compression, examples=lists)

    def write_sequences(
        self,
        path: Path,
        sequences: Iterable[tuple[Iterable[Feature], Mapping[str, Sequence[tuple[str | None, Sequence[Any]]]]]],
        compression: Compression = "",
    ) -> None:
        """One tf.train.SequenceExample each: (context, {name: [(kind, values) of a step, …]})."""
        lists = [
            {
                "context": [_feature(*feature) for feature in context],
                "feature_lists": {
                    name: [_feature("", kind, values) for kind, values in steps] for name, steps in features.items()
                },
            }
            for context, features in sequences
        ]
        self._ask("write", path, compression, sequence_examples=lists)

    def write_raw(self, path: Path, records: Iterable[bytes], compression: Compression = "") -> None:
        self._ask("write_raw", path, compression, records=[_text(record) for record in records])

    def read_raw(self, path: Path, compression: Compression = "") -> list[bytes]:
        return [base64.b64decode(record) for record in self._ask("read_raw", path, compression)]

    def parse(self, path: Path, features: Mapping[str, Spec], compression: Compression = "") -> dict[str, Any]:
        """All records by tf.io.parse_example: {name: nested lists}."""
        return _columns(self._ask("parse", path, compression, features=_specs(features)), features)

    def parse_sequence(
        self,
        path: Path,
        context: Mapping[str, Spec],
        feature_lists: Mapping[str, Spec],
        compression: Compression = "",
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """All records by tf.io.parse_single_sequence_example: context and lists, as {name: one a record}."""
        got = self._ask(
            "parse_sequence", path, compression, context=_specs(context), feature_lists=_specs(feature_lists)
        )
        return _columns(got["context"], context), _columns(got["feature_lists"], feature_lists)

    def close(self) -> None:
        self._child.close()

    def __enter__(self) -> Self:
        self.version()  # the import, which takes its seconds here and not in the first test that asks
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, op: str, path: Path, compression: str, **more: Any) -> Any:
        return self._child.ask({"op": op, "path": str(path), "compression": compression, **more})


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _feature(name: str, kind: str | None, values: Sequence[Any]) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "values": [_text(v) for v in values] if kind == "bytes" else list(values),
    }


def _specs(features: Mapping[str, Spec]) -> dict[str, dict[str, Any]]:
    return {name: {**spec, **_default(spec)} for name, spec in features.items()}


def _default(spec: Spec) -> dict[str, Any]:
    if spec["kind"] != "bytes" or "default" not in spec:
        return {}
    default = spec["default"]
    return {"default": _text(default) if isinstance(default, bytes) else [_text(value) for value in default]}


def _columns(got: dict[str, Any], features: Mapping[str, Spec]) -> dict[str, Any]:
    return {name: _decoded(column) if features[name]["kind"] == "bytes" else column for name, column in got.items()}


def _decoded(nested: Any) -> Any:
    return [_decoded(item) for item in nested] if isinstance(nested, list) else base64.b64decode(nested)
