"""`holdfast verify`, `salvage` and `inspect` of HDF5 files, to people and to machines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest
from cli_process import (
    COMMAND,
    TIMEOUT_S,
    document,
    environment,
    everything_in,
    flip,
    holdfast,
    on_terminal,
    refused,
    wait_for,
    without_styles,
    write_shards,
)

WRITER = """
import sys, h5py
with h5py.File(sys.argv[1], "w") as file:
    file["x"] = range(9)
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.h5"
    with h5py.File(path, "w", libver=("v110", "v110")) as made:
        values = np.arange(8000, dtype="f4").reshape(1000, 8)
        made.create_dataset("emb", data=values, chunks=(100, 8), compression="gzip", maxshape=(None, 8))
        made.create_dataset("label", data=np.arange(1000, dtype="u2"), chunks=(100,), fletcher32=True)
        made["emb"].attrs["unit"] = "m"
        made.attrs["made"] = "by a test"
    return path


def damage(path: Path) -> int:
    """In the chunk of rows 300 to 399; where that is."""
    with h5py.File(path) as file:
        infos = [file["emb"].id.get_chunk_info(i) for i in range(10)]
    [offset] = [info.byte_offset for info in infos if info.chunk_offset == (300, 0)]
    flip(path, offset + 9)
    return int(offset)


# ---- verify


def test_a_whole_file(file: Path) -> None:
    done = holdfast("verify", file)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("1 file, 2 datasets, ")
    assert done.stdout.endswith(" kB: all intact\n")


def test_a_folder_of_both_formats(file: Path) -> None:
    write_shards(file.parent, shards=2)
    (file.parent / "notes.txt").write_text("not one")
    done = holdfast("verify", file.parent)
    assert done.stdout.startswith("3 files, 40 records, 2 datasets, ")
    assert done.returncode == 0


def test_a_folder_without_any(tmp_path: Path) -> None:
    said = refused("verify", tmp_path, code=3)
    assert "there are none" in said


def test_json_of_a_damaged_file(file: Path) -> None:
    offset = damage(file)
    said = document("verify", file, code=1)
    [report] = said["files"]
    [problem] = report.pop("problems")
    assert report == {
        "path": str(file),
        "ok": False,
        "format": "hdf5",
        "datasets": 2,
        "chunks": 20,
        "bytes": file.stat().st_size,
        "notes": [],
        "unchecked": [],
    }
    assert (problem["dataset"], problem["chunk"], problem["offset"]) == ("/emb", [300, 0], offset)
    assert problem["reason"].startswith("cannot be read: ")


def test_text_of_a_damaged_file_fits_80_columns(file: Path) -> None:
    damage(file)
    shown, code = on_terminal("verify", file)
    lines = without_styles(shown).splitlines()
    assert code == 1
    assert max(map(len, lines)) <= 80
    assert "`holdfast salvage FILE OUT` copies what can be read" in shown
    assert lines[-1] == "1 of 1 file corrupt"


