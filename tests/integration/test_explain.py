"""Real errors of real libraries, explained in the process where they were raised."""

from __future__ import annotations

import errno
import fcntl
import gzip
import io
import multiprocessing.util
import os
import pickle
import resource
import socket
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from holdfast.errors import InputError
from holdfast.process.doctor.remedies import WRITE
from holdfast.process.error_guide.explain import explain, explain_with
from holdfast.procfs.procfs import REAL
from python_child import python

TIMEOUT_S = 120


def run(program: str, *arguments: str, limit: int | None = None) -> list[str]:
    """What a Python of its own prints, under a limit of open files of its own."""

    def lower() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        preexec_fn=lower if limit else None,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


# ---- descriptors -------------------------------------------------------------------------------------------


def test_a_descriptor_that_is_closed() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        with pytest.raises(OSError) as caught:
            os.read(read, 1)
    finally:
        os.close(write)
    told = explain(caught.value)
    assert (told.name, told.errno, told.chain) == ("EBADF", errno.EBADF, "OSError(9)")
    assert told.here == ()  # no limit is involved
    assert "holdfast trace --no-reuse script.py" in told.advice[-1]
    assert f"holdfast trace --attach {os.getpid()} --for 60s" in told.advice[-1]


def test_too_many_open_files_ends_with_the_command_that_names_the_line() -> None:
    assert f"holdfast trace --attach {os.getpid()} --for 60s" in explain(OSError(24, "Too many open files")).advice[-1]


TLS = """
import os, socket, ssl, sys
from urllib.error import URLError
from urllib.request import urlopen
import encodings.idna
from holdfast.process.error_guide.explain import explain

def fetch():
    connection = socket.create_connection(server.getsockname())  # with the last descriptor
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(sys.argv[1])
    except OSError as error:
        raise URLError(ssl.SSLError(error))  # as urllib3 and urllib wrap it

server = socket.create_server(("127.0.0.1", 0))
kept = []
try:
    while True:
        kept.append(os.dup(0))
except OSError:
    pass
assert not ssl.create_default_context().get_ca_certs()  # and not an error
for free in (0, 1):
    try:
        os.close(kept.pop()) if free else None
        fetch() if free else urlopen(f"https://127.0.0.1:{server.getsockname()[1]}/", timeout=5)
    except OSError as error:
        told = explain(error)
        print(told.name, told.errno, told.chain, told.here[0])
"""


def test_a_request_without_descriptors(tmp_path: Path) -> None:
    (tmp_path / "certificates.pem").touch()
    plain, wrapped = run(TLS, str(tmp_path / "certificates.pem"), limit=40)
    assert wrapped.startswith("EMFILE 24 URLError ← SSLError ← OSError(24) This process (")
    assert plain.startswith("EMFILE 24 URLError ← OSError(24) This process (")
    for line in (plain, wrapped):
        assert line.endswith("has 40 of 40 descriptors. None is free.")


ZERO = """
import os, sys
from holdfast.process.error_guide.explain import explain
kept = []
try:
    while True:
        kept.append(os.pipe())
except OSError as error:
    first = error
try:
    while True:
        kept.append(os.dup(0))
except OSError:
    pass
modules = set(sys.modules)
for what in (first, "unable to lock file: 'x'", "can't start new thread", "Bus error", "No space left on device",
             "unable to mmap", "DataLossError: corrupted record at 0", "Too many open files", "nothing",
             BlockingIOError(11, "Resource temporarily unavailable", "/etc/passwd"),
             KeyError("x"), "inotify watch limit reached", "filedescriptor out of range in select()"):
    told = explain(what)
    assert str(told)
    print(told.name, *told.here[:1])
try:
    os.dup(0)
except OSError:
    print("still none free", sorted(set(sys.modules) - modules))
"""


def test_with_no_descriptor_free_and_nothing_imported() -> None:
    lines = run(ZERO, limit=32)
    assert lines[0].startswith("EMFILE This process (")
    assert lines[0].endswith(" has 32 of 32 descriptors. None is free.")
    assert [line.split()[0] for line in lines[1:-1]] == [
        "h5_lock",
        "no_thread",
        "bus",
        "ENOSPC",
        "mmap",
        "tfrecord_start",
        "EMFILE",
        "unknown",
        "EAGAIN",
        "unknown",
        "inotify_watches",
        "select",
    ]
    assert lines[-1] == "still none free []"


