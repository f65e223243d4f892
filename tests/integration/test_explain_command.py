"""`holdfast explain`: texts, log files, stdin, and how it looks."""

from __future__ import annotations

import fcntl
import gzip
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_process import COMMAND, TIMEOUT_S, document, environment, holdfast, on_terminal, refused, without_styles

from holdfast.errors import InputError
from holdfast.process.error_guide.cause_chain import RULES
from holdfast.process.error_guide.explanation import of_sighting
from holdfast.process.error_guide.log_scanner import LogPosition, Scanner, Sighting, scan_file, scan_stream
from holdfast.process.error_guide.rules import Rule, Scope, SystemContext

EMFILE = "OSError: [Errno 24] Too many open files: 'a.jpg'"
KEYS = ["name", "title", "errno", "says", "here", "mistaken_for", "advice", "chain", "text", "count", "first", "last"]


def log() -> str:
    lines = [f"2026-05-01 10:{at // 60:02}:{at % 60:02},000 ERROR SSLError: Max retries exceeded" for at in range(200)]
    lines[7] = f"2026-05-01 10:00:07,500 ERROR {EMFILE}"
    lines[150] = f"2026-05-01 10:02:30,500 ERROR {EMFILE}"
    return "\n".join(lines) + "\n"


def test_a_text() -> None:
    done = holdfast("explain", EMFILE)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "Too many open files (EMFILE, errno 24)"
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 24
    assert "A process started from here may have" in done.stdout
    for label in ("here", "mistaken for", "do", "found"):
        assert f"\n  {label} " in done.stdout


def test_words_without_quotes_are_one_text() -> None:
    assert document("explain", "Too", "many", "open", "files")["causes"][0]["name"] == "EMFILE"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_kind_fits_on_a_screen(rule: Rule) -> None:
    position = LogPosition("worker.log", 1000, "2026-05-01 10:22:01")
    told = str(
        of_sighting(Sighting(rule, 2, position, position, rule.title, ""), SystemContext(scope=Scope.OWN, pid=1))
    )
    lines = told.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 24
    if rule.remedy is not None:
        for line in (*rule.remedy.code, rule.remedy.page):
            assert line in told


def test_a_log_is_grouped_and_the_cause_comes_first(tmp_path: Path) -> None:
    (tmp_path / "worker.log").write_text(log())
    told = document("explain", "worker.log", cwd=tmp_path)
    assert (told["known"], told["lines"]) == (True, 200)
    first, second = told["causes"]
    assert list(first) == KEYS
    assert (first["name"], first["count"], first["errno"]) == ("EMFILE", 2, 24)
    assert first["first"] == {"source": "worker.log", "line": 8, "time": "2026-05-01 10:00:07,500"}
    assert first["last"]["line"] == 151
    assert (second["name"], second["count"]) == ("tls", 198)
    text = holdfast("explain", "worker.log", cwd=tmp_path).stdout
    assert "on 2 lines: the first is line 8 (2026-05-01 10:00:07,500)" in text
    assert text.index("EMFILE") < text.index("SSLError, Max retries")


def test_stdin() -> None:
    done = subprocess.run(
        [*COMMAND, "explain", "-"], input=log(), capture_output=True, text=True, env=environment(), timeout=TIMEOUT_S
    )
    assert done.returncode == 0
    assert "the last line 151 (2026-05-01 10:02:30,500)" in " ".join(done.stdout.split())


def test_several_logs(tmp_path: Path) -> None:
    for at in range(2):
        (tmp_path / f"{at}.log").write_text(f"x\n{EMFILE}\n")
    [cause] = document("explain", "0.log", "1.log", cwd=tmp_path)["causes"]
    assert (cause["first"]["source"], cause["last"]["source"], cause["count"]) == ("0.log", "1.log", 2)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32", "latin-1"])
