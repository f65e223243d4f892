from __future__ import annotations

import contextlib
import errno
import io
import multiprocessing
import os
import pathlib
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from holdfast._util.process import call_after_fork
from holdfast.data import h5py_guard
from holdfast.data.formats.hdf5.writer import HDF5Writer
from holdfast.data.h5py_guard import ExistingFileError, HeldFileError, UnlockedWriteError, protect_h5py
from holdfast.errors import ForkedWriterError, TargetExistsError, WriteError, WriterBusyError
from holdfast.schema import Int64
from python_child import TIMEOUT_S, python, run_forked

HOLDS = """
import sys
import h5py
with h5py.File(sys.argv[1], sys.argv[2], locking={"on": None, "off": False}[sys.argv[3]]) as file:
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = h5py.File.__init__
    yield
    assert h5py.File.__init__ is before


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A good file of 100 rows."""
    made = tmp_path / "run.h5"
    with h5py.File(made, "w") as file:
        file["x"] = np.arange(100)
    return made


def is_whole(path: Path) -> bool:
    with h5py.File(path, "r") as file:
        return bool((file["x"][:] == np.arange(100)).all())


# ---- mode w


def test_mode_w_does_not_empty_a_file(path: Path) -> None:
    with protect_h5py():
        with pytest.raises(ExistingFileError) as caught:
            h5py.File(path, "w")
        assert isinstance(caught.value, TargetExistsError)
        assert isinstance(caught.value, FileExistsError)
        assert "mode 'x'" in str(caught.value)
        assert is_whole(path)


def test_mode_w_is_for_new_and_for_empty_files(tmp_path: Path) -> None:
    (tmp_path / "empty.h5").touch()
    with protect_h5py():
        for name in ("empty.h5", "new.h5"):
            with h5py.File(tmp_path / name, "w") as file:
                file["x"] = 1
        with h5py.File(tmp_path / "other.h5", "x") as file:
            file["x"] = 1
        with pytest.raises(FileExistsError):
            h5py.File(tmp_path / "other.h5", "x")


def test_overwriting_can_be_allowed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with protect_h5py(overwrite=True):
        h5py.File(path, "w").close()
        with protect_h5py(), pytest.raises(TargetExistsError):  # one that forbids is enough
            h5py.File(path, "w")
    monkeypatch.setenv("HOLDFAST_H5PY_OVERWRITE", "1")
    with protect_h5py():
        h5py.File(path, "w").close()


# ---- held by others


@pytest.mark.parametrize("mode", ["w", "r+", "a"])
@pytest.mark.parametrize(
    ("theirs", "locking", "how"), [("a", "on", "locked"), ("r", "on", "locked"), ("a", "off", "writing")]
)
def test_a_file_that_another_process_holds_stays_whole(
    path: Path, mode: str, theirs: str, locking: str, how: str
) -> None:
    with python(HOLDS, path, theirs, locking) as child, protect_h5py(overwrite=True):
        before = path.read_bytes()
        with pytest.raises(HeldFileError) as caught:
            h5py.File(path, mode)
        assert isinstance(caught.value, WriterBusyError)
        assert isinstance(caught.value, BlockingIOError)
        assert caught.value.errno == errno.EAGAIN
        assert f"process {child.pid} (" in str(caught.value)
        assert how in str(caught.value)
        assert path.read_bytes() == before
    assert is_whole(path)


def test_without_the_guard_it_would_be_empty(path: Path) -> None:
    with python(HOLDS, path, "r", "on"):
        with pytest.raises(BlockingIOError):
            h5py.File(path, "w")
        assert path.stat().st_size == 0


def test_a_reader_is_reported_who_writes(path: Path) -> None:
    with python(HOLDS, path, "a", "on") as child, protect_h5py():
        with pytest.raises(HeldFileError, match=f"process {child.pid} "):
            h5py.File(path)
    assert is_whole(path)


def test_the_same_process_may_open_it_again(path: Path) -> None:
    with protect_h5py(), h5py.File(path, "a") as first, h5py.File(path, "r+") as second:
        assert first == second


def test_refusals_pickle() -> None:
    for kind, number in ((HeldFileError, 11), (ExistingFileError, 17), (UnlockedWriteError, 1)):
        error = kind(number, "why")
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.errno) == (kind, str(error), number)


# ---- locks off

