from __future__ import annotations

import json
from typing import Any

import pytest
from factories_blocks import blocks_of

from holdfast.data.loader.checkpoint import Position, fingerprint, load_state, save_state
from holdfast.data.loader.order.shuffle import SampleOrder
from holdfast.errors import StateError
from holdfast.schema import Int64

NAMES = ["/data/a/one.tfrecord", "/data/a/two.tfrecord"]


def made_from(**changes: Any) -> dict[str, Any]:
    settings = {"seed": 7, "lanes": 8, "window_bytes": 1000}
    order = SampleOrder(blocks_of([10, 20]), **{name: changes.get(name, value) for name, value in settings.items()})
    return fingerprint(
        order,
        changes.get("names", NAMES),
        changes.get("counts", [10, 20]),
        changes.get("sizes", [100, 200]),
        changes.get("schema", {"label": Int64()}),
    )


def test_there_and_back_as_json() -> None:
    text = json.dumps(save_state(Position(epoch=3, done=2), made_from()))
    assert len(text) < 500
    assert load_state(json.loads(text), made_from(), samples_of=lambda _: 4) == Position(epoch=3, done=2)


def test_its_size_does_not_depend_on_the_shards() -> None:
    many = made_from(names=[f"/d/{i}" for i in range(5000)], counts=[1] * 5000, sizes=[9] * 5000)
    assert len(json.dumps(save_state(Position(epoch=0, done=1), many))) < 500


def test_a_copy_elsewhere_is_the_same_data() -> None:
    state = save_state(Position(epoch=0, done=1), made_from())
    moved = made_from(names=["s3://bucket/x/one.tfrecord", "s3://bucket/x/two.tfrecord"])
    assert load_state(state, moved, samples_of=lambda _: 4).done == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"names": ["/data/a/one.tfrecord", "/data/a/three.tfrecord"]}, "the shards have other names"),
        ({"names": NAMES[::-1]}, "come in another order"),
        ({"counts": [10, 21]}, "30 samples then, 31 now; shards have other numbers of samples"),
        ({"counts": [11, 19]}, "order: shards have other numbers of samples"),
        ({"sizes": [100, 201]}, "300 bytes then, 301 now"),
        ({"names": NAMES[:1], "counts": [10], "sizes": [100]}, "2 shards then, 1 now"),
        ({"schema": {"label": Int64(2)}}, "the schema is another one"),
        ({"seed": None}, "the seed was 7, and is None"),
        ({"lanes": 2}, "the number of lanes was 8, and is 2"),
        ({"window_bytes": 2000}, "the window was '1000 bytes', and is '2000 bytes'"),
    ],
)
def test_other_data_or_another_order_is_refused(changes: dict[str, Any], said: str) -> None:
    state = save_state(Position(epoch=0, done=1), made_from())
    with pytest.raises(StateError) as caught:
        load_state(state, made_from(**changes), samples_of=lambda _: 4)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "x"}, "got 'x'"),
        ({"done": 5}, "up to the 4 samples of an epoch, got 5"),
        ({"done": -1}, "done in a saved state must be a non-negative integer, got -1"),
        ({"epoch": "0"}, "epoch in a saved state must be a non-negative integer, got '0'"),
        ({"fingerprint": 3}, "with a fingerprint, got 3"),
    ],
)
def test_what_is_no_state_is_refused(change: dict[str, Any], said: str) -> None:
    state = save_state(Position(epoch=0, done=1), made_from()) | change
    with pytest.raises(StateError, match=said):
        load_state(state, made_from(), samples_of=lambda _: 4)


def test_no_mapping_at_all() -> None:
    with pytest.raises(StateError, match="got 'list'"):
        load_state([], made_from(), samples_of=lambda _: 4)  # type: ignore[arg-type]
