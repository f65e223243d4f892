"""Every sample once: other frameworks' programs on two ranks, with a ledger of the ids that each rank was given."""

from __future__ import annotations

import json
from collections import Counter
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from log_cases import free_ports, started
from ranks import BATCH, SAMPLES, SCHEMA, make

import holdfast as hold

HERE = Path(__file__).parent
RANKS = 2
TIMEOUT_S = 200.0
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "ACCELERATE_USE_CPU": "true",
    "TRANSFORMERS_VERBOSITY": "error",
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}
ACCELERATE = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", RANKS, "--num_machines", 1]
ACCELERATE += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", 0]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", RANKS]

pytestmark = [
    pytest.mark.timeout(TIMEOUT_S + 100),
    *(
        pytest.mark.skipif(find_spec(name) is None, reason=f"needs the Python package {name}")
        for name in (
            "torch",
            "accelerate",
            "transformers",
            "datasets",
            "lightning",
            "torchdata",
            "webdataset",
            "jax",
            "ray",
        )
    ),
]

Found = list[Any]  # of each rank


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    make(folder)
    return folder


@pytest.fixture(scope="module")
def orders(data: Path) -> list[list[int]]:
    """Of the first epochs, over all ranks."""
    ds = hold.read(data, SCHEMA).shuffle(seed=3)
    found = [[int(sample["id"]) for sample in ds] for _ in range(7)]
    assert len({tuple(order) for order in found}) == len(found)
    assert all(sorted(order) == list(range(SAMPLES)) for order in found)
    return found


def run(data: Path, out: Path, *command: object, after: tuple[object, ...] = (), name: str = "ledger") -> Found:
    """What the ranks wrote into their ledgers."""
    with started(*command, data, out, *after, HOME=str(out), HF_HOME=str(out / "cache"), **OFFLINE) as process:
        said, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, said.decode()
    assert b"Exception ignored" not in said, said.decode()
    return [json.loads((out / f"{name}-{rank}.json").read_text()) for rank in range(RANKS)]


def count(passes: Any) -> Counter[int]:
    return Counter(chain.from_iterable(passes))


def check_once(found: Found, orders: list[list[int]]) -> None:
    """Each pass has the samples of the next epoch, each of them once; the ranks take them in turn."""
    assert all(found)
    for order, *passes in zip(orders, *found, strict=False):
        assert count(passes) == count([order])
        assert passes == [order[rank::RANKS] for rank in range(RANKS)]


def check_begun(found: Found, orders: list[list[int]]) -> None:
    """The same of passes that are broken off after a batch."""
    check_once(found, [order[: BATCH * RANKS] for order in orders])


# ---- torch -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torchrun(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run(data, tmp_path_factory.mktemp("torchrun"), *TORCHRUN, HERE / "ranks_torch.py")


LOADERS = ["torch, 0", "torch, 2", "ours, 0", "ours, 2"]


