"""The real command in a process of its own, on a pipe or on a terminal of 80 columns, and files for it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import holdfast as hold
from holdfast._native import codec

COMMAND = [sys.executable, "-W", "error", "-m", "holdfast"]
TIMEOUT_S = 120

SCHEMA = {"image": hold.Bytes(), "label": hold.Int64(), "emb": hold.Float32(4), "tags": hold.Ragged(hold.Bytes())}


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    return kept | {"TERM": "xterm-256color"} | changes


def holdfast(*arguments: str | Path, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment(**env),
        timeout=TIMEOUT_S,
        check=False,
    )


def document(*arguments: str | Path, code: int = 0, cwd: Path | None = None) -> Any:
    """What the command says with --json, after checking that it says nothing else."""
    done = holdfast(*arguments, "--json", cwd=cwd)
    assert done.returncode == code, done
    assert done.stderr == ""
    return json.loads(done.stdout)


def refused(*arguments: str | Path, code: int, cwd: Path | None = None) -> str:
    """The one sentence of a command that could not do its work."""
    done = holdfast(*arguments, cwd=cwd)
    assert (done.returncode, done.stdout) == (code, ""), done
    [sentence] = done.stderr.splitlines()
    assert sentence.startswith("holdfast: ")
    return sentence.removeprefix("holdfast: ")


# ---- on a terminal -----------------------------------------------------------------------------------------


def on_terminal(
    *arguments: str | Path,
    columns: int = 80,
    meanwhile: Callable[[subprocess.Popen[bytes]], None] = lambda process: None,
    **env: str,
) -> tuple[str, int]:
    """All that the command wrote to a real terminal, and its exit code."""
    ours, theirs = os.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        command = [*COMMAND, *map(str, arguments)]
        with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(**env)) as process:
            os.close(theirs)
            theirs = -1
            meanwhile(process)
            written = b""
            with contextlib.suppress(OSError):  # EIO: the other end is closed
                while data := os.read(ours, 1 << 16):
                    written += data
            code = process.wait(TIMEOUT_S)
    finally:
        os.close(ours)
        if theirs >= 0:
            os.close(theirs)
    return written.decode().replace("\r\n", "\n"), code


def without_styles(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


# ---- files -------------------------------------------------------------------------------------------------


def write_shard(path: Path, records: int, first: int = 0, compression: Any = "auto") -> None:
    with hold.TFRecordWriter(path, SCHEMA, compression=compression) as writer:
        for i in range(first, first + records):
            writer.append(
                image=b"\x89PNG\r\n" + bytes([i % 256]) * 50, label=i, emb=[0.1, 2, 3, i], tags=[b"x"] * (i % 3)
            )


def write_shards(folder: Path, shards: int = 3, records: int = 20) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"part-{i}.tfrecord" for i in range(shards)]
    for i, path in enumerate(paths):
        write_shard(path, records, i * records)
    return paths


def records_of(*paths: Path | str) -> list[bytes]:
    records = []
    for path in paths:
        with hold.TFRecordReader(path) as reader:
            records += list(reader)
    return records


def frame_starts(path: Path) -> list[int]:
    data = path.read_bytes()
    starts, at = [], 0
    while at < len(data):
        starts.append(at)
        at += 16 + int.from_bytes(data[at : at + 8], "little")
    return starts


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 4
    path.write_bytes(data)


def large_file(path: Path, megabytes: int) -> None:
    """One record over and over: quick to make, and as slow to check as any other."""
    frame = codec.frame(os.urandom(1 << 20))
    with open(path, "wb") as file:
        for _ in range(megabytes):
            file.write(frame)


def wait_for(what: Callable[[], bool], process: subprocess.Popen[Any]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not what():
        assert process.poll() is None, "it ended before"
        assert time.monotonic() < deadline
        time.sleep(0.005)


def everything_in(folder: Path) -> Iterator[str]:
    return (str(path.relative_to(folder)) for path in sorted(folder.rglob("*")))
