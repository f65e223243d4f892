"""Odd HDF5 files: no command takes what it finds in one for a bug of its own, and hold.read has one kind of error."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import pytest
from cli_process import holdfast

import holdfast as hold
import odd_hdf5
from holdfast._util.framing import Message, MessageReceiver
from holdfast.cli import main
from holdfast.data.formats.hdf5 import sandbox, sandbox_main
from holdfast.data.formats.hdf5.sandbox import SharedPosition, WorkPosition
from holdfast.errors import HoldfastError

LIBVERS = ("earliest", "latest")
NO_BUG = {0, 1, 2, 3}


class _FakeReporter(sandbox_main.Reporter):
    def __init__(self, shared: SharedPosition) -> None:
        super().__init__(-1, shared, MessageReceiver(-1))
        self.sent: list[Message] = []

    def send(self, head: dict[str, Any], body: bytes = b"") -> None:
        self.sent.append(Message(json.loads(json.dumps(head)), body))


class Here:
    """Runs the job of a SandboxedProcess in this process: a child for every file and command would take minutes."""

    exit_reason, hung, position = "", False, WorkPosition()

    def __init__(self, job: dict[str, Any], *, spin_s: float | None = None) -> None:
        self._job = job

    def close_stdin(self) -> None: ...

    def messages(self, progress: Any = None) -> Iterator[Message]:
        shared = SharedPosition()
        reporter = _FakeReporter(shared)
        try:
            sandbox_main._job_function(self._job["work"])(self._job, reporter)
        finally:
            shared.close()
        yield from reporter.sent

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Every feature by itself, all of them together, and what needs a file of its own."""
    folder = tmp_path_factory.mktemp("odd")
    made = odd_hdf5.make_files(folder)
    for libver in LIBVERS:
        made.append(odd_hdf5.make_all(folder / f"all {libver}.h5", libver=(libver, "latest")))
        for name in odd_hdf5.FEATURES:
            path = folder / f"{name} {libver}.h5"
            made.append(odd_hdf5.make_feature(name, path, libver=(libver, "latest")))
    return made


@pytest.fixture
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "SandboxedProcess", Here)


@pytest.mark.usefixtures("_in_this_process")
@pytest.mark.parametrize("command", [["inspect"], ["inspect", "--schema"]], ids=" ".join)
def test_no_file_is_a_bug_of_inspect(files: list[Path], command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    bugs = {}
    for path in files:
        code = main([*command, str(path)])
        said = capsys.readouterr()
        if code not in NO_BUG or not said.out:
            bugs[path.name] = code, said.err
    assert bugs == {}


@pytest.mark.usefixtures("_in_this_process")
def test_verify_takes_no_feature_for_damage(files: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Of valid files, only values that are not there are a problem."""
    assert main(["verify", "--json", *map(str, files)]) == 1
    for report in json.loads(capsys.readouterr().out)["files"]:
        valid = not Path(report["path"]).name.startswith(("bad_", "family", "split", "filter "))
        reasons = [problem["reason"] for problem in report["problems"]]
        for reason in reasons if valid else []:
            assert any(word in reason for word in ("its values are in", "its source", "unused bits")), report
        assert reasons or not Path(report["path"]).name.startswith("bad_"), report


def test_real_processes(files: list[Path]) -> None:
    some = [path for path in files if path.name.startswith("all ")]
    for command in (["inspect", "--json"], ["verify", "--json"]):
        done = holdfast(*command, *some)
        assert done.returncode in NO_BUG, done
        assert len(json.loads(done.stdout)["files"]) == len(some)


def test_salvage_keeps_names_that_are_not_text(files: list[Path], tmp_path: Path) -> None:
    """Of objects, links and attributes; and no feature is a bug of salvage's."""
    for source in [path for path in files if path.name.startswith("all ")]:
        done = holdfast("salvage", source, tmp_path / source.name, "--json")
        assert done.returncode in NO_BUG, done
        kept, all_there = (set(raw_names(path)) for path in (tmp_path / source.name, source))
        assert any(not name.isascii() for name in all_there)
        assert {name for name in all_there - kept if not name.isascii()} == set()


def raw_names(path: Path) -> list[bytes]:
    """Of everything in the groups of a file, and of their attributes."""
    found: list[bytes] = []
    with h5py.File(path) as file:
        for group in [file["/"], *(one for one in file.values() if isinstance(one, h5py.Group))]:
            group.id.links.iterate(found.append, order=h5py.h5.ITER_NATIVE)
            found += [name if isinstance(name, bytes) else name.encode() for name in group.attrs]
    return found


def outcome(path: Path, schema: dict[str, Any] | None = None) -> tuple[str, str]:
    """What reading a few samples gave: `samples`, or the type and text of an error of holdfast's."""
    try:
        for _ in hold.read(path, schema).batch(8).take(3):
            pass
    except HoldfastError as error:
        return type(error).__name__, str(error)
    return "samples", str(path)


def test_hold_read_of_every_file(files: list[Path]) -> None:
    for path in files:
        kind, text = outcome(path)
        assert kind in ("samples", "CorruptError", "FormatError", "DecodeError"), (path, kind, text)
        assert str(path) in text


def test_hold_read_of_every_dataset(files: list[Path]) -> None:
    """Also of those that say they have more rows, or longer ones, than memory holds."""
    seen: Counter[str] = Counter()
    for path in [path for path in files if path.name.startswith("all ")]:
        names: list[str | bytes] = []
        with h5py.File(path) as file:
            file.visit(names.append)
        for name in [name if isinstance(name, str) else name.decode("utf-8", "surrogateescape") for name in names]:
            for column in (hold.Int64(key=name), hold.Bytes(key=name)):
                kind, text = outcome(path, {"v": column})
                assert str(path) in text
                seen[kind] += 1
    assert set(seen) >= {"samples", "FormatError", "DecodeError"}


def test_flips_of_metadata_are_one_kind_of_error(tmp_path: Path) -> None:
    """In a process of its own: what the library does with a damaged file is not ours to promise."""
    command = [sys.executable, odd_hdf5.__file__, str(tmp_path), "25", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(outcomes) == 25 * 4
    kinds = Counter(outcome["kind"] for outcome in outcomes)
    assert set(kinds) <= {"samples", "CorruptError", "FormatError", "DecodeError", "SchemaError", "InputError"}, (
        outcomes
    )
    assert kinds["CorruptError"] > 20
    assert kinds["samples"] > 20
    for outcome in outcomes:
        assert outcome["kind"] == "samples" or outcome["path"] in outcome["text"], outcome