def test_plain_data_are_reported_to_be_unchecked(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as made:
        made["x"] = np.arange(100)
    done = holdfast("verify", tmp_path / "a.h5")
    assert done.returncode == 0
    plain, classic, summary = done.stdout.splitlines()
    assert plain.startswith("no checksums in this file: bit flips in its data cannot be detected; ")
    assert classic.startswith("no checksums in the metadata of this file: ")
    assert summary.endswith(": no corruption found, but not all of it could be checked")


def test_a_link_that_leads_nowhere_is_a_note(file: Path) -> None:
    with h5py.File(file, "a", libver=("v110", "v110")) as made:
        made["gone"] = h5py.SoftLink("/not/there")
    done = holdfast("verify", file)
    assert done.returncode == 0
    note, summary = done.stdout.splitlines()
    assert note.startswith("/gone: links to '/not/there', which does not exist (HDF5 allows that): ")
    assert summary.endswith(" kB: all intact")
    [report] = document("verify", file)["files"]
    assert (report["ok"], report["problems"], report["unchecked"], len(report["notes"])) == (True, [], [], 1)


def test_a_file_is_known_by_its_content(file: Path) -> None:
    file.rename(file.with_name("data.bin"))
    assert document("verify", file.with_name("data.bin"))["files"][0]["format"] == "hdf5"


def test_what_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_bytes(b"")
    (tmp_path / "b.h5").write_bytes(b"nonsense" * 100)
    said = document("verify", tmp_path, tmp_path / "nix.h5", code=1)
    reasons = [file["problems"][0]["reason"] for file in said["files"]]
    assert reasons[0].startswith("the file is empty")
    assert reasons[1].startswith("not an HDF5 file")
    assert reasons[2] == "cannot open: No such file or directory"


def test_ctrl_c_leaves_nothing_running(tmp_path: Path) -> None:
    path = tmp_path / "long.h5"
    values = np.zeros((256, 1024), "f8")
    packed = zlib.compress(values.tobytes(), 1)
    with h5py.File(path, "w") as made:
        rows = made.create_dataset("x", (256 * 4000, 1024), "f8", chunks=values.shape, compression="gzip")
        for i in range(4000):
            rows.id.write_direct_chunk((256 * i, 0), packed)
    command = [*COMMAND, "verify", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_for(lambda: bool(children.read_text().split()), process)
        [child] = map(int, children.read_text().split())
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"holdfast: interrupted\n")
    deadline = time.monotonic() + TIMEOUT_S
    while os.path.exists(f"/proc/{child}"):  # it may not have been told yet what to do, and for whom
        assert time.monotonic() < deadline
        time.sleep(0.005)


# ---- salvage


def test_salvage_says_what_was_lost(file: Path, tmp_path: Path) -> None:
    damage(file)
    out = tmp_path / "rescued.h5"
    done = holdfast("salvage", file, out)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert any(line.split() == ["/emb", "100", "of", "1,000", "300–399"] for line in lines)
    assert lines[-1] == f"kept 2 datasets in {out}; 100 rows lost"
    said = document("salvage", file, out, "--force")
    assert said["datasets"] == [
        {"dataset": "/emb", "rows": 1000, "rows_lost": 100, "lost": [[300, 400]], "rows_doubtful": 0, "doubtful": []},
        {"dataset": "/label", "rows": 1000, "rows_lost": 0, "lost": [], "rows_doubtful": 0, "doubtful": []},
    ]
    with h5py.File(out) as rescued:
        assert rescued["label"][:].tolist() == list(range(1000))


def test_salvage_of_a_whole_file(file: Path, tmp_path: Path) -> None:
    done = holdfast("salvage", file, tmp_path / "out.h5")
    assert done.stdout == f"nothing was corrupt: kept all 2 datasets in {tmp_path / 'out.h5'}\n"


def test_salvage_refuses(file: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.h5").write_bytes(b"nonsense" * 100)
    done = holdfast("salvage", tmp_path / "bad.h5", tmp_path / "out.h5")
    assert done.returncode == 1
    assert "nothing could be kept" in done.stdout
    assert "exists already" in refused("salvage", file, tmp_path / "bad.h5", code=3)
    assert "is also an input" in refused("salvage", file, file, "-f", code=3)
    assert list(everything_in(tmp_path)) == ["bad.h5", "run.h5"]


def test_salvage_of_a_file_in_use(tmp_path: Path) -> None:
    path = tmp_path / "used.h5"
    command = [sys.executable, "-c", WRITER, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        said = refused("salvage", path, tmp_path / "out.h5", code=3)
        process.communicate()
    assert f"still being written by process {process.pid} (" in said


# ---- inspect


def test_inspect_shows_the_tree(file: Path) -> None:
    shown, code = on_terminal("inspect", file)
    lines = without_styles(shown).splitlines()
    assert code == 0
    assert max(map(len, lines)) <= 80
    assert any(line.split()[:5] == ["emb", "1000+×8", "float32", "100×8", "gzip"] for line in lines)
    assert any(line.split() == ["emb@unit", "'m'"] for line in lines)
    assert "        'emb': hold.Float32(8)," in lines
    assert any("superblock 3" in line for line in lines)


def test_inspect_prints_a_schema_to_paste(file: Path) -> None:
    done = holdfast("inspect", "--schema", file)
    assert done.stdout.splitlines() == [
        "import holdfast as hold",
        "",
        "schema = {",
        "    'emb': hold.Float32(8),",
        "    'label': hold.Array(\"uint16\"),",
        "}",
    ]


def test_inspect_json(file: Path) -> None:
    [said] = document("inspect", file)["files"]
    root, emb, label = said.pop("objects")
    assert said == {
        "path": str(file),
        "format": "hdf5",
        "bytes": file.stat().st_size,
        "superblock": 3,
        "open_for_write": False,
        "rows": 1000,
        "schema": {"emb": "Float32(8)", "label": 'Array("uint16")'},
        "no_schema": None,
        "problems": [],
    }
    assert root == {"path": "/", "kind": "group", "attributes": {"made": "by a test"}}
    assert (emb["shape"], emb["maxshape"], emb["chunks"]) == ([1000, 8], [None, 8], [100, 8])
    assert (emb["filters"], emb["bytes"]) == (["gzip 4"], 32000)
    assert label["filters"] == ["fletcher32"]


def test_inspect_of_what_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_bytes(b"nonsense" * 100)
    assert holdfast("inspect", tmp_path / "a.h5").returncode == 1
    assert holdfast("inspect", tmp_path / "nix.h5").returncode == 3


def test_names_cannot_play_tricks_on_the_terminal(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as made:
        made["we\x1b[31mird"] = np.arange(3)
    for command in ("inspect", "verify"):
        assert "\x1b[31m" not in holdfast(command, tmp_path / "a.h5").stdout
