"""Each kind of error is recognised by the words its libraries use."""

from __future__ import annotations

import re

import pytest

from holdfast.process.error_guide.cause_chain import NEEDLES, RULES, own_context, rule_of
from holdfast.process.error_guide.rules import Rank, Rule

ANCDATA = "RuntimeError: received 0 items of ancdata"
TALK = (
    "RuntimeError: Too many open files. Communication with the workers is no longer possible. Please increase the "
    "limit using `ulimit -n` in the shell or change the sharing strategy by calling "
    "`torch.multiprocessing.set_sharing_strategy('file_system')` at the beginning of your code"
)
LOCK = "BlockingIOError: [Errno 11] Unable to synchronously open file (unable to lock file, errno = {}, error …)"
BUS = (
    "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that dataloader's "
    "workers are out of shared memory. Please try to raise your shared memory limit."
)
RETRIES = (
    "HTTPSConnectionPool(host='h', port=443): Max retries exceeded with url: / (Caused by SSLError(OSError(24, "
    "'Too many open files')))"
)

KNOWN = [
    ("OSError: [Errno 24] Too many open files: 'a.jpg'", "EMFILE"),
    ("accept4: too many open files", "EMFILE"),
    (RETRIES, "EMFILE"),
    (
        "RuntimeError: unable to open shared memory object </torch_7_1> in read-write mode: Too many open files (24)",
        "EMFILE",
    ),
    ("OSError: [Errno 23] Too many open files in system: '/x'", "ENFILE"),
    ("OSError: [Errno 24] inotify instance limit reached", "inotify_instances"),
    (ANCDATA, "ancdata"),
    (TALK, "worker_talk"),
    ("ValueError: filedescriptor out of range in select()", "select"),
    ("OSError: [Errno 9] Bad file descriptor", "EBADF"),
    ("Resource temporarily unavailable", "EAGAIN"),
    ("BlockingIOError: [Errno 11] Resource temporarily unavailable", "EAGAIN"),
    ("BlockingIOError", "EAGAIN"),
    ("bash: fork: retry: Resource temporarily unavailable", "EAGAIN_tasks"),
    (
        "OpenBLAS blas_thread_init: pthread_create failed for thread 3 of 8: Resource temporarily unavailable",
        "EAGAIN_tasks",
    ),
    ("libgomp: Thread creation failed: Resource temporarily unavailable", "EAGAIN_tasks"),
    ("RuntimeError: can't start new thread", "no_thread"),
    (LOCK.format(11), "h5_lock"),
    (LOCK.format(35), "h5_lock"),
    ("unable to lock file", "h5_lock"),
    (LOCK.format(524), "h5_no_locks"),
    (LOCK.format(37), "h5_no_locks"),
    (LOCK.format("0, error message = 'No error', Win32 GetLastError() = 33"), "h5_lock"),
    ("OSError: Unable to open file (file is already open for read-only)", "h5_twice"),
    ("OSError: Unable to create file (unable to truncate a file which is already open)", "h5_twice"),
    ("OSError: Unable to open file (unable to open file: name = 'a.h5', errno = 2, error message = 'No…')", "h5_open"),
    ("  #000: H5F.c line 1534 in H5Fopen(): unable to open file", "h5_open"),
    ("OSError: Unable to open file (file is already open for write (may use <h5clear file> to clear…))", "h5_flags"),
    ("OSError: Unable to synchronously open file (truncated file: eof = 96, stored_eof = 2048)", "h5_truncated"),
    ("OSError: Unable to open file (file signature not found)", "h5_signature"),
    ("OSError: Can't synchronously open file (bad object header version number)", "h5_open"),
    ("OSError: Unable to synchronously open file (unable to open file: errno = 24)", "EMFILE"),
    ("DataLossError: corrupted record at 0 [Op:IteratorGetNext]", "tfrecord_start"),
    ("tensorflow.python.framework.errors_impl.DataLossError: corrupted record at 1023", "tfrecord"),
    ("DATA_LOSS: truncated record at 12' failed with EOF reached", "tfrecord"),
    ("error reading a.tfrecord: Data loss: inflate() failed with error -3", "tfrecord"),
    ("DataLossError: Unable to open table file m.ckpt: Data loss: not an sstable (bad magic number)", "tf_checkpoint"),
    ("DataLossError: Checksum does not match: stored 1 vs. calculated on the restored bytes 2", "tf_checkpoint"),
    ("Bus error (core dumped)", "bus"),
    ("died with <Signals.SIGBUS: 7>.", "bus"),
    (BUS, "worker_bus"),
    (
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory",
        "worker_bus",
    ),
    ("RuntimeError: DataLoader worker (pid 12) is killed by signal: Killed. ", "worker_killed"),
    ("RuntimeError: DataLoader worker (pid 12) is killed by signal: Segmentation fault. ", "worker_signal"),
    ("RuntimeError: DataLoader worker (pid(s) 12, 13) exited unexpectedly", "worker_exited"),
    ("A process in the process pool was terminated abruptly while the future was running", "worker_exited"),
    ("A worker died or was killed while executing a task by an unexpected system error.", "worker_exited"),
    ("TerminatedWorkerError: A worker process managed by the executor was unexpectedly terminated.", "worker_exited"),
    ("ProcessExitedException: process 0 terminated with signal SIGKILL", "killed"),
    ("AssertionError: can only test a child process", "not_child"),
    ("OSError: [Errno 12] Cannot allocate memory", "ENOMEM"),
    ("RuntimeError: unable to mmap 64 bytes from file </torch_1>: Cannot allocate memory (12)", "mmap"),
    ("Memory cgroup out of memory: Killed process 4711 (python)", "oom"),
    ("subprocess.CalledProcessError: Command 'x' died with <Signals.SIGKILL: 9>.", "killed"),
    ("Killed", "killed"),
    ("train.sh: line 3: 4711 Killed                  python train.py", "killed"),
    ("[1]+  Killed                  python train.py", "killed"),
    ("zsh: killed     python train.py", "killed"),
    ("OSError: [Errno 116] Stale file handle: '/nfs/a.h5'", "ESTALE"),
    ("python: can't open file 'train.py': [Errno 2] No such file or directory", "ENOENT"),
    ("RuntimeError: unable to open file </data/model.bin> in read-only mode: No such file or directory (2)", "ENOENT"),
    ("OSError: [Errno 28] No space left on device: '/data/x'", "ENOSPC"),
    ("OSError: [Errno 122] Disk quota exceeded", "EDQUOT"),
    ("OSError: [Errno 37] No locks available", "ENOLCK"),
    ("OSError: [Errno 28] inotify watch limit reached", "inotify_watches"),
    ("RuntimeError: unable to open shared memory object </torch_7_1> in read-write mode", "shm_object"),
    ("RuntimeError: unable to write to file </torch_4711_2893_0>: No space left on device (28)", "shm_full"),
    ("unable to allocate shared memory(shm) for file </torch_1_2_0>: Success (0)", "shm_full"),
    ("OSError: [Errno 28] No space left on device: '/dev/shm/torch_4711_2893_0'", "shm_full"),
    ("OSError: [Errno 28] No space left on device: '/psm_21467_46075'", "shm_full"),
    ("OSError: [Errno 28] No space left on device: '/data/torch_models/x'", "ENOSPC"),
    ("OSError: [Errno 5] Input/output error: '/mnt/data/a.tar'", "EIO"),
    ("OSError: Can't read data (file read failed: errno = 5, error message = 'Input/output error')", "EIO"),
    ("tarfile.ReadError: unexpected end of data", "archive_truncated"),
    ("EOFError: Compressed file ended before the end-of-stream marker was reached", "archive_truncated"),
    (
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        "archive_truncated",
    ),
    ("_pickle.UnpicklingError: pickle data was truncated", "pickle_truncated"),
    ("EOFError: Ran out of input", "pickle_truncated"),
    ("_pickle.UnpicklingError: invalid load key, 'v'.", "pickle_truncated"),
    (
        "[rank3]:[E ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum="
        "48, OpType=ALLREDUCE, NumelIn=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.",
        "collective_timeout",
    ),
    ("ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress", "collective_timeout"),
    ("PIL.UnidentifiedImageError: cannot identify image file <_io.BytesIO object at 0x7f>", "image"),
    ("OSError: image file is truncated (5 bytes not processed)", "image"),
    ("ValueError: I/O operation on closed file.", "closed_file"),
    ("ValueError: read of closed file", "closed_file"),
    ("ValueError: bad value(s) in fds_to_keep", "fds_to_keep"),
    ("BrokenPipeError: [Errno 32] Broken pipe", "EPIPE"),
    ("ConnectionResetError: [Errno 104] Connection reset by peer", "ECONNRESET"),
    ("resource_tracker: There appear to be 6 leaked semaphore objects to clean up at shutdown", "leaked_semaphores"),
    ("There appear to be 1 leaked shared_memory objects to clean up at shutdown", "leaked_shared_memory"),
    ("requests.exceptions.SSLError: HTTPSConnectionPool(host='h', port=443): Max retries exceeded", "tls"),
    ("<urlopen error [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local issuer", "tls"),
    ("socket.gaierror: [Errno -3] Temporary failure in name resolution", "tls"),
    ("Max retries exceeded with url: / (Caused by NewConnectionError('[Errno 111] Connection refused'))", "request"),
    ("Max retries exceeded with url: / (Caused by ConnectTimeoutError('Connection to s3 timed out.'))", "request"),
    ("SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] self signed certificate in chain", "request"),
]
IN_TRACEBACKS = [
    (
        "terminate called after throwing an instance of 'std::system_error'\n"
        "  what():  Resource temporarily unavailable",
        "EAGAIN_tasks",
    ),
    (
        "Traceback (most recent call last):\n"
        '  File "/usr/lib/python3.11/multiprocessing/popen_fork.py", line 66, in _launch\n'
        "    self.pid = os.fork()\n"
        "               ^^^^^^^^^\n"
        "BlockingIOError: [Errno 11] Resource temporarily unavailable",
        "EAGAIN_tasks",
    ),
    (
        "Traceback (most recent call last):\n"
        '  File "job.py", line 6, in <module>\n'
        "    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "BlockingIOError: [Errno 11] Resource temporarily unavailable",
        "EAGAIN_lock",
    ),
    (
        "Traceback (most recent call last):\n"
        '  File "torch/multiprocessing/reductions.py", line 558, in rebuild_storage_fd\n'
        "    fd = df.detach()\n"
        '  File "multiprocessing/resource_sharer.py", line 57, in detach\n'
        "    with _resource_sharer.get_connection(self._id) as conn:\n"
        '  File "multiprocessing/connection.py", line 378, in _recv\n'
        "    chunk = read(handle, remaining)\n"
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "sharer",
    ),
]


