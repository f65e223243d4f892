"""The same work for many files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.data.file_tools import parallel_files


def measure(file: str, /, *, progress: Callable[[float], None] | None) -> tuple[str, int]:
    if progress:
        progress(1)
    return file, os.getpid()


def fail(file: str, /, *, progress: Callable[[float], None] | None) -> None:
    raise KeyError(file)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = [tmp_path / str(i) for i in range(20)]
    for path in paths:
        path.write_bytes(bytes(100))
    return [*map(str, paths), str(tmp_path / "missing")]


@pytest.mark.parametrize("jobs", [1, 3, 100])
def test_results_come_in_the_order_of_the_files(files: list[str], jobs: int) -> None:
    done = parallel_files.for_each_file(measure, files, jobs, None)
    assert [file for file, _ in done] == files


def test_pure_python_uses_processes_where_that_pays(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_files.codec, "NATIVE", False)
    done = parallel_files.for_each_file(measure, files, 2, None)
    assert {pid for _, pid in done} == {os.getpid()}
    monkeypatch.setattr(parallel_files, "_WORTH_PROCESSES_BYTES", 1)
    done = parallel_files.for_each_file(measure, files, 2, None)
    assert [file for file, _ in done] == files
    assert os.getpid() not in {pid for _, pid in done}


@pytest.mark.parametrize("native", [True, False])
def test_an_error_of_the_work_itself_ends_all_of_it(
    files: list[str], native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel_files.codec, "NATIVE", native)
    monkeypatch.setattr(parallel_files, "_WORTH_PROCESSES_BYTES", 1)
    with pytest.raises(KeyError):
        parallel_files.for_each_file(fail, files, 2, None)
