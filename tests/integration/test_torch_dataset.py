"""ds.torch() in a real torch: alone, in torch's loader and in ours, with any workers, resumed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from torch_child import TorchChild

COUNTS = [70, 0, 1, 97, 32]
SAMPLES = sum(COUNTS)


class Player:
    def __init__(self, child: TorchChild, folder: Path) -> None:
        self._child, self._folder = child, str(folder)

    def __call__(self, case: str, **options: Any) -> Any:
        return self._child.play(case, folder=self._folder, **options)


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    folder = tmp_path_factory.mktemp("shards")
    program = Path(__file__).with_name("dataset_cases.py")
    with TorchChild(program, tmp_path_factory.mktemp("torch") / "stderr.txt") as child:
        player = Player(child, folder)
        player("make", counts=COUNTS)
        yield player


@pytest.fixture(scope="module")
def order(play: Player) -> list[int]:
    """Without any loader."""
    found = play("alone")
    assert sorted(found) == list(range(SAMPLES)) != found
    return list(found)


def test_every_dtype_arrives_as_it_is(play: Player) -> None:
    """uint16, uint32 and uint64, too, which torch has since 2.3."""
    ways = ("alone", "torch", "holdfast", "parcels", "torch_map")
    assert play("dtypes") == {way: [] for way in ways}


# ---- one order ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_the_same_order_with_any_workers(play: Player, order: list[int], workers: int) -> None:
    assert play("loaded", num_workers=workers, start="fork") == {"ids": order, "whole": True}


@pytest.mark.parametrize("start", ["forkserver", "spawn"])
def test_the_same_order_however_workers_start(play: Player, order: list[int], start: str) -> None:
    assert play("loaded", num_workers=2, start=start) == {"ids": order, "whole": True}


@pytest.mark.parametrize("where", ["threads", "processes"])
def test_functions_run_in_workers(play: Player, order: list[int], where: str) -> None:
    assert play("loaded", num_workers=2, where=where, start="fork") == {"ids": order, "whole": True}


def test_images_are_cropped_alike_in_every_loader(play: Player) -> None:
    alone, *loaded = play("decoded", num_workers=2, start="fork")
    assert sorted(number for number, _ in alone) == list(range(20))
    assert loaded == [alone, alone]


def test_the_same_in_our_loader(play: Player, order: list[int]) -> None:
    for workers in (0, 2):
        assert play("loaded", loader="holdfast", num_workers=workers, start="fork") == {"ids": order, "whole": True}


@pytest.mark.parametrize("options", [{}, {"batch": 0}, {"loader": "holdfast", "num_workers": 2}])
def test_tuples_and_nested_dicts(play: Player, order: list[int], options: dict[str, Any]) -> None:
    assert play("structures", start="fork", **options) == {"ids": order, "whole": True}


@pytest.mark.parametrize("workers", [0, 2, 3])
def test_epochs_in_a_row_do_not_mix(play: Player, workers: int) -> None:
    want = [*play("alone"), *play("alone", epoch=1), *play("alone", epoch=2)]
    assert play("alone", repeat=3) == want
    assert play("loaded", repeat=3, num_workers=workers, start="fork")["ids"] == want


@pytest.fixture(scope="module")
def orders(play: Player, order: list[int]) -> list[list[int]]:
    """Of the first epochs."""
    found = [order, *(play("alone", epoch=epoch) for epoch in (1, 2))]
    assert len({tuple(one) for one in found}) == 3
    return found


def passes(orders: list[list[int]]) -> list[list[int]]:
    """What `epochs` should give: 0, 1 broken off, 2; set_epoch(1), 2; set_epoch(0), 1."""
    return [orders[0], orders[1][:16], orders[2], orders[1], orders[2], orders[0], orders[1]]


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
@pytest.mark.parametrize("loader", ["torch", "holdfast"])
def test_every_pass_is_the_next_epoch(
    play: Player, orders: list[list[int]], options: dict[str, Any], loader: str
) -> None:
    assert play("epochs", loader=loader, start="fork", **options) == passes(orders)


def test_every_pass_is_the_next_epoch_in_spawned_workers(play: Player, orders: list[list[int]]) -> None:
    assert play("epochs", start="spawn", num_workers=1, persistent_workers=True) == passes(orders)


def test_a_pass_of_repeated_epochs_is_followed_by_those_after_it(play: Player, orders: list[list[int]]) -> None:
    found = play("epochs", repeat=2, num_workers=2, start="fork")
    assert found[0] == orders[0] + orders[1]
    assert found[1] == orders[2][:16]
    assert found[2] == play("alone", epoch=4, repeat=2)


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_with_the_same_seed(play: Player, orders: list[list[int]], workers: int) -> None:
    assert play("renewed", num_workers=workers, start="fork") == orders


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_at_once_have_an_epoch_each(play: Player, orders: list[list[int]], workers: int) -> None:
    assert sorted(play("together", num_workers=workers, start="fork")) == sorted(orders[:2])


def test_the_epoch_after_a_worker_was_killed(play: Player, orders: list[list[int]]) -> None:
    told = play("killed", num_workers=2, start="fork")
    assert "DataLoader worker" in told["said"]
    assert told["ids"] == orders[1]


def test_length(play: Player) -> None:
    assert play("length") == [13, 13, 13]
    assert play("length", repeat=2) == [26, 26, 26]
    assert play("length", shard=[1, 2]) == [7, 7, 7]


# ---- resume ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [0, 1, 6, 13])
@pytest.mark.parametrize(("before", "then"), [(0, 0), (2, 0), (0, 2), (2, 3)])
def test_resume_under_another_layout(play: Player, order: list[int], taken: int, before: int, then: int) -> None:
    told = play(
        "resumed", taken=taken, num_workers=before, start="fork", then={"num_workers": then, "batch": 7 if then else 16}
    )
    assert told["seen"] == order[: taken * 16]
    assert told["rest"] == order[taken * 16 :]
    assert told["after"] == play("alone", epoch=1)  # a state is used up by one pass
    assert not taken or "state_after" in told["refused"]


def test_resume_in_workers_that_stay(play: Player) -> None:
    want = play("alone", epoch=3)
    then = {"num_workers": 2, "persistent_workers": True}
    told = play("resumed", taken=5, epoch=3, start="fork", then=then)
    assert (told["seen"] + told["rest"], told["after"]) == (want, play("alone", epoch=4))


def test_resume_between_repeated_epochs(play: Player) -> None:
    want = play("alone", repeat=2)
    told = play("resumed", taken=15, repeat=2, start="fork", then={"num_workers": 2})
    assert told["seen"] + told["rest"] == want
    assert told["after"] == play("alone", epoch=2, repeat=2)


@pytest.mark.parametrize("taken", [2, 6, 12, 14, 20])
def test_states_that_workers_tell_themselves(play: Player, taken: int) -> None:
    """As a stateful loader saves and restores them, worker by worker; where it is the first worker's turn again."""
    want = play("alone", repeat=2)
    told = play("workers_states", taken=taken, repeat=2, num_workers=2, start="fork")
    assert [i for batch in [*told["seen"], *told["rest"]] for i in batch] == want


