"""`holdfast demo`: the main job, checked by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_process import document, on_terminal, refused, without_styles

STEPS = ["make", "damage", "verify", "salvage", "read", "train", "diagnose"]


@pytest.mark.formats
def test_json_reports_every_step(tmp_path: Path) -> None:
    said = document("demo", "--keep", tmp_path / "kept")
    assert said["ok"] is True
    assert [step["name"] for step in said["steps"]] == STEPS
    assert all(list(step) == ["name", "ok", "seconds", "facts"] and step["ok"] for step in said["steps"])
    assert document("verify", tmp_path / "kept" / "originals")["ok"] is True
    assert document("verify", tmp_path / "kept" / "salvaged")["ok"] is True
    assert document("verify", tmp_path / "kept" / "data", code=1)["ok"] is False


def test_on_80_columns_each_step_is_a_tidy_screen(tmp_path: Path) -> None:
    shown, code = on_terminal("demo", TMPDIR=str(tmp_path))
    assert code == 0
    lines = without_styles(shown).splitlines()
    assert max(map(len, lines)) <= 80
    titles = [i for i, line in enumerate(lines) if line.startswith(tuple(f"{n} of 7 · " for n in range(1, 8)))]
    assert [lines[i].split(" ─")[0] for i in titles] == [f"{n} of 7 · {name}" for n, name in enumerate(STEPS, 1)]
    screens = [stop - start for start, stop in zip(titles, [*titles[1:], len(lines)], strict=True)]
    assert max(screens) < 24
    assert lines[-1].startswith("demo: all 7 steps passed in ")
    assert os.listdir(tmp_path) == []


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    assert refused("demo", "--keep", tmp_path, code=3) == f"{tmp_path}: expected a new or empty directory"


FAILING = """
import sys
from holdfast.cli import demo, main
class Intact:
    ok, problems, bytes, path, hint = True, [], 1, "x", ""
demo.verify_file = lambda path: Intact  # finds nothing
sys.exit(main(["demo"]))
"""


def test_a_check_that_fails_is_named_and_in_a_pipe_nothing_is_drawn(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAILING],
        capture_output=True,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "─" not in done.stdout
    assert "\n✓ " in done.stdout
    assert done.stdout.endswith("demo: 1 check failed\n  verify: every corruption was found at the right record\n")