@pytest.mark.parametrize(("line", "name"), KNOWN)
def test_a_line_is_recognised(line: str, name: str) -> None:
    rule = rule_of(line)
    assert rule is not None
    assert rule.name == name


@pytest.mark.parametrize(("text", "name"), IN_TRACEBACKS)
def test_a_line_is_distinguished_by_its_traceback(text: str, name: str) -> None:
    before, _, line = text.rpartition("\n")
    rule = rule_of(line, before)
    assert rule is not None
    assert rule.name == name


def test_another_tracebacks_lines_do_not_count() -> None:
    before = IN_TRACEBACKS[0][0] + "\n1\n2\n3\n4\nTraceback (most recent call last):\n  File 'x'\n    sock.recv(1)"
    rule = rule_of("BlockingIOError: [Errno 11] Resource temporarily unavailable", before)
    assert rule is not None
    assert rule.name == "EAGAIN"


@pytest.mark.parametrize("line", ["[Errno 111] Connection refused", "TimeoutError: [Errno 110] Connection timed out"])
def test_a_longer_errno_beside_a_lock_is_another_thing(line: str) -> None:
    assert rule_of(line, "  fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)") is None


@pytest.mark.parametrize(
    "line",
    [
        *(
            "",
            "epoch 24 done",
            "shape (24, 3)",
            "errno 240",
            "listening",
            "worker 12 exited",
            "the pipe is broken",
            "9]",
        ),
        "epoch 3: train data loss: 0.3312",
        "this may cause data loss",
        "UserWarning: Truncated File Read",
        "the job was killed by its owner",
        "Killed 3 of 4 workers",
        "pcieport 0000:00:1c.5: PCIe Bus Error: severity=Corrected, type=Physical Layer",
        "D-Bus error: no reply",
        "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xe2 in position 4: unexpected end of data",
        "SyntaxError: JSON.parse: unexpected end of data at line 1 column 1",
        "[Errno 51] Network is unreachable",
        "the watchdog timer was reset",
        "a closed file is not written again",
    ],
)
def test_other_lines_are_nothing(line: str) -> None:
    assert rule_of(line) is None


def test_every_row_has_a_line_that_it_is() -> None:
    assert {rule.name for rule in RULES} == {name for _, name in (*KNOWN, *IN_TRACEBACKS)}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_row_is_whole(rule: Rule) -> None:
    assert rule.needles
    assert all(needle == needle.lower() for needle in (*rule.needles, *rule.near))
    assert re.compile(rule.pattern)
    assert all(text.endswith((".", ")")) for text in (rule.says, rule.mistaken_for, *rule.advice))
    assert 1 <= len(rule.advice) <= 3
    assert rule.rank in Rank


def test_names_are_distinguished() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_every_needle_is_found_by_the_short_list() -> None:
    assert all(any(short in needle for short in NEEDLES) for rule in RULES for needle in rule.needles)


def test_the_context_of_a_line_is_its_traceback_or_three_lines() -> None:
    assert own_context("x", "a\nb\nc\nd") == "b\nc\nd\nx"
    assert own_context("x", "") == "\nx"
    assert own_context("E: y", "a\nTraceback (most\n  1\n  2\n  3\n  4") == "Traceback (most\n  1\n  2\n  3\n  4\nE: y"