FOUR = """
import sys
import h5py
from holdfast.data.h5py_guard import protect_h5py
if sys.argv[3] == "guarded":
    protect_h5py()
options = {"locking": False} if sys.argv[4] == "argument" else {}
try:
    file = h5py.File(sys.argv[1], "a", **options)
except OSError as error:
    print("ready", flush=True)
    print(type(error).__name__, flush=True)
    sys.stdin.read()
    sys.exit()
print("ready", flush=True)
sys.stdin.readline()
for row in range(50):
    file[f"{sys.argv[2]}/{row}"] = row
sys.stdin.read()
file.close()
print("wrote", flush=True)
"""


def run_four(path: Path, guarded: str, how: str) -> list[str]:
    """All have it open before any of them writes, and they close it one after another."""
    env = {"HDF5_USE_FILE_LOCKING": "FALSE"} if how == "variable" else {}
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(python(FOUR, path, number, guarded, how, **env)) for number in range(4)]
        for child in children:
            child.stdin.write("write\n")
            child.stdin.flush()
        said = []
        for child in children:
            child.stdin.close()  # now it closes its file
            said.append(child.stdout.read().strip())
    return said


@pytest.mark.parametrize("how", ["argument", "variable"])
def test_four_writers_without_locks_are_refused(path: Path, how: str) -> None:
    assert run_four(path, "guarded", how) == ["UnlockedWriteError"] * 4
    assert is_whole(path)


def test_what_they_would_have_done(path: Path) -> None:
    """No error in any of them, and the data of one."""
    assert run_four(path, "not guarded", "argument") == ["wrote"] * 4
    with h5py.File(path) as file:
        assert sum(len(file[name]) for name in "0123" if name in file) < 4 * 50


def test_the_words_about_locks(path: Path) -> None:
    with protect_h5py(), pytest.raises(UnlockedWriteError, match=r"FALSE or locking=False") as caught:
        h5py.File(path, "a", locking=False)
    assert isinstance(caught.value, WriteError)


def test_without_locks_a_file_of_its_own_and_reading_are_allowed(path: Path) -> None:
    with protect_h5py():
        with h5py.File(path.with_name("new.h5"), "x", locking=False) as file:
            file["x"] = 1
        h5py.File(path, "r", locking=False).close()


# ---- over a fork


FORKS = """
import os, sys
import h5py, numpy as np
from holdfast.data.h5py_guard import protect_h5py
path, guarded, options = sys.argv[1], sys.argv[2] == "guarded", eval(sys.argv[3])
protection = protect_h5py() if guarded else None
file = h5py.File(path, "x", **options)
data = file.create_dataset("rows", (800, 4), "f4", maxshape=(None, 4), chunks=(100, 4), compression="gzip")
data[:] = 1
file.flush()
read, write = os.pipe()
pid = os.fork()
if not pid:
    os.close(write)
    os.read(read, 1)  # the parent has closed the file
    sys.exit(0)  # as programs end: HDF5 flushes what it has
os.close(read)
for turn in (1, 2, 3):
    data.resize((800 * (turn + 1), 4))
    data[800 * turn :] = turn + 1
    for name in range(10):
        file.create_group(f"group-{turn}-{name}")
file.close()
os.close(write)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
with h5py.File(path, "r") as file:
    print(len(file["rows"]), sum(name.startswith("group") for name in file), file["rows"][-1, 0])
"""


