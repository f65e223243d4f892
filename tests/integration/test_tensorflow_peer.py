"""The judge is judged first: what TensorFlow writes, it reads again, and an error of its comes back whole."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from line_child import ChildDiedError, ChildError, LineChild
from tensorflow_client import Compression, Feature, TensorFlowPeer


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_raw_records_come_back(tensorflow_peer: TensorFlowPeer, tmp_path: Path, compression: Compression) -> None:
    path = tmp_path / "raw.tfrecord"
    tensorflow_peer.write_raw(path, [b"", b"one", bytes(range(256))], compression)
    assert tensorflow_peer.read_raw(path, compression) == [b"", b"one", bytes(range(256))]


def test_examples_are_parsed(tensorflow_peer: TensorFlowPeer, tmp_path: Path) -> None:
    path = tmp_path / "examples.tfrecord"
    first: list[Feature] = [
        ("name", "bytes", [b"\xff\0"]),
        ("size", "int", [-1, 2**62]),
        ("boxes", "float", [1.5, 2.0, -0.0, 4.0]),
    ]
    tensorflow_peer.write(path, [first, [("size", "int", [3, 4]), ("boxes", None, [])]])
    got = tensorflow_peer.parse(
        path,
        {
            "name": {"kind": "bytes", "default": b"?"},
            "size": {"kind": "int", "shape": [2]},
            "boxes": {"kind": "float", "ragged": True, "shape": [2]},
        },
    )
    assert got == {
        "name": [b"\xff\0", b"?"],
        "size": [[-1, 2**62], [3, 4]],
        "boxes": [[[1.5, 2.0], [-0.0, 4.0]], []],
    }


def test_sequence_examples_are_parsed(tensorflow_peer: TensorFlowPeer, tmp_path: Path) -> None:
    path = tmp_path / "sequences.tfrecord"
    context = [("id", "int", [7])]
    lists = {"words": [("bytes", [b"a"]), ("bytes", [b"b", b"c"])], "pair": [("float", [1.0, 2.0])]}
    tensorflow_peer.write_sequences(path, [(context, lists), (context, {})])
    got = tensorflow_peer.parse_sequence(
        path,
        {"id": {"kind": "int"}},
        {"words": {"kind": "bytes", "ragged": True}, "pair": {"kind": "float", "shape": [2]}},
    )
    assert got == ({"id": [7, 7]}, {"words": [[[b"a"], [b"b", b"c"]], []], "pair": [[[1.0, 2.0]], []]})


def test_an_error_keeps_its_class_and_text(tensorflow_peer: TensorFlowPeer, tmp_path: Path) -> None:
    path = tmp_path / "cut.tfrecord"
    tensorflow_peer.write_raw(path, [b"whole", b"cut"])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ChildError, match="truncated") as caught:
        tensorflow_peer.read_raw(path)
    assert caught.value.type == "DataLossError"


def test_a_child_that_dies_says_why(tmp_path: Path) -> None:
    dying = "import sys; sys.stdin.readline(); sys.exit('out of luck')"
    with (
        LineChild([sys.executable, "-c", dying], tmp_path / "said.txt") as child,
        pytest.raises(ChildDiedError, match=r"(?s)exit code 1.*out of luck"),
    ):
        child.ask({"op": "version"})
