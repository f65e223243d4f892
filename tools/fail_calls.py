"""Makes every system call of writing a part fail once, each in its own process, and checks what is there afterwards.

    python tools/fail_calls.py                    # parts of both formats, four errors each: minutes
    python tools/fail_calls.py --kind hdf5 --error EIO --calls openat,fsync --json
    python tools/fail_calls.py --kind consolidate-tfrecord --error EIO

strace attaches to a forked child, makes its Nth call of one name fail without executing it, and records all calls.
What the child reports must match what a new process finds:

committed  all rows are there and verified, and the trace shows that data, record and folder were synced
refused    an exception; nothing is visible, and a second attempt commits
in doubt   an exception that says that the part is committed and may not be durable; all rows are there

Exits with 1 on any other outcome.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import holdfast as hold
from holdfast.data.loader.dataset import read
from holdfast.data.writer.dataset_writer import DatasetWriter, write

# Calls that fail when a disk or a file system fails or the descriptor table is full.
CALLS = (
    "access,close,creat,dup,dup2,dup3,fallocate,fcntl,fdatasync,flock,fstat,fsync,ftruncate,getdents64,ioctl,link,linkat,"
    "lseek,lstat,memfd_create,mkdir,mkdirat,newfstatat,open,openat,pread64,preadv,preadv2,pwrite64,read,rename,renameat,"
    "renameat2,rmdir,stat,statx,unlink,unlinkat,write,writev"
)
ERRORS = ("EIO", "ENOSPC", "EMFILE", "EINTR")
MADE = {"consolidate-hdf5": "one.h5", "consolidate-tfrecord": "one.tfrecord"}  # the others make a part
KINDS = ("hdf5", "tfrecord", *MADE)
SCHEMA = {"x": hold.Int64(), "tags": hold.Ragged(hold.Bytes())}
ROWS = 40
HANG_S = 60.0

_CALL = re.compile(r"^(?P<tid>\d+) +(?P<text>(?P<name>\w+)\(.*)$")


class Call(NamedTuple):
    """A system call of a trace. `number` counts the calls of this name in its thread, from 1."""

    tid: int
    name: str
    number: int
    text: str

    @property
    def injected(self) -> bool:
        return "(INJECTED)" in self.text

    def __str__(self) -> str:
        return re.sub(r"/[^\"<]*/case-[^/>]*/?|\w+-\d+-[0-9a-f]{12}/?", "", self.text)


def calls_in(trace: Path) -> list[Call]:
    """Returns all calls in the order in which they started."""
    counts: Counter[tuple[int, str]] = Counter()
    found: list[Call] = []
    for line in trace.read_text(errors="replace").splitlines():
        match = _CALL.match(line)
        if match:
            tid, name = int(match["tid"]), match["name"]
            counts[tid, name] += 1
            found.append(Call(tid, name, counts[tid, name], match["text"]))
        elif " resumed>" in line:  # the end of a call that another thread interrupted
            tid = int(line.split()[0])
            last = max(at for at, call in enumerate(found) if call.tid == tid)
            begun = found[last].text.removesuffix(" <unfinished ...>")
            found[last] = found[last]._replace(text=begun + line.partition(" resumed>")[2])
    return found


# ---- processes


def run_forked(work: Callable[[], Any], trace: Path | None = None, inject: str | None = None) -> Any:
    """Returns the result of the work in a forked child. With a trace, strace attaches before it starts."""
    ours, theirs = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    pid = os.fork()
    if pid == 0:
        signal.sigwait([signal.SIGUSR1])
        _report(theirs, work)
    os.close(theirs)
    strace = _attach(pid, trace, inject) if trace else None
    os.kill(pid, signal.SIGUSR1)
    with open(ours, "rb") as file:
        data = file.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if strace:
        strace.communicate(timeout=HANG_S)
    return json.loads(data) if data else {"error": f"the process ended with {code}"}


def _report(fd: int, work: Callable[[], Any]) -> None:
    """Sends the result, in the child, which ends here."""
    try:
        data = json.dumps(work()).encode()
    except BaseException as error:  # noqa: BLE001 - a child must never return into its parent's code
        data = json.dumps({"error": f"{type(error).__name__}: {error}"}).encode()
    for _ in range(2):  # this call may be the one that fails
        with suppress(OSError):
            os.write(fd, data)
            break
    os._exit(0)


def _attach(pid: int, trace: Path, inject: str | None) -> subprocess.Popen[str]:
    command = ["strace", "-f", "-y", "-s", "300", "-o", str(trace), "-p", str(pid), "-e", f"trace={CALLS}"]
    strace = subprocess.Popen([*command, *(["-e", f"inject={inject}"] if inject else [])], stderr=-1, text=True)
    assert strace.stderr is not None
    first = strace.stderr.readline()
    if "attached" not in first:
        raise SystemExit(f"cannot trace: {first}")
    return strace


# ---- the work, and the check


def do(folder: Path, kind: str, one_thread: bool = False) -> int:
    """Does the work whose calls fail; returns how many rows it reports as committed. With `one_thread`, the Nth call
    is one call, and not one of each thread."""
    if one_thread:
        threading.Thread.start = _no_thread  # type: ignore[method-assign]
    out = write(folder / "run")
    made = MADE.get(kind)
    return put(out, kind) if made is None else out.consolidate(folder / made, overwrite=True).rows


def put(out: DatasetWriter, kind: Any) -> int:
    with out.part("t", kind) as part:
        if not part.done:
            for row in range(ROWS):
                part.append(x=row * 7, tags=[b"tag"] * (row % 3))
    return part.rows


def _no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def check(folder: Path, kind: str) -> Any:
    """Returns what a reader finds, what another attempt reports, what a reader finds then, and what else is left."""
    out = write(folder / "run")
    before = rows(out, folder, kind)
    again = do(folder, kind)
    report = out.verify()
    left = report.leftovers + os.listdir(folder / "run" / "tmp")
    left += [name for name in os.listdir(folder) if name not in ("run", "trace", MADE.get(kind))]
    return {"before": before, "again": again, "after": rows(out, folder, kind), "ok": report.ok, "left": left}


def rows(out: DatasetWriter, folder: Path, kind: str) -> list[list[int]]:
    made = MADE.get(kind)
    if not (folder / made).exists() if made is not None else not out.parts():
        return []
    found: list[list[int]] = []
    for batch in read(str(folder / (made or "run")), SCHEMA).batch(16):
        found += [[int(x), len(tags)] for x, tags in zip(batch["x"], batch["tags"], strict=True)]
    return found


def synced(calls: list[Call]) -> set[str]:
    """Returns what was synced to disk, without the names that differ each time."""
    pattern = re.compile(r"^f(?:data)?sync\(\d+<(.*)>\) += 0$")
    found = [match[1] for call in calls if (match := pattern.match(call.text))]
    return {re.sub(r"^.*/case-[^/]*(?:/run/tmp/[^/]+/)?", "", path) for path in found}


# ---- the sweep


class Case(NamedTuple):
    kind: str
    name: str
    number: int
    error: str
    one_thread: bool


class Result(NamedTuple):
    case: Case
    outcome: str  # "committed", "refused", "in doubt", or what is wrong
    failed: list[Call]
    said: Any


ALL_ROWS = [[row * 7, row % 3] for row in range(ROWS)]


def make(parent: Path, kind: str) -> Path:
    """Makes a folder with a dataset directory and what the work needs."""
    folder = Path(tempfile.mkdtemp(prefix="case-", dir=parent))
    out = write(folder / "run", SCHEMA)
    if kind in MADE:
        put(out, kind.removeprefix("consolidate-"))
    return folder


def recorded(parent: Path, kind: str, one_thread: bool) -> list[Call]:
    folder = make(parent, kind)
    said = run_forked(lambda: do(folder, kind, one_thread), folder / "trace")
    assert said == ROWS, said
    return calls_in(folder / "trace")


def cases(calls: list[Call], kind: str, names: set[str], errors: list[str], one_thread: bool) -> list[Case]:
    """With one thread, every call; with several, the calls of the other threads, each with the first one's Nth."""
    first = calls[0].tid
    work = [call for call in calls if call.name in names and "<pipe:" not in call.text]
    picked = [call for call in work if one_thread or call.tid != first]
    numbers = sorted({(call.name, call.number) for call in picked})
    return [Case(kind, name, number, error, one_thread) for name, number in numbers for error in errors]


