"""ds.tf() in a real TensorFlow: element specs, epochs, resume, strategies, Keras."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("tensorflow") is None:
    pytest.skip("needs the Python package tensorflow-cpu", allow_module_level=True)

from line_child import LineChild

COUNTS = [70, 0, 1, 97, 32]
SAMPLES = sum(COUNTS)
TESTS = Path(__file__).parents[1] / "support"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1", "TF_ENABLE_ONEDNN_OPTS": "0"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files") / "shards"


class Player:
    def __init__(self, child: LineChild, folder: Path) -> None:
        self._child, self._folder = child, str(folder)

    def __call__(self, case: str, **options: Any) -> Any:
        return self._child.ask({"case": case, "folder": self._folder, **options})


@pytest.fixture(scope="module")
def play(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    folder.mkdir()
    program = [sys.executable, str(Path(__file__).with_name("tensorflow_cases.py"))]
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = os.environ | QUIET | {"PYTHONPATH": path}
    with LineChild(program, tmp_path_factory.mktemp("tensorflow") / "stderr.txt", env=env) as child:
        player = Player(child, folder)
        player("make", counts=COUNTS)
        yield player


# ---- forms -------------------------------------------------------------------------------------------------


def test_every_dtype_arrives_as_it_is(play: Player) -> None:
    assert play("dtypes") == {"batch": [], "sample": []}


def test_all_columns_in_their_order(play: Player) -> None:
    assert play("read") == {
        "ids": play("order"),
        "whole": True,
        "spec": {
            "emb": "TensorSpec (None, 3) float32",
            "id": "TensorSpec (None,) int64",
            "name": "TensorSpec (None,) string",
            "tags": "RaggedTensorSpec (None, None) int64",
        },
    }


def test_batches_of_one_size_have_it_in_their_spec(play: Player) -> None:
    told = play("read", drop_last=True)
    assert told["spec"]["emb"] == "TensorSpec (16, 3) float32"
    assert told["spec"]["tags"] == "RaggedTensorSpec (16, None) int64"
    assert len(told["ids"]) == SAMPLES // 16 * 16


def test_samples_one_by_one(play: Player) -> None:
    told = play("samples")
    assert told["ids"] == play("order")
    assert told["tags"] == [i % 4 for i in told["ids"][:3]]
    assert told["spec"] == {
        "emb": "TensorSpec (3,) float32",
        "id": "TensorSpec () int64",
        "name": "TensorSpec () string",
        "tags": "TensorSpec (None,) int64",
    }


def test_shapes_strings_and_lists(play: Player) -> None:
    told = play("rich")
    assert told["spec"] == {
        "boxes": "RaggedTensorSpec (None, None, 4) float32",
        "grid": "TensorSpec (None, 2, 2) float32",
        "id": "TensorSpec (None,) int64",
        "parts": "RaggedTensorSpec (None, None) string",
        "words": "TensorSpec (None, 2) string",
    }
    assert told["words"][3] == ["a\0", "3"]
    assert told["boxes"] == [[2, 2, 2, 2]] * 2
    assert told["parts"] == [[], ["p0"], ["p0", "p1"], []]
    assert told["single"]["parts"] == "TensorSpec (None,) string"


def test_the_cardinality_is_known_where_every_pass_has_one_length(play: Player) -> None:
    infinite, unknown = -1, -2
    told = play("cardinality")
    assert told.pop("for ever") == infinite
    assert told.pop("mixed")[0] == unknown
    assert told == {
        "batches": [5, 5],
        "dropped": [12, 12],
        "samples": [190, 190],
        "repeated": [15, 15],
        "filtered": [unknown, 194],
        "filtered batches": [13, 13],
        "resumed": [unknown, 3],
        "next epoch": [5, 5],
    }


def test_tuples_and_nested_dicts(play: Player) -> None:
    told = play("structures")
    order = play("order")
    assert told["spec"] == {
        "a": "RaggedTensorSpec (None, None) float32",
        "id": "TensorSpec (None,) int64",
        "name": "TensorSpec (None,) string",
        "tags": "RaggedTensorSpec (None, None) int64",
    }
    assert told["ids"] == [i for i in order if i % 50 == 0]
    assert told["batches"] == -(-SAMPLES // 16)
    assert told["given"] == [i % 4 for i in order]
    assert "expected a spec of the structure that the functions return, got {'x'" in told["wrong"]


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("filtered", ["none", "all", "but the last"])
@pytest.mark.parametrize("how", ["samples", None, "ragged"])
def test_every_column_filtered_or_not(play: Player, how: str | None, filtered: str, mapped: bool) -> None:
    rows = {"none": 9, "all": 0, "but the last": 1}[filtered] if how == "samples" else 3
    assert play("every_column", how=how, filtered=filtered, mapped=mapped) == {"rows": rows, "same": True}


def test_padded_batches_filtered_whole(play: Player) -> None:
    assert play("padded_and_filtered") == [[3, 0, 0], [0, 0, 0]]


def test_lists_that_a_function_made(play: Player) -> None:
    told = play("nested")
    assert told["spec"]["two"] == "RaggedTensorSpec (None, None, 2) float32"
    assert [len(row) for row in told["two"]] == [0, 1, 2, 0]


@pytest.mark.parametrize("drop_last", [False, True])
def test_what_functions_make_is_inspected(play: Player, drop_last: bool) -> None:
    told = play("mapped", drop_last=drop_last)
    rows = 16 if drop_last else None
    assert told["spec"] == {
        "id": f"TensorSpec ({rows},) int64",
        "image": f"TensorSpec ({rows}, 4, 4, 1) uint8",
        "text": f"TensorSpec ({rows},) string",
    }
    assert told["ids"] == play("order", drop_last=drop_last)


def test_what_one_batch_cannot_tell(play: Player) -> None:
    told = play("told_spec")
    assert told["padded"]["x"] == "TensorSpec (None, None) float32"
    assert told["shapes"] == [[3, 3], [3, 6]]
    assert told["single"] == [1, 2, 3]
    assert "got one of 'y'" in told["wrong"]


def test_functions_over_no_samples(play: Player) -> None:
    batch = [f"TensorSpec ({rows},) int64" for rows in (2, 2, 2, None)]
    assert play("without_samples") == [[spec, 0] for spec in (*batch, "TensorSpec () int64")]


# ---- passes ------------------------------------------------------------------------------------------------


def test_every_pass_is_the_next_epoch(play: Player) -> None:
    orders = [play("order", epoch=epoch) for epoch in range(5)]
    assert play("passes") == [orders[2], orders[3][:16], orders[4], orders[1], orders[2]]


@pytest.mark.parametrize("taken", [0, 4, 13])
def test_resume(play: Player, taken: int) -> None:
    want = play("order", epoch=3)
    told = play("resumed", taken=taken, then=7)
    assert told["seen"] == want[: taken * 16]
    assert told["rest"] == want[taken * 16 :]
    assert told["next"] == play("order", epoch=4)
    assert told["again"] is True


def test_a_resumed_repeat_ends_with_its_pass(play: Player) -> None:
    orders = {epoch: play("order", epoch=epoch) for epoch in range(3, 9)}
    told = play("resumed_repeat")
    each = len(orders[3])
    whole = [one for epoch in (3, 4, 5) for one in orders[epoch]]
    done = each + 2 * 16
    assert told["place"] == [4, 2 * 16]
    assert told["seen"] + told["rest"] == whole
    assert told["next"] == [one for epoch in (6, 7, 8) for one in orders[epoch]]
    for name in ("by the pass", "by the epoch"):
        assert told[name] == whole[done:]
        assert (told[f"{name}, state"]["epoch"], told[f"{name}, state"]["done"]) == (5, 3 * 16)
        assert (told[f"{name}, end"]["epoch"], told[f"{name}, end"]["done"]) == (5, each)
    assert told["for ever"][: each - 32] == orders[4][32:]
    unknown = -2
    assert told["between"] == [unknown, 26]


# ---- ends --------------------------------------------------------------------------------------------------


def test_an_error_keeps_its_words(play: Player) -> None:
    told = play("failing")
    assert "MapError" in told["said"]
    assert "record 40: fail() failed: ValueError: no such picture" in told["said"]
    assert told["seen"] == 32
    assert told["left"] == {}


def test_a_dropped_iterator_leaves_nothing(play: Player) -> None:
    told = play("dropped")
    assert told["at_work"] == 3
    assert told["left"] == {}


# ---- strategies --------------------------------------------------------------------------------------------


def test_mirrored_replicas_share_every_batch(play: Player) -> None:
    first, second = play("mirrored")
    assert sorted(first + second) == list(range(SAMPLES))
    assert first[:8] + second[:8] == play("order")[:16]


@pytest.mark.parametrize(("mirrored", "tuples"), [(False, False), (True, False), (False, True)])
def test_keras_sees_every_sample_once_an_epoch(play: Player, mirrored: bool, tuples: bool) -> None:
    told = play("fit", mirrored=mirrored, tuples=tuples)
    orders = [play("order", epoch=epoch) for epoch in range(3)]
    assert told["ends"] == [SAMPLES, 2 * SAMPLES, 3 * SAMPLES]
    for at, want in enumerate(orders):
        seen = told["notes"][at * SAMPLES : (at + 1) * SAMPLES]
        assert sorted(seen) == list(range(SAMPLES))
        if not mirrored:
            assert seen == want


def test_workers_of_a_strategy_share_the_samples(play: Player, folder: Path) -> None:
    order = play("order")
    ports = _free_ports(2)
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    program = str(Path(__file__).with_name("tensorflow_worker.py"))
    workers = [
        subprocess.Popen(
            [sys.executable, program, str(folder)],
            env=os.environ
            | QUIET
            | {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        said = [worker.communicate(timeout=120) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    assert [worker.returncode for worker in workers] == [0, 0], said
    told = [json.loads(out.splitlines()[-1]) for out, _ in said]
    assert [one["replicas"] for one in told] == [2, 2]
    whole = SAMPLES // 16 * 16
    first, second = (one["seen"] for one in told)
    assert [i for pair in zip(first, second, strict=True) for i in pair] == order[:whole]


def _free_ports(n: int) -> list[int]:
    sockets = [socket.socket() for _ in range(n)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
