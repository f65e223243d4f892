"""Doctor's page and document from hand-made judgements."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from datetime import datetime

import pytest
from diagnosis_cases import Case, child, diagnosis, leak, process_snapshot, target
from rich.cells import cell_len
from rich.console import Console

from holdfast.cli.tables import AnyTerminal
from holdfast.process.doctor.diagnose import WatchTarget
from holdfast.process.doctor.model import FdProfile, Forecast, Match, Verdict
from holdfast.process.doctor.render import DoctorPage, target_as_dict, targets_as_dict

NOW = datetime(2026, 3, 4, 18, 31)


def page(one: WatchTarget, width: int = 140) -> str:
    console = Console(width=width, no_color=True)
    with console.capture() as shown:
        console.print(DoctorPage(one, NOW))
    return "\n".join(line.rstrip() for line in shown.get().splitlines())


def test_the_page_has_everything_in_its_place() -> None:
    shown = page(target(leak(), child(41300), held_by=("worker.py:212 self._iters[…] → Queue._reader  [15,960 ×]",)))
    lines = shown.splitlines()
    assert lines[0].startswith("worker 41231  python -m ami.worker   up 5 d 21 h ")
    assert lines[0].endswith("✗ LEAK · exhausted in about 2 h 10 min (20:41 ± 9 min)")
    for part in (
        "  descriptors   63,912 of 65,536 soft   ███████████████████████▍ 97.5 %   hard limit: 1,048,576",
        "  growth        +421/h (396–447), baseline over 5 d",
        "                pipe shrink (1,024) in 1 min at the earliest (18:32)",
        "  kinds         pipe 63,871 · device 19 · socket 1",
        "  dead pipes    63,840: the other end is closed in every process (1 internal : 2 HUP : 2 ERR)",
        "  also used     7.10 GB of 8.00 GB   █████████████████████▎░░ 88.8 %   /dev/shm",
        "                40,100 of 63,204     ███████████████▏░░░░░░░░ 63.4 %   threads of this user (ulimit -u)",
        "  └─ 41300      24 / 65,536  pipe 18 file 6",
        "  because       its baseline rose by 50,000 in 5 d",
        "                63,840 of them are pipes whose other end is closed",
        "  cause         looks like finished DataLoader iterators are still referenced",
        "  held by       worker.py:212 self._iters[…] → Queue._reader  [15,960 ×]",
        "  do            1. drop the iterator after the loop",
        "                2. until then: prlimit --pid 41231 --nofile=1048576",
    ):
        assert part in shown, shown


@pytest.mark.parametrize("width", [50, 80, 100, 140, 200])
def test_no_line_is_longer_than_the_page(width: int) -> None:
    many = [child(41300 + n, 41231 + (41300 + n - 41232 if n % 3 else 0)) for n in range(9)]
    shown = page(target(leak(), *many), width)
    assert max(map(len, shown.splitlines())) <= width
    assert "LEAK" in shown


def test_at_80_columns_the_verdict_has_a_line_of_its_own() -> None:
    lines = page(target(), 80).splitlines()
    assert lines[0] == "worker 41231  python -m ami.worker   up 5 d 21 h"
    assert lines[1] == "✗ LEAK · exhausted in about 2 h 10 min (20:41 ± 9 min)"


def test_a_process_that_was_seen_once_and_is_fine() -> None:
    shown = page(target(Case(process_snapshot(), diagnosis()), shared=()))
    assert "✓ OK" in shown
    assert "growth        one snapshot: --for auto watches until the verdict is clear" in shown
    for absent in ("dead pipes", "  cause", "held by", "  do "):
        assert absent not in shown


def _match(name: str) -> Match:
    return Match(name=name, cause="files are opened and never closed", advice=(), count=900, dead=0, share=0.9)


@pytest.mark.parametrize(
    ("verdict", "name", "blamed"),
    [
        (Verdict.OK, "files-never-closed", False),
        (Verdict.SETTLING, "sockets-never-closed", False),
        (Verdict.OK, "zombies", True),
        (Verdict.GROWING, "files-never-closed", True),
        (Verdict.EXHAUSTED, "files-never-closed", True),
    ],
)
def test_nothing_is_blamed_where_nothing_is_wrong(verdict: Verdict, name: str, blamed: bool) -> None:
    one = target(Case(process_snapshot(), diagnosis(verdict, match=_match(name))))
    assert ("never closed" in page(one)) is blamed
    assert target_as_dict(one)["signature"] == (name if blamed else None)


@pytest.mark.parametrize("width", [60, 80, 140])
@pytest.mark.parametrize("name", ["日本語" * 40, "x" * 5000, "日x" * 20])
def test_a_long_or_wide_name_is_cut_and_the_verdict_stays_in_the_first_lines(name: str, width: int) -> None:
    lines = page(target(Case(process_snapshot(cmdline=name), diagnosis()), shared=()), width).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert "up 5 d 21 h" in lines[0]
    assert "✓ OK" in lines[0] + lines[1]


def test_a_limit_of_nothing_is_used_up() -> None:
    shown = page(target(Case(process_snapshot(), diagnosis(Verdict.EXHAUSTED, soft=0)), shared=()))
    assert "24 of 0 soft   ████████████████████████ 100 %" in shown


def test_a_child_that_has_ended_is_marked() -> None:
    ended = Case(process_snapshot(41300, 41231, {}, state="Z"), diagnosis(fds=0))
    assert "zombie, not waited for" in page(target(leak(), ended))


def test_what_cannot_be_seen_is_reported() -> None:
    hidden = Case(replace(process_snapshot(), descriptors=None), diagnosis(profile=None, fds=24))
    shown = page(target(hidden, whole_tree=False))
    assert "kinds         permission denied: the process belongs to user 1000" in shown
    assert "children      not scanned" in shown


def test_limits_that_do_not_bind_root_are_left_out() -> None:
    shown = page(target(Case(process_snapshot(uid=0), diagnosis())))
    assert "ulimit -u" not in shown
    assert "/dev/shm" in shown


def test_a_command_cannot_play_tricks_on_the_terminal() -> None:
    shown = page(target(Case(process_snapshot(cmdline="python \x1b[2J\n[red]x"), diagnosis())))
    assert r"python \x1b[2J\n[red]x" in shown


def test_very_many_processes_are_cut_to_the_worst() -> None:
    many = [child(50_000 + n) for n in range(100)]
    many[77] = child(50_077, verdict=Verdict.GROWING)
    shown = page(target(Case(process_snapshot(), diagnosis()), *many))
    assert "… and 77 more processes (--json lists all)" in shown
    assert "─ 50077 " in shown
    assert shown.startswith("worker 50077 ")


def test_pipes_of_one_kind() -> None:
    def pipes(**counts: int) -> str:
        return page(target(Case(process_snapshot(), diagnosis(profile=FdProfile(fds=99, **counts)))))

    assert "90: the other end is closed in every process (write ends)" in pipes(err=90)
    assert "none; 7 pipes with both ends in this process" in pipes(self_pairs=7)


def test_the_document() -> None:
    found = target_as_dict(target(leak(), child(41300), held_by=("x",), watched_s=30.0))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    tree = found.pop("tree")
    assert found == {
        "pid": 41231,
        "about": 41231,
        "command": "python -m ami.worker",
        "uptime_s": 507600.0,
        "watched_s": 30.0,
        "verdict": "LEAK",
        "evidence": ["its baseline rose by 50,000 in 5 d", "63,840 of them are pipes whose other end is closed"],
        "advice": ["drop the iterator after the loop", "until then: prlimit --pid 41231 --nofile=1048576"],
        "fds": 63_912,
        "limit": 65536,
        "hard_limit": 1048576,
        "kinds": {"pipe": 63_871, "device": 19, "socket": 1},
        "dead_pipes": 63_840,
        "self_pairs": 15_960,
        "growth_per_hour": 421,
        "eta_s": [7260, 8340],
        "signature": "dead-loaders",
        "resources": {},
        "held_by": ["x"],
    }
    assert [row["pid"] for row in tree] == [41231, 41300]
    assert tree[1] == {
        "pid": 41300,
        "ppid": 41231,
        "command": "python -m ami.worker",
        "fds": 24,
        "limit": 65536,
        "kinds": {"pipe": 18, "file": 6},
        "threads": 12,
        "rss_bytes": 4_210_000_000,
        "verdict": "OK",
    }


@pytest.mark.parametrize(
    ("eta_s", "shown"),
    [((60.0, math.inf), [60, None]), ((math.inf, math.inf), None), ((0.0, 0.0), [0, 0]), ((1.25, 2.0), [1.2, 2])],
)
def test_no_infinity_in_the_document(eta_s: tuple[float, float], shown: object) -> None:
    forecasts = (Forecast(line="soft limit", at=1, eta_s=eta_s),)
    found = target_as_dict(target(Case(process_snapshot(), diagnosis(forecasts=forecasts, soft=math.inf, hard=None))))
    assert (found["eta_s"], found["limit"], found["hard_limit"]) == (shown, None, None)
    json.dumps(found, allow_nan=False)


def test_several_targets_are_a_list_with_the_worst_verdict() -> None:
    fine = target(Case(process_snapshot(7), diagnosis(Verdict.SETTLING)))
    found = targets_as_dict([fine, target()])
    assert (found["verdict"], [one["pid"] for one in found["targets"]], "errors" in found) == (
        "LEAK",
        [7, 41231],
        False,
    )
    assert targets_as_dict([fine], ["there is no process 9"])["errors"] == ["there is no process 9"]
    assert targets_as_dict([], ["there is no process 9"]) == {"error": "there is no process 9"}


def test_where_only_ascii_can_be_shown_the_page_is_as_wide() -> None:
    class Teletype(io.StringIO):
        encoding = "ascii"

    shown = []
    for file in (Teletype(), io.StringIO()):
        Console(width=100, file=file).print(AnyTerminal(DoctorPage(target(leak(), child(41300)), NOW)))
        shown.append(file.getvalue())
    assert shown[0].isascii()
    assert "x LEAK , exhausted in about 2 h 10 min (20:41 ~ 9 min)" in shown[0]
    assert [len(line) for line in shown[0].splitlines()] == [len(line) for line in shown[1].splitlines()]