# ---- samples -----------------------------------------------------------------------------------------------


def test_torch_makes_the_batches_of_samples(play: Player, order: list[int]) -> None:
    told = play("unbatched", num_workers=0)
    assert told == {"ids": order, "types": {"id": "torch.int64", "name": "bytes", "emb": "torch.float32"}}
    assert sorted(play("unbatched", num_workers=2, start="fork")["ids"]) == list(range(SAMPLES))


@pytest.mark.parametrize(("workers", "start"), [(0, ""), (2, "fork"), (2, "spawn")])
def test_samples_by_number(play: Player, workers: int, start: str) -> None:
    got = play("mapped", num_workers=workers, start=start)
    assert sorted(got) == list(range(SAMPLES)) != got
    assert got == play("mapped", num_workers=0)


def test_samples_by_number_for_ranks(play: Player) -> None:
    assert sorted(play("mapped", ranks=2)) == list(range(SAMPLES))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("loader", ["torch", "holdfast"])
def test_a_loader_reads_everything_or_says_what_to_write(play: Player, loader: str, workers: int) -> None:
    told = play("misused", loader=loader, num_workers=workers)
    for what in ("dataset", "mapped"):
        assert "got one with shuffle(), batch(). For a torch DataLoader write DataLoader(ds.torch()" in told[what]
    again = "expected batch_size=None for a dataset that has batches"
    assert again in told["batched again"]
    assert told["samples"] == SAMPLES
    if loader == "holdfast":
        assert told["default"] == SAMPLES
    else:
        assert again in told["default"]


# ---- forms -------------------------------------------------------------------------------------------------


def test_a_tensor_is_the_arrays_memory(play: Player) -> None:
    assert play("shared_memory") == {"shared": True, "writable": True}


def test_what_cannot_be_shared(play: Player) -> None:
    assert play("forms") == {
        "frozen": ["torch.int64", [0, 1, 2]],
        "backwards": ["torch.int64", [2, 1, 0]],
        "foreign": ["torch.int32", [0, 1, 2]],
        "half": ["torch.float16", [0, 0]],
        "flags": ["torch.bool", [True]],
        "text": ["<U1", ["a"]],
        "tensor": ["torch.float32", [1]],
        "inner": ["x"],
    }


def test_lists_of_lists_and_of_strings(play: Player) -> None:
    assert play("nested") == [[[[0, 1]], [[2], [], [3, 4, 5]]], [["a", "bc"], [], [""]]]


# ---- ends --------------------------------------------------------------------------------------------------


def test_pickles(play: Player) -> None:
    assert play("pickled") is True


def test_a_rank_that_only_torch_knows(play: Player) -> None:
    assert play("under_a_launcher", num_workers=1, start="spawn") == {"same": True, "samples": SAMPLES // 2}


def test_leaves_nothing(play: Player) -> None:
    assert play("dropped") == {}
