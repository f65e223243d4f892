from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from holdfast._util.rank import Launch, default_task, find_rank
from holdfast.errors import InputError

MULTI_WORKER = {"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"]}, "task": {"type": "worker", "index": 1}}


def tf_config(**changes: object) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps(MULTI_WORKER | changes)}


@pytest.mark.parametrize(
    ("environ", "rank", "world", "source"),
    [
        ({}, 0, 1, "alone"),
        ({"RANK": "3", "WORLD_SIZE": "8"}, 3, 8, "torchrun"),
        (tf_config(), 2, 3, "TF_CONFIG"),
        (tf_config(task={"type": "chief", "index": 0}), 0, 3, "TF_CONFIG"),
        (tf_config(task={"type": "evaluator", "index": 0}), 0, 1, "'evaluator' reads by itself"),
        ({"TF_CONFIG": "{}"}, 0, 1, "alone"),
        ({"JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "2"}, 1, 2, "JAX"),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}, 1, 4, "Open MPI"),
        ({"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "9", "SLURM_JOB_ID": "1"}, 2, 4, "SLURM"),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "4"}, 2, 4, "SLURM"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "1"}, 0, 1, "alone"),
        # one torchrun a node, started by srun; ranks started by mpirun inside a batch job
        ({"RANK": "5", "WORLD_SIZE": "8", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, 5, 8, "torchrun"),
        (
            {
                "OMPI_COMM_WORLD_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "4",
                "SLURM_PROCID": "0",
                "SLURM_STEP_NUM_TASKS": "2",
            },
            1,
            4,
            "Open MPI",
        ),
        ({"RANK": "2", "WORLD_SIZE": "3", **tf_config()}, 2, 3, "torchrun"),
    ],
)
def test_environments(environ: dict[str, str], rank: int, world: int, source: str) -> None:
    found = find_rank("auto", environ)
    assert found[:2] == (rank, world)
    assert source in found.source
    assert str(found).startswith(f"rank {rank} of {world} (")


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"RANK": "1", "WORLD_SIZE": "4", **tf_config()}, r"torchrun.* says 1 of 4, TF_CONFIG says 2 of 3"),
        ({"RANK": "1"}, "RANK is set and WORLD_SIZE is not"),
        ({"WORLD_SIZE": "1"}, "WORLD_SIZE is set and RANK is not"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "rank 4 is out of range for 4 ranks"),
        ({"RANK": "one", "WORLD_SIZE": "4"}, "two integers, got 'one'"),
        ({"TF_CONFIG": "{"}, "TF_CONFIG: expected a cluster and a task as JSON"),
        ({"TF_CONFIG": "[1]"}, "TF_CONFIG: expected a cluster and a task as JSON"),
        (tf_config(task={"type": "worker", "index": 2}), "worker 2 is out of range for 2"),
    ],
)
def test_what_cannot_be_is_named(environ: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        find_rank("auto", environ)


@pytest.mark.parametrize(
    ("environ", "task"),
    [
        ({}, None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, "rank0"),
        (tf_config(), "rank2"),
        (tf_config(task={"type": "evaluator", "index": 0}), "evaluator0"),  # and not the chief's own rank0
    ],
)
def test_a_name_for_a_task(environ: dict[str, str], task: str | None) -> None:
    assert default_task(environ) == task


def test_as_given() -> None:
    assert find_rank((1, 4), {"RANK": "0", "WORLD_SIZE": "2"}) == Launch(1, 4, "as given")
    for wrong in ((4, 4), (-1, 2), (1,), 3, "all"):
        with pytest.raises(ValueError, match="expected|out of range"):
            find_rank(wrong)  # type: ignore[arg-type]


DISTRIBUTED = """
import sys, torch.distributed as dist
from holdfast._util.rank import find_rank
print(find_rank("auto", {}))
store = dist.FileStore(sys.argv[1], 1)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
print(find_rank("auto", {}))
print(find_rank("auto", {"WORLD_SIZE": "2"}))  # as some trainers set it, without RANK
print(find_rank("auto", {"RANK": "3", "WORLD_SIZE": "8", "TF_CONFIG": "{"}))
dist.destroy_process_group()
"""


def test_torch_once_it_is_initialised(tmp_path: os.PathLike[str]) -> None:
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", DISTRIBUTED, f"{os.fspath(tmp_path)}/store"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines() == [
        "rank 0 of 1 (alone: no launcher was found)",
        *["rank 0 of 1 (torch.distributed)"] * 3,
    ], done.stderr


def test_torch_is_not_imported_for_it() -> None:
    code = "import sys; from holdfast._util.rank import find_rank; find_rank(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"
