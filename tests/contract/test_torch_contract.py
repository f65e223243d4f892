"""holdfast.torch.DataLoader gives what torch's own gives: the same batches, order, seeds, errors and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from torch_child import TorchChild

TWO: dict[str, Any] = {"num_workers": 2}


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchChild]:
    program = Path(__file__).with_name("loader_twins.py")
    with TorchChild(program, tmp_path_factory.mktemp("torch") / "stderr.txt") as child:
        yield child


def _assert_same(twins: TorchChild, case: str, **options: Any) -> Any:
    expected = twins.play(case, loader="torch", **options)
    assert expected, "the case itself must give something"
    assert twins.play(case, loader="holdfast", **options) == expected
    return expected


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": 4},
        {"batch_size": 4, "num_workers": 1},
        {"batch_size": 4} | TWO,
        {"batch_size": 4, "drop_last": True} | TWO,
        {"batch_size": None} | TWO,
        {"batch_size": 4, "shuffle": True} | TWO,
        {"batch_size": 4, "shuffle": True, "generator": "@generator"} | TWO,
        {"batch_size": 4, "shuffle": True, "count": 3, "persistent_workers": True} | TWO,
        {"sampler": "@evens", "batch_size": 3} | TWO,
        {"batch_sampler": "@batches"} | TWO,
        {"batch_size": 4, "collate_fn": "@identity"} | TWO,
        {"batch_size": 4, "collate_fn": "@partial"} | TWO,
        {"batch_size": 2, "prefetch_factor": 5} | TWO,
        {"batch_size": 2, "prefetch_factor": 1, "pin_memory": False} | TWO,
        {"batch_size": 4, "timeout": 30} | TWO,
        {"batch_size": 4, "multiprocessing_context": "fork"} | TWO,
    ],
    ids=str,
)
def test_map_style(twins: TorchChild, options: dict[str, Any]) -> None:
    _assert_same(twins, "epochs", data="Numbers", **options)


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_ways_to_start(twins: TorchChild, context: str) -> None:
    """Against a forked worker of torch's: this one has to import torch once only."""
    options = {"data": "Numbers", "batch_size": 4, "num_workers": 1}
    expected = twins.play("epochs", loader="torch", **options)
    assert twins.play("epochs", loader="holdfast", multiprocessing_context=context, **options) == expected


@pytest.mark.parametrize("sharing", ["file_descriptor", "file_system"])
@pytest.mark.parametrize("data", ["Random", "Batched", "Shapes", "Rows", "Broken"])
@pytest.mark.parametrize("batch_size", [None, 3])
def test_datasets(twins: TorchChild, data: str, sharing: str, batch_size: int | None) -> None:
    options = {"data": data, "batch_size": batch_size, "count": 2} | TWO
    expected = twins.play("epochs", loader="torch", **options)  # by file names, torch's own leaves files in /dev/shm
    assert twins.play("epochs", loader="holdfast", sharing=sharing, **options) == expected


@pytest.mark.parametrize("sharing", ["file_descriptor", "file_system"])
def test_every_kind_of_tensor(twins: TorchChild, sharing: str) -> None:
    options = {"data": "Kinds", "batch_size": None, "num_workers": 1}
    expected = twins.play("epochs", loader="torch", **options)
    assert twins.play("epochs", loader="holdfast", sharing=sharing, **options) == expected


def test_uncopied_batches(twins: TorchChild) -> None:
    expected = twins.play("epochs", loader="torch", data="Shapes", batch_size=3, **TWO)
    assert twins.play("epochs", loader="holdfast", data="Shapes", batch_size=3, copy_batches=False, **TWO) == expected


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_iterable_style(twins: TorchChild, workers: int, persistent: bool) -> None:
    options = {"num_workers": workers, "persistent_workers": persistent and workers > 0}
    _assert_same(twins, "epochs", data="Stream", batch_size=3, count=2, **options)


@pytest.mark.parametrize("init", ["@seed_by_worker", "@failing_init"])
def test_worker_init_fn(twins: TorchChild, init: str) -> None:
    _assert_same(twins, "epochs", data="Random", worker_init_fn=init, batch_size=4, **TWO)


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": -1},
        {"timeout": -1},
        {"prefetch_factor": 2},
        {"persistent_workers": True},
        {"multiprocessing_context": "fork"},
        {"multiprocessing_context": "no such", "num_workers": 1},
        {"shuffle": True, "sampler": [1]},
        {"batch_size": None, "drop_last": True},
        {"no_such_option": 1},
    ],
    ids=str,
)
def test_refuses_the_same(twins: TorchChild, options: dict[str, Any]) -> None:
    _assert_same(twins, "refusal", **options)


def test_samples_no_collate_takes(twins: TorchChild) -> None:
    expected = _assert_same(twins, "epochs", data="Odd", batch_size=None, **TWO)
    assert len(expected[1]) == 23
    _assert_same(twins, "epochs", data="Odd", batch_size=5, collate_fn="@identity", **TWO)


@pytest.mark.parametrize("data", ["Shapes", "Broken", "Stream"])
@pytest.mark.parametrize("persistent", [False, True])
def test_pinned(twins: TorchChild, data: str, persistent: bool) -> None:
    _assert_same(twins, "pinned", data=data, batch_size=3, count=2, persistent_workers=persistent, **TWO)


@pytest.mark.parametrize(
    "options",
    [
        {"data": "Numbers", "pin_memory": True},
        {"data": "Numbers", "pin_memory": True, "pin_memory_device": "cuda"},
        {"data": "Short"},
    ],
    ids=str,
)
def test_warns_the_same(twins: TorchChild, options: dict[str, Any]) -> None:
    assert _assert_same(twins, "warned", **options)[1]


@pytest.mark.parametrize(
    "case",
    [
        "late",
        "two_at_once",
        "left_and_resumed",
        "workers_asked",
        "copied",
        "unordered",
        "distributed",
        "large",
        "wrapped",
        "unpickled",
    ],
)
def test_behaves_the_same(twins: TorchChild, case: str) -> None:
    _assert_same(twins, case)
