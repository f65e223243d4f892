"""holdfast.torch.DataLoader leaves nothing behind, and says who does not answer. Real workers, real counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from torch_child import TorchChild

SHARING = ("file_descriptor", "file_system")
WAYS = (
    "exhausted",
    "exhausted_iterator_kept",
    "exhausted_iterable_kept",
    "broken_off",
    "raised_in_body",
    "raised_in_body_of_with",
    "raised_in_worker",
    "raised_in_collate",
    "raised_in_sampler",
    "cycle_exhausted",
    "cycle_collected",
    "killed",
    "persistent_closed",
    "persistent_killed",
    "kept_batches",
    "kept_views",
    "kept_for_epochs",
    "errors_kept",
    "in_threads",
    "copy_closed",
    "started_in_vain",
)


@pytest.fixture(scope="module")
def torch_child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchChild]:
    program = Path(__file__).with_name("loader_cases.py")
    with TorchChild(program, tmp_path_factory.mktemp("torch") / "stderr.txt") as child:
        yield child


# ---- nothing left ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("way", WAYS)
def test_leaves_nothing(torch_child: TorchChild, way: str, sharing: str) -> None:
    assert torch_child.play("end", way=way, sharing=sharing) == {"left": {}}


@pytest.mark.parametrize(
    "way",
    ["exhausted_iterator_kept", "broken_off", "raised_in_worker", "cycle_collected", "killed", "persistent_closed"],
)
def test_pinning_leaves_nothing(torch_child: TorchChild, way: str) -> None:
    assert torch_child.play("end", way=way, pin_memory=True) == {"left": {}}


def test_live_iterators_lost_in_cycles_do_not_pile_up(torch_child: TorchChild) -> None:
    counts = torch_child.play("cycles_alive", lives=5)["counts"]
    assert max(counts[1:]) <= counts[1] + 1, counts


def test_iterators_in_the_variables_of_functions_that_failed_do_not_pile_up(torch_child: TorchChild) -> None:
    told = torch_child.play("own_errors_kept", lives=5)
    counts = told["counts"]
    assert max(counts[1:]) <= counts[0] + 1, counts
    assert told["beside"] == 12


def test_leaves_nothing_of_a_fork_server(torch_child: TorchChild) -> None:
    options = {"multiprocessing_context": "forkserver", "num_workers": 1}
    assert torch_child.play("end", way="exhausted_iterator_kept", **options) == {"left": {}}


def test_kept_batches_are_private_unless_asked(torch_child: TorchChild) -> None:
    assert torch_child.play("shared", copy_batches=True) == {"shared": 0, "held": 0}
    assert torch_child.play("shared", copy_batches=False) == {"shared": 12, "held": 12}


@pytest.mark.parametrize("sharing", SHARING)
def test_kept_batches_of_any_kind_hold_nothing(torch_child: TorchChild, sharing: str) -> None:
    assert torch_child.play("mixed", sharing=sharing) == {"left": {}, "shared": 0}


def test_a_file_that_is_mapped_is_not_removed(torch_child: TorchChild) -> None:
    assert torch_child.play("sent_past_the_loader") == {"value": 7000.0}


def test_a_closed_loader_starts_anew(torch_child: TorchChild) -> None:
    assert torch_child.play("closed_and_used_again") == {"error": "ClosedLoaderError", "again": 12}


@pytest.mark.parametrize("pin_memory", [False, True])
def test_errors_of_a_batchs_own_classes_are_raised_as_they_are(torch_child: TorchChild, pin_memory: bool) -> None:
    kinds = ("OSError", "TimeoutError", "BlockingIOError", "ConnectionResetError", "FileNotFoundError", "EOFError")
    expected = {kind: [f"{kind}('of the batch')", "None"] for kind in kinds}
    assert torch_child.play("unreadable", pin_memory=pin_memory) == expected


def test_goes_on_after_a_bad_item(torch_child: TorchChild) -> None:
    expected = [*range(5), "bad", *range(6, 24)]
    assert torch_child.play("goes_on") == {"got": expected}


def test_a_forked_child_gets_its_own_workers(torch_child: TorchChild) -> None:
    assert torch_child.play("inherited") == {"child": "ClosedLoaderError 12", "rest": 11}


def test_says_that_descriptors_ran_out(torch_child: TorchChild) -> None:
    told = torch_child.play("out_of_descriptors")
    assert told["left"] == {}
    assert "Too many open files" in told["error"], told


# ---- workers that do not answer ----------------------------------------------------------------------------


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("after", [0, 2])
def test_a_stopped_worker_is_named(torch_child: TorchChild, sharing: str, after: int) -> None:
    told = torch_child.play("stopped", sharing=sharing, timeout_s=1, context="fork", after=after)
    assert told["type"] == "WorkerTimeoutError"
    assert "DataLoader timed out after 1 seconds" in told["error"]
    assert f"pid {told['pid']}) is stopped by a signal" in told["error"]
    assert "it owed batch" in told["error"]
    assert told["named"] == told["pid"]


@pytest.mark.parametrize("after", [0, 1])
def test_a_stopped_worker_is_named_though_batches_are_pinned(torch_child: TorchChild, after: int) -> None:
    options = {"sharing": "file_descriptor", "timeout_s": 1, "context": "fork", "pin_memory": True}
    told = torch_child.play("stopped", after=after, **options)
    assert told["type"] == "WorkerTimeoutError"
    assert f"pid {told['pid']}) is stopped by a signal" in told["error"]
    assert told["threads"] == []


def test_a_stopped_worker_of_a_fork_server_is_named(torch_child: TorchChild) -> None:
    told = torch_child.play("stopped", sharing="file_descriptor", timeout_s=1, context="forkserver", after=1)
    assert f"pid {told['pid']}) is stopped by a signal" in told["error"]


@pytest.mark.parametrize("by_handler", [False, True])
def test_a_worker_that_dies_while_it_starts_is_named(torch_child: TorchChild, by_handler: bool) -> None:
    told = torch_child.play("killed_while_starting", by_handler=by_handler)
    assert (told["type"], told["left"]) == ("WorkerDiedError", {}), told
    assert "is killed by signal: Killed" in told["error"]


def test_a_death_is_seen_without_its_sentinel(torch_child: TorchChild) -> None:
    told = torch_child.play("silent_sentinel")
    assert told["type"] == "WorkerDiedError"
    assert "is killed by signal: Killed" in told["error"]


def test_a_hung_worker_is_named_with_its_samples(torch_child: TorchChild) -> None:
    told = torch_child.play("hung", timeout_s=1)
    assert any(f"pid {pid}) is waiting; it owed batch 2 (samples 4, 5)" in told["error"] for pid in told["pids"]), told
    assert told["again"] == "ClosedLoaderError"


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("seed", range(4))
def test_killed_or_stopped_at_random(torch_child: TorchChild, seed: int, sharing: str) -> None:
    told = torch_child.play("struck", seed=seed, sharing=sharing)
    assert (told["whole"], told["left"]) == (True, {}), told
