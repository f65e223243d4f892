from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from factories_traces import LIBRARY, TRAIN, TraceBuilder, leaking_trace
from holdfast.cli import report as command
from holdfast.cli.app import run
from holdfast.process.fdtrace import trace_file
from holdfast.process.fdtrace.compare import compare
from holdfast.process.fdtrace.export import folded_stacks, report_as_dict
from holdfast.process.fdtrace.render import (
    ChangesPage,
    Findings,
    ReportPage,
    SitePage,
    library_path,
    owner_words,
    path_words,
    time_words,
)
from holdfast.process.fdtrace.sites import Statistics
from holdfast.process.fdtrace.trace_file import SourceFrame, Trace

OWNERS = {1: [f"__main__ module variable 'kept'[{n}] → Loader._queue → Connection(fd {n + 3})" for n in range(4)]}


def everything() -> Trace:
    """A recording with something for every part of the page."""
    made = leaking_trace(60)
    child = made.process()
    made.processes[0] = {"unknown": ("/dev/nvidia0",), "dropped_events": 0, "counts": {"failed": 2}}
    made.inherited = [(10.0, child, fd, 1, 3) for fd in range(10, 34)]
    made.failed(50.0, made.stack(TRAIN))
    made.failed(51.0, made.stack(TRAIN))
    offender, victim = (made.stack(("/home/me/pool.py", line, name)) for line, name in ((4, "offender"), (9, "victim")))
    made.born(52.0, 5000, offender, "file")
    made.closed(52.1, 5000, offender)
    made.born(52.2, 5000, victim, "file", tid=2)
    made.closed(52.3, 5000, offender)
    made.bad(52.4, 5000, victim, tid=2)
    return made.build(owners=OWNERS, targets={1: ["pipe:[7]"]}, warnings=("the logs are on disk",))


def shown(page: RenderableType, width: int = 80, *, color: bool = False) -> str:
    console = Console(
        file=io.StringIO(), width=width, force_terminal=color, color_system="standard" if color else None, markup=False
    )
    console.print(page)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.fixture(scope="module")
def found() -> Findings:
    return Findings(everything())


def test_the_page_says_what_leaks_and_what_keeps_it(found: Findings) -> None:
    page = shown(ReportPage(found), 2_000)
    for text in (
        "✗ me/train.py:31 in train leaks: 60 descriptors (pipe) are open",
        "Bad file descriptor: offender() in pool.py:4 closes descriptor 5000 a second time",
        "culprit    offender() in pool.py:4",
        "failed     victim() in pool.py:9",
        "1 min, 2 processes, exit code 0",
        "full: 99.",
        "warning    the logs are on disk",
        "1. /home/me/train.py:31 in train",
        "line       loader = make()",
        "via        torch/loader.py:3 → torch/loader.py:7",
        "60 (pipe 60), the oldest for",
        "+24 inherited by 1 process",
        "'kept'[0] → Loader._queue → Connection(fd 3) (and 3 more like it; 4 of 60 were looked at)",
        "leads to   pipe:[7]",
        "2 ×  EMFILE in openat  train() in train.py:31",
        "1 ×  /dev/nvidia0",
        "descriptor 5000: stale close",
        "offender() in pool.py:4 closes descriptor 5000 a second time",
        "closed, stale",
        "EBADF in read",
    ):
        assert text in page
    (row,) = re.findall(r"^  me/train.py:31 train .*$", page, re.MULTILINE)
    assert row.split()[2:6] == ["60", "60", "0", "60"]


def test_the_page_fits_80_columns_and_cuts_no_number(found: Findings) -> None:
    page = shown(ReportPage(found), 80)
    assert max(map(len, page.splitlines())) <= 80
    (row,) = re.findall(r"^  me/train.py:31 .*$", page, re.MULTILINE)
    assert "…" not in row
    assert list(row.split()[1:5]) == ["60", "60", "0", "60"]


