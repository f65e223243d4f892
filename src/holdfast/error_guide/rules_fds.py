"""Errors about descriptors: their number, and what they point to."""

from __future__ import annotations

import errno

from ..doctor.remedies import FIND_LEAK, LOADER
from .rules import Fact, Rank, Rule

_FIND_THE_LEAK = "`holdfast doctor PID` counts them by kind, says whether they grow, and what leaks them."
_RAISE = (
    "`hold.raise_nofile()` at the start, or `ulimit -n`, gives more; with a leak that buys time and nothing else. A "
    "live process is helped by `prlimit --pid PID --nofile=N`."
)

RULES = (
    Rule(
        name="worker_talk",
        title="Communication with the workers is no longer possible",
        errno=errno.EMFILE,
        needles=("communication with the workers is no longer possible", "workers is no longer possible"),
        rank=Rank.CAUSE,
        says=(
            "torch's main process has fewer than ten descriptors free. Every tensor that comes from a worker costs it "
            "one for as long as the tensor lives, and every live DataLoader iterator 4 pipes a worker and 2 more."
        ),
        mistaken_for="Dead workers, or too small a limit. The workers are well; somebody keeps tensors or iterators.",
        facts=(Fact.DESCRIPTORS,),
        advice=(
            "Do not keep what a loader gave: `clone()` a tensor that stays (also behind `.numpy()`), and drop "
            "iterators after the loop, and exceptions whose traceback holds one.",
            _FIND_THE_LEAK,
            "`torch.multiprocessing.set_sharing_strategy('file_system')` needs no descriptor per tensor, but leaves "
            "files in /dev/shm when a run is killed.",
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
            "A descriptor was sent to this process over a Unix socket, and the process had no number free for it: the "
            "kernel drops it without an error. It is EMFILE in the process that receives, mostly torch's main process."
        ),
        mistaken_for="A fault of the network, of multiprocessing, or of the worker that sent it.",
        facts=(Fact.DESCRIPTORS,),
        advice=(
            "Do not keep tensors that come from workers: each holds a descriptor. `clone()` those that stay.",
            _FIND_THE_LEAK,
            _RAISE,
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
            "inotify_init says EMFILE when the user has fs.inotify.max_user_instances watchers, however many "
            "descriptors are free."
        ),
        mistaken_for="The limit of open files (`ulimit -n`), which has the same errno.",
        facts=(Fact.INOTIFY, Fact.DESCRIPTORS),
        advice=(
            "Share one watcher in a process, and close it when its work is done.",
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
        says="The whole machine has no open file left (fs.file-max). Every process but root's is hit.",
        mistaken_for="This process's own limit, EMFILE. Raising `ulimit -n` does not help.",
        facts=(Fact.HOST_FILES, Fact.DESCRIPTORS),
        advice=(
            "Find who has them: `holdfast top`, or `ls /proc/PID/fd | wc -l` for the largest processes.",
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
            "The process has as many descriptors as its soft limit of open files allows, so that open, pipe, socket "
            "and dup fail. Files are only a part of them: pipes, sockets, shared memory and event loops count as well."
        ),
        mistaken_for=(
            "A fault of the network: with one descriptor left a TLS client raises SSLError. Also a limit that is too "
            "small: a process that leaks reaches any limit."
        ),
        facts=(Fact.DESCRIPTORS,),
        advice=(
            _FIND_THE_LEAK,
            "Close what is opened per item: `with open(…)`, one session for all requests, one DataLoader for all "
            "epochs, no kept iterators, tensors or exceptions.",
            _RAISE,
        ),
        remedy=FIND_LEAK,
    ),
    Rule(
        name="select",
        title="filedescriptor out of range in select()",
        needles=("out of range in select",),
        rank=Rank.CAUSE,
        says=(
            "select() takes descriptors below 1024 only, whatever the limit is. The process has more than that open, "
            "or once had: the number of this descriptor is too high for select."
        ),
        mistaken_for="The limit of open files. A higher one makes it worse: it lets the numbers grow past 1023.",
        facts=(Fact.HIGHEST, Fact.DESCRIPTORS),
        advice=(
            "Use poll or epoll: `selectors.DefaultSelector()`, `select.poll()`, or a newer version of the library.",
            "A thousand descriptors are much for one process: " + _FIND_THE_LEAK,
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
            "A number was used that is not open (any more): used after close, or closed twice. Often somebody else "
            "closed it: the kernel hands a freed number out at once, so that the second close hits a stranger's file "
            "and the error comes up there, in code that did nothing wrong."
        ),
        mistaken_for="Too many open files. A full table gives errno 24, never 9; no limit is involved.",
        facts=(Fact.DESCRIPTORS,),
        advice=(
            "Look for two owners of one number: os.close(f.fileno()), os.fdopen without closefd=False, "
            "socket(fileno=…), a handle inherited over fork and closed on both sides.",
            "`python -X dev` names failing closes in destructors, which are silent otherwise.",
            "At exit it is mostly a ThreadPool or Pool that lives until then (tf.distribute.MirroredStrategy's does): "
            "close() and join() it before.",
        ),
    ),
)
