"""Rules for errors about file descriptors."""

from __future__ import annotations

import errno

from ..doctor.remedies import FIND_LEAK, LOADER
from .rules import Fact, Rank, Rule

_FIND_THE_LEAK = (
    "`holdfast doctor PID` reports whether they grow and what leaks them; `holdfast trace --attach PID --for 60s` "
    "names the line."
)
_RAISE = (
    "Raise the limit with `hold.raise_nofile()` at the start or with `ulimit -n`; if there is a leak, this "
    "only buys time. For a running process use `prlimit --pid PID --nofile=N`."
)

RULES = (
    Rule(
        name="worker_talk",
        title="Communication with the workers is no longer possible",
        errno=errno.EMFILE,
        needles=("communication with the workers is no longer possible", "workers is no longer possible"),
        rank=Rank.CAUSE,
        says=(
            "The main process of torch has fewer than ten free descriptors. Every tensor that a worker sends takes "
            "one descriptor for as long as the tensor lives, and every live DataLoader iterator takes 4 pipes per "
            "worker and 2 more."
        ),
        mistaken_for=(
            "Dead workers, or a limit that is too small. The workers are fine; the main process keeps tensors or "
            "iterators alive."
        ),
        facts=(Fact.DESCRIPTORS,),
        advice=(
            "Do not keep what a DataLoader returns: `clone()` tensors that you store (also those used through "
            "`.numpy()`), and delete iterators after the loop, as well as exceptions whose traceback refers to one.",
            "`torch.multiprocessing.set_sharing_strategy('file_system')` needs no descriptor per tensor, but a killed "
            "run leaves files in /dev/shm.",
            _FIND_THE_LEAK,
        ),
        remedy=LOADER,
    ),
    Rule(
        name="ancdata",
        title="received 0 items of ancdata",
        errno=errno.EMFILE,
        needles=("items of ancdata",),
        rank=Rank.CAUSE,
        says=(
            "Another process sent a descriptor to this process over a Unix socket, but this process had no free "
            "descriptor for it, so the kernel dropped it without an error. The cause is EMFILE in the receiving "
            "process, usually the main process of torch."
        ),
        mistaken_for="An error in the network, in multiprocessing, or in the worker that sent the descriptor.",
        facts=(Fact.DESCRIPTORS,),
        advice=(
            "Do not keep tensors that workers send, because each one holds a descriptor. `clone()` those that you "
            "store.",
            _RAISE,
            _FIND_THE_LEAK,
        ),
        remedy=LOADER,
    ),
    Rule(
        name="inotify_instances",
        title="No more inotify instances for this user",
        errno=errno.EMFILE,
        needles=("inotify instance", "inotify_init"),
        pattern=r"inotify instance(s|\b)|inotify_init",
        rank=Rank.CAUSE,
        says=(
            "The user has reached fs.inotify.max_user_instances. inotify_init then fails with EMFILE, however many "
            "descriptors are free."
        ),
        mistaken_for="The limit of open files (`ulimit -n`), which has the same errno.",
        facts=(Fact.INOTIFY, Fact.DESCRIPTORS),
        advice=(
            "Share one watcher per process, and close it when you no longer need it.",
            "As root: `sysctl fs.inotify.max_user_instances=512`.",
        ),
    ),
    Rule(
        name="ENFILE",
        title="Too many open files in system",
        errno=errno.ENFILE,
        needles=("too many open files in system", "enfile", "errno 23", "file table overflow", "error(23,"),
        pattern=r"open files in system|\bENFILE\b|errno 23\b|table overflow|error\(23, ",
        rank=Rank.CAUSE,
        says=(
            "The machine has reached its limit of open files (fs.file-max). Every process fails to open files, except "
            "those of root."
        ),
        mistaken_for="The limit of this process, EMFILE. Raising `ulimit -n` does not help.",
        facts=(Fact.HOST_FILES, Fact.DESCRIPTORS),
        advice=(
            "Find the processes with the most open files: `holdfast top`, or `ls /proc/PID/fd | wc -l` for the "
            "largest processes.",
            "As root: `sysctl fs.file-max=N`.",
        ),
    ),
    Rule(
        name="EMFILE",
        title="Too many open files",
        errno=errno.EMFILE,
        needles=("too many open files", "emfile", "errno 24", "errno=24", "errno = 24", "error(24,"),
        pattern=r"too many open files(?! in system)|\bEMFILE\b|errno ?=? ?24\b|error\(24, ",
        rank=Rank.CAUSE,
        says=(
            "The process has reached its soft limit of open files, so open, pipe, socket and dup fail. Regular files "
            "are only part of the count: pipes, sockets, shared memory and event loops use descriptors too."
        ),
        mistaken_for=(
            "A network error, because a TLS client with one descriptor left raises SSLError. Or a limit that is too "
            "small, although a process that leaks reaches any limit."
        ),
        facts=(Fact.DESCRIPTORS,),
        advice=(
            "Close what you open per item: use `with open(…)`, one session for all requests and one DataLoader for "
            "all epochs, and do not store iterators, tensors or exceptions.",
            _RAISE,
            _FIND_THE_LEAK,
        ),
        remedy=FIND_LEAK,
    ),
    Rule(
        name="select",
        title="filedescriptor out of range in select()",
        needles=("out of range in select",),
        rank=Rank.CAUSE,
        says=(
            "select() accepts only descriptors below 1024, whatever the limit is. The process has more than that "
            "open, or had them when it opened this one, so the number of this descriptor is too high."
        ),
        mistaken_for=(
            "The limit of open files. Raising it makes things worse, because descriptor numbers can then grow past "
            "1023."
        ),
        facts=(Fact.HIGHEST, Fact.DESCRIPTORS),
        advice=(
            "Use poll or epoll: `selectors.DefaultSelector()`, `select.poll()`, or a newer version of the library.",
            "A thousand descriptors in one process suggest a leak. " + _FIND_THE_LEAK,
        ),
        remedy=FIND_LEAK,
    ),
    Rule(
        name="EBADF",
        title="Bad file descriptor",
        errno=errno.EBADF,
        needles=("bad file descriptor", "ebadf", "errno 9]", "errno = 9", "error(9,"),
        pattern=r"bad file descriptor|\bEBADF\b|errno 9\]|errno ?= ?9\b|error\(9, ",
        rank=Rank.CAUSE,
        says=(
            "The code used a descriptor that is not open: after its close, or in a second close. The mistake is often "
            "in other code: the kernel reuses a freed number at once, so a second close hits an unrelated file, and "
            "the error appears in code that did nothing wrong."
        ),
        mistaken_for="Too many open files. That gives errno 24, never 9; no limit is involved here.",
        advice=(
            "Look for two owners of one descriptor: os.close(f.fileno()), os.fdopen without closefd=False, "
            "socket(fileno=…), or a handle inherited over fork and closed on both sides.",
            "At interpreter exit the cause is usually a ThreadPool or Pool that is still alive (as in "
            "tf.distribute.MirroredStrategy): close() and join() it earlier.",
            "`holdfast trace --no-reuse script.py` gives a number again as late as possible, so that the stale use "
            "itself fails, and names both lines. For a running process: `holdfast trace --attach PID --for 60s`.",
        ),
    ),
    Rule(
        name="closed_file",
        title="I/O operation on closed file",
        needles=("closed file",),
        pattern=r"(operation on|read of|write to|seek of|tell of|peek of|flush of) closed file",
        rank=Rank.CAUSE,
        says=(
            "The code used a Python file object after its close(), often at the end of a `with` block: a generator, "
            "an array that is read lazily (numpy.load of .npz, h5py, Image.open) or another thread still uses it."
        ),
        mistaken_for="Bad file descriptor (errno 9). The descriptor was closed properly; the object is used too late.",
        advice=(
            "Use the data inside the `with` block, or copy it out first: Image.load(), array[...], list(rows).",
            "In a pool or DataLoader, open the file inside the worker. One owner closes it, after all have finished.",
            "If a library closed it, `python -X dev script.py` shows unclosed and doubly closed files with their "
            "origin; `holdfast trace script.py` records who opens and closes descriptors.",
        ),
    ),
    Rule(
        name="fds_to_keep",
        title="bad value(s) in fds_to_keep",
        needles=("fds_to_keep",),
        rank=Rank.CAUSE,
        says=(
            "A new process was to inherit a descriptor that is listed twice, is negative (already closed) or too "
            "large. With the start methods spawn and forkserver, this happens when two arguments of a Process share "
            "one descriptor: the same tensor, queue or connection passed twice."
        ),
        mistaken_for="A lack of descriptors (errno 24), or a bug in subprocess.",
        advice=(
            "Pass every tensor, queue and connection once. `clone()` tensors that share memory, or send an array.",
            "Do not pass closed connections or files, and let pass_fds have no duplicates.",
            "torch.multiprocessing.set_sharing_strategy('file_system') passes no descriptors for tensors.",
        ),
    ),
)