def run_fork(path: Path, guarded: str, options: str = "{}") -> str:
    command = [sys.executable, "-c", FORKS, str(path), guarded, options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    return done.stdout.strip() or done.stderr


@pytest.mark.parametrize(
    "options",
    ["{}", "{'libver': 'latest'}", "{'libver': ('v110', 'v110')}", "{'driver': 'core'}", "{'driver': 'stdio'}"],
)
def test_an_inherited_write_handle_does_not_harm_the_parents_file(tmp_path: Path, options: str) -> None:
    assert run_fork(tmp_path / "a.h5", "guarded", options) == "3200 30 4.0"


def test_what_an_inherited_handle_does_without_the_guard(tmp_path: Path) -> None:
    assert run_fork(tmp_path / "a.h5", "not guarded") != "3200 30 4.0"


def test_a_child_is_reported_whose_file_it_is(path: Path) -> None:
    parent = os.getpid()

    def child() -> None:
        with pytest.raises(ForkedWriterError, match=f"opened for writing by process {parent}"):
            file["x"]
        with pytest.raises(ForkedWriterError):
            file["new"] = 1
        with pytest.raises((ValueError, RuntimeError)):
            data[:] = 0
        with pytest.raises((ValueError, RuntimeError)):
            data[:]
        assert not file
        assert re.match(f"<HDF5 file of process {parent}", repr(file))
        assert isinstance(file, h5py.File)
        file.__exit__(None, None, None)
        file.close()
        with pytest.raises(HeldFileError, match=f"process {parent} "):
            h5py.File(path, "a")

    with protect_h5py():
        with h5py.File(path, "a") as file:
            data = file["x"]
            assert run_forked(child) == 0
            data[0] = 0
            assert file["x"][5] == 5
    assert is_whole(path)


def test_a_file_kept_open_by_a_dataset_alone_is_cut_off_too(path: Path) -> None:
    def open_data() -> Any:
        return h5py.File(path, "a")["x"]

    def child() -> None:
        with pytest.raises((ValueError, RuntimeError)):
            data[:]
        assert not writing_here(path)

    with protect_h5py():
        data = open_data()
        assert writing_here(path)
        assert run_forked(child) == 0
        assert data[7] == 7
        data.file.close()


def writing_here(path: Path) -> bool:
    return any(os.path.realpath(f"/proc/self/fd/{fd}") == str(path) for fd in os.listdir("/proc/self/fd"))


def test_the_parent_can_open_it_again_while_the_child_lives(path: Path) -> None:
    here, there = multiprocessing.Pipe()
    with protect_h5py():
        file = h5py.File(path, "a")
        child = multiprocessing.get_context("fork").Process(target=there.recv)
        child.start()
        file.close()
        with h5py.File(path, "a") as again:  # an idle child used to keep the lock
            assert len(again["x"]) == 100
        here.send(None)
        child.join(TIMEOUT_S)
        assert child.exitcode == 0
    child.close()
    here.close()
    there.close()


def test_files_open_for_reading_are_left_to_the_child(path: Path) -> None:
    def child() -> None:
        assert file["x"][99] == 99

    with protect_h5py(), h5py.File(path, "r") as file:
        assert run_forked(child) == 0


def test_a_python_file_object_is_not_read_from_in_a_child(path: Path) -> None:
    def child() -> None:
        assert not file

    with protect_h5py(), path.open("rb") as raw, h5py.File(raw, "r") as file:
        assert run_forked(child) == 0
        assert file["x"][99] == 99


class Owner:
    """As the owners of holdfast's own writers do it."""

    def __init__(self, path: Path) -> None:
        self.writer = HDF5Writer(path, {"x": Int64()})
        call_after_fork(self)

    def after_fork_in_child(self) -> None:
        self.writer.detach()


def test_holdfasts_own_writers_look_after_themselves(tmp_path: Path) -> None:
    def child() -> None:
        with open(os.devnull) as stranger:  # a number that was free would be this one's now
            owner.writer.detach()
            assert os.path.realpath(f"/proc/self/fd/{stranger.fileno()}") == os.devnull

    with protect_h5py():
        owner = Owner(tmp_path / "a.h5")
        assert run_forked(child) == 0
        assert owner.writer.finalize().rows == 0
        owner.writer.detach()
    with h5py.File(tmp_path / "a.h5") as file:
        assert "x" in file


def test_a_childs_own_children_count_too(path: Path) -> None:
    def child() -> None:
        with h5py.File(path, "a") as own:
            assert run_forked(lambda: own_is_cut(own)) == 0
            own["y"] = 1

    def own_is_cut(own: Any) -> None:
        assert not own

    with protect_h5py():
        assert run_forked(child) == 0
    with h5py.File(path) as file:
        assert file["y"][()] == 1


def test_a_fork_without_a_free_descriptor(path: Path) -> None:
    import resource

    def child() -> None:
        assert not file

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with protect_h5py(), h5py.File(path, "a") as file, contextlib.ExitStack() as stack:
        top = max(map(int, os.listdir("/proc/self/fd")))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (top + 1, hard))
        with contextlib.suppress(OSError):
            while True:
                stack.callback(os.close, os.dup(0))
        assert run_forked(child) == 0
    assert is_whole(path)


# ---- the spurious "truncated file"


