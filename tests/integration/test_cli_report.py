"""`holdfast trace` and `holdfast report` on real programs, among them the ways in which torch's DataLoader leaks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from cli_process import document, holdfast, on_terminal, without_styles

from traced_process import needs_library

pytestmark = needs_library

TORCH = """
import gc, threading, time
import torch
from torch.utils.data import DataLoader, Dataset

gc.disable()
kept, failures = [], []

class Numbers(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, i):
        return torch.zeros(3)

def exhaust(iterator):
    for batch in iterator:
        batch.clone()

def keep_in_a_list():
    iterator = iter(DataLoader(Numbers(), num_workers=1))  # list
    exhaust(iterator)
    kept.append(iterator)

def keep_in_an_exception():
    iterator = iter(DataLoader(Numbers(), num_workers=1))  # exception
    try:
        exhaust(iterator)
        raise RuntimeError("after the epoch")
    except RuntimeError as error:
        failures.append(error)

def keep_in_a_cycle():
    iterator = iter(DataLoader(Numbers(), num_workers=1))  # cycle
    exhaust(iterator)
    iterator.me = iterator

def close_all():
    iterator = iter(DataLoader(Numbers(), num_workers=1))  # correct
    exhaust(iterator)

if __name__ == "__main__":
    torch.set_num_threads(1)
    for _ in range(14):
        close_all()  # first: a thread of its queue closes the last pipe some time after it was dropped
        keep_in_a_list()
        keep_in_an_exception()
        keep_in_a_cycle()
"""

DRIFT = """
import os, threading, time
def leak(kept):
    kept.append(os.open("/dev/null", os.O_RDONLY))
def work(kept):
    for n in range({rounds}):
        if {leaks}:
            leak(kept)
        os.close(os.open("/dev/null", os.O_RDONLY))
        time.sleep(0.01)
kept = []
work(kept)
if {twice}:
    fd = os.open("/dev/null", os.O_RDONLY)
    os.close(fd)
    try:
        os.close(fd)
    except OSError:
        pass
"""


def traced(folder: Path, name: str, program: str) -> Path:
    (folder / "program.py").write_text(program)
    done = holdfast("trace", "-o", f"{name}.hft", "program.py", cwd=folder)
    assert done.returncode == 0, done
    return folder / f"{name}.hft"


@pytest.fixture(scope="module")
def drift(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drift")
    traced(folder, "clean", DRIFT.format(rounds=60, leaks=False, twice=False))
    traced(folder, "leaking", "# a line above\n" + DRIFT.format(rounds=60, leaks=True, twice=True))
    return folder


@pytest.fixture(scope="module")
def loaders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("torch")
    return document("report", traced(tmp_path_factory.mktemp("loaders"), "torch", TORCH))


def site_of(facts: Any, mark: str) -> Any:
    (site,) = [site for site in facts["sites"] if site["text"].endswith(f"# {mark}")]
    return site


@pytest.mark.parametrize(
    ("mark", "path"),
    [
        ("list", r"module variable 'kept'\[\d+\] → _MultiProcessingDataLoaderIter\._\w+"),
        ("exception", r"'failures'\[\d+\] → RuntimeError.*_MultiProcessingDataLoaderIter"),
        ("cycle", r"^only a reference cycle: .* → _MultiProcessingDataLoaderIter\._\w+"),
    ],
)
def test_a_leak_of_loaders_names_the_line_and_what_keeps_it(loaders: Any, mark: str, path: str) -> None:
    site = site_of(loaders, mark)
    assert site in loaders["sites"][:3]
    assert site["growth_per_minute"] > 0
    assert site["live"] >= 14 * 4
    assert site["born"] - site["closed"] == site["live"]
    assert site["kinds"]["pipe"] >= 14 * 4
    assert site["via"][0].startswith("torch/utils/data/dataloader.py:")
    assert site["via"][-1].startswith("multiprocessing/")
    assert any(re.search(path, owner) for owner in site["owners"]), site["owners"]


def test_a_loader_that_is_dropped_does_not_leak(loaders: Any) -> None:
    site = site_of(loaders, "correct")
    assert (site["growth_per_minute"], site["live"]) == (0, 0)
    assert site["born"] > 14 * 5


def test_the_verdict_of_leaking_loaders(loaders: Any) -> None:
    assert re.search(r"program\.py:\d+ in keep_in_\w+ leaks: \d+ descriptors \(pipe", loaders["verdict"])
    assert loaders["mode"] == "full"
    assert loaders["coverage"] > 0.99  # a look at /proc may catch a descriptor before its birth is recorded
    assert loaders["bad"] == []
    assert len(loaders["processes"]) == 1 + 4 * 14


def test_the_page_on_a_terminal_of_80_columns(drift: Path) -> None:
    written, code = on_terminal("report", drift / "leaking.hft")
    page = without_styles(written)
    assert code == 0
    assert page != written
    assert "leaks: 60 descriptors (file) are open" in " ".join(page.split())
    assert max(map(len, page.splitlines())) <= 80


def test_the_page_in_a_pipe_has_no_color_and_a_row_a_line(drift: Path) -> None:
    for env in ({}, {"NO_COLOR": "1"}, {"PYTHONIOENCODING": "ascii"}):
        done = holdfast("report", drift / "leaking.hft", **env)
        assert (done.returncode, done.stderr) == (0, "")
        assert "\x1b" not in done.stdout
        assert "\\u" not in done.stdout
        assert "\\x" not in done.stdout
        assert re.search(r"descriptor \d+: double close$", done.stdout, re.MULTILINE)
        assert re.search(
            r"^    program.py:\d+ closes descriptor \d+ a second time: .* Close it in one place\.$", done.stdout, re.M
        )
