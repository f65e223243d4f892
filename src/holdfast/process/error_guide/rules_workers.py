"""Rules for errors about workers, shared memory and connections."""

from __future__ import annotations

import errno

from ..doctor.remedies import FIND_LEAK, LOADER, READ_BOUNDED, WRITE
from .rules import Fact, Rank, Rule

_SHM_SIZE = (
    "Make /dev/shm larger: use docker's --shm-size=8g (the default is 64 MB) or --ipc=host; in Kubernetes, "
    "mount an emptyDir with medium: Memory there."
)
_WHO_KILLED = (
    "`dmesg -T | grep -i -E 'oom|killed process'`, `oom_kill` in the control group's memory.events "
    "(/sys/fs/cgroup/memory.events in a container) or `kubectl describe pod` shows whether it was the kernel."
)
_LESS_AT_A_TIME = (
    "Keep less in flight: use a smaller batch, prefetch_factor or num_workers. `holdfast plan` computes the need."
)
# Unambiguous reasons. Failed name resolution is not one of them: a lack of descriptors causes it too.
_SAID = (
    r"connection refused|timed? ?out\b|timeouterror|no route to host|network is unreachable|certificate has expired"
    r"|self[- ]signed|hostname mismatch|doesn't match|wrong.version.number|unexpected.eof|eof occurred"
    r"|handshake.failure|too many 50\d error|too many redirects|tunnel connection failed"
)