ANCDATA = """
import os, socket
from multiprocessing import reduction
from holdfast.process.error_guide.explain import explain
ours, theirs = socket.socketpair()
socket.send_fds(theirs, [b"x"], [0])
kept = []
try:
    while True:
        kept.append(os.dup(0))
except OSError:
    pass
try:
    reduction.recvfds(ours, 1)
except RuntimeError as error:
    told = explain(error)
    print(error, told.name, told.errno, told.here[0], sep="\\n")
"""


def test_a_descriptor_sent_to_a_full_process() -> None:
    said, name, number, here = run(ANCDATA, limit=32)
    assert said == "received 0 items of ancdata"
    assert (name, number) == ("ancdata", "24")
    assert "32 of 32" in here


SELECT = """
import fcntl, os, select
from holdfast.process.error_guide.explain import explain
read, write = os.pipe()
high = fcntl.fcntl(read, fcntl.F_DUPFD, 1030)
try:
    select.select([high], [], [], 0)
except ValueError as error:
    told = explain(error)
    print(told.name, told.here[0], sep="\\n")
"""


def test_a_number_too_high_for_select() -> None:
    assert run(SELECT, limit=2048) == ["select", "The highest descriptor in use is 1,030: too high for select()."]


def test_another_process_is_inspected() -> None:
    with python(
        "import os, sys\nkept = [os.pipe() for _ in range(20)]\nprint('ready', flush=True)\nsys.stdin.read()"
    ) as child:
        told = explain("Too many open files", pid=child.pid)
        assert told.here[0].startswith(f"Process {child.pid} ({sys.executable[:10]}")
        assert "Of these: pipe 4" in told.here[1]
        assert f"`holdfast doctor {child.pid}`" in " ".join(told.advice)
    with pytest.raises(InputError, match="there is no process"):
        explain("Too many open files", pid=child.pid)


def test_links_that_may_not_be_read_are_no_proof_that_there_are_none() -> None:
    class Closed(type(REAL)):  # type: ignore[misc]
        def read_targets(self, folder: str, names: Sequence[str]) -> list[str]:
            return [""] * len(names)

    told = explain_with(Closed(), "Too many open files")
    assert told.here[0].startswith(f"This process ({os.getpid()}) has ")
    assert " has 0 of " not in told.here[0]


# ---- locks -------------------------------------------------------------------------------------------------

HOLDS_H5 = """
import h5py, sys
with h5py.File(sys.argv[1], "w") as file:
    file["x"] = range(10)
    file.flush()
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("mode", ["r", "a"])
def test_h5py_and_a_file_that_another_process_has(tmp_path: Path, mode: str) -> None:
    import h5py

    path = tmp_path / "a.h5"
    with python(HOLDS_H5, path) as child:
        with pytest.raises(OSError) as caught:
            h5py.File(path, mode)
        told = explain(caught.value)
        assert (told.name, told.errno) == ("h5_lock", errno.EAGAIN)
        assert told.remedy is WRITE  # parts or a central writer, for many writers
        [here] = told.here
        assert here.startswith(f"Process {child.pid} ({sys.executable[:10]}")
        assert here.endswith(f" holds an exclusive flock on {path}.")
        # The text alone does not name the file.
        assert explain(str(caught.value)).here[0].startswith("Name the file")
        assert f"Process {child.pid} " in explain(str(caught.value), path=path).here[0]
    assert explain(caught.value).here == (f"No process holds a lock on {path} now.",)


@pytest.mark.parametrize(("first", "then"), [("r", "a"), ("r", "w"), ("a", "w")])
def test_h5py_and_a_file_that_this_process_has(tmp_path: Path, first: str, then: str) -> None:
    import h5py

    path = tmp_path / "a.h5"
    h5py.File(path, "w").close()
    with h5py.File(path, first):
        with pytest.raises(OSError) as caught:
            h5py.File(path, then)
        told = explain(caught.value)
        assert told.name == "h5_twice"
        assert told.here[0].startswith("This process itself (")


def test_h5py_and_a_file_that_is_none(tmp_path: Path) -> None:
    import h5py

    path = tmp_path / "a.h5"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(OSError) as caught:
        h5py.File(path, "r")
    told = explain(caught.value)
    assert told.name == "h5_signature"
    assert "is a git-lfs pointer" in told.here[0]


def test_h5py_and_a_file_that_was_cut(tmp_path: Path) -> None:
    import h5py

    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = range(1000)
    os.truncate(path, 3000)
    with pytest.raises(OSError) as caught:
        h5py.File(path, "r")
    told = explain(caught.value)
    assert told.name == "h5_truncated"
    assert told.here[0] == f"{path} is 3.00 kB long and begins with the HDF5 signature."


def test_a_busy_flock(tmp_path: Path) -> None:
    path = tmp_path / "job.lock"
    path.touch()
    with path.open() as one, path.open() as other:
        fcntl.flock(one, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError) as caught:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        told = explain(caught.value, path=path)
    assert (told.name, told.errno) == ("EAGAIN_lock", errno.EAGAIN)
    assert told.here[0].startswith("This process itself (")
    assert "descriptors" not in told.says


def test_a_socket_with_nothing_to_give() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        with pytest.raises(BlockingIOError) as caught:
            ours.recv(1)
        assert explain(caught.value).name == "EAGAIN"


# ---- tasks and memory --------------------------------------------------------------------------------------

NO_THREAD = """
import resource, threading
from holdfast.process.error_guide.explain import explain
used = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), resource.RLIM_INFINITY))  # a stack needs 8 MiB
try:
    threading.Thread(target=print).start()
