from __future__ import annotations

import pytest

from holdfast.process.error_guide.log_scanner import LogPosition, Scanner, scan_text, stamp_of

EMFILE = b"OSError: [Errno 24] Too many open files"


def scan(*pieces: bytes, source: str = "a.log") -> Scanner:
    scanner = Scanner()
    scanner.begin(source)
    for piece in pieces:
        scanner.feed(piece)
    scanner.end()
    return scanner


def found(scanner: Scanner) -> dict[str, tuple[int, int, int]]:
    return {one.rule.name: (one.count, one.first.line, one.last.line) for one in scanner.sightings()}


def test_errors_are_grouped_and_the_cause_comes_before_its_many_sequels() -> None:
    lines = [b"ssl.SSLError: unknown"] * 200
    lines[50] = EMFILE
    lines[70] = b"INFO fine"
    scanner = scan(b"\n".join(lines))
    assert found(scanner) == {"EMFILE": (1, 51, 51), "tls": (198, 1, 200)}
    assert [one.rule.name for one in scanner.sightings()] == ["EMFILE", "tls"]
    assert scanner.lines == 200


def test_any_cut_gives_the_same() -> None:
    text = b"one\n" + EMFILE + b"\r\ntwo\n" + EMFILE + b"\nBroken pipe"
    for cut in range(len(text)):
        assert found(scan(text[:cut], text[cut:])) == {"EMFILE": (2, 2, 4), "EPIPE": (1, 5, 5)}
    assert found(scan(*(bytes([byte]) for byte in text))) == {"EMFILE": (2, 2, 4), "EPIPE": (1, 5, 5)}


def test_a_line_without_an_end_is_bounded_and_counted_once() -> None:
    scanner = Scanner()
    scanner.begin("")
    for _ in range(40):
        scanner.feed(b"x" * 100_000 + EMFILE)
        assert len(scanner._rest) <= 1 << 21
    scanner.feed(b"\n" + EMFILE + b"\n")
    scanner.end()
    assert found(scanner) == {"EMFILE": (2, 1, 2)}
    [seen] = scanner.sightings()
    assert len(seen.text) <= 400


@pytest.mark.parametrize("shift", range(-45, 5, 7))
def test_a_needle_across_the_cut_of_a_long_line(shift: int) -> None:
    assert found(scan(b"x" * ((1 << 20) + shift) + EMFILE + b"y" * 5000)) == {"EMFILE": (1, 1, 1)}


def test_two_kinds_on_one_long_line() -> None:
    assert found(scan(EMFILE + b"x" * 20_000 + b"Broken pipe")) == {"EMFILE": (1, 1, 1), "EPIPE": (1, 1, 1)}


def test_bytes_that_are_no_text_do_not_matter() -> None:
    assert found(scan(b"\xff\xfe\x00\x80" + EMFILE + b"\x00\xff\n")) == {"EMFILE": (1, 1, 1)}


def test_escape_sequences_are_not_kept() -> None:
    [seen] = scan(b"\x1b[31mOSError: \x07Too many open files\x1b[0m").sightings()
    assert seen.text.isprintable()


def test_lines_are_counted_for_each_source() -> None:
    scanner = scan(b"a\nb\n" + EMFILE, source="1.log")
    scanner.begin("2.log")
    scanner.feed(EMFILE + b"\n")
    scanner.end()
    [seen] = scanner.sightings()
    assert (seen.first, seen.last) == (LogPosition("1.log", 3, None), LogPosition("2.log", 1, None))
    assert scanner.lines == 4


def test_the_time_is_the_lines_own_or_the_nearest_above() -> None:
    text = (
        "2026-05-01 10:22:01,123 ERROR job failed\n"
        "Traceback (most recent call last):\n"
        '  File "x.py", line 1, in f\n'
        "OSError: [Errno 24] Too many open files\n"
        "2026-05-01 10:30:00,000 ERROR OSError: [Errno 24] Too many open files\n" + "quiet\n" * 300 + "Broken pipe\n"
    )
    emfile, epipe = scan_text(text)
    assert (emfile.first.time, emfile.last.time) == ("2026-05-01 10:22:01,123", "2026-05-01 10:30:00,000")
    assert epipe.first == LogPosition("", 306, None)  # too far away to be its own


@pytest.mark.parametrize(
    ("line", "stamp"),
    [
        ("2026-05-01T10:22:01.5Z x", "2026-05-01T10:22:01.5Z"),
        ("[2026-05-01 10:22:01 +0200] x", "2026-05-01 10:22:01"),
        ('{"time": "2026-05-01T10:22:01+02:00", "msg": "x"}', "2026-05-01T10:22:01+02:00"),
        ("2026/05/01 10:22:01 [error] x", "2026/05/01 10:22:01"),
        ("May  1 10:22:01 host app[3]: x", "May  1 10:22:01"),
        ('1.2.3.4 - - [01/May/2026:10:22:01 +0000] "GET', "01/May/2026:10:22:01 +0000"),
        ("E0501 10:22:01.123456 99 file.cc:1] x", "E0501 10:22:01.123456"),
        ("10:22:01 x", "10:22:01"),
        ("epoch 3", None),
        ("sha 2026-05-0110:22:01", None),
    ],
)
def test_stamps(line: str, stamp: str | None) -> None:
    assert stamp_of(line) == stamp
