from __future__ import annotations

import asyncio
import gc
import importlib
import multiprocessing
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import LeakError
from holdfast.process.leakcheck.no_leaks import no_leaks

HERE = Path(__file__).name
kept: list[Any] = []


@pytest.fixture(autouse=True)
def _give_back() -> Iterator[None]:
    yield
    for one in kept:
        one.close()
    kept.clear()


def leak() -> int:
    kept.append(socket.socket())
    return int(kept[-1].fileno())


def quickly(**options: Any) -> Any:
    """For what is certain to stay: nothing is waited for. Files in /dev/shm may be another test run's just now."""
    return no_leaks(within=0, **{"kinds": ["fd", "process", "thread"], **options})


def test_what_is_given_back() -> None:
    with no_leaks():
        with open(os.devnull) as file, socket.socket():
            assert file
        thread = threading.Thread(target=int)
        thread.start()
        subprocess.run([sys.executable, "-c", ""], check=True)


def test_a_descriptor() -> None:
    with pytest.raises(LeakError) as caught, quickly():
        fd = leak()
    [(kind, what)] = caught.value.left
    assert kind == "socket"
    assert what.startswith(f"{fd} -> socket:[")
    first, second, third = str(caught.value).splitlines()
    assert first == "left behind: 1 socket"
    assert second == f"  socket: {what}"
    assert third.startswith(f"  held by {HERE}:")
    assert third.endswith(f" module variable 'kept'[0] → socket(fd {fd})")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.left) == (str(caught.value), caught.value.left)


def test_a_local_variable_after_the_block() -> None:
    with pytest.raises(LeakError, match=r"test_a_local_variable_after_the_block\(\) local 'mine'"), quickly():
        mine = socket.socket()
    mine.close()


def test_many_are_reported_in_short() -> None:
    with pytest.raises(LeakError) as caught, quickly():
        for _ in range(50):
            leak()
    lines = str(caught.value).splitlines()
    assert lines[0] == "left behind: 50 socket"
    assert "  … and 30 more" in lines
    assert lines[-1].endswith("module variable 'kept'[…] → socket  [50 ×]")
    assert len(caught.value.left) == 50


def test_a_number_that_became_another_file(tmp_path: Path) -> None:
    kept.append((tmp_path / "a").open("w"))
    with no_leaks():
        os.rename(tmp_path / "a", tmp_path / "b")
    with pytest.raises(LeakError, match="1 file"), quickly():
        was = kept[0].fileno()
        kept.pop().close()
        kept.append((tmp_path / "c").open("w"))
        assert kept[0].fileno() == was


def test_a_child_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as before:
        with pytest.raises(LeakError) as caught, quickly(kinds=["process"]):
            child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        child.communicate(b"\n")
        with pytest.raises(LeakError, match=r"\(zombie\)"), quickly(kinds=["process"]):
            zombie = os.fork()
            if zombie == 0:
                os._exit(0)
            os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)
        os.waitpid(zombie, 0)
        before.communicate(b"\n")
    [(kind, what)] = caught.value.left
    assert kind == "process"
    assert what.startswith(f"{child.pid} {sys.executable} -c")


def test_a_thread() -> None:
    go = threading.Event()
    thread = threading.Thread(target=go.wait, name="left", daemon=True)
    with pytest.raises(LeakError) as caught, quickly():
        thread.start()
    assert caught.value.left == (("thread", "left (daemon)"),)
    go.set()
    thread.join()


def test_a_thread_that_is_ending_gets_its_time() -> None:
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    timer = threading.Timer(0.05, go.set)
    with no_leaks(within=60):
        thread.start()
        timer.start()
    thread.join()
    timer.join()


def test_a_file_in_dev_shm() -> None:
    with pytest.raises(LeakError) as caught, quickly(kinds=["shm_file"]):
        shared = SharedMemory(create=True, size=10)
    shared.close()
    assert caught.value.left == (("shm_file", f"/dev/shm/{shared.name}"),)
    shared.unlink()


def test_a_file_in_dev_shm_that_another_process_uses_is_its_own() -> None:
    text = """
import sys
from multiprocessing.shared_memory import SharedMemory
input()
one = SharedMemory(create=True, size=10)
print(one.name, flush=True)
input()
one.close(); one.unlink()
"""
    # A stranger: its parent, between it and this process, has ended.
    ask, told = os.pipe(), os.pipe()
    middle = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {text!r}])"
    subprocess.run([sys.executable, "-c", middle], stdin=ask[0], stdout=told[1], check=True)
    os.close(ask[0])
    os.close(told[1])
    with os.fdopen(ask[1], "w") as describe_leaks, os.fdopen(told[0]) as hear:
        with no_leaks():
            print(file=describe_leaks, flush=True)
            name = hear.readline().strip()
            assert os.path.exists(f"/dev/shm/{name}")
        print(file=describe_leaks, flush=True)
        assert hear.read() == ""


def test_a_cycle_is_collected_unless_unwanted() -> None:
    class Box:
        me: Any
        inside: Any

    def make() -> None:
        box = Box()
        box.me = box
        box.inside, other = os.pipe()
        os.close(other)
        box.__class__ = Closing

    class Closing(Box):
        def __del__(self) -> None:
            os.close(self.inside)

    gc.collect()
    gc.disable()
    try:
        with quickly():
            make()
        with pytest.raises(LeakError, match="1 pipe"), quickly(gc=False):
            make()
    finally:
        gc.enable()
    gc.collect()


