"""The heartbeat page: what is stored is read again, and no strange file is taken for a page."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.process.guard import heartbeat
from holdfast.process.guard.heartbeat import (
    PAGE_BYTES,
    RING,
    GuardState,
    Heartbeat,
    HeartbeatPage,
    parse_heartbeat,
    read_heartbeat,
    remove_stale_pages,
)
from holdfast.process.guard.process_files import page_dirs
from python_child import python, run_forked

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts a file system, makes files of other users")


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the pages of this test."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "holdfast"


@pytest.fixture
def page(runtime: Path) -> Iterator[HeartbeatPage]:
    made = HeartbeatPage("worker")
    yield made
    made.close()


def parsed(page: HeartbeatPage) -> Heartbeat:
    found = parse_heartbeat(page.copy())
    assert found is not None
    return found


# ---- layout ------------------------------------------------------------------------------------------------


def test_every_number_and_text_is_read_as_it_was_stored(page: HeartbeatPage) -> None:
    numbers = {name: 1000 + at for at, name in enumerate(heartbeat._NUMBERS) if name not in ("magic", "state")}
    page.set(**numbers, state=GuardState.DRAINING)
    for name in heartbeat._TEXTS:
        page.set_text(name, f"the {name}")
    found = parsed(page)
    assert {name: getattr(found, name) for name in numbers} == numbers
    assert {name: getattr(found, name) for name in heartbeat._TEXTS} == {
        name: f"the {name}" for name in heartbeat._TEXTS
    }
    assert found.state is GuardState.DRAINING
    assert all(page.get(name) == value for name, value in numbers.items())
    assert set(Heartbeat.__dataclass_fields__) == {*heartbeat._NUMBERS, *heartbeat._TEXTS, "jobs"} - {"magic"}


def test_the_parts_of_the_page_do_not_overlap() -> None:
    parts = [(0, 8 * len(heartbeat._NUMBERS)), *heartbeat._TEXTS.values(), (heartbeat._RING_AT * 8, RING * 8)]
    ends = sorted((start, start + size) for start, size in parts)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))
    assert ends[-1][1] == PAGE_BYTES
    assert RING == 256


def test_a_new_page(page: HeartbeatPage) -> None:
    found = read_heartbeat(os.getpid())
    assert found is not None
    assert found == parsed(page)
    assert (found.pid, found.name, found.state, found.jobs) == (os.getpid(), "worker", GuardState.STARTING, ())
    assert found.started_ns == found.alive_ns > 0
    assert found.identity == heartbeat.Identity(os.getpid(), found.start_ticks)
    assert (found.ok_ns, found.step_ns, found.fails, found.reason) == (0, 0, 0, "")


def test_the_file_is_private_and_removed(page: HeartbeatPage, runtime: Path) -> None:
    assert page.path is not None
    assert page.path.parent == runtime
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
    assert stat.S_IMODE(page.path.stat().st_mode) == 0o600
    assert page.path.stat().st_size == page.path.stat().st_blocks * 512 == PAGE_BYTES  # not sparse
    path = page.path
    page.close()
    assert not path.exists()
    assert read_heartbeat(os.getpid()) is None
    page.set(ok_ns=5)  # ignored
    page.add_job(1, 1)
    page.close()


def test_numbers_beyond_64_bits_wrap_instead_of_raising(page: HeartbeatPage) -> None:
    page.set(fails=-1, fds=1 << 64, ok_ns=(1 << 64) + 5)
    assert (parsed(page).fails, parsed(page).fds, parsed(page).ok_ns) == ((1 << 64) - 1, 0, 5)


def test_the_last_256_jobs_are_kept_in_order(page: HeartbeatPage) -> None:
    for number in range(1, 1001):
        page.add_job(number, number * 2)
    assert parsed(page).jobs == tuple((number, number * 2) for number in range(745, 1001))
    page.add_job(1001, 1 << 40)  # more than fits
    assert parsed(page).jobs[-1] == (1001, 0xFFFFFFFF)
    assert len(parsed(page).jobs) == RING


@pytest.mark.parametrize("name", heartbeat._TEXTS)
@pytest.mark.parametrize("sign", ["x", "é", "日", "😀"])
def test_a_long_text_is_cut_between_two_characters(page: HeartbeatPage, name: str, sign: str) -> None:
    start, room = heartbeat._TEXTS[name]
    before = page.copy()
    for shift in range(4):
        page.set_text(name, "a" * shift + sign * room)
        text = getattr(parsed(page), name)
        assert text == "a" * shift + sign * ((room - 1 - shift) // len(sign.encode()))
    after = page.copy()
    assert (after[:start], after[start + room :]) == (before[:start], before[start + room :])
    page.set_text(name, "short")
    assert getattr(parsed(page), name) == "short"


def test_texts_that_are_not_utf8(page: HeartbeatPage) -> None:
    page.set_text("job", "a\udcffb\ud800")
    assert parsed(page).job == "a?b?"
    page.set_text("job", "a\0b")
    assert parsed(page).job == "a"
    page.set_text("job", "")
    assert parsed(page).job == ""


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * PAGE_BYTES,
        b"\xff" * PAGE_BYTES,
        os.urandom(PAGE_BYTES),
        b"x" * (PAGE_BYTES - 1),
        b"x" * (PAGE_BYTES + 1),
    ],
)
def test_what_is_no_page_is_not_parsed(data: bytes) -> None:
    assert parse_heartbeat(data) is None


def test_a_page_with_wild_contents_is_parsed_or_refused(page: HeartbeatPage) -> None:
    good = page.copy()
    for at in range(8, PAGE_BYTES, 8):  # after the magic number
        found = parse_heartbeat(good[:at] + b"\xff" * 8 + good[at + 8 :])
        assert (found is None) == (at == 8 * heartbeat.AT["state"])
    everything = good[:24] + struct.pack("<Q", GuardState.RUNNING) + b"\xff" * (PAGE_BYTES - 32)
    found = parse_heartbeat(everything)
    assert found is not None
    assert len(found.jobs) == 1  # 256 times the same job, of which one is at its place
    assert set(found.name) == {"\ufffd"}
    assert parse_heartbeat(b"\0" * 8 + good[8:]) is None  # not valid yet


# ---- strange files in its place ----------------------------------------------------------------------------


def path_of(page: HeartbeatPage) -> Path:
    assert page.path is not None
    return page.path


def test_files_that_are_no_page(page: HeartbeatPage, tmp_path: Path) -> None:
    path, good = path_of(page), page.copy()
    assert read_heartbeat(os.getpid()) is not None
    for data in (b"", good[:-1], good + b"x", b"\0" * PAGE_BYTES):
        path.unlink()
        path.write_bytes(data)
        assert read_heartbeat(os.getpid()) is None
    path.unlink()
    assert read_heartbeat(os.getpid()) is None
    os.mkfifo(path)  # opening it for reading would wait for a writer
    assert read_heartbeat(os.getpid()) is None
    path.unlink()
    (tmp_path / "elsewhere").write_bytes(good)
    path.symlink_to(tmp_path / "elsewhere")
    assert read_heartbeat(os.getpid()) is None
    path.unlink()
    path.mkdir()
    assert read_heartbeat(os.getpid()) is None
    path.rmdir()
    path.write_bytes(good)
    assert read_heartbeat(os.getpid()) is not None


def test_the_page_of_another_process_under_this_name(page: HeartbeatPage) -> None:
    page.set(pid=1)
    assert read_heartbeat(os.getpid()) is None
    page.set(pid=os.getpid(), start_ticks=1)  # an earlier process with this pid
    assert read_heartbeat(os.getpid()) is None


@AS_ROOT
def test_a_page_that_belongs_to_another_user(page: HeartbeatPage) -> None:
    os.chown(path_of(page), 12345, 12345)
    assert read_heartbeat(os.getpid()) is None


AS_USER = """
import os, sys
from holdfast.process.guard.heartbeat import HeartbeatPage
os.setgroups([]); os.setresgid(12345, 12345, 12345); os.setresuid(12345, 12345, 12345)
del os.environ["XDG_RUNTIME_DIR"]
page = HeartbeatPage("theirs")
assert not page.problem, page.problem
print("ready", flush=True)
sys.stdin.read()
page.close()
"""


@AS_ROOT
def test_root_reads_the_page_of_a_user() -> None:
    folder = Path("/tmp/holdfast-12345")
    assert folder in page_dirs(12345)
    with python(AS_USER) as child:
        found = read_heartbeat(child.pid)
        assert found is not None
        assert found.name == "theirs"
        assert os.listdir(folder) == [f"{child.pid}-{found.start_ticks}.heartbeat"]
    assert os.listdir(folder) == []
    folder.rmdir()


def test_processes_without_a_page() -> None:
    assert read_heartbeat(os.getpid()) is None
    assert read_heartbeat(1 << 22) is None


# ---- where it cannot be made -------------------------------------------------------------------------------


def usable_but_hidden(page: HeartbeatPage) -> str:
    """Checks that the process can use its page though nobody sees it; returns why."""
    page.set(ok_ns=7)
    page.set_text("job", "one")
    assert (page.get("ok_ns"), parsed(page).job) == (7, "one")
    assert page.path is None
    assert read_heartbeat(os.getpid()) is None
    page.close()
    return page.problem


def only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "socket_dirs", lambda: [folder])


def test_a_folder_that_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    only(tmp_path / "file", monkeypatch)
    assert "expected" in usable_but_hidden(HeartbeatPage())
    only(tmp_path / "file" / "holdfast", monkeypatch)
    assert "Not a directory" in usable_but_hidden(HeartbeatPage())
    only(tmp_path / "not" / "there", monkeypatch)
    assert "No such file" in usable_but_hidden(HeartbeatPage())


@AS_ROOT
def test_a_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs").mkdir(0o777)
    os.chown(tmp_path / "theirs", 12345, 12345)
    only(tmp_path / "theirs", monkeypatch)
    assert "to be a folder of user 0, got one of 12345" in usable_but_hidden(HeartbeatPage())


def test_the_limit_of_file_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (PAGE_BYTES - 1, limits[1]))
    try:
        page = HeartbeatPage()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.strerror(errno.EFBIG) in usable_but_hidden(page)


FULL = """
import os, sys
from pathlib import Path
from holdfast.process.guard import heartbeat
small, other = Path(sys.argv[1]), Path(sys.argv[2])
with open(small / "filler", "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError:
        pass
for dirs in ([small / "holdfast"], [small / "holdfast", other / "holdfast"]):
    heartbeat.socket_dirs = lambda: dirs
    page = heartbeat.HeartbeatPage("full")
    page.set(ok_ns=5)  # a store into a sparse page would end the process with SIGBUS
    print(page.path, page.problem, sorted(os.listdir(dirs[0])))
    page.close()
"""


@AS_ROOT
@pytest.mark.needs("unshare", "mount")
def test_a_full_disk(tmp_path: Path) -> None:
    """The page is made in another folder, or not visible; a store never ends the process with SIGBUS."""
    small, other = tmp_path / "small", tmp_path / "other"
    small.mkdir(), other.mkdir()
    script = f'mount -t tmpfs -o size=16k none {small} && exec {sys.executable} -c "$0" {small} {other}'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, FULL], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    alone, beside = done.stdout.splitlines()
    assert alone.startswith("None [Errno 28] No space left on device")
    assert alone.endswith("[]")
    assert beside.startswith(f"{other}/holdfast/")
    assert beside.endswith(".heartbeat  []")


READ_ONLY = """
import os, sys
from pathlib import Path
from holdfast.process.guard import heartbeat
heartbeat.socket_dirs = lambda: [Path(one, "holdfast") for one in sys.argv[1:]]
page = heartbeat.HeartbeatPage()
print(page.path)
page.close()
"""


@AS_ROOT
@pytest.mark.needs("unshare", "mount")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    closed, other = tmp_path / "closed", tmp_path / "other"
    (closed / "holdfast").mkdir(mode=0o700, parents=True), other.mkdir()
    script = f'mount --bind -o ro {closed} {closed} && exec {sys.executable} -c "$0" {closed} {other}'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, READ_ONLY], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.startswith(f"{other}/holdfast/"), done


# ---- stale pages -------------------------------------------------------------------------------------------


def make_page(folder: Path, page: HeartbeatPage, pid: int, ticks: int, **changes: int) -> Path:
    data = bytearray(page.copy())
    for name, value in {"pid": pid, "start_ticks": ticks, **changes}.items():
        struct.pack_into("<Q", data, 8 * heartbeat.AT[name], value)
    path = folder / f"{pid}-{ticks}.heartbeat"
    path.write_bytes(data)
    return path


def test_pages_of_ended_processes_are_removed(
    page: HeartbeatPage, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = parsed(page)
    now = own.alive_ns + 3601 * 10**9
    monkeypatch.setattr("holdfast.process.guard.heartbeat.time.monotonic_ns", lambda: now)
    unused = 1 << 22
    old = make_page(runtime, page, unused, 5)
    reused = make_page(runtime, page, os.getpid(), own.start_ticks - 1)
    before_the_boot = make_page(runtime, page, unused + 1, 5, alive_ns=now + 10**15)
    elsewhere = make_page(runtime, page, unused + 2, 5, alive_ns=now)  # it beats: in another pid namespace
    empty = runtime / f"{unused + 3}-5.heartbeat"
    empty.touch()
    others = [runtime / name for name in ("notes.txt", "1-2.sock", "x-1.heartbeat", "1-2.heartbeat.bak", "9.heartbeat")]
    for other in others:
        other.touch()
    remove_stale_pages(runtime)
    assert not any(path.exists() for path in (old, reused, before_the_boot, empty))
    assert all(path.exists() for path in (path_of(page), elsewhere, *others))


def test_a_page_left_by_an_earlier_guard_of_this_process_is_replaced(runtime: Path) -> None:
    first = HeartbeatPage("first")
    path = path_of(first)
    second = HeartbeatPage("second")
    assert path_of(second) == path
    first.set(ok_ns=5)
    assert parsed(second).ok_ns == 0
    first.detach()
    found = read_heartbeat(os.getpid())
    assert found is not None
    assert found.name == "second"
    second.close()


def test_a_page_that_links_elsewhere_is_not_written_through(runtime: Path, tmp_path: Path) -> None:
    first = HeartbeatPage()
    path = path_of(first)
    first.close()
    target = tmp_path / "precious"
    target.write_text("data")
    path.symlink_to(target)
    page = HeartbeatPage()
    assert target.read_text() == "data"
    assert not path.is_symlink()
    assert path.exists()
    page.close()


# ---- after a fork ------------------------------------------------------------------------------------------


def test_a_child_that_detaches_leaves_the_page_alone(page: HeartbeatPage) -> None:
    page.set(fails=1)

    def child() -> None:
        page.detach()
        page.set(fails=2)
        page.set_text("name", "child")
        page.close()

    assert run_forked(child) == 0
    assert (page.get("fails"), parsed(page).name) == (1, "worker")
    assert path_of(page).exists()


def test_it_takes_one_descriptor(runtime: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    page = HeartbeatPage()
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1  # mmap keeps a copy of it before Python 3.13
    page.close()
    assert set(os.listdir("/proc/self/fd")) == before
