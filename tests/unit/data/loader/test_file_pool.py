from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

import pytest

from holdfast.data.loader.sources.file_pool import FilePool, OpenFile
from holdfast.errors import InputError

BOUND_S = 30


def files(folder: Path, n: int) -> list[Path]:
    paths = [folder / f"{i:04}" for i in range(n)]
    for i, path in enumerate(paths):
        path.write_bytes(str(i).encode())
    return paths


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_no_more_than_the_budget(tmp_path: Path) -> None:
    with FilePool(OpenFile, 3) as pool:
        for i, path in enumerate(files(tmp_path, 20)):
            with pool.use(path) as file:
                assert os.pread(file.fd, 99, 0) == str(i).encode()
        stats = pool.stats()
    assert (stats.budget, stats.open, stats.maximum, stats.opened) == (3, 3, 3, 20)
    assert pool.stats().open == 0


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    a, b, c = files(tmp_path, 3)
    with FilePool(OpenFile, 2) as pool:
        for path in (a, b, a, c, a):
            with pool.use(path):
                pass
        assert pool.stats().opened == 3
        with pool.use(b):
            pass
        assert pool.stats().opened == 4


def test_one_in_use_is_not_closed(tmp_path: Path) -> None:
    first, *others = files(tmp_path, 9)
    with FilePool(OpenFile, 2) as pool, pool.use(first) as kept:
        for path in others:
            with pool.use(path):
                assert os.pread(kept.fd, 9, 0) == b"0"


def test_all_in_use_by_one_thread_is_an_error_at_once(tmp_path: Path) -> None:
    a, b, c = files(tmp_path, 3)
    with FilePool(OpenFile, 2) as pool, pool.use(a), pool.use(b):
        with pytest.raises(InputError, match="all 2 files that may be open are in use: .*0000, .*0001"), pool.use(c):
            pass
        with pool.use(a):
            pass


def test_another_threads_handle_is_waited_for(tmp_path: Path) -> None:
    a, b = files(tmp_path, 2)
    got: list[bytes] = []

    def read(pool: FilePool[OpenFile]) -> None:
        with pool.use(b) as file:
            got.append(os.pread(file.fd, 9, 0))

    with FilePool(OpenFile, 1) as pool:
        with pool.use(a):
            thread = threading.Thread(target=read, args=[pool])
            thread.start()
        thread.join(BOUND_S)
    assert got == [b"1"]


