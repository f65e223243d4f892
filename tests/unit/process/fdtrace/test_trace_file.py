from __future__ import annotations

import functools
import io
import json
import operator
import os
import random
import resource
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from factories_traces import leaking_trace
from holdfast.errors import CorruptError, DataError, FormatError
from holdfast.process.fdtrace import trace_file
from holdfast.process.fdtrace.bad_descriptors import find_histories
from holdfast.process.fdtrace.collector import Collector, assemble
from holdfast.process.fdtrace.export import WEIGHTS, folded_stacks, report_as_dict
from holdfast.process.fdtrace.html_page import PageData
from holdfast.process.fdtrace.image import Stacks, read_image
from holdfast.process.fdtrace.recording import LIBRARY, TraceOptions
from holdfast.process.fdtrace.render import Findings, ReportPage
from holdfast.process.fdtrace.sites import Statistics
from holdfast.process.fdtrace.trace_file import Trace
from traced_process import as_array

_FUZZ_S = 2.0


def is_equal(one: Trace, two: Trace) -> bool:
    pairs = ((getattr(one, field.name), getattr(two, field.name)) for field in fields(Trace))
    return all(a == b for a, b in pairs)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "run.hft"
    trace_file.save(leaking_trace().build(), path)
    return path


def test_a_recording_is_read_as_it_was_saved(recording: Path) -> None:
    made = leaking_trace().build(owners={1: ["kept[0]"]}, targets={1: ["pipe:[1]"]}, no_reuse=True)
    trace_file.save(made, recording.with_name("full.hft"))
    assert is_equal(trace_file.load(recording.with_name("full.hft")), made)


def test_only_its_owner_can_read_a_recording(tmp_path: Path) -> None:
    (tmp_path / "a.hft").touch(0o644)
    prepared = tmp_path / ".a.hft.partial"
    prepared.touch(0o666)
    if os.geteuid() == 0:
        os.chown(prepared, 65534, 65534)  # another user hopes to read what is written into it
    trace_file.save(leaking_trace().build(), tmp_path / "a.hft")
    seen = (tmp_path / "a.hft").stat()
    assert (seen.st_mode & 0o777, seen.st_uid) == (0o600, os.geteuid())


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


def test_the_tables_are_arrays_of_numpy(recording: Path, tmp_path: Path) -> None:
    """Recordings of versions that saved with numpy can be read, and numpy reads those of this one."""
    trace, copy = trace_file.load(recording), tmp_path / "saved-by-numpy.hft"
    with zipfile.ZipFile(recording) as old, zipfile.ZipFile(copy, "w", zipfile.ZIP_DEFLATED) as new:
        new.writestr("trace.json", old.read("trace.json"))
        for name in ("events", "open", "counts", "samples"):
            array = np.load(io.BytesIO(old.read(f"{name}.npy")))
            assert np.array_equal(array, as_array(getattr(trace, name)))
            with new.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    assert is_equal(trace_file.load(copy), trace)


def test_a_member_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "_MAX_BYTES", 100)
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


_ODD = (None, -1, 1, 1e308, -1e308, 1e-320, 1 << 31, 1 << 63, 1 << 70, -(1 << 40), "x", "", "9" * 5000, [], {}, [[]])


def places(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yields the path of everything in a JSON document."""
    for key, below in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(below, (*path, key))


def damaged(members: dict[str, bytes], draw: random.Random) -> dict[str, bytes]:
    """Returns the members of a recording, one of them with odd values or bytes, or cut, or without one of them."""
    made, name = dict(members), draw.choice(list(members))
    if name == "trace.json" and draw.random() < 0.8:
        document = json.loads(members[name])
        *path, last = draw.choice(list(places(document)))
        at = functools.reduce(operator.getitem, path, document)
        if draw.random() < 0.15:
            del at[last]
        else:
            at[last] = draw.choice(_ODD)
        made[name] = json.dumps(document).encode()
    else:
        data = bytearray(members[name])
        for _ in range(draw.choice((1, 1, 2, 8))):
            data[draw.randrange(len(data) if draw.random() < 0.5 else 200)] = draw.randrange(256)
        if draw.random() < 0.15:
            del data[draw.randrange(len(data)) :]
        made[name] = bytes(data)
    if draw.random() < 0.03:
        del made[name]
    return made


def test_a_report_on_odd_content_is_refused_or_complete(tmp_path: Path) -> None:
    """The archive is whole, what it holds is not: every part of a report is made, or the damage is named."""
    builder = leaking_trace(per_minute=40)
    killed = builder.process(end_s=30.0, ended="killed", dropped_events=5)
    stack = builder.stack(("/home/me/a.py", 3, "f", "x"))
    builder.samples = [(t / 2, killed, stack, t) for t in range(30)]
    builder.bad(5.0, 3, stack)
    builder.failed(6.0, stack)
    path = tmp_path / "a.hft"
    trace_file.save(builder.build(owners={1: ["kept[0]"]}, targets={1: ["pipe:[1]"]}, native={1: ["f at b"]}), path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    refused = 0
    for seed in range(400):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in damaged(members, random.Random(seed)).items():
                archive.writestr(name, data)
        try:
            trace = trace_file.load(path)
        except (CorruptError, FormatError):
            refused += 1
            continue
        found = Findings(trace)
        json.dumps(report_as_dict(found, "a.hft"), allow_nan=False)
        json.dumps(PageData(trace).as_dict(), allow_nan=False)
        Console(file=io.StringIO(), width=120).print(ReportPage(found))
        assert all(list(folded_stacks(found.statistics, weight)) is not None for weight in WEIGHTS)
    assert 200 < refused < 390


def test_the_error_names_the_damaged_part(recording: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(recording) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["counts.npy"] = members["counts.npy"].replace(b"'fortran_order': False", b"'fortran_order': (alse")
    with zipfile.ZipFile(tmp_path / "a.hft", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(CorruptError, match=r"got a file of \d+ bytes whose counts\.npy is damaged \(SyntaxError"):
        trace_file.load(tmp_path / "a.hft")


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
        for stack in sorted(set(rows["stack"]))[:50]:
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
    return int(max(image.events["stack"]))  # type: ignore[attr-defined]
