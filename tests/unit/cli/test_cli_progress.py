"""The bar: late, only where it is looked at, and gone afterwards. On a real terminal: test_cli_failures.py."""

from __future__ import annotations

import threading

import pytest

from holdfast.cli.console import Bar


def test_short_work_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar("working", 100, shown=True, after_s=3600) as bar:
        bar.advance(100)
    assert capsys.readouterr() == ("", "")


def test_where_nobody_watches_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar("working", 100, shown=False, after_s=0) as bar:
        bar.advance(100)
    assert capsys.readouterr() == ("", "")


def test_threads_may_advance_it_and_it_never_goes_past_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        for _ in range(100):
            bar.advance(2)

    with Bar("working", 300, shown=True, after_s=0) as bar:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert bar.done == 300
    assert capsys.readouterr().out == ""
