"""Loads the tracing library into a process of Python 3.14 or later: `sys.remote_exec` has it run a script."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from .collector import is_alive
from .recording import LIBRARY, TraceOptions

_CALL_S = 10.0
_STEP_S = 0.005
_INSTALL_GDB = "install gdb (apt install gdb)"
_MAPPED = re.compile(r"/(?:lib)?python3\.(\d+)(t?)d?(?:\.so[.\d]*)?$", re.MULTILINE)
_CALL = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])"
# The answer is where a symbolic link points to, because a file would take a descriptor, which would be recorded.
_SCRIPT = """\
def load():
    import os
    try:
        import ctypes
        answer = str(ctypes.CDLL({library!r}).hf_trace_attach({folder!r}, {bits}, {arm_above}))
    except Exception as error:
        answer = f"the process cannot load the tracing library: {{error}}"
    try:
        os.symlink(answer[:2000], {answer!r})
    except OSError:
        pass  # nobody waits for it any more
load()
"""


def find_interpreter(pid: int, maps: str) -> str | None:
    """Return the Python to call `sys.remote_exec` with, or None if the process has no Python 3.14 or later."""
    found = {(int(minor), free_threaded) for minor, free_threaded in _MAPPED.findall(maps)}
    if len(found) != 1 or min(found)[0] < 14:
        return None
    if found == {(sys.version_info[1], "t" if "t" in sys.abiflags else "")}:
        return sys.executable
    # It must be the same version of Python. A program of another user is not run with the rights of this one.
    is_python = re.match(r"python[\d.]*t?d?$", os.path.basename(os.readlink(f"/proc/{pid}/exe")))
    return f"/proc/{pid}/exe" if is_python and os.stat(f"/proc/{pid}").st_uid == os.geteuid() else None


def load(pid: int, interpreter: str, private: Path, folder: Path, options: TraceOptions, wait_s: float) -> str:
    """Load and start the library. Returns what failed, or nothing; a refusal of the kernel is a PermissionError.

    Only this user can write to `private`, where the script is; the process writes to `folder`.
    """
    script, answer = private / "attach.py", folder / "attach.answer"
    facts = {"library": str(LIBRARY), "folder": os.fsencode(folder), "answer": os.fspath(answer)}
    script.write_text(_SCRIPT.format(**facts, bits=options.bits(), arm_above=options.arm_above))
    script.chmod(0o644)
    failure = _remote_exec(interpreter, pid, script)
    if failure:
        return failure
    end = time.monotonic() + wait_s
    try:
        while not answer.is_symlink() and is_alive(pid) and time.monotonic() < end:
            time.sleep(_STEP_S)
    finally:
        if not answer.is_symlink():
            _remote_exec(interpreter, pid, Path(os.devnull))  # instead of the script, which is about to be removed
    if not answer.is_symlink():
        if not is_alive(pid):
            return "the process has ended"
        return f"its main thread ran no Python code for {wait_s:.0f} s; {_INSTALL_GDB}, or try again later"
    said = os.readlink(answer)
    if not said.isdigit():
        return said
    error = int(said)
    if error == errno.EBUSY:
        return "the process is traced already"
    return f"the process cannot write its log: {os.strerror(error)}" if error else ""


def _remote_exec(interpreter: str, pid: int, script: Path) -> str:
    try:
        done = subprocess.run(
            [interpreter, "-ISc", _CALL, str(pid), str(script)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_CALL_S,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"its Python cannot be run: {error}"
    if done.returncode == 0:
        return ""
    if "PermissionError: " in done.stderr:
        raise PermissionError
    if "not enabled in the remote process" in done.stderr:
        return f"it was started with PYTHON_DISABLE_REMOTE_DEBUG or -X disable-remote-debug; {_INSTALL_GDB}"
    return (done.stderr.strip().splitlines() or [f"its Python ended with {done.returncode}"])[-1]