def test_logs_in_any_encoding(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.log").write_bytes(f"über\n{EMFILE}\n".encode(encoding))
    assert document("explain", "a.log", cwd=tmp_path)["causes"][0]["first"]["line"] == 2


def test_packed_logs_also_appended_and_cut_ones(tmp_path: Path) -> None:
    data = gzip.compress(b"x\n" * 1_000_000) + gzip.compress(EMFILE.encode() + b"\n" + os.urandom(2000))
    (tmp_path / "a.log.gz").write_bytes(data[:-100])
    [cause] = document("explain", "a.log.gz", cwd=tmp_path)["causes"]
    assert cause["first"]["line"] == 1_000_001
    (tmp_path / "b.log.gz").write_bytes(data[:20] + b"\xff" * 100)
    assert "cannot decompress b.log.gz" in refused("explain", "b.log.gz", code=3, cwd=tmp_path)
    (tmp_path / "c.log.gz").write_bytes(gzip.compress(EMFILE.encode()) + b"not packed")
    assert document("explain", "c.log.gz", cwd=tmp_path)["causes"][0]["name"] == "EMFILE"


def test_what_a_log_is_shows_also_when_it_comes_byte_by_byte() -> None:
    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(1)

    scanner = Scanner()
    wide = EMFILE.encode("utf-16")
    for at, data in enumerate((gzip.compress(EMFILE.encode()), wide, gzip.compress(wide), b"x", b"")):
        scan_stream(scanner, Slow(data), str(at))
    assert [seen.count for seen in scanner.sightings()] == [3]


def test_a_named_pipe_is_read(tmp_path: Path) -> None:
    line = 'exec "$1" -m holdfast explain <(echo "Bus error") --json'
    done = subprocess.run(["bash", "-c", line, "bash", sys.executable], capture_output=True, text=True, check=True)
    assert '"name": "bus"' in done.stdout


def test_nothing_known() -> None:
    done = holdfast("explain", "all is well")
    assert (done.returncode, done.stdout) == (1, "all is well: not a known error\n")
    assert holdfast("explain", "gone.log").stdout == "gone.log is neither a file nor a known error\n"
    assert document("explain", "", code=1) == {"known": False, "lines": 0, "causes": []}
    assert holdfast("explain", " ").stdout.startswith("the text is empty: expected an error message")
    assert holdfast("explain", "/dev/null").stdout == "found no known error in 0 lines\n"


def test_what_cannot_be_read(tmp_path: Path) -> None:
    assert "is a folder; expected a log file" in refused("explain", tmp_path, code=3)
    assert refused("explain", "x", "--pid", "999999999", code=3) == "there is no process 999999999"
    assert refused("explain", "x", "--path", "gone", code=3, cwd=tmp_path) == "there is no file gone"
    assert refused("explain", "x", "--path", ".", code=3, cwd=tmp_path).startswith(". is a folder; expected the file")
    said = "there is no file gone, but /dev/null is a file; put a text in quotes"
    assert refused("explain", "/dev/null", "gone", code=3, cwd=tmp_path) == said
    line = 'exec "$1" -m holdfast explain - <&-'
    done = subprocess.run(["bash", "-c", line, "bash", sys.executable], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (3, "holdfast: cannot read stdin: it is closed\n")
    with pytest.raises(InputError, match="cannot read"):
        scan_file(Scanner(), "/proc/self/mem")


def test_a_process_and_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    path.touch()
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = holdfast("explain", "unable to lock file", "--path", path)
    assert f"Process {os.getpid()} (" in done.stdout
    done = holdfast("explain", "Too many open files", "--pid", str(os.getpid()))
    assert f"Process {os.getpid()} (" in done.stdout


def test_quiet_reports_by_its_exit_code() -> None:
    done = holdfast("explain", "-q", EMFILE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_on_a_terminal(columns: int) -> None:
    text, code = on_terminal("explain", EMFILE, columns=columns)
    assert code == 0
    assert "\x1b[" in text
    lines = without_styles(text).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= min(columns, 100)
    plain = on_terminal("explain", EMFILE, columns=columns, NO_COLOR="1")[0]
    assert "\x1b[36m" not in plain
    assert without_styles(plain) == without_styles(text)
