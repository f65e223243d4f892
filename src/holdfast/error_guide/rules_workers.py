"""Errors about workers, and the memory they share."""

from __future__ import annotations

import errno

from ..doctor.remedies import FIND_LEAK, LOADER, READ_BOUNDED, WRITE
from .rules import Fact, Rank, Rule

_SHM_SIZE = (
    "Make /dev/shm larger: docker's --shm-size=8g (64 MB is its default) or --ipc=host; in Kubernetes mount an "
    "emptyDir with medium: Memory there."
)
_LESS_AT_A_TIME = "Less in flight: a smaller batch, prefetch_factor or num_workers. `holdfast plan` does the sum."
# Reasons that leave no doubt; that no name can be resolved is none: without descriptors nothing can be resolved.
_SAID = (
    r"connection refused|timed? ?out\b|timeouterror|no route to host|network is unreachable|certificate has expired"
    r"|self[- ]signed|hostname mismatch|doesn't match|wrong.version.number|unexpected.eof|eof occurred"
    r"|handshake.failure|too many 50\d error|too many redirects|tunnel connection failed"
)

RULES = (
    Rule(
        name="worker_bus",
        title="DataLoader worker ended by a bus error",
        needles=("killed by signal: bus error", "unexpected bus error encountered in worker", "out of shared memory"),
        pattern=r"bus error|dataloader's workers are out of shared memory",
        rank=Rank.CAUSE,
        says=(
            "A worker wrote a batch into shared memory, and /dev/shm was full. Space there is promised without being "
            "reserved; the missing page is noticed at the write, and that is SIGBUS."
        ),
        mistaken_for="Faulty memory or a bug in torch. num_workers=0 hides it, because nothing is shared then.",
        facts=(Fact.SHM, Fact.MEMORY),
        advice=(
            _SHM_SIZE,
            _LESS_AT_A_TIME,
            "Look for what killed runs left behind: `ls -l /dev/shm`; remove files that no process has open.",
        ),
        remedy=READ_BOUNDED,
    ),
    Rule(
        name="worker_killed",
        title="DataLoader worker ended by SIGKILL",
        needles=("killed by signal: killed",),
        rank=Rank.CAUSE,
        says=(
            "Somebody ended a worker by SIGKILL. Nearly always that is the kernel, because the control group "
            "(container, job) or the machine had no memory left; batches in /dev/shm count as its memory too."
        ),
        mistaken_for="A bug in the Dataset, or a /dev/shm that is too small: that is `Bus error`.",
        facts=(Fact.MEMORY, Fact.SHM),
        advice=(
            "`dmesg -T | grep -i -E 'oom|killed process'`, or `kubectl describe pod`, says whether it was the kernel.",
            _LESS_AT_A_TIME,
            "No big Python lists or dicts in the Dataset: counting references copies their pages in each worker. "
            "Use numpy arrays.",
        ),
        remedy=LOADER,
    ),
    Rule(
        name="worker_signal",
        title="DataLoader worker ended by a signal",
        needles=("is killed by signal:",),
        pattern=r"is killed by signal: (?!killed|bus error)",
        rank=Rank.SIGN,
        says=(
            "A worker died of a signal. Segmentation fault: native code that does not bear a fork (HDF5, CUDA, "
            "OpenCV's threads), or a file that was cut while it was mapped. Aborted: a native check failed. "
            "Terminated: somebody asked it to end."
        ),
        mistaken_for="An error in the training loop, where it comes up.",
        facts=(Fact.MEMORY, Fact.SHM),
        advice=(
            "Look for the worker's own last words above; `PYTHONFAULTHANDLER=1` adds its stack.",
            "Open files inside the worker, not before it starts; multiprocessing_context='forkserver' tells whether "
            "the fork is to blame.",
        ),
        remedy=LOADER,
    ),
    Rule(
        name="worker_exited",
        title="A worker exited unexpectedly",
        needles=(
            "exited unexpectedly",
            "terminated abruptly",
            "brokenprocesspool",
            "was unexpectedly terminated",
            "worker died or was killed",
            "worker process has died",
            "worker unexpectedly exits",
            "worker exits unexpectedly",
            "workercrashederror",
        ),
        pattern=(
            r"worker.*exited unexpectedly|pin memory thread exited|terminated abruptly|BrokenProcessPool"
            r"|worker.*unexpectedly terminated|worker died or|worker process has died|worker (unexpectedly )?exits"
            r"|WorkerCrashedError"
        ),
        rank=Rank.CONSEQUENCE,
        says=(
            "A worker is gone and left no message: it was killed (out of memory), it crashed in native code, or "
            "something in it called os._exit or sys.exit. This line only says that it was missed."
        ),
        mistaken_for="A fault of the loader or the pool. The cause stands above, in the kernel's log, or nowhere.",
        facts=(Fact.MEMORY, Fact.SHM, Fact.DESCRIPTORS),
        advice=(
            "Look for the first error above this one, and for the kernel's: `dmesg -T | tail`.",
            "Run once with num_workers=0 (or in one process): an exception shows its traceback then.",
            "`PYTHONFAULTHANDLER=1` shows where native code crashed.",
        ),
        remedy=LOADER,
    ),
    Rule(
        name="not_child",
        title="can only test a child process",
        needles=("can only test a child process", "can only join a child process"),
        rank=Rank.CONSEQUENCE,
        says=(
            "An object that belongs to another process was cleaned up here: a DataLoader iterator (or a Process) was "
            "alive when the process forked, and the child collects its copy. Harmless by itself. It shows that "
            "iterators outlive their loop, and that children inherit their pipes."
        ),
        mistaken_for="The reason why a run hangs or dies.",
        facts=(Fact.DESCRIPTORS,),
        advice=(
            "Drop the iterator before anything forks: leave the loop's function, or `del it`, also of exceptions "
            "whose traceback keeps it.",
            "One loader with persistent_workers=True for all epochs; start other processes before it, or by spawn.",
        ),
        remedy=LOADER,
    ),
    Rule(
        name="sharer",
        title="A worker was gone before its tensor was fetched",
        needles=("connection reset by peer", "connection refused", "filenotfounderror", "no such file", "eoferror"),
        near=("resource_sharer", "rebuild_storage_fd", "reductions.py"),
        rank=Rank.SIGN,
        says=(
            "A tensor travels as a note: the receiver then fetches its descriptor from the sender over a socket. The "
            "sender had ended by then, so that nobody answered."
        ),
        mistaken_for="A fault of the network.",
        facts=(Fact.DESCRIPTORS, Fact.SHM),
        advice=(
            "Let producers live until all they sent was taken: join them after the queue is empty.",
            "If a worker died, its own error stands above; that is the one to explain.",
            "`set_sharing_strategy('file_system')` does not ask the sender.",
        ),
        remedy=LOADER,
    ),
    Rule(
        name="shm_object",
        title="unable to open shared memory object",
        needles=("unable to open shared memory object", "torch_shm_manager"),
        rank=Rank.SIGN,
        says=(
            "torch found no shared memory of that name. The errno at the line's end tells: 2, its maker is gone and "
            "took it along; 24, no descriptor was free; 28, /dev/shm is full; 13, it is another user's."
        ),
        mistaken_for="A limit of memory.",
        facts=(Fact.SHM, Fact.DESCRIPTORS),
        advice=(
            "errno 2: let the process that made the tensor live until all have opened it.",
            "errno 24: keep fewer tensors of workers (`clone()` those that stay).",
            _SHM_SIZE,
        ),
        remedy=LOADER,
    ),
    Rule(
        name="bus",
        title="Bus error (SIGBUS)",
        needles=("bus error", "sigbus"),
        # Not that of PCIe, D-Bus and the like.
        pattern=r"\bSIGBUS\b|(?<![\w-])(?<!can )(?<!i2c )(?<!pcie )(?<!pci )(?<!usb )bus error\b",
        rank=Rank.SIGN,
        says=(
            "Mapped memory was touched that has no page behind it: /dev/shm (or the disk under a mapped file) was "
            "full, or somebody cut the file while it was mapped."
        ),
        mistaken_for="Faulty hardware, or a lack of memory: that kills by SIGKILL.",
        facts=(Fact.SHM, Fact.DISK, Fact.MEMORY),
        advice=(
            _SHM_SIZE,
            "Do not write files in place that others have mapped: write a new one and rename it over the old.",
            _LESS_AT_A_TIME,
        ),
        remedy=WRITE,
    ),
    Rule(
        name="leaked_semaphores",
        title="leaked semaphore objects",
        needles=("leaked semaphore",),
        rank=Rank.CONSEQUENCE,
        says=(
            "A process ended without cleaning up (killed, os._exit, a crash), and Python's resource tracker removes "
            "its semaphores for it. It is a sign of that end, not a leak that grows."
        ),
        mistaken_for="A leak in multiprocessing that made the run fail.",
        facts=(Fact.MEMORY,),
        advice=(
            "Look for why the process ended: the error above, or the kernel's log (out of memory?).",
            "close() and join() pools and queues before the end.",
        ),
    ),
    Rule(
        name="leaked_shared_memory",
        title="leaked shared_memory objects",
        needles=("leaked shared_memory",),
        rank=Rank.CONSEQUENCE,
        says=(
            "Nobody called unlink() on these blocks of shared memory, and the resource tracker removes them now. "
            "Below Python 3.13 the tracker of a process that only attached a block removes it too, under the feet of "
            "those who still use it."
        ),
        mistaken_for="Memory lost for good: after this message it is free.",
        facts=(Fact.SHM,),
        advice=(
            "One owner: it alone calls unlink(), all others close().",
            "Attach with SharedMemory(name, track=False) from Python 3.13 on; before, give children their block over "
            "fork or a common parent, so that one tracker serves all.",
        ),
    ),
    Rule(
        name="EPIPE",
        title="Broken pipe",
        errno=errno.EPIPE,
        needles=("broken pipe", "brokenpipeerror", "errno 32", "error(32,"),
        pattern=r"broken pipe|BrokenPipeError|errno 32\b|error\(32, ",
        rank=Rank.CONSEQUENCE,
        says="Something was written to a pipe or a socket that nobody reads any more: the other process has ended.",
        mistaken_for="The error itself. It is the echo of another process's death.",
        facts=(),
        advice=(
            "Look for what became of the reader: its own error stands above or in its own log.",
            "In a shell, `| head` ends early on purpose: nothing is wrong then.",
        ),
    ),
    Rule(
        name="ECONNRESET",
        title="Connection reset by peer",
        errno=errno.ECONNRESET,
        needles=("connection reset by peer", "connectionreseterror", "errno 104", "error(104,"),
        rank=Rank.CONSEQUENCE,
        says=(
            "The other side ended the connection, with data of ours unread: its process died, or it had enough "
            "of us (a time-out, a full table of its own)."
        ),
        mistaken_for="A limit of this process.",
        facts=(Fact.DESCRIPTORS,),
        advice=("Look at the other side's log, at the same time.", "Try again with a pause that grows."),
    ),
    Rule(
        name="tls",
        title="SSLError, Max retries exceeded: a request failed",
        needles=(
            "sslerror",
            "max retries exceeded",
            "maxretryerror",
            "suitable tls ca certificate bundle",
            "certificate_verify_failed",
            "failure in name resolution",
        ),
        pattern=rf"^(?!.*({_SAID}))",
        rank=Rank.CONSEQUENCE,
        says=(
            "A request failed, and this text does not say of what. When a process runs out of descriptors, HTTPS is "
            "often the first to say so: SSLError wraps errno 24, or the certificates cannot be opened, of which "
            "Python says nothing, and then no server's certificate can be verified."
        ),
        mistaken_for="The server's or the network's fault, for days, while the process has no descriptor left.",
        facts=(Fact.DESCRIPTORS,),
        advice=(
            "Give the exception itself to `hold.explain(error)`: it finds the errno inside.",
            "`holdfast doctor PID` shows how many descriptors the process has left.",
        ),
        remedy=FIND_LEAK,
    ),
    Rule(
        name="request",
        title="A request failed for a reason that it names",
        needles=("sslerror", "max retries exceeded", "maxretryerror", "certificate_verify_failed"),
        pattern=_SAID,
        rank=Rank.CONSEQUENCE,
        says=(
            "The line itself tells: nobody listens at that address (refused), nobody answers in time (timed out, no "
            "route), the certificate is not one to trust (expired, self-signed, another host's), or the two sides do "
            "not speak the same protocol."
        ),
        mistaken_for="A limit of this process: none of these comes from one.",
        facts=(),
        advice=(
            "Try it by hand from the same machine and user: `curl -v URL`, with the same proxy settings.",
            "self-signed: a proxy of your own network signs anew; add its certificate (REQUESTS_CA_BUNDLE).",
        ),
    ),
)