except RuntimeError as error:
    told = explain(error)
    print(told.name, told.errno, " ".join(told.here), sep="\\n")
"""


def test_no_room_for_a_new_thread() -> None:
    name, number, here = run(NO_THREAD)
    assert (name, number) == ("no_thread", str(errno.EAGAIN))
    assert "`ulimit -v` limits the process to" in here


NO_FORK = """
import multiprocessing, multiprocessing.popen_fork, os, resource
from holdfast.process.error_guide.explain import explain
if os.getuid() == 0:
    os.setuid(65534)  # root is not bound by it
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
try:
    multiprocessing.get_context("fork").Process(target=print).start()
except BlockingIOError as error:
    told = explain(error)
    print(told.name, told.errno)
    str(told)
"""


def test_no_new_process() -> None:
    assert run(NO_FORK) == ["EAGAIN_tasks 11"]


def test_no_space_on_a_device() -> None:
    with pytest.raises(OSError) as caught:
        with open("/dev/full", "wb", buffering=0) as file:
            file.write(b"x")
    told = explain(caught.value)
    assert (told.name, told.errno) == ("ENOSPC", errno.ENOSPC)
    assert any("/dev/shm has " in line for line in told.here)


GONE_FOLDER = """
import os, sys, holdfast
os.chdir(sys.argv[1])
os.rmdir(sys.argv[1])
for name in ("a/b", "c", None):
    print(holdfast.explain(OSError(28, "No space left on device", name)).name)
"""


def test_the_current_folder_was_removed(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    assert run(GONE_FOLDER, str(tmp_path / "gone")) == ["ENOSPC"] * 3


def test_a_broken_pipe() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        with pytest.raises(BrokenPipeError) as caught:
            os.write(write, b"x")
    finally:
        os.close(write)
    assert explain(caught.value).name == "EPIPE"


def test_a_child_that_was_killed() -> None:
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(subprocess.CalledProcessError) as caught:
        subprocess.run([sys.executable, "-c", kill], check=True)
    assert explain(caught.value).name == "killed"


# ---- torch -------------------------------------------------------------------------------------------------

TORCH = """
import os, signal, sys, warnings
import torch
from torch.utils.data import DataLoader, Dataset
from holdfast.process.error_guide.explain import explain

class Killed(Dataset):
    def __len__(self): return 8
    def __getitem__(self, at):
        if how == "full":
            raise OSError(24, "Too many open files", "a.jpg")
        if how == "exit":
            os._exit(3)
        os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGBUS)

for how in ("kill", "bus", "exit", "full"):
    try:
        for batch in DataLoader(Killed(), num_workers=1):
            pass
    except (RuntimeError, OSError) as error:
        told = explain(error)
        print(how, told.name, told.errno, "memory.events" in " ".join(told.advice))
"""
EXPECTED = {
    "kill worker_killed None True",
    "bus worker_bus None False",
    "exit worker_exited None True",
    "full EMFILE 24 False",
}


def test_torch_and_the_ends_of_its_workers() -> None:
    assert set(run(TORCH)) == EXPECTED


KEPT = """
import resource
import torch
from torch.utils.data import DataLoader
from holdfast.process.error_guide.explain import explain
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
kept = []
try:
    for batch in DataLoader(torch.arange(4000), batch_size=1, num_workers=1):
        kept.append(batch)
except (RuntimeError, OSError) as error:
    told = explain(error)
    print(told.errno, *told.here, sep="\\n")