def run_case(parent: Path, case: Case, expected: set[str]) -> Result:
    folder = make(parent, case.kind)
    inject = f"{case.name}:error={case.error}:when={case.number}"
    said = run_forked(lambda: do(folder, case.kind, case.one_thread), folder / "trace", inject)
    calls = calls_in(folder / "trace")
    found = run_forked(lambda: check(folder, case.kind))
    failed = [call for call in calls if call.injected]
    return Result(case, _outcome(said, found, failed, expected - synced(calls)), failed, said)


def _outcome(said: Any, found: Any, failed: list[Call], unsynced: set[str]) -> str:
    if not failed:
        return "WRONG: no call failed"
    if "error" in found:
        return f"WRONG: a new process fails: {found['error']}"
    if not found["ok"] or found["after"] != ALL_ROWS or found["left"]:
        return f"WRONG: a second attempt ends with {found}"
    if said == ROWS:
        if found["before"] != ALL_ROWS:
            return f"WRONG: it was committed, but a reader finds {len(found['before'])} rows"
        return f"WRONG: it was committed without a sync of {sorted(unsynced)}" if unsynced else "committed"
    if found["before"] == ALL_ROWS:
        return "in doubt" if "may not be durable" in said["error"] else f"WRONG: they are there, but it reported {said}"
    if found["before"]:
        return f"WRONG: a reader finds {len(found['before'])} rows"
    return "refused" if "Error: " in said["error"] else f"WRONG: it reported {said}"


def sweep(kind: str, names: set[str], errors: list[str]) -> list[Result]:
    results = []
    with tempfile.TemporaryDirectory() as parent:
        for one_thread in (True, False):
            calls = recorded(Path(parent), kind, one_thread)
            expected = synced(calls)
            for case in cases(calls, kind, names, errors, one_thread):
                results.append(run_case(Path(parent), case, expected))
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", action="append", choices=KINDS, help="may be repeated [default: hdf5 and tfrecord]")
    parser.add_argument("--error", action="append", choices=ERRORS)
    parser.add_argument("--calls", default=CALLS, help="comma-separated names")
    parser.add_argument("--json", action="store_true", help="print every outcome with the calls that failed")
    given = parser.parse_args()
    wrong = 0
    for kind in given.kind or ["hdf5", "tfrecord"]:
        results = sweep(kind, set(given.calls.split(",")), given.error or list(ERRORS))
        counts = Counter(result.outcome.partition(":")[0] for result in results)
        wrong += counts["WRONG"]
        if given.json:
            found = [{"outcome": one.outcome, "failed": [*map(str, one.failed)], "said": one.said} for one in results]
            print(json.dumps({"kind": kind, "results": found}))
            continue
        print(f"{kind}: {len(results):,} failures: {', '.join(f'{n:,} {what}' for what, n in sorted(counts.items()))}")
        for one in results:
            if one.outcome.startswith("WRONG"):
                print(f"  {one.outcome}: {'; '.join(map(str, one.failed))}; it reported {one.said}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
