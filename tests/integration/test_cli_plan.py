"""`holdfast plan`: its arithmetic against real torch loaders, its page and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_process import COMMAND, document, environment, holdfast, on_terminal, refused, without_styles, write_shards

from holdfast.process import capacity
from holdfast.process.capacity import CapacityRequest, Sharing

COSTS = Path(__file__).with_name("loader_costs.py")


def real_costs(workers: int, prefetch: int, sharing: Sharing) -> Any:
    command = [sys.executable, "-W", "ignore", str(COSTS), str(workers), str(prefetch), sharing.value]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True, env=environment())
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("workers", "prefetch", "sharing"),
    [
        (1, 2, Sharing.DESCRIPTOR),
        (2, 3, Sharing.DESCRIPTOR),
        (4, 2, Sharing.DESCRIPTOR),
        (2, 2, Sharing.FILE),
    ],
)
def test_the_costs_are_those_of_a_real_loader(workers: int, prefetch: int, sharing: Sharing) -> None:
    pytest.importorskip("torch", reason="needs the Python package torch")
    request = CapacityRequest(workers=workers, prefetch=prefetch, tensors=2, open_shards=0, sharing=sharing)
    real = real_costs(workers, prefetch, sharing)
    assert real["fds"] == capacity.queue_fds(request)
    assert real["pipes"] == capacity.pipes(request)
    assert capacity.tensors_on_the_way(request) // 2 <= real["in_worker"] <= capacity.tensors_on_the_way(request)
    assert real["base"] <= capacity.BASE_FDS
    # What is started lazily may not have been needed yet: never more than was planned, nor much less.
    assert capacity.tasks(request) // 2 <= real["tasks"] <= capacity.tasks(request)
    assert real["worker"] <= capacity.worker_fds(request) - capacity.BASE_FDS
    if sharing is Sharing.DESCRIPTOR:
        # The batch that the loop holds, and those that came in out of order.
        assert 2 <= real["in_hand"] <= workers * capacity.tensors_on_the_way(request) + 2


def test_a_modest_run_fits() -> None:
    found = document("plan", "--workers", "1", "--open-shards", "2", "--batch-bytes", "1kB")
    assert found["fits"]
    assert found["settled"] == {name: value for name, value in found["wish"].items() if name != "files"}
    assert found["wish"]["workers"] == 1
    assert all(need["enough"] for need in found["needs"])


def test_one_that_does_not_fit_says_what_to_set_and_exits_with_1() -> None:
    done = holdfast("plan", "--workers", "2", "--batch-bytes", "1000TB")
    assert done.returncode == 1
    assert "✗ it does not fit with the current limits; set:" in done.stdout
    assert "num_workers 0" in done.stdout
    found = document("plan", "--workers", "2", "--batch-bytes", "1000TB", code=1)
    assert (found["fits"], found["settled"]["workers"]) == (False, 0)
    json.dumps(found, allow_nan=False)


def test_the_limits_are_those_of_the_shell_it_is_asked_in() -> None:
    command = ["sh", "-c", 'ulimit -S -n 128; exec "$@"', "sh", *COMMAND, "plan", "--open-shards", "200", "--json"]
    done = subprocess.run(
        [*command, "--workers", "1"], capture_output=True, text=True, env=environment(), timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (1, "")
    found = json.loads(done.stdout)
    assert {one["name"]: one["value"] for one in found["set"]}["ulimit -n"] == "1024"
    assert [need["have"] for need in found["needs"] if need["name"] == "descriptors, a worker"] == [128]


def test_open_shards_come_from_the_files(tmp_path: Path) -> None:
    write_shards(tmp_path, shards=5, records=1)
    few = document("plan", "--data", tmp_path, "--workers", "2")["wish"]
    assert (few["files"], few["open_shards"]) == (5, 3)
    assert document("plan", "--workers", "0")["wish"]["open_shards"] == 16


def test_without_workers_given_there_is_one_for_each_core() -> None:
    assert 1 <= document("plan")["wish"]["workers"] <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--workers -1", "plan: invalid value for '--workers': -1 is not in the range 0<=x<=100000"),
        (
            "--batch-bytes big",
            "plan: invalid value for '--batch-bytes': expected a size such as 256MB or 1.5GiB, got 'big'",
        ),
        (
            "--prefetch 9999999999",
            "plan: invalid value for '--prefetch': 9999999999 is not in the range 1<=x<=1000000000",
        ),
    ],
)
def test_wrong_usage(line: str, said: str) -> None:
    assert refused("plan", *line.split(), code=2) == f"{said} (see `holdfast plan --help`)"


@pytest.mark.parametrize(
    ("data", "said"),
    [("no-such-*", "nothing matches; "), ("no-such-file", "cannot open: No such file or directory; ")],
)
def test_data_that_are_not_there(data: str, said: str) -> None:
    assert refused("plan", "--data", data, code=3).startswith(f"{data}: {said}")


@pytest.mark.parametrize("columns", [80, 140])
def test_it_fits_the_terminal(columns: int) -> None:
    shown, code = on_terminal("plan", "--workers", "64", "--batch-bytes", "1TB", columns=columns)
    assert code == 1
    requirements = without_styles(shown).splitlines()
    assert max(map(len, requirements)) <= columns
    assert any("there is" in line for line in requirements)
    plain = on_terminal("plan", "--workers", "64", "--batch-bytes", "1TB", columns=columns, NO_COLOR="1")[0]
    assert "\x1b[3" not in plain.replace("\x1b[0m", "")
    assert without_styles(plain).splitlines()[-1] == requirements[-1]
