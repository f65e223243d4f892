"""`holdfast serve` as a process: its first line is the address, signals stop it in order, refusals are one sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast as hold
from holdfast.data.writer.dataset_writer import DatasetWriter, write
from holdfast.errors import RefusedError

PROGRAM = """
import sys
from holdfast.cli import main
sys.exit(main())
"""
TIMEOUT_S = 60


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-W", "error", "-c", PROGRAM, "serve", *map(str, arguments)]


@contextmanager
def serving(*arguments: object, **more: Any) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out, err


@pytest.fixture
def out(tmp_path: Path) -> DatasetWriter:
    return write(tmp_path / "run", {"x": hold.Int64()})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_reported_to_stop(out: DatasetWriter, number: int) -> None:
    with serving(out.folder) as process:
        address = first_line(process)
        assert address == f"unix:{out.folder}/journal/serve.sock"
        assert first_line(process) == f"serving {out.folder} (epoch 1); press Ctrl-C to stop"
        with hold.connect(address, "p") as producer:
            producer.extend({"x": range(1000)})
            producer.commit()
            process.send_signal(number)
            code, said, err = ended(process)
            producer.close()
    assert (code, err) == (0, "")
    assert said == "stopped: 1,000 rows accepted, 8.05 kB; 1 part written\n"
    assert out.rows == 1000
    assert sorted(os.listdir(out.folder / "journal")) == ["EPOCH-1", "marks-1.json"]


def test_it_goes_on_after_a_kill(out: DatasetWriter) -> None:
    with serving(out.folder) as process:
        first_line(process)
        with hold.connect(out.folder, "p") as producer:
            producer.extend({"x": range(10)})
            producer.commit()
            process.kill()
            process.wait()
            with serving(out.folder, "--json", "--ack", "disk", "--part-after", "1h") as again:
                assert json.loads(first_line(again))["pid"] == again.pid
                producer.extend({"x": range(10, 20)})
                producer.commit()
                again.terminate()
                code, said, _ = ended(again)
                producer.close()
    assert code == 0
    assert json.loads(said) == {"rows": 10, "frames": 1, "bytes": json.loads(said)["bytes"], "parts": 2}
    assert out.rows == 20


def test_a_token_from_a_file(out: DatasetWriter, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    with serving(out.folder, "--listen", "tcp://127.0.0.1:0", "--token-file", tmp_path / "token") as process:
        address = first_line(process)
        with pytest.raises(RefusedError, match="wrong token"):
            hold.connect(address, "p", token="wrong")
        with hold.connect(address, "p", token="secret") as producer:
            producer.append(x=1)
        process.terminate()
        code, _, err = ended(process)
    assert code == 0
    assert "refused: wrong token" in err
    assert out.rows == 1


def test_another_takes_over(out: DatasetWriter) -> None:
    with serving(out.folder) as old:
        first_line(old)
        with serving(out.folder) as refused:
            code, said, err = ended(refused)
            assert (code, said) == (3, "")
            assert f"is already served by process {old.pid}" in err
        with serving(out.folder, "--take-over") as new:
            first_line(new)
            code, _, err = ended(old)
            assert code == 3
            assert f"process {new.pid} on" in err
            assert "has taken over (epoch 2)" in err
            new.terminate()
            assert ended(new)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nowhere"], 3, "holdfast: {}/nowhere/schema.json: cannot open: No such file or directory"),
        (["run", "--listen", "tcp://127.0.0.1:0"], 2, "expected a token for a server"),
        (["run", "--listen", "http://x"], 2, "expected an address such as unix"),
        (["run", "--listen", "unix:/nowhere/at/all.sock"], 3, "cannot listen at /nowhere/at/all.sock"),
        (["run", "--token-file", "none"], 3, "none: cannot read: No such file or directory"),
        (["run", "--token-file", "run/noise"], 3, "run/noise: expected a token, got a file that is not text"),
        (["nested"], 3, "column 'a/b' would lie inside column 'a'"),
        (["run", "--memory", "lots"], 2, "expected a size such as 256MB"),
        (["run", "--codec", "zip"], 2, "'zip' is not one of"),
    ],
)
def test_what_cannot_be_done_is_reported_in_one_line(
    out: DatasetWriter, tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    (out.folder / "noise").write_bytes(b"\xff\xfe")
    write(tmp_path / "nested", {"a": hold.Int64(), "a/b": hold.Int64()})
    done = subprocess.run(
        command(*arguments), cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert said.format(tmp_path) in done.stderr
    assert len(done.stderr.splitlines()) == 1