def test_many_threads(tmp_path: Path) -> None:
    paths = files(tmp_path, 40)
    wrong: list[object] = []

    def read(pool: FilePool[OpenFile], start: int) -> None:
        for turn in range(300):
            i = (start * 7 + turn * (start + 1)) % len(paths)
            with pool.use(paths[i]) as file:
                if os.pread(file.fd, 9, 0) != str(i).encode():
                    wrong.append(i)

    with FilePool(OpenFile, 5, wait_s=BOUND_S) as pool:
        threads = [threading.Thread(target=read, args=[pool, start]) for start in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(BOUND_S)
        assert pool.stats().maximum <= 5
    assert wrong == []


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with FilePool(OpenFile, 1) as pool:
        for _ in range(3):
            with (
                pytest.raises(InputError, match="nothing: cannot be opened: No such file"),
                pool.use(tmp_path / "nothing"),
            ):
                pass
        assert pool.stats().open == 0


def test_closed_while_in_use(tmp_path: Path) -> None:
    [path] = files(tmp_path, 1)
    pool = FilePool(OpenFile, 1)
    with pool.use(path) as file:
        fd = file.fd
        pool.close()
        assert is_open(fd)
    assert file.fd == -1
    with pytest.raises(ValueError, match="was closed"), pool.use(path):
        pass


@contextmanager
def forked() -> Iterator[int]:
    """0 in the child, which ends with the block: 0 if nothing was raised."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            yield 0
            code = 0
        finally:
            os._exit(code)
    yield pid
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_child_has_its_own(tmp_path: Path) -> None:
    a, b = files(tmp_path, 2)
    with FilePool(OpenFile, 2) as pool:
        with pool.use(a) as file:
            fd = file.fd
        # Another thread holds the lock while the fork happens, and is not there in the child.
        with pool._changed, forked() as pid:
            if pid == 0:
                assert not is_open(fd)
                assert pool.stats().open == 0
                with pool.use(b) as own, forked() as grandchild:
                    if grandchild == 0:
                        assert not is_open(own.fd) or own.fd == -1
                        assert pool.stats().open == 0
        with pool.use(a) as file:
            assert (file.fd, os.pread(file.fd, 9, 0)) == (fd, b"0")


LITTLE_ROOM = """
import json, os, resource, sys
from pathlib import Path
from holdfast.errors import InputError
from holdfast.data.loader.sources.file_pool import FilePool, OpenFile

assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 64
paths = sorted(Path(sys.argv[1]).iterdir())
told = {"files": len(paths)}
with FilePool(OpenFile) as pool:
    for turn in range(2):
        for i, path in enumerate(paths):
            with pool.use(path) as file:
                assert os.pread(file.fd, 99, 0) == str(i).encode()
    told["most"], told["budget"] = pool.stats().maximum, pool.stats().budget
taken = []


def take_the_rest():
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        assert error.errno == 24


with FilePool(OpenFile, 32) as pool:
    for path in paths[:8]:
        with pool.use(path):
            pass
    take_the_rest()
    for path in paths[100:200]:
        with pool.use(path):
            pass
    told["given_back"], told["kept"] = pool.stats().given_back, pool.stats().open
take_the_rest()
with FilePool(OpenFile, 8) as pool:
    try:
        with pool.use(paths[0]):
            pass
    except InputError as error:
        told["said"] = str(error)
for fd in taken:
    os.close(fd)
with FilePool(OpenFile, 8) as pool, pool.use(paths[0]):
    told["again"] = True
print(json.dumps(told))
"""


def test_two_thousand_files_with_64_descriptors(tmp_path: Path) -> None:
    files(tmp_path, 2000)
    done = subprocess.run(
        ["sh", "-c", 'ulimit -n 64 && exec "$@"', "sh", sys.executable, "-c", LITTLE_ROOM, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["files"] == 2000
    assert told["most"] == told["budget"]
    assert 8 <= told["budget"] <= 32
    assert (told["given_back"], told["kept"]) == (100, 8)
    assert "0000: cannot be opened: Too many open files" in told["said"]
    assert "errno 24" in told["said"]
    assert "has 64 of 64 descriptors" in told["said"]
    assert told["again"]


def test_gives_back_what_it_can_do_without(tmp_path: Path) -> None:
    """An opener that says EMFILE until two handles are closed."""
    paths = files(tmp_path, 6)
    open_now: list[OpenFile] = []

    class Counted(OpenFile):
        def __init__(self, path: str) -> None:
            if len(open_now) >= 3:
                raise InputError(f"{path}: cannot be opened") from OSError(24, "Too many open files")
            super().__init__(path)
            open_now.append(self)

        def close(self) -> None:
            open_now.remove(self)
            super().close()

    with FilePool(Counted, 6) as pool:
        for path in paths:
            with pool.use(path):
                pass
        assert (pool.stats().open, pool.stats().given_back) == (3, 3)
        with ExitStack() as stack:
            for path in paths[3:]:
                stack.enter_context(pool.use(path))
            with pytest.raises(InputError, match="Too many open files .*errno 24"), pool.use(paths[0]):
                pass


@pytest.mark.parametrize("wrong", [0, -1, True, "many", 1.5])
def test_a_budget_is_a_number_or_auto(wrong: int) -> None:
    with pytest.raises(ValueError, match='expected "auto" or at least one open file'):
        FilePool(OpenFile, wrong)


def test_handles_whose_users_were_interrupted(tmp_path: Path) -> None:
    """They are closed on request, and once only: the number may be another file's by the time they are released."""
    path = files(tmp_path, 1)[0]
    pool = FilePool(OpenFile, 1)
    use = pool.use(path)
    file = use.__enter__()
    pool.close()
    assert is_open(file.fd)
    fd = file.fd
    pool.close(in_use=True)
    assert not is_open(fd)
    assert pool.stats().open == 0
    use.__exit__(None, None, None)


def test_a_signal_on_the_way_in_leaves_no_lock(tmp_path: Path) -> None:
    """Another thread would wait for it for ever."""
    pool = FilePool(OpenFile, 1)
    condition = type(pool._changed)
    entered: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is condition.__enter__.__code__:
            entered.append(frame.f_back.f_code.co_name if frame.f_back else "")

    sys.setprofile(note)
    try:
        with pool.use(files(tmp_path, 1)[0]):
            pool.stats()
        pool.close()
    finally:
        sys.setprofile(None)
    assert not entered, "the lock of a Condition is taken in Python, where a signal can come between"
