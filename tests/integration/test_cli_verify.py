"""`holdfast verify`: what it says of whole, damaged and missing files, to people and to machines."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from cli_process import document, flip, frame_starts, holdfast, on_terminal, refused, without_styles, write_shards

pytestmark = pytest.mark.formats


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shards(tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def damaged(folder: Path) -> Path:
    """Part 0 is whole, part 1 has a flipped bit in record 7, part 2 is cut inside its last record."""
    flip(folder / "part-1.tfrecord", frame_starts(folder / "part-1.tfrecord")[7] + 20)
    os.truncate(folder / "part-2.tfrecord", (folder / "part-2.tfrecord").stat().st_size - 3)
    return folder


def test_whole_files_take_one_line(folder: Path) -> None:
    done = holdfast("verify", folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("3 files, 60 records, ")
    assert done.stdout.endswith(" kB: all intact\n")


def test_damaged_files_are_listed_with_record_place_and_reason(damaged: Path) -> None:
    done = holdfast("verify", damaged)
    assert (done.returncode, done.stderr) == (1, "")
    starts = frame_starts(damaged / "part-1.tfrecord")
    lines = done.stdout.splitlines()
    assert lines[0] == str(damaged / "part-1.tfrecord")
    assert lines[1].split() == ["record", "at", "byte", "what", "is", "wrong"]
    assert lines[2].split() == ["7", f"{starts[7]:,}", "bad", "data", "CRC"]
    assert "truncated" in lines[6]
    assert "part-0" not in done.stdout
    assert lines[-4] == "The file is corrupt: `holdfast salvage FILE OUT` copies the intact records."
    assert lines[-3] == f"`holdfast salvage {damaged}/ OUT/ --only-corrupt` does so for all corrupt files;"
    assert lines[-2].startswith(f"`holdfast salvage {damaged}/ --in-place` replaces them")
    assert lines[-1] == "2 of 3 files corrupt; 58 records intact"


def test_json_of_whole_files(folder: Path) -> None:
    said = document("verify", folder / "part-1.tfrecord", folder / "part-0.tfrecord")
    assert said == {
        "ok": True,
        "files": [
            {
                "path": str(path),
                "ok": True,
                "records": 20,
                "bytes": path.stat().st_size,
                "problems": [],
            }
            for path in (folder / "part-1.tfrecord", folder / "part-0.tfrecord")
        ],
        "suspicious": [],
    }


def test_json_of_damaged_files(damaged: Path) -> None:
    said = document("verify", damaged, code=1)
    assert said["ok"] is False
    assert [file["ok"] for file in said["files"]] == [True, False, False]
    start = frame_starts(damaged / "part-1.tfrecord")[7]
    assert said["files"][1]["problems"] == [{"offset": start, "record": 7, "reason": "bad data CRC"}]
    assert [file["records"] for file in said["files"]] == [20, 19, 19]


def test_all_files_are_done_before_it_fails(damaged: Path) -> None:
    said = document(
        "verify", damaged / "missing.tfrecord", damaged / "part-1.tfrecord", damaged / "part-0.tfrecord", code=1
    )
    assert [file["ok"] for file in said["files"]] == [False, False, True]
    [problem] = said["files"][0]["problems"]
    assert problem == {"offset": 0, "record": None, "reason": "cannot open: No such file or directory"}


def test_a_missing_file_is_not_whole_but_not_called_damaged(folder: Path) -> None:
    done = holdfast("verify", folder, folder / "missing.tfrecord")
    assert done.returncode == 3
    assert done.stdout.splitlines() == [
        str(folder / "missing.tfrecord"),
        "  cannot open: No such file or directory",
        "",
        "1 of 4 files could not be read",
    ]


def test_globs_are_expanded_and_sorted_by_name(folder: Path) -> None:
    for i in (10, 11):
        shutil.copy(folder / "part-0.tfrecord", folder / f"part-{i}.tfrecord")
    (folder / "deep" / "er").mkdir(parents=True)
    shutil.copy(folder / "part-0.tfrecord", folder / "deep" / "er" / "x.tfrecord")
    said = document("verify", "data/part-*.tfrecord", "data/deep/**/*.tfrecord", cwd=folder.parent)
    names = [f"data/part-{i}.tfrecord" for i in (0, 1, 10, 11, 2)]
    assert [file["path"] for file in said["files"]] == [*names, "data/deep/er/x.tfrecord"]


def test_a_folder_means_the_tfrecords_in_it(folder: Path) -> None:
    shutil.copy(folder / "part-0.tfrecord", folder / ".hidden.tfrecord")
    (folder / "notes.txt").write_text("not one")
    (folder / "holdfast.manifest.json").write_text('{"holdfast_manifest": 1, "files": []}')
    assert len(document("verify", folder)["files"]) == 3
    assert len(document("verify", folder.parent)["files"]) == 3
    (folder / "empty").mkdir()
    assert "there are none" in refused("verify", folder / "empty", code=3)


def test_quiet_leaves_only_the_exit_code(damaged: Path) -> None:
    done = holdfast("verify", "-q", damaged)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_a_pipe_gets_long_paths_in_one_piece_and_no_drawing(damaged: Path) -> None:
    deep = damaged / ("long-" * 30) / ("name-" * 30)
    deep.mkdir(parents=True)
    target = shutil.copy(damaged / "part-1.tfrecord", deep)
    done = holdfast("verify", target)
    assert done.stdout.splitlines()[0] == str(target)
    assert done.stdout.isascii()
    assert [line for line in done.stdout.splitlines() if line != line.rstrip()] == []


def test_on_80_columns_every_line_fits(damaged: Path) -> None:
    shown, code = on_terminal("verify", damaged)
    assert code == 1
    assert "\x1b[1;31m" in shown
    lines = without_styles(shown).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("───" in line for line in lines)


def test_without_colour_nothing_is_red(damaged: Path) -> None:
    shown, _ = on_terminal("verify", damaged, NO_COLOR="1")
    assert "31m" not in shown
    assert "bad data CRC" in shown


def test_names_cannot_play_tricks_on_the_terminal(folder: Path) -> None:
    name = b"we\x1b[31mird\xff [red]x:smile:\n.tfrecord"
    path = os.path.join(os.fsencode(folder), name)
    shutil.copy(folder / "part-0.tfrecord", path)
    with open(path, "r+b") as file:
        file.seek(30)
        file.write(b"?")
    done = holdfast("verify", os.fsdecode(path))
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines()[0].endswith(r"/we\x1b[31mird\udcff [red]x:smile:\n.tfrecord")
    said = json.loads(holdfast("verify", "--json", os.fsdecode(path)).stdout)
    assert os.fsencode(said["files"][0]["path"]) == path


def test_many_jobs_keep_the_order_of_the_files(tmp_path: Path) -> None:
    # Large enough for worker processes where there is no compiled codec.
    paths = write_shards(tmp_path / "many", shards=6, records=4)
    with open(paths[0], "ab") as file:
        file.write(paths[1].read_bytes() * 4000)
    said = document("verify", "-j", "3", *paths)
    assert [file["path"] for file in said["files"]] == list(map(str, paths))
    assert [file["records"] for file in said["files"]] == [4 + 16000, 4, 4, 4, 4, 4]