def test_kinds_and_max() -> None:
    with no_leaks(kinds=["pipe", "process"]):
        leak()
    with no_leaks(kinds="thread"):
        leak()
    with pytest.raises(LeakError), quickly(kinds=["fd"]):
        leak()
    with no_leaks(max=2):
        leak()
        leak()
    with pytest.raises(LeakError, match=r"left behind: 3 socket \(allowed: 2\)"), quickly(max=2):
        for _ in range(3):
            leak()


def test_wrong_options() -> None:
    with pytest.raises(ValueError, match=r"expected kinds of .*shm_file.*, got 'pipes'"):
        no_leaks(kinds=["pipes"])
    with pytest.raises(ValueError, match="expected max of at least 0, got -1"):
        no_leaks(max=-1)
    with pytest.raises(TypeError, match="got the generator numbers"):

        @no_leaks()
        def numbers() -> Iterator[int]:
            yield 1


def test_an_exception_wins_and_says_what_was_left() -> None:
    with pytest.raises(KeyError) as caught, no_leaks():
        fd = leak()
        raise KeyError("mine")
    [note] = caught.value.__notes__
    assert note.startswith(f"also, left behind: 1 socket\n  socket: {fd} -> ")
    with pytest.raises(KeyError) as clean, no_leaks():
        raise KeyError("mine")
    assert not hasattr(clean.value, "__notes__")


def test_nested() -> None:
    with pytest.raises(LeakError) as caught, quickly():
        leak()
        with no_leaks():
            pass
        block = quickly()
        with pytest.raises(LeakError, match="1 socket"), block, block:
            leak()
    assert len(caught.value.left) == 2


def test_a_decorator() -> None:
    @quickly()
    def work(n: int, fail: bool = False) -> int:
        """Says how."""
        if n:
            work(n - 1, fail)
        elif fail:
            leak()
        return n

    assert (work(3), work.__doc__) == (3, "Says how.")
    with pytest.raises(LeakError):
        work(1, fail=True)


# ---- asynchronous ------------------------------------------------------------------------------------------


def test_in_an_event_loop() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def main(path: str) -> None:
        server = await asyncio.start_unix_server(serve, path)
        async with no_leaks(within=60):
            _, writer = await asyncio.open_unix_connection(path)
            writer.close()  # done by the loop, a moment later
        with pytest.raises(LeakError, match="1 socket"):
            async with quickly():
                leak()
        server.close()

    import tempfile

    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        asyncio.run(main(f"{folder}/s"))


def test_a_coroutine_function() -> None:
    @quickly()
    async def work(fail: bool) -> int:
        await asyncio.sleep(0)
        return leak() if fail else 7

    assert asyncio.run(work(False)) == 7
    with pytest.raises(LeakError):
        asyncio.run(work(True))


# ---- what is forgiven --------------------------------------------------------------------------------------

OPENS = """
import os, threading
from {inner} import other
file = open(os.devnull)
go = threading.Event()
thread = threading.Thread(target=go.wait, daemon=True)
thread.start()
def close():
    file.close()
    other.close()
    go.set()
    thread.join()
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = "opens_when_imported"
    (tmp_path / f"{name}.py").write_text(OPENS.format(inner=f"{name}_inside"))
    (tmp_path / f"{name}_inside.py").write_text("other = open('/dev/zero')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield name
    for one in (name, f"{name}_inside"):
        sys.modules.pop(one, None)


def test_what_a_first_import_opens_is_forgiven(modules: str) -> None:
    finders = list(sys.meta_path)
    with no_leaks(), no_leaks():
        loaded = importlib.import_module(modules)
    assert sys.meta_path == finders
    kept.append(loaded)
    assert type(loaded.__loader__).__name__ == type(getattr(loaded.__spec__, "loader")).__name__ == "SourceFileLoader"  # noqa: B009


def test_what_is_opened_beside_an_import_is_not(modules: str) -> None:
    with pytest.raises(LeakError, match="left behind: 1 socket"), quickly():
        leak()
        kept.append(importlib.import_module(modules))
    with pytest.raises(LeakError, match="left behind: 1 socket"), quickly():
        importlib.import_module(modules)
        leak()


def test_an_import_that_fails_leaves_the_import_system_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fails_when_imported.py").write_text("raise KeyError('no')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    finders = list(sys.meta_path)
    with no_leaks():
        with pytest.raises(KeyError, match="no"):
            importlib.import_module("fails_when_imported")
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("no_such_module_at_all")
    assert sys.meta_path == finders


def test_what_python_keeps_for_itself_is_forgiven() -> None:
    text = """
import multiprocessing as mp
from multiprocessing.shared_memory import SharedMemory
from holdfast.process.leakcheck.no_leaks import no_leaks
def main():
    with no_leaks():
        one = SharedMemory(create=True, size=10)
        one.close()
        one.unlink()
        process = mp.get_context("forkserver").Process(target=int)
        process.start()
        process.join()
        process.close()
    print("clean")
if __name__ == "__main__":
    main()
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("clean\n", "")


def test_the_context_is_not_needed_by_multiprocessing() -> None:
    with no_leaks():
        process = multiprocessing.get_context("fork").Process(target=int)
        process.start()
        process.join()
        process.close()
