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
        {"batch_size": 4, "multiprocessing_context": "spawn", "num_workers": 1},
        {"batch_size": 4, "multiprocessing_context": "forkserver", "num_workers": 1},
    ],
    ids=str,
)
def test_map_style(twins: TorchChild, options: dict[str, Any]) -> None:
    _assert_same(twins, "epochs", data="Numbers", **options)


@pytest.mark.parametrize("sharing", ["file_descriptor", "file_system"])
@pytest.mark.parametrize("data", ["Random", "Batched", "Shapes", "Rows", "Broken"])
@pytest.mark.parametrize("batch_size", [None, 3])
def test_datasets(twins: TorchChild, data: str, sharing: str, batch_size: int | None) -> None:
    options = {"data": data, "batch_size": batch_size, "count": 2} | TWO
    expected = twins.play("epochs", loader="torch", **options)  # by file names, torch's own leaves files in /dev/shm
    assert twins.play("epochs", loader="holdfast", sharing=sharing, **options) == expected


def test_uncopied_batches(twins: TorchChild) -> None:
    expected = twins.play("epochs", loader="torch", data="Shapes", batch_size=3, **TWO)
    assert twins.play("epochs", loader="holdfast", data="Shapes", batch_size=3, keep_safe=False, **TWO) == expected


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


@pytest.mark.parametrize("case", ["late", "two_at_once", "left_and_resumed", "copied"])
def test_behaves_the_same(twins: TorchChild, case: str) -> None:
    _assert_same(twins, case)
