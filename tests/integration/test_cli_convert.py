"""`holdfast convert`: to people and to machines, on full disks, and when it is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from cli_process import (
    COMMAND,
    SCHEMA,
    TIMEOUT_S,
    document,
    environment,
    everything_in,
    flip,
    frame_starts,
    holdfast,
    on_terminal,
    refused,
    wait_for,
    without_styles,
)

import holdfast as hold
from holdfast.data.formats.registry import open_shard


def rows_of(path: Path) -> list[Any]:
    with open_shard(path) as shard:
        label = shard.read(0, len(shard))["label"]
        assert isinstance(label, np.ndarray)
        return label.tolist()  # type: ignore[no-any-return]


def test_there_and_back(shards: list[Path], tmp_path: Path) -> None:
    said = document("convert", shards[0].parent, "-o", tmp_path / "a.h5", "--codec", "gzip")
    assert said["rows"] == 60
    assert said["schema"] == {
        "emb": "Float32(4)",
        "image": "Bytes()",
        "label": "Int64()",
        "tags": "Ragged(Bytes())",
    }
    assert [file["path"] for file in said["files"]] == [str(tmp_path / "a.h5")]
    assert rows_of(tmp_path / "a.h5") == list(range(60))
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["emb"].compression == "gzip"
    tar = document("convert", tmp_path / "a.h5", "-o", tmp_path / "a.tar")
    back = document("convert", tmp_path / "a.tar", "-o", tmp_path / "b.tfrecord.gz")
    assert said["checksum"] == tar["checksum"] == back["checksum"]
    assert document("verify", tmp_path / "b.tfrecord.gz", tmp_path / "a.tar", tmp_path / "a.h5")["ok"]


def test_what_people_see(shards: list[Path], tmp_path: Path) -> None:
    done = holdfast("convert", *shards, "-o", "a.tar", cwd=tmp_path)
    assert done.returncode == 0
    first, second = done.stdout.splitlines()
    assert first.startswith("60 samples of 3 files, 4 columns, ")
    assert first.endswith(" kB: a.tar;")
    assert second.startswith("read back with the same columns, samples and values: checksum ")
    done = holdfast("convert", "a.tar", "-o", "new/t.h5", "--shards", "2", cwd=tmp_path)
    assert "new/t-00001-of-00002.h5       30  " in done.stdout
    assert holdfast("convert", "a.tar", "-o", "q.h5", "-q", cwd=tmp_path).stdout == ""


def test_a_terminal_of_80_columns(shards: list[Path], tmp_path: Path) -> None:
    text, code = on_terminal("convert", shards[0].parent, "-o", tmp_path / "t.tar", "--shard-size", "2kB")
    assert code == 0
    assert all(len(line) <= 80 for line in without_styles(text).splitlines())
    text, code = on_terminal("convert", "--help")
    assert code == 0
    assert all(len(line) <= 80 for line in without_styles(text).splitlines())


def test_a_schema_of_a_file(shards: list[Path], tmp_path: Path) -> None:
    (tmp_path / "schema.py").write_text(holdfast("inspect", "--schema", shards[0]).stdout)
    said = document("convert", *shards, "-o", tmp_path / "a.h5", "--schema", tmp_path / "schema.py")
    assert said["schema"]["tags"] == "Ragged(Bytes())"
    (tmp_path / "schema.py").write_text('{"y": hold.Int64(key="label"), "e": Float32((2, 2), key="emb")}')
    said = document("convert", *shards, "-o", tmp_path / "b.h5", "--schema", tmp_path / "schema.py")
    assert said["schema"] == {"y": "Int64()", "e": "Float32(2, 2)"}
    hold.write(tmp_path / "run.hold", SCHEMA)
    json = tmp_path / "run.hold" / "schema.json"
    assert document("convert", *shards, "-o", tmp_path / "c.h5", "--schema", json)["rows"] == 60


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schema = {'x': __import__('os').system('true')}", "expected Array, Int64, Float32, Bytes or Ragged"),
        ("schema = {'x': hold.Int64(open('y'))}", "expected Array, Int64, Float32, Bytes or Ragged, got open"),
        ("nothing", "expected one schema, got 0"),
        ("x = ", "invalid syntax"),
        ("schema = {'x': hold.Int64(-1)}", "positive integers"),
        ("schema = {'x': hold.Int64(key=3)}", "expected a feature's name as its key, got 3"),
        ('{"holdfast_write": 1, "schema": {"x": 3}}', "expected a column as JSON"),
    ],
)
def test_a_schema_that_is_none(shards: list[Path], tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "s.py").write_text(text)
    got = refused("convert", *shards, "-o", tmp_path / "a.h5", "--schema", tmp_path / "s.py", code=2)
    assert said in got


def test_exit_codes(shards: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "a.h5"
    assert "expected a name that ends in" in refused("convert", *shards, "-o", tmp_path / "a.csv", code=2)
    assert "cannot open: No such file" in refused("convert", tmp_path / "nix.tar", "-o", out, code=3)
    out.write_bytes(b"")
    assert refused("convert", *shards, "-o", out, code=3).endswith("allow it to be replaced, with --force")
    assert document("convert", *shards, "-o", out, "--force")["rows"] == 60
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["x"] = np.array([0.1])
    said = refused("convert", tmp_path / "d.h5", "-o", tmp_path / "d.tfrecord", code=2)
    assert "d.tfrecord: column 'x', sample 0: got 0.1, which float32 cannot hold exactly" in said
    assert document("convert", tmp_path / "d.h5", "-o", tmp_path / "d.tfrecord", "--cast")["notes"] == [
        "'x' is rounded from float64 to Float32()"
    ]
    flip(shards[1], frame_starts(shards[1])[7] + 20)
    said = refused("convert", *shards, "-o", tmp_path / "b.h5", code=1)
    assert said.startswith(f"{shards[1]}, record 7 at byte {frame_starts(shards[1])[7]:,}: ")
    assert not (tmp_path / "b.h5").exists()


FULL = """
import resource, sys
from holdfast.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
sys.exit(main(sys.argv[1:]))
"""


NOTHING_LEFT = {
    "tar": "nothing of it was left behind",
    "tfrecord": "nothing of it was left behind",
    "h5": "nothing of it was left behind",
}


@pytest.mark.parametrize("name", ["x.tar", "x.tfrecord", "x.h5"])
def test_no_room_for_a_file(tmp_path: Path, name: str) -> None:
    with hold.write(tmp_path / "run.hold", {"x": hold.Bytes()}).part("t") as part:
        part.extend({"x": [os.urandom(1000) for _ in range(1000)]})
    command = [sys.executable, "-c", FULL, "convert", "run.hold", "-o", f"out/{name}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    left = NOTHING_LEFT[name.partition(".")[2]]
    assert done.stderr == f"holdfast: cannot write out/{name}: File too large; {left}\n"
    assert not (tmp_path / "out").exists()


def test_a_full_disk(tmp_path: Path) -> None:
    with hold.write(tmp_path / "run.hold", {"x": hold.Bytes()}).part("t") as part:
        part.extend({"x": [os.urandom(1000) for _ in range(3000)]})
    (tmp_path / "disk").mkdir()
    script = (
        "mount -t tmpfs -o size=1M none disk || exit 99\n"
        'for name in a.tar a.tfrecord a.h5; do "$PYTHON" -m holdfast convert run.hold -o disk/$name; echo $?; done\n'
        "find disk -mindepth 1"
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        cwd=tmp_path,
        env=environment(PYTHON=sys.executable),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["3", "3", "3"]
    ends = [f"No space left on device; {left}" for left in NOTHING_LEFT.values()]
    lines = done.stderr.splitlines()
    assert [line.endswith(end) for line, end in zip(lines, ends, strict=True)] == [True] * 3


# ---- ended


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Takes seconds to pack."""
    path = tmp_path_factory.mktemp("large") / "large.tfrecord"
    with hold.TFRecordWriter(path, {"x": hold.Bytes()}) as writer:
        for _ in range(60):
            writer.append(x=os.urandom(1 << 20))
    return path