def test_a_long_place_is_cut_from_the_left() -> None:
    made = TraceBuilder()
    for fd in range(60):
        made.born(fd, fd, made.stack(("/home/me/a_folder_with_a_long_name/and_a_file_with_a_long_name.py", 4711, "f")))
    page = shown(ReportPage(Findings(made.build())), 80)
    (row,) = re.findall(r"^  …\S+name\.py:4711 +60 +60 .*$", page, re.MULTILINE)
    assert len(row) <= 80


def test_in_a_pipe_a_row_is_a_line(found: Findings) -> None:
    lines = shown(ReportPage(found), 1 << 14).splitlines()
    assert [line for line in lines if "closes descriptor 5000" in line and "forget the number" in line]


def test_a_quiet_program_has_a_short_page() -> None:
    made = TraceBuilder()
    made.born(1, 3, made.stack(TRAIN), "file")
    made.closed(2, 3)
    page = shown(ReportPage(Findings(made.build())))
    assert page.startswith("✓ No site grows: 0 descriptors were open after 60.0 s.")
    assert "Origin" not in page
    assert "1. " not in page


def test_names_with_control_characters_are_escaped() -> None:
    made = TraceBuilder()
    for fd in range(60):
        made.born(fd, fd, made.stack(("/home/\x1b[31m[bold]x.py", 1, "f\n", "open('\x07')")))
    page = shown(ReportPage(Findings(made.build(command="a\x1b[2J"))), 200)
    assert "\x1b" not in page
    assert "\x07" not in page
    assert "[bold]x.py" in page


def test_json_has_the_keys_of_the_help_page(found: Findings) -> None:
    facts = report_as_dict(found, "run.hft")
    json.dumps(facts, allow_nan=False)

    def keys(value: object) -> set[str]:
        if isinstance(value, dict):
            named = {key for key in value if key.isidentifier()}
            return named.union(*(keys(one) for name, one in value.items() if name not in ("kinds", "closed_at")))
        return set().union(*map(keys, value)) if isinstance(value, list) else set()

    example = (command.__doc__ or "").partition("With --json:")[2].partition("  mode ")[0]
    documented = set(re.findall(r'"(\w+)":', example)) - {"pipe", "file"} | {"file"}
    assert keys(facts) == documented


def test_the_page_of_a_site_has_its_stacks(found: Findings) -> None:
    page = shown(SitePage(found.statistics, found.statistics.sites[0]), 200)
    assert "60 open, 60 opened by this stack" in page
    assert page.index("/home/me/train.py:31 in train\n       loader") < page.index(f"{LIBRARY}:7 in Queue.__init__")


def test_folded_stacks() -> None:
    made = leaking_trace(60)
    odd = made.stack(("/a;b.py", 1, "f g"))
    made.born(1, 4000, odd)
    lines = list(folded_stacks(Statistics(made.build()), "live"))
    assert lines == [
        "train (me/train.py:31);make (torch/loader.py:3);Queue.__init__ (torch/loader.py:7) 60",
        "f g (/a:b.py:1) 1",
    ]
    (line,) = folded_stacks(Statistics(leaking_trace(60).build()), "growth")
    assert 55 <= int(line.rsplit(" ", 1)[1]) <= 65


def sites_of(*lines: tuple[int, str, int]) -> list[object]:
    """Takes the line, its text and how many descriptors stay open."""
    made = TraceBuilder()
    fd = 0
    for line, text, count in lines:
        for _ in range(count):
            fd += 1
            made.born(1, fd, made.stack(("/home/me/train.py", line, "train", text)))
    return list(Statistics(made.build()).sites)


def test_a_diff_matches_lines_that_have_moved() -> None:
    before = sites_of((10, "a = open(x)", 5), (20, "b = open(y)", 5), (30, "c = open(z)", 5), (40, "same()", 2))
    after = sites_of((13, "a = open(x)", 9), (23, "b = open(y)", 1), (50, "d = open(w)", 3), (43, "same()", 2))
    changes = compare(before, after)  # type: ignore[arg-type]
    assert [(one.change, one.frame.line, one.live_before, one.live_after) for one in changes] == [
        ("new", 50, 0, 3),
        ("grew", 13, 5, 9),
        ("shrank", 23, 5, 1),
        ("gone", 30, 5, 0),
        ("same", 43, 2, 2),
    ]
    page = shown(ChangesPage(changes, "b.hft"))
    assert page.startswith("▲ Sites of b.hft: 1 new, 1 grew, 1 shrank, 1 gone.")
    assert "same()" not in page