@pytest.mark.parametrize("case", LOADERS)
def test_torchrun(torchrun: Found, orders: list[list[int]], case: str) -> None:
    found = [ledger[case] for ledger in torchrun]
    check_once([one["passes"] for one in found], orders)
    assert [len(one["passes"]) for one in found] == [2, 2]
    assert {one["length"] for one in found} == {-(-SAMPLES // (BATCH * RANKS))}


def test_torchrun_with_batches_by_torch(torchrun: Found, orders: list[list[int]]) -> None:
    for number in range(2):
        assert count(ledger["samples"]["passes"][number] for ledger in torchrun) == count([orders[number]])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_goes_on(torchrun: Found, orders: list[list[int]], workers: int) -> None:
    """After a pass and three batches; the passes after that are of the next epoch."""
    whole, begun, rest, after, of_first = zip(*(ledger[f"stateful, {workers}"] for ledger in torchrun), strict=True)
    check_once([[one] for one in whole], orders)
    check_once([[one + other] for one, other in zip(begun, rest, strict=True)], orders[1:])
    assert {len(one) for one in begun} == {3 * BATCH}
    check_once([[one] for one in after], orders[2:])
    assert after == of_first


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("split", [False, True])
def test_a_generator_of_hugging_face_datasets(
    torchrun: Found, orders: list[list[int]], workers: int, split: bool
) -> None:
    """split: split_dataset_by_node() shares the samples, and .shard("auto") in the generator leaves it to that."""
    check_once([ledger[f"datasets, {workers}, {split}"]["passes"] for ledger in torchrun], orders)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pipeline_of_webdataset_that_splits_by_node(torchrun: Found, orders: list[list[int]], workers: int) -> None:
    for number in range(2):
        found = [ledger[f"webdataset, {workers}"]["passes"][number] for ledger in torchrun]
        assert count(found) == count([orders[number]])


def test_ranks_that_a_program_starts_itself(
    data: Path, orders: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With a dataset that was made before them: each rank finds out who it is, and all are in the same epoch."""
    out = tmp_path_factory.mktemp("started")
    forked = run(data, out, HERE / "ranks_torch.py", name="fork")
    spawned = [json.loads((out / f"spawn-{rank}.json").read_text()) for rank in range(RANKS)]
    for ledgers in (forked, spawned):
        check_once([ledger["0"]["passes"] + ledger["1"]["passes"] for ledger in ledgers], orders)


# ---- Lightning ---------------------------------------------------------------------------------------------


def test_lightning(data: Path, orders: list[list[int]], tmp_path: Path) -> None:
    """`python train.py`, without any launcher: Lightning starts the second rank itself."""
    ledgers = run(data, tmp_path, HERE / "ranks_lightning.py")
    assert [ledger["error"] for ledger in ledgers] == [None, None]
    found = [ledger["passes"] for ledger in ledgers]
    for case in ("torch", "torch, workers", "ours"):
        check_once([one[case] for one in found], orders)
    check_once([one["no loader"] for one in found], orders[1:])  # Lightning calls iter() once to see whether it can
    check_once([one["broken off"] for one in found], orders[::2])  # the second of two epochs a pass is left out
    check_begun([one["validation"] for one in found], orders)  # the first one is Lightning's check
    for case in ("torch_map", "torch_map, ours"):
        for passes in zip(*(one[case] for one in found), strict=True):
            counted = count(passes)  # DistributedSampler gives both ranks as many: one sample comes twice
            assert (len(counted), counted.total()) == (SAMPLES, SAMPLES + 1)
        assert found[0][case][0] != found[0][case][1]


# ---- accelerate, and the Hugging Face Trainer --------------------------------------------------------------


@pytest.fixture(scope="module")
def accelerate(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run(data, tmp_path_factory.mktemp("accelerate"), *ACCELERATE, HERE / "ranks_accelerate.py")


def test_a_loader_that_is_not_prepared(accelerate: Found, orders: list[list[int]]) -> None:
    check_once([ledger["unprepared"]["passes"] for ledger in accelerate], orders)


@pytest.mark.parametrize(
    ("case", "filled", "length"),
    [
        ("batches, True", 1, 7),
        ("batches, None", 1, 7),
        ("samples, True", 1, 7),
        ("samples, None", 1, 7),
        ("samples, True, split", 1, 13),
        ("samples, False", 9, 7),
        ("samples, False, split", 1, 14),
        ("samples, False, workers", 9, 7),
        ("samples, False, stateful", 9, 7),
        ("datasets, True", 1, None),
        ("datasets, False", 9, None),
        ("Trainer, None", 1, 7),
        ("Trainer, True", 1, 7),
        ("Trainer, False", 9, 7),
        ("fork", 1, 7),
        ("spawn", 1, 7),
        ("ours", 1, 7),
        ("torch_map", 9, 7),
    ],
)
def test_what_accelerate_shares(
    accelerate: Found, orders: list[list[int]], case: str, filled: int, length: int | None
) -> None:
    """filled: with so many samples of the beginning accelerate fills up the last batches."""
    found = [ledger[case] for ledger in accelerate]
    assert all(isinstance(one, dict) for one in found), found
    passes = list(zip(*(one["passes"] for one in found), strict=True))
    assert len(passes) == 2
    for both in passes:
        counted = count(both)
        assert (sorted(counted), counted.total()) == (list(range(SAMPLES)), SAMPLES + filled)
        assert max(counted.values()) == 2
    assert passes[0] != passes[1]
    if case != "torch_map" and "split" not in case:  # those begin where others over the same dataset ended
        assert [both[0][:BATCH] for both in passes] == [order[:BATCH] for order in orders[:2]]
    assert {one["length"] for one in found} == {length}


def test_files_that_datasets_gives_the_ranks(accelerate: Found, orders: list[list[int]]) -> None:
    for number in range(2):
        assert count(ledger["files"]["passes"][number] for ledger in accelerate) == count([orders[0]])


def test_epochs_and_states_in_accelerate(accelerate: Found, orders: list[list[int]]) -> None:
    first, begun, second, fifth, sixth, rest, after = (
        count(both) for both in zip(*(ledger["broken off"] for ledger in accelerate), strict=True)
    )
    for counted, epoch in ((first, 0), (second, 2), (fifth, 5), (sixth, 6), (after, 2)):
        assert counted == count([orders[epoch], orders[epoch][:1]])
    taken = 3 * BATCH * RANKS
    assert begun == count([orders[1][:taken]])
    assert rest == count([orders[1][taken:], orders[1][taken : taken + 1]])
    assert count(ledger["skipped"] for ledger in accelerate) == count([orders[1][taken:], orders[1][:1]])


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("batches, False", "TypeError: accelerate with dispatch_batches=False: expected samples and a loader that"),
        ("samples, True, workers", "write num_workers=1"),
        ("samples, None, workers", "write num_workers=1"),
        ("given rank", 'expected .shard("auto") or .shard(None), which leave that to it, got .shard(('),
        ("global size", "expected .batch(size) with the size of one rank's batches, got .batch(global_size=16)"),
        ("stateful", "StateError: accelerate dispatches this dataset, and fetches ahead: expected state_after"),
        ("state", "accelerate dispatches this dataset, and fetches ahead: expected state_after(batches)"),
    ],
)
def test_what_would_be_lost_in_accelerate_is_refused(accelerate: Found, case: str, said: str) -> None:
    for ledger in accelerate:
        assert said in ledger[case]


def test_batches_that_accelerate_would_cut_wrongly_are_refused(accelerate: Found) -> None:
    """The first rank alone reads."""
    assert "InputError: accelerate with dispatch_batches=True: expected batches of 8" in accelerate[0]["shortened"]
    assert "Leave the loader out of accelerator.prepare()" in accelerate[0]["shortened"]


# ---- JAX and Ray -------------------------------------------------------------------------------------------


def test_jax(data: Path, orders: list[list[int]], tmp_path: Path) -> None:
    coordinator = f"localhost:{free_ports(1)[0]}"
    other = [HERE / "ranks_jax.py", data, tmp_path, 1, coordinator]
    with started(*other) as process:
        ledgers = run(data, tmp_path, HERE / "ranks_jax.py", after=(0, coordinator))
        process.communicate(timeout=TIMEOUT_S)
    assert [ledger["said"] for ledger in ledgers] == [f"rank {rank} of 2 (jax.distributed)" for rank in range(RANKS)]
    check_once([ledger["jax"]["passes"] for ledger in ledgers], orders)


def test_ray(data: Path, orders: list[list[int]], tmp_path: Path) -> None:
    """Its workers have no launcher's variables. A function and a class that use holdfast go to a process of Ray's."""
    ledgers = run(data, tmp_path, HERE / "ranks_ray.py")
    assert [ledger["said"] for ledger in ledgers] == [f"rank {rank} of 2 (Ray Train)" for rank in range(RANKS)]
    check_once([ledger["ray"]["passes"] for ledger in ledgers], orders)