def test_a_file_that_is_only_for_a_moment_truncated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HDF5 asks for the size before it locks: here the file is short at the first look and whole at the next."""
    real, looks = h5py.File.__init__, []

    def early(self: Any, *args: Any, **kwds: Any) -> None:
        looks.append(1)
        if len(looks) < 3:
            raise OSError("Unable to synchronously open file (truncated file: eof = 96, stored_eof = 2048)")
        real(self, *args, **kwds)

    monkeypatch.setattr(h5py.File, "__init__", early)
    with protect_h5py(), h5py.File(path, "a") as file:
        assert len(looks) == 3
        assert len(file["x"]) == 100
    monkeypatch.undo()


def test_a_file_that_is_truncated_stays_so(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)
    with protect_h5py(), pytest.raises(OSError, match="truncated file"):
        h5py.File(path, "a")


# ---- what must go on working


def test_every_way_to_open_a_file(tmp_path: Path) -> None:
    with protect_h5py():
        with h5py.File(str(tmp_path / "str.h5"), "w", libver="latest", userblock_size=512) as file:
            file["x"] = 1
            assert file.userblock_size == 512
        with h5py.File(os.fsencode(tmp_path / "bytes.h5"), "a", "sec2", ("v110", "v110")) as file:
            file["x"] = 1
            assert file.driver == "sec2"
        with h5py.File(name=pathlib.PurePath(tmp_path / "pure.h5"), mode="w-", track_order=True) as file:
            file["x"] = 1
        plain = h5py.File(tmp_path / "str.h5")
        assert (plain.mode, plain["x"].file) == ("r", plain)
        assert h5py.File(plain.id) == plain
        plain.close()


def test_memory_and_file_objects_are_nobodys_business(path: Path) -> None:
    before = path.read_bytes()
    with protect_h5py():
        with h5py.File(path, "w", driver="core", backing_store=False) as file:
            file["y"] = 1
        with h5py.File(io.BytesIO(), "w") as file:
            file["y"] = 1
    assert path.read_bytes() == before


def test_one_writer_many_readers(tmp_path: Path) -> None:
    with protect_h5py(), h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        file.create_dataset("x", (0,), "f4", maxshape=(None,), chunks=(8,))
        file.swmr_mode = True
        with h5py.File(tmp_path / "a.h5", "r", swmr=True) as reader:
            assert reader.swmr_mode


@pytest.mark.parametrize("arguments", [("a", "q"), ("a", "r", "no-driver"), (7, "w"), (None, "w")])
def test_nonsense_is_refused_in_h5pys_own_words(arguments: tuple[Any, ...]) -> None:
    def words() -> tuple[type, str]:
        with pytest.raises(Exception) as caught:
            h5py.File(*arguments)
        return caught.type, str(caught.value)

    free = words()
    with protect_h5py():
        assert words() == free


def test_classes_made_of_it(path: Path) -> None:
    class Mine(h5py.File):  # type: ignore[misc]
        def __init__(self, name: Path) -> None:
            super().__init__(name, "a")
            self.mine = True

    def child() -> None:
        assert isinstance(file, Mine)
        with pytest.raises(ForkedWriterError):
            file["x"]

    with protect_h5py(), Mine(path) as file:
        assert file.mine
        assert run_forked(child) == 0


# ---- on and off


def test_undo_restores(path: Path) -> None:
    before = h5py.File.__init__
    protection = protect_h5py()
    assert protection.active
    assert h5py.File.__init__ is not before
    assert h5py.File.__init__.__doc__ == before.__doc__
    protection.undo()
    protection.undo()
    assert not protection.active
    assert h5py.File.__init__ is before
    h5py.File(path, "w").close()


def test_it_counts(path: Path) -> None:
    first, second = protect_h5py(), protect_h5py()
    first.undo()
    with pytest.raises(TargetExistsError):
        h5py.File(path, "w")
    second.undo()
    h5py.File(path, "w").close()


def test_somebody_elses_wrapper_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, seen = h5py.File.__init__, []
    with protect_h5py():
        ours = h5py.File.__init__

        def theirs(self: Any, *args: Any, **kwds: Any) -> None:
            seen.append(args)
            ours(self, *args, **kwds)

        h5py.File.__init__ = theirs
    try:
        h5py.File(path, "w").close()  # ours is inside and lets it pass
        assert len(seen) == 1
        with protect_h5py():
            with h5py.File(path, "a") as file:
                file["x"] = 1
            with pytest.raises(TargetExistsError):
                h5py.File(path, "w")
        assert h5py.File.__init__ is theirs
    finally:
        h5py.File.__init__ = original


def test_after_undo_a_child_keeps_what_it_inherits(path: Path) -> None:
    def child() -> None:
        assert file
        os._exit(0)

    with h5py.File(path, "a") as file:
        with protect_h5py():
            pass
        assert run_forked(child) == 0


def test_a_library_in_use_at_the_fork_is_not_asked(path: Path) -> None:
    """h5py before 3.14 forks while another thread is in the library; its lock is then nobody's in the child."""
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with h5py._objects.phil:
            inside.set()
            leave.wait(TIMEOUT_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(TIMEOUT_S)
    with protect_h5py():
        h5py_guard.detach_inherited()  # returns at once
    leave.set()
    thread.join(TIMEOUT_S)