def test_words() -> None:
    assert [time_words(s) for s in (0.00004, 0.0032, 1.5, 720)] == ["40 µs", "3.2 ms", "1.5 s", "12 min"]
    assert library_path("/v/lib/python3.11/site-packages/torch/x.py") == "torch/x.py"
    assert library_path("/usr/lib/python3.11/socket.py") == "socket.py"
    frames = [SourceFrame("/usr/lib/python3.11/a.py", n, "f") for n in range(1, 8)]
    assert path_words(frames) == "a.py:1 → a.py:2 → a.py:3 → … 3 more … → a.py:7"
    owners = ["x[0] → A", "y → B", "x[1] → A"]
    assert owner_words(owners, 3) == ["x[0] → A (and 1 more like it)", "y → B"]
    assert owner_words(owners, 30) == ["x[0] → A (and 1 more like it; 3 of 30 were looked at)", "y → B"]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    trace_file.save(leaking_trace(60).build(), "run.hft")
    trace_file.save(leaking_trace(20).build(), "before.hft")
    (tmp_path / "cut.hft").write_bytes(Path("run.hft").read_bytes()[:500])
    (tmp_path / "empty.hft").touch()
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("cut.hft", 1, "cut.hft: expected a recording of `holdfast trace`, got a file of 500 bytes"),
        ("empty.hft", 1, "empty.hft: expected a recording of `holdfast trace`, got an empty file"),
        ("folder", 3, "folder: Is a directory"),
        ("none.hft", 3, "none.hft: No such file or directory"),
        ("run.hft --since 70s", 2, "expected since < until within 60.0 s, got 70 and 60"),
        ("run.hft --until soon", 2, "expected a time such as 30s, 5m or 1h, got 'soon'"),
        ("run.hft before.hft", 2, "expected one recording (--diff compares two), got 2"),
        ("--diff run.hft", 2, "expected two recordings, before and after, got 1"),
        ("run.hft --site other.py:3", 2, "got other.py:3; the first are me/train.py:31, me/train.py:50"),
        ("run.hft --fail-on-growth -1", 2, "expected descriptors a minute, at least 0, got -1"),
        ("run.hft --collapsed --json", 2, "expected one of --html, --collapsed and --json, got several"),
        ("run.hft --fail-on-growth 30", 1, "/home/me/train.py:31 in train grows by 60 a minute; --fail-on-growth"),
        ("--diff before.hft run.hft --fail-on-growth 30", 1, "/home/me/train.py:31 in train grows by 60 a minute"),
    ],
)
def test_errors_are_one_sentence(arguments: str, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", *arguments.split(), *([] if "--json" in arguments else ["-q"])]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("holdfast: ")
    assert said in line


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("run.hft --since 0", "✗ me/train.py:31"),
        ("run.hft --since 10s --until 50", "shown from 10.0 s to 50.0 s"),
        ("run.hft --top 1", "… and 1 more site"),
        ("run.hft --site train.py:31", "opened by this stack"),
        ("run.hft --collapsed --weight born", "save (me/train.py:50) 60"),
        ("run.hft --fail-on-growth 100", "leaks"),
        ("--diff before.hft run.hft", "▲ Sites of run.hft: 1 grew."),
        ("--diff before.hft run.hft --fail-on-growth 50", "grew"),
        ("--diff run.hft run.hft", "✓ No site of run.hft has more or fewer open descriptors than before."),
        ("--diff before.hft run.hft --json", '"change": "grew"'),
        ("run.hft --json --top 1", '"line": 31'),
    ],
)
def test_options(arguments: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", *arguments.split()]) == 0
    printed = capsys.readouterr()
    assert said in printed.out
    assert printed.err == ""
