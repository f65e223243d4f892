"""The examples, as a user runs them: killed in the middle of an epoch, and started again."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from log_cases import ENV, await_text, started

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
COUNT = 384  # 12 steps of 32 an epoch
TIMEOUT_S = 100.0
ONCE = "".join(f"epoch {epoch}: {COUNT} images, each seen once\n" for epoch in range(2))


def run(*command: object) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env=os.environ | ENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    assert run(EXAMPLES / "make_images.py", folder, "--count", COUNT) == f"{COUNT} images in 6 shards\n"
    return folder


def torchrun(ranks: int) -> list[object]:
    return ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, EXAMPLES / "torch_ddp.py"]


# ---- killed ------------------------------------------------------------------------------------------------


def run_and_kill(command: list[object], standing: int) -> None:
    """Until so many say that they stand still; then SIGKILL for all of them."""
    with started(*command) as process:
        await_text(process, "standing still at step", standing)


def seen(folder: Path) -> str:
    return run(EXAMPLES / "seen.py", folder, COUNT)


# ---- the examples ------------------------------------------------------------------------------------------


# In the middle of an epoch, at its very end, and before its last step: the step, and how often it saves.
MIDDLE, END, LAST = (7, 4), (12, 4), (23, 1)
pytestmark = pytest.mark.timeout(3 * TIMEOUT_S + 100)  # three runs each


@pytest.mark.skipif(find_spec("torch") is None, reason="needs the Python package torch")
def test_torch_ddp_goes_on_after_kills(images: Path, tmp_path: Path) -> None:
    """After the first one with one rank, and not with two."""
    folder = tmp_path / "run"
    for ranks, (step, save_every) in ((2, MIDDLE), (1, END)):
        command = [*torchrun(ranks), images, folder, "--save-every", save_every]
        run_and_kill([*command, "--stand-still-at", step], standing=ranks)
    run(*torchrun(1), images, folder)
    assert sorted(path.name for path in folder.glob("seen-from-*")) == [
        "seen-from-0-rank-0.jsonl",
        "seen-from-0-rank-1.jsonl",
        "seen-from-12-rank-0.jsonl",
        "seen-from-4-rank-0.jsonl",
    ]
    assert seen(folder) == ONCE


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs the Python package tensorflow-cpu")
def test_keras_mirrored_goes_on_after_kills(images: Path, tmp_path: Path) -> None:
    """One step that is left is as many as Keras looks at before it trains."""
    folder = tmp_path / "run"
    command = [EXAMPLES / "keras_mirrored.py", images, folder]
    for step, save_every in (MIDDLE, LAST):
        run_and_kill([*command, "--save-every", save_every, "--stand-still-at", step], standing=1)
    run(*command)
    assert {path.name for path in folder.glob("seen-from-*")} == {
        f"seen-from-{saved}-rank-0.jsonl" for saved in (0, 4, 23)
    }
    assert seen(folder) == ONCE