RULES = (
    Rule(
        name="shm_full",
        title="Shared memory (/dev/shm) is full",
        errno=errno.ENOSPC,
        needles=("no space left on device", "errno 28", "error(28,", "to file </torch_", "for file </torch_"),
        pattern=(
            r"(unable to (write to|resize)|shared memory\(shm\) for) file </torch_"
            r"|^(?=.*(/dev/shm/|[</']torch_\d|'/psm_)).*(no space left|errno 28\b|error\(28, )"
        ),
        rank=Rank.CAUSE,
        says=(
            "The file system of shared memory is full, not a disk: DataLoader workers put every batch there "
            "(/dev/shm/torch_…) until the main process has used it. In a container it is often 64 MB."
        ),
        mistaken_for="A full disk. `df` on the data folder shows free space, and cleaning it up does not help.",
        facts=(Fact.SHM, Fact.MEMORY),
        advice=(
            _SHM_SIZE,
            _LESS_AT_A_TIME,
            "Look for files that killed runs left: `ls -l /dev/shm`. Remove those that no process has open.",
        ),
        remedy=READ_BOUNDED,
    ),
    Rule(
        name="collective_timeout",
        title="NCCL watchdog: a collective operation timed out",
        needles=("collective operation timeout", "watchdog got stuck", "nccl operations have failed or timed out"),
        rank=Rank.SIGN,
        says=(
            "A rank waited for the others in all_reduce, broadcast or barrier until the timeout (10 minutes by "
            "default). One rank did not come: it died, it waits for data, or it had fewer batches than the others. "
            "The ranks that print this are the ones that waited."
        ),
        mistaken_for="A fault of the network or the GPU. Usually the missing rank has another error, earlier.",
        facts=(Fact.MEMORY, Fact.SHM),
        advice=(
            "Find the rank that is missing: the one whose SeqNum is lowest or that prints nothing. `holdfast explain "
            "rank*.log` shows the first error; `py-spy dump --pid PID` where it waits.",
            "Give every rank the same number of batches (drop the last, or torch's Join context).",
            "If loading is slow, `holdfast doctor PID` on that rank. Raise `timeout=` of init_process_group only for "
            "work that is known to take longer.",
        ),
    ),
    Rule(
        name="worker_bus",
        title="DataLoader worker killed by a bus error",
        needles=("killed by signal: bus error", "unexpected bus error encountered in worker", "out of shared memory"),
        pattern=r"bus error|dataloader's workers are out of shared memory",
        rank=Rank.CAUSE,
        says=(
            "A worker wrote a batch into shared memory while /dev/shm was full. The kernel does not reserve space "
            "there in advance: the write to a missing page raises SIGBUS."
        ),
        mistaken_for="Faulty memory or a bug in torch. num_workers=0 hides the error, because nothing is shared then.",
        facts=(Fact.SHM, Fact.MEMORY),
        advice=(
            _SHM_SIZE,
            _LESS_AT_A_TIME,
            "Look for files that killed runs left: `ls -l /dev/shm`. Remove those that no process has open.",
        ),
        remedy=READ_BOUNDED,
    ),
    Rule(
        name="worker_killed",
        title="DataLoader worker killed by SIGKILL",
        needles=("killed by signal: killed",),
        rank=Rank.CAUSE,
        says=(
            "A worker was killed by SIGKILL. The sender is nearly always the kernel, because the control group "
            "(container, job) or the machine had no memory left. Batches in /dev/shm count as memory of the control "
            "group."
        ),
        mistaken_for="A bug in the Dataset, or a /dev/shm that is too small. The latter gives `Bus error`.",
        facts=(Fact.MEMORY, Fact.SHM),
        advice=(
            _WHO_KILLED,
            _LESS_AT_A_TIME,
            "Keep no big Python lists or dicts in the Dataset, because reference counting copies their pages in every "
            "worker. Use numpy arrays.",
        ),
        remedy=READ_BOUNDED,
    ),
    Rule(
        name="worker_signal",
        title="DataLoader worker killed by a signal",
        needles=("is killed by signal:",),
        pattern=r"is killed by signal: (?!killed|bus error)",
        rank=Rank.SIGN,
        says=(
            "A worker was killed by a signal. A segmentation fault comes from native code that is not fork-safe "
            "(HDF5, CUDA, OpenCV's threads), or from a mapped file that was truncated. `Aborted` means that a check "
            "in native code failed, `Terminated` that another process asked it to exit."
        ),
        mistaken_for="An error in the training loop, where it is raised.",
        facts=(Fact.MEMORY, Fact.SHM),
        advice=(
            "Look for the last messages of the worker above; `PYTHONFAULTHANDLER=1` adds its stack.",
            "Open files inside the worker, not before it starts. multiprocessing_context='forkserver' shows whether "
            "fork is the cause.",
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
            "A worker process exited without a message: it was killed (out of memory), it crashed in native code, or "
            "it called os._exit or sys.exit. This line only reports that it is gone."
        ),
        mistaken_for=(
            "A bug in the loader or the pool. The cause is in the lines above or in the kernel log, if it was logged "
            "at all."
        ),
        facts=(Fact.MEMORY, Fact.SHM, Fact.DESCRIPTORS),
        advice=(
            "Look for the first error above this one. " + _WHO_KILLED,
            "Run once with num_workers=0 (or in one process), so that an exception shows its traceback.",
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
            "This process cleaned up an object of another process: a DataLoader iterator (or a Process) was alive "
            "during a fork, and the child collects its copy. The error is harmless, but it shows that iterators "
            "outlive their loop and that children inherit their pipes."
        ),
        mistaken_for="The reason why a run hangs or dies.",
        facts=(Fact.DESCRIPTORS,),
        advice=(
            "Delete the iterator before any fork: leave the function with the loop, or `del it`, and drop exceptions "
            "whose traceback refers to it.",
            "Use one loader with persistent_workers=True for all epochs. Start other processes before it, or with "
            "spawn.",
        ),
        remedy=LOADER,
    ),
    Rule(
        name="sharer",
        title="A worker exited before its tensor was fetched",
        needles=("connection reset by peer", "connection refused", "filenotfounderror", "no such file", "eoferror"),
        near=("resource_sharer", "rebuild_storage_fd", "reductions.py"),
        rank=Rank.SIGN,
        says=(
            "A worker sends a reference to a tensor, and the receiver then fetches the descriptor from the sender "
            "over a socket. The sender had already exited, so nothing answered."
        ),
        mistaken_for="A network error.",
        facts=(Fact.DESCRIPTORS, Fact.SHM),
        advice=(
            "Keep producers alive until everything they sent was received: join them after the queue is empty.",
            "If a worker died, explain its own error, which is above this one.",
            "`set_sharing_strategy('file_system')` does not contact the sender.",
        ),
        remedy=LOADER,
    ),
    Rule(
        name="shm_object",
        title="unable to open shared memory object",
        needles=("unable to open shared memory object", "torch_shm_manager"),
        rank=Rank.SIGN,
        says=(
            "torch could not open a shared memory object. The errno at the end of the line gives the reason: 2, the "
            "process that created it has exited and removed it; 24, no descriptor was free; 28, /dev/shm is full; 13, "
            "it belongs to another user."
        ),
        mistaken_for="A memory limit.",
        facts=(Fact.SHM, Fact.DESCRIPTORS),
        advice=(
            "For errno 2, keep the process that created the tensor alive until all others have opened it.",
            "For errno 24, keep fewer tensors that workers send (`clone()` those that you store).",
            _SHM_SIZE,
        ),
        remedy=LOADER,
    ),
    Rule(
        name="bus",
        title="Bus error (SIGBUS)",
        needles=("bus error", "sigbus"),
        # Errors of PCIe, D-Bus and other buses must not match.
        pattern=r"\bSIGBUS\b|(?<![\w-])(?<!can )(?<!i2c )(?<!pcie )(?<!pci )(?<!usb )bus error\b",
        rank=Rank.SIGN,
        says=(
            "The process accessed a mapped page that has no memory behind it: /dev/shm (or the disk under a mapped "
            "file) was full, or another process truncated the file while it was mapped."
        ),
        mistaken_for="Faulty hardware, or a lack of memory. The latter kills with SIGKILL.",
        facts=(Fact.SHM, Fact.DISK, Fact.MEMORY),
        advice=(
            _SHM_SIZE,
            "Do not write in place to files that other processes have mapped: write a new file and rename it over the "
            "old one.",
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
            "A process exited without cleaning up (killed, os._exit, a crash), and Python's resource tracker removes "
            "its semaphores. The message is a sign of that exit, not of a leak that grows."
        ),
        mistaken_for="A leak in multiprocessing that made the run fail.",
        facts=(Fact.MEMORY,),
        advice=(
            "Find out why the process exited: see the error above, or the kernel log (out of memory?).",
            "Call close() and join() on pools and queues before the program ends.",
        ),
    ),
    Rule(
        name="leaked_shared_memory",
        title="leaked shared_memory objects",
        needles=("leaked shared_memory",),
        rank=Rank.CONSEQUENCE,
        says=(
            "No process called unlink() on these shared memory blocks, so the resource tracker removes them now. "
            "Before Python 3.13, the tracker of a process that only attached a block removes it too, while other "
            "processes still use it."
        ),
        mistaken_for="Memory that is lost for good. It is free after this message.",
        facts=(Fact.SHM,),
        advice=(
            "Give each block one owner: only the owner calls unlink(), all others call close().",
            "From Python 3.13 on, attach with SharedMemory(name, track=False). Before, create the block in a common "
            "parent, so that all processes share one tracker.",
        ),
    ),
    Rule(
        name="EPIPE",
        title="Broken pipe",
        errno=errno.EPIPE,
        needles=("broken pipe", "brokenpipeerror", "errno 32", "error(32,"),
        pattern=r"broken pipe|BrokenPipeError|errno 32\b|error\(32, ",
        rank=Rank.CONSEQUENCE,
        says=(
            "The process wrote to a pipe or socket that has no reader any more, because the other process has exited."
        ),
        mistaken_for="The original error. It is a consequence of the other process's exit.",
        advice=(
            "Find out why the reader exited: its own error is above or in its own log.",
            "In a shell, `| head` exits early on purpose; then nothing is wrong.",
        ),
    ),
    Rule(
        name="ECONNRESET",
        title="Connection reset by peer",
        errno=errno.ECONNRESET,
        needles=("connection reset by peer", "connectionreseterror", "errno 104", "error(104,"),
        rank=Rank.CONSEQUENCE,
        says=(
            "The other side closed the connection before it had read all our data: its process died, or it dropped "
            "the connection (a timeout, its own lack of descriptors)."
        ),
        mistaken_for="A limit of this process.",
        facts=(Fact.DESCRIPTORS,),
        advice=(
            "Look at the log of the other side, at the same time.",
            "Retry with a growing delay.",
        ),
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
            "A request failed, and this text does not give the reason. HTTPS is often the first to fail when a "
            "process runs out of descriptors: SSLError wraps errno 24, or Python cannot open the CA certificates, "
            "reports nothing, and then cannot verify any server."
        ),
        mistaken_for="An error of the server or the network, although the process has no descriptor left.",
        facts=(Fact.DESCRIPTORS,),
        advice=(
            "Pass the exception itself to `hold.explain(error)`: it finds the errno inside.",
            "`holdfast doctor PID` shows how many descriptors the process has left.",
        ),
        remedy=FIND_LEAK,
    ),
    Rule(
        name="request",
        title="A request failed, and the message gives the reason",
        needles=("sslerror", "max retries exceeded", "maxretryerror", "certificate_verify_failed"),
        pattern=_SAID,
        rank=Rank.CONSEQUENCE,
        says=(
            "The line itself gives the reason: no server listens at that address (refused), no answer came in time "
            "(timed out, no route), the certificate is not trusted (expired, self-signed, wrong host), or the two "
            "sides use different protocols."
        ),
        mistaken_for="A limit of this process. No limit causes any of these.",
        advice=(
            "Try the request by hand on the same machine as the same user: `curl -v URL`, with the same proxy "
            "settings.",
            "A self-signed certificate usually comes from a proxy in your own network: add its certificate "
            "(REQUESTS_CA_BUNDLE).",
        ),
    ),
)