def begun(folder: Path) -> bool:
    """Bytes of the target are in its hidden folder."""
    return any(path.is_file() and path.stat().st_size for path in folder.glob(".*.convert/*"))


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "holdfast: interrupted\n"), (signal.SIGTERM, 143, "holdfast: terminated by SIGTERM\n")],
)
def test_ended_it_leaves_nothing(large: Path, tmp_path: Path, number: int, code: int, said: str) -> None:
    command = [*COMMAND, "convert", str(large), "-o", str(tmp_path / "a.h5"), "--codec", "gzip"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: begun(tmp_path), process)
        process.send_signal(number)
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, out, err) == (code, "", said)
    assert list(everything_in(tmp_path)) == []


@pytest.mark.parametrize("name", ["a.h5", "a.tar", "a.tfrecord.gz"])
def test_killed_it_leaves_no_target_and_the_next_clears_up(large: Path, tmp_path: Path, name: str) -> None:
    command = [*COMMAND, "convert", str(large), "-o", str(tmp_path / name)]
    with subprocess.Popen(command) as process:
        wait_for(lambda: begun(tmp_path), process)
        process.kill()
    assert not (tmp_path / name).exists()
    assert document("convert", large, "-o", tmp_path / name)["rows"] == 60
    assert list(everything_in(tmp_path)) == [name]


def test_the_bar(large: Path, tmp_path: Path) -> None:
    text, code = on_terminal("convert", large, "-o", tmp_path / "a.h5", "--codec", "gzip")
    assert code == 0
    assert "converting 1 file" in text
