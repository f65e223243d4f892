"""Every hooked call, from C and from Python: its events, and that it returns what it returns without the library."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.process.fdtrace.image import Image
from holdfast.process.fdtrace.log_format import BAD, BIRTH, CLOSE, EBADF, KINDS
from traced_process import Recording, as_array, needs_library, run

pytestmark = needs_library

HERE = Path(__file__).parent
HOOKS = Path(__file__).parents[4] / "native" / "fdtrace" / "hooks.def"
# subprocess calls vfork and execve, in other tests
STARTS = "execve execv execvp execvpe fexecve execveat execl execlp execle posix_spawn posix_spawnp system"
NOT_FROM_PYTHON = {"_Exit", "clone", "vfork", *STARTS.split()}


def _events(image: Image, recording: Recording, caller: str = "") -> list[str]:
    """Return the events of an image as the programs print them; with `caller`, those below its frames."""
    found = []
    for event in as_array(image.events):
        line = ""
        if caller:
            frames = recording.frames(image, event)
            functions = [frame.function for frame in frames]
            if caller not in functions:
                continue
            line = f" {frames[functions.index(caller) - 1].line}"
        if event["action"] == BIRTH:
            found.append(f"+ {event['fd']} {KINDS[event['kind']]}{line}")
        elif event["action"] == CLOSE:
            found.append(f"- {event['fd']}")
        elif event["action"] == BAD:
            found.append(f"! {event['fd']} {image.header.calls[event['aux']]}")
    return found


@pytest.mark.needs("gcc")
def test_calls_of_a_c_program_are_recorded_and_unchanged(tmp_path: Path) -> None:
    program, logs = tmp_path / "every_call", tmp_path / "logs"
    subprocess.run(["gcc", "-O1", "-w", "-o", program, HERE / "every_call.c"], check=True, timeout=60)
    (tmp_path / "work").mkdir()
    alone = subprocess.run([program, tmp_path / "work"], capture_output=True, text=True, check=True, timeout=60).stdout
    recording, output = run([program, tmp_path / "work"], logs, options=EBADF)
    assert output == alone
    image = min(recording.images.values(), key=lambda image: image.header.start_ns)
    assert _events(image, recording) == [line for line in output.splitlines() if line[0] in "+-!"]
    counts = image.header.counts
    assert not counts["close_unseen"] | counts["birth_unseen"] | counts["reentrant"] | counts["lost_stacks"]
    assert all(as_array(image.events, action=BIRTH)["stack"])  # the address of the caller
    assert image.header.end_kind == 1
    others = [other.header.end_kind for other in recording.images.values() if other is not image]
    assert others == [2] * 4  # the shells of popen and system, and the children that call _exit and _Exit
    assert not list(logs.glob("exec.*.*"))  # nothing was started that has no log


def test_calls_of_a_python_program_are_recorded_at_their_line(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    recording, output = run(
        [sys.executable, HERE / "every_call_child.py", tmp_path / "work"], tmp_path / "logs", options=EBADF
    )
    expected = output.splitlines()
    image = min(recording.images.values(), key=lambda image: image.header.start_ns)
    got = _events(image, recording, "perform")
    assert got == [line for line in expected if line[0] in "+-!"]


def test_the_two_programs_call_every_hook() -> None:
    names = re.findall(r"(?:HOOK|WATCH)\((\w+)\)", HOOKS.read_text())
    assert len(names) > 100
    for program in ("every_call.c", "every_call_child.py"):
        text = (HERE / program).read_text()
        missing = [name for name in names if not re.search(rf"\b{name}\b", text)]
        assert set(missing) <= (NOT_FROM_PYTHON if program.endswith("py") else set()), program