"""


def test_torch_and_kept_tensors() -> None:
    number, *here = run(KEPT)
    assert number == "24"
    assert "of 128 descriptors" in here[0]
    assert "shm" in here[1]
    assert "look like this" in here[2]


FULL_SHM = """
import sys, torch
from torch.utils.data import DataLoader
from holdfast.process.error_guide.explain import explain

class Big(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, at): return torch.zeros(4 << 20)

try:
    for batch in DataLoader(Big(), num_workers=1):
        pass
except (RuntimeError, OSError) as error:
    told = explain(error)
    print(told.name, *told.here, told.advice[0], sep="\\n")
"""


@pytest.mark.needs("unshare")
def test_torch_and_a_full_dev_shm() -> None:
    """The disk is not full: the remedy is a larger /dev/shm, or less in it."""
    mount = 'mount -t tmpfs -o size=1M none /dev/shm && exec "$@"'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount, "sh", sys.executable, "-c", FULL_SHM],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    name, *said = done.stdout.splitlines()
    assert name in ("shm_full", "worker_bus"), done.stdout
    assert any("/dev/shm has " in line for line in said)
    assert "--shm-size" in said[-1]


# ---- damaged data, and objects used too late ---------------------------------------------------------------


def _read_unmapped() -> None:
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        memory.read(1)


def _read_cut_tar() -> None:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as out:
        member = tarfile.TarInfo("a.jpg")
        member.size = 5000
        out.addfile(member, io.BytesIO(b"x" * 5000))
    with tarfile.open(fileobj=io.BytesIO(whole.getvalue()[:3000])) as cut:
        member_file = cut.extractfile("a.jpg")
        assert member_file is not None
        member_file.read()


def _read_cut_gzip() -> None:
    gzip.decompress(gzip.compress(b"x" * 5000)[:-12])


def _use_closed_file() -> None:
    with open("/etc/hostname") as file:
        pass
    file.read()


def _open_cut_image() -> None:
    from PIL import Image

    Image.open(io.BytesIO(b"\x89PNG\r\n\x1a\n\0\0"))


def _load_cut_image() -> None:
    from PIL import Image

    whole = io.BytesIO()
    Image.frombytes("RGB", (64, 64), os.urandom(3 * 64 * 64)).save(whole, "PNG")
    with Image.open(io.BytesIO(whole.getvalue()[:5000])) as image:
        image.load()


# Real errors of the libraries themselves.
DAMAGED: dict[str, list[Callable[[], object]]] = {
    "EIO": [_read_unmapped],
    "archive_truncated": [_read_cut_tar, _read_cut_gzip],
    "pickle_truncated": [
        lambda: pickle.loads(b""),
        lambda: pickle.loads(pickle.dumps("x" * 1000)[:-100]),
        lambda: pickle.loads(b"version https://git-lfs.github.com/spec/v1"),
    ],
    "image": [_open_cut_image, _load_cut_image],
    "closed_file": [_use_closed_file],
    "fds_to_keep": [
        lambda: multiprocessing.util.spawnv_passfds(b"/bin/true", [b"true"], [0, 0]),
        lambda: subprocess.Popen(["true"], pass_fds=(-1,)),
    ],
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_data_and_misused_objects(name: str) -> None:
    for fails in DAMAGED[name]:
        with pytest.raises(Exception) as caught:
            fails()
        assert explain(caught.value).name == name, caught.value


# ---- the rest ----------------------------------------------------------------------------------------------


def test_what_is_not_known() -> None:
    told = explain(KeyError("x"))
    assert (told.known, told.name, told.errno) == (False, "unknown", None)
    other = explain(NotADirectoryError(errno.ENOTDIR, "Not a directory", "x"))
    assert (other.known, other.errno) == (False, errno.ENOTDIR)
    assert "Not a directory" in str(other)
    assert not explain("").known
    assert not explain("all is well").known


def test_a_missing_file() -> None:
    with pytest.raises(FileNotFoundError) as caught:
        Path("/no/such/file").read_bytes()
    told = explain(caught.value)
    assert (told.name, told.errno) == ("ENOENT", errno.ENOENT)
    assert told.remedy is not None
    assert told.remedy.code[1] in str(told)


def test_what_cannot_be_explained() -> None:
    with pytest.raises(TypeError, match="expected an exception or a text, got int"):
        explain(24)  # type: ignore[arg-type]


def test_many_threads_at_once() -> None:
    names: list[str] = []
    threads = [threading.Thread(target=lambda: names.append(explain("Errno 24").name)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert names == ["EMFILE"] * 8
