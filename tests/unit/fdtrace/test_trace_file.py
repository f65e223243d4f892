from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import time
import zipfile
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from factories_traces import leaking_trace
from holdfast.errors import CorruptError, DataError, FormatError
from holdfast.fdtrace import trace_file
from holdfast.fdtrace.bad_descriptors import find_histories
from holdfast.fdtrace.collector import Collector, assemble
from holdfast.fdtrace.image import Stacks, read_image
from holdfast.fdtrace.recording import LIBRARY, TraceOptions
from holdfast.fdtrace.sites import Statistics
from holdfast.fdtrace.trace_file import Trace

_FUZZ_S = 2.0


def is_equal(one: Trace, two: Trace) -> bool:
    pairs = ((getattr(one, field.name), getattr(two, field.name)) for field in fields(Trace))
    return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "run.hft"
    trace_file.save(leaking_trace().build(), path)
    return path


def test_a_recording_is_read_as_it_was_saved(recording: Path) -> None:
    made = leaking_trace().build(owners={1: ["kept[0]"]}, targets={1: ["pipe:[1]"]}, no_reuse=True)
    trace_file.save(made, recording.with_name("full.hft"))
    assert is_equal(trace_file.load(recording.with_name("full.hft")), made)


@pytest.mark.parametrize("content", [b"", b"PK\3\4", b"x" * 5000], ids=["empty", "short", "other"])
def test_what_is_no_recording_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.hft").write_bytes(content)
    with pytest.raises(CorruptError, match="expected a recording of `holdfast trace`, got an? (empty )?file"):
        trace_file.load(tmp_path / "a.hft")


def test_a_device_and_a_pipe_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.hft")
    for path in (Path("/dev/zero"), tmp_path / "pipe.hft"):
        with pytest.raises(FormatError, match="got a device or a pipe"):
            trace_file.load(path)


def test_another_version_and_another_archive_are_refused(tmp_path: Path) -> None:
    for name, text, error in (("trace.json", '{"version": 9}', FormatError), ("other", "{}", CorruptError)):
        with zipfile.ZipFile(tmp_path / "a.hft", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, text)
        with pytest.raises(error):
            trace_file.load(tmp_path / "a.hft")


@pytest.mark.parametrize("text", ["[]", "null", "[" * 100_000, '{"version": 1}', '"x"'])
def test_odd_documents_are_refused(tmp_path: Path, text: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.hft", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("trace.json", text)
    with pytest.raises(DataError):
        trace_file.load(tmp_path / "a.hft")


def test_a_member_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "_MOST_BYTES", 100)
    trace_file.save(leaking_trace().build(), tmp_path / "a.hft")
    with pytest.raises(CorruptError, match="at most 100 are read"):
        trace_file.load(tmp_path / "a.hft")


def test_numbers_that_lead_nowhere_are_refused(tmp_path: Path) -> None:
    for change in ({"stack": 99}, {"process": 99}, {"t_s": float("nan")}):
        trace = leaking_trace().build()
        for name, value in change.items():
            trace.events[name][0] = value
        trace_file.save(trace, tmp_path / "a.hft")
        with pytest.raises(CorruptError):
            trace_file.load(tmp_path / "a.hft")


def test_a_damaged_recording_is_refused_or_read_unchanged(recording: Path) -> None:
    """Cut anywhere, and with flipped bits: no other error, and never other content."""
    whole, right = recording.read_bytes(), trace_file.load(recording)
    target = recording.with_name("damaged.hft")
    draw, until, refused = random.Random(5), time.monotonic() + _FUZZ_S, 0
    while time.monotonic() < until:
        data = bytearray(whole)
        if draw.random() < 0.3:
            del data[draw.randrange(len(data)) :]
        else:
            for _ in range(draw.choice((1, 1, 2, 8))):
                data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        target.write_bytes(data)
        try:
            assert is_equal(trace_file.load(target), right)
        except (CorruptError, FormatError):
            refused += 1
    assert refused > 50


@pytest.mark.skipif(not LIBRARY.exists(), reason="the tracing library was not built: no C compiler")
def test_a_damaged_log_gives_no_other_error(tmp_path: Path) -> None:
    log = _record_log(tmp_path)
    whole = log.read_bytes()
    intact = read_image(log)
    assert [frame.function for frame in Stacks({intact.key: intact}).resolve(intact, _a_stack(intact)).frames]
    # Most of the log is empty: damage goes to what is used, and mostly to the header.
    used = [at for at in range(0, len(whole), 64) if any(whole[at : at + 64])]
    draw, until = random.Random(9), time.monotonic() + _FUZZ_S
    with open(log, "r+b", buffering=0) as file:
        while time.monotonic() < until:
            places = [
                draw.randrange(300) if draw.random() < 0.5 else draw.choice(used) + draw.randrange(64) for _ in range(3)
            ]
            for at in places:
                os.pwrite(file.fileno(), bytes([draw.randrange(256)]), at)
            if draw.random() < 0.2:
                os.ftruncate(file.fileno(), draw.randrange(len(whole)))
            _read_everything(log)
            os.ftruncate(file.fileno(), len(whole))
            for at in range(0, len(whole), 1 << 16) if draw.random() < 0.2 else ():
                os.pwrite(file.fileno(), whole[at : at + (1 << 16)], at)
            for at in places:
                os.pwrite(file.fileno(), whole[at : at + 1], at)


def _read_everything(log: Path) -> None:
    try:
        image = read_image(log)
    except CorruptError:
        return
    stacks = Stacks({image.key: image})
    for rows in (image.events, image.entries, image.counters):
        for stack in np.unique(rows["stack"]).tolist()[:50]:
            stacks.resolve(image, stack)
    assert image.dropped_events >= 0
    trace = assemble(log.parent, Collector(log.parent), ["python"], exit_code=0, options=TraceOptions())
    Statistics(trace).verdict()
    find_histories(trace)


def _record_log(folder: Path) -> Path:
    """A low hard limit keeps the log small."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    env = {**os.environ, "LD_PRELOAD": str(LIBRARY), "HOLDFAST_FDTRACE_DIR": str(folder)}
    code = "import os, json\ndef f():\n    return [os.pipe() for _ in range(20)]\nkept = f()"
    subprocess.run([sys.executable, "-I", "-c", code], env=env, preexec_fn=limit, check=True)
    (log,) = folder.glob("fd.*.log")
    return log


def _a_stack(image: object) -> int:
    return int(image.events["stack"].max())  # type: ignore[attr-defined]
