"""The stacks in the log are those that Python reports: file, line and qualified name of every frame."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.process.fdtrace.log_format import BIRTH
from traced_process import as_array, interpreters, needs_library, run

pytestmark = needs_library

CHILD = Path(__file__).with_name("stack_oracle_child.py")
ROUNDS, THREADS = 60, 7
OWN = re.compile(r"(plain|generated|awaited|Größe\.wert|Größe\.__del__|f\d*)$")


def test_the_stacks_of_the_log_are_those_of_python(tmp_path: Path) -> None:
    compared = 0
    for turn, (version, python) in enumerate([*interpreters().items(), *list(interpreters().items())[:1] * 2]):
        compared += _compare(python, tmp_path / f"{turn}", version)
    assert compared >= 15_000


def _compare(python: str, folder: Path, version: str) -> int:
    folder.mkdir()
    output = folder / "expected.json"
    recording, _ = run([python, CHILD, output, str(ROUNDS), str(THREADS)], folder)
    image = recording.image()
    assert image.header.has_python_stacks, version
    assert image.dropped_events == 0
    assert image.header.counts["lost_stacks"] == 0
    compared = 0
    for thread, expected in json.loads(output.read_text()).items():
        births = as_array(image.events, tid=int(thread), action=BIRTH)
        stacks = [recording.frames(image, event) for event in births]
        got = [[list(frame) for frame in stack] for stack in stacks if stack and OWN.match(stack[0].function)]
        assert len(got) == len(expected), (version, thread)
        for mine, theirs in zip(got, expected, strict=True):
            assert mine == theirs, version
        compared += len(got)
    return compared


def test_a_stack_that_is_deeper_than_the_limit_keeps_its_innermost_frames(tmp_path: Path) -> None:
    code = "import os\ndef down(n):\n  return down(n - 1) if n else os.dup(0)\ndown(200)\n"
    recording, _ = run([sys.executable, "-c", code], tmp_path)
    image = recording.image()
    stacks = [recording.stacks.resolve(image, int(event["stack"])) for event in as_array(image.events, action=BIRTH)]
    deep = [stack for stack in stacks if stack.frames and stack.frames[0].function == "down"]
    assert [len(stack.frames) for stack in deep] == [96]
    assert deep[0].is_cut


@pytest.mark.parametrize("name", ["größe", "模型", "𝔪odel"])
def test_names_of_every_width_are_read(tmp_path: Path, name: str) -> None:
    code = f"import os\ndef f{name}(): os.dup(0)\nexec(compile('f{name}()', '<{name}>', 'exec'))\n"
    recording, _ = run([sys.executable, "-c", code], tmp_path, extra={"PYTHONUTF8": "1"})
    image = recording.image()
    births = as_array(image.events, action=BIRTH)
    found = [frames[:2] for frames in (recording.frames(image, event) for event in births) if len(frames) > 1]
    plain = eval(f"(lambda f{name}: 0).__code__.co_varnames[0]")  # as Python normalises identifiers
    assert [(inner.function, outer.file) for inner, outer in found if inner.function == plain] == [(plain, f"<{name}>")]


@pytest.mark.needs("gcc")
@pytest.mark.parametrize(
    ("version", "free_threaded", "is_known"),
    [(0x030E00F0, 0, True), (0x030E00F0, 1, False), (0x030F00F0, 0, False)],
)
def test_frames_as_python_314_keeps_them(tmp_path: Path, version: int, free_threaded: int, is_known: bool) -> None:
    """Free-threaded builds and versions that are not known are recorded without stacks."""
    program = tmp_path / "fake_python"
    define = [f"-DVERSION={version}", f"-DFREE_THREADED={free_threaded}"]
    source = Path(__file__).with_name("fake_python.c")
    subprocess.run(["gcc", "-rdynamic", *define, "-o", program, source], check=True, timeout=60)
    recording, _ = run([program], tmp_path / "logs")
    image = recording.image()
    assert image.header.has_python_stacks == is_known
    [birth] = as_array(image.events, action=BIRTH)
    expected = [("fake.py", 15, "inner"), ("fake.py", 21, "outer")] if is_known else []
    assert [tuple(frame) for frame in recording.frames(image, birth)] == expected


def test_a_file_name_may_be_an_instance_of_a_subclass_of_str(tmp_path: Path) -> None:
    code = "import os\nclass Name(str): pass\nexec(compile('os.dup(0)', Name('<a name ' + 'x' * 900 + '>'), 'exec'))\n"
    for number, python in enumerate(interpreters().values()):
        recording, _ = run([python, "-c", code], tmp_path / str(number))
        image = recording.image()
        births = as_array(image.events, action=BIRTH)
        files = {frames[0].file for event in births if (frames := recording.frames(image, event))}
        assert "<a name " + "x" * 900 + ">" in files
