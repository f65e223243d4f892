"""Errors about processes, threads and memory."""

from __future__ import annotations

import errno

from ..doctor.remedies import LOCKED, READ_BOUNDED
from .rules import Fact, Rank, Rule

_FEWER_THREADS = (
    "Start fewer: fewer workers, one shared pool, and OMP_NUM_THREADS=1 (OPENBLAS_NUM_THREADS, MKL_NUM_THREADS) in "
    "workers: every process starts a thread per core of its own."
)
_MORE_TASKS = (
    "More of them: `ulimit -u`, docker's --pids-limit, Kubernetes' podPidsLimit, systemd's TasksMax=, depending on "
    "which of these is full."
)

RULES = (
    Rule(
        name="EAGAIN_tasks",
        title="Resource temporarily unavailable, for a new process or thread",
        errno=errno.EAGAIN,
        needles=(
            "resource temporarily unavailable",
            "errno 11",
            "error(11,",
            "thread creation failed",
            "pthread_create",
        ),
        pattern=r"temporarily unavailable|errno 11\b|error\(11, |(thread creation|pthread_create).* failed",
        near=(
            "fork_exec",
            "os.fork",
            "popen_fork",
            "forkpty",
            "forkserver",
            "_execute_child",
            "fork:",
            "fork failed",
            "clone(",
            "pthread_create",
            "thread creation failed",
            "start_new_thread",
            "std::system_error",
        ),
        rank=Rank.CAUSE,
        says=(
            "The kernel refused a new process or thread: a limit of tasks is reached. That is RLIMIT_NPROC (all "
            "threads of the user together, not enforced for root), the control group's pids.max, or threads-max."
        ),
        mistaken_for="Too many open files. A full table of descriptors gives errno 24, and fork works on.",
        facts=(Fact.TASKS,),
        advice=(
            _FEWER_THREADS,
            "Look for processes nobody waits for: `ps -eo stat,ppid,comm | grep ^Z` shows those without a wait().",
            _MORE_TASKS,
        ),
    ),
    Rule(
        name="no_thread",
        title="can't start new thread",
        errno=errno.EAGAIN,
        needles=("can't start new thread", "can't start a new thread", "cannot start new thread"),
        rank=Rank.CAUSE,
        says=(
            "The system gave no new thread, and Python does not say why: a limit of tasks is reached (RLIMIT_NPROC, "
            "pids.max of the control group, threads-max), or there is no room for its stack (`ulimit -v`)."
        ),
        mistaken_for="Too little memory on the machine, or too many open files. Threads need no descriptor.",
        facts=(Fact.TASKS, Fact.MEMORY),
        advice=(
            "See what starts them: `py-spy dump --pid PID`, or `threading.enumerate()`, names all threads. A pool or "
            "a client made per job is the usual reason.",
            _FEWER_THREADS,
            _MORE_TASKS,
        ),
    ),
    Rule(
        name="EAGAIN",
        title="Resource temporarily unavailable",
        errno=errno.EAGAIN,
        needles=("resource temporarily unavailable", "eagain", "errno 11", "blockingioerror", "error(11,"),
        pattern=r"temporarily unavailable|\bEAGAIN\b|errno 11\b|BlockingIOError|error\(11, ",
        rank=Rank.SIGN,
        says=(
            "One of three: a limit of tasks is reached (at fork, Popen, Process.start), a lock is held by another "
            "(at flock or lockf with LOCK_NB, at h5py.File), or a non-blocking socket or pipe has nothing to give now."
        ),
        mistaken_for="Too many open files. That is errno 24; descriptors never give errno 11.",
        facts=(Fact.TASKS, Fact.LOCKS),
        advice=(
            "See which call raised it: the last line of the traceback in your own code.",
            "At a fork: fewer processes and threads, or a higher limit of tasks.",
            "At a lock: wait for its holder. At a socket or a pipe: it was made non-blocking; poll it first.",
        ),
        remedy=LOCKED,
    ),
    Rule(
        name="oom",
        title="Out of memory: killed by the kernel",
        needles=("oom-kill", "out of memory: kill", "oomkilled", "memory cgroup out of memory", "oom_reaper"),
        rank=Rank.CAUSE,
        says=(
            "The kernel ended a process by SIGKILL because the machine, or the control group (container, Slurm job), "
            "had no memory left. Pages of /dev/shm count as memory of the group."
        ),
        mistaken_for="A crash of the process that died: it is the largest that is taken, not the one that leaks.",
        facts=(Fact.MEMORY, Fact.SHM),
        advice=(
            "Less at a time: fewer workers, a smaller prefetch_factor and batch; no big Python lists in the Dataset, "
            "whose pages every worker copies by counting references.",
            "Watch the tree's memory with `holdfast top`.",
            "Give the container or job more memory.",
        ),
        remedy=READ_BOUNDED,
    ),
    Rule(
        name="mmap",
        title="unable to mmap",
        errno=errno.ENOMEM,
        needles=("unable to mmap",),
        rank=Rank.CAUSE,
        says=(
            "torch could not map a shared tensor. With `Cannot allocate memory (12)` the process mostly has as many "
            "mappings as vm.max_map_count allows (65,530), one for every tensor kept: memory itself is not short."
        ),
        mistaken_for="Too little memory.",
        facts=(Fact.MAPS, Fact.SHM, Fact.MEMORY),
        advice=(
            "Keep fewer tensors that come from workers: `clone()` those that stay, or join small ones into one.",
            "As root: `sysctl vm.max_map_count=1048576`.",
        ),
    ),
    Rule(
        name="ENOMEM",
        title="Cannot allocate memory",
        errno=errno.ENOMEM,
        needles=("cannot allocate memory", "enomem", "errno 12", "error(12,"),
        pattern=r"cannot allocate memory|\bENOMEM\b|errno 12\b|error\(12, ",
        rank=Rank.CAUSE,
        says=(
            "The kernel refused to promise memory. At fork: the child may need as much as its parent has, and the "
            "machine's rule of overcommit says no. At mmap: as there, or vm.max_map_count mappings are in use. "
            "Memory can be free all the same."
        ),
        mistaken_for="A leak. A full control group does not say this: it kills (exit code 137).",
        facts=(Fact.MEMORY, Fact.MAPS),
        advice=(
            "Start workers before the big data is loaded, or with the start method `forkserver`; subprocess.Popen "
            "uses vfork, which needs no such promise, unless preexec_fn is given.",
            "Share big arrays by file (numpy.memmap) instead of copying them.",
            "As root: `sysctl vm.overcommit_memory=1`, or add swap.",
        ),
    ),
    Rule(
        name="killed",
        title="Killed: a process was ended by SIGKILL",
        needles=(
            "signals.sigkill",
            "(sigkill)",
            "signal sigkill",
            "{sigkill(-9)",
            "exit code 137",
            "exitcode: -9",
            "exit status 137",
            "exitcode -9",
            "killed",
        ),
        # What a shell says, and not every line with the word in it.
        pattern=(
            r"signals\.SIGKILL|\(SIGKILL\)|signal SIGKILL|\{SIGKILL\(-9\)|exit (code|status) 137|exitcode:? -9"
            r"|^\s*(\[\d+\][+-]?\s+)?Killed\s*$|^\s*\[\d+\][+-]?\s+Killed\s|line \d+:\s+\d+ Killed\b|^zsh: killed\b"
            r"|\*\*\* .*\bKilled$"
        ),
        rank=Rank.SIGN,
        says=(
            "Nobody can catch SIGKILL, so that the process left no message. It is the kernel's (out of memory), the "
            "batch system's or the container's (time or memory is up), or somebody's kill -9."
        ),
        mistaken_for="A bug in the program that died.",
        facts=(Fact.MEMORY, Fact.SHM),
        advice=(
            "`dmesg -T | grep -i -E 'oom|killed process'`, `kubectl describe pod` or `sacct -j JOB` say who did it.",
            "Out of memory: fewer workers, smaller batches and prefetch, or more memory for the container.",
        ),
        remedy=READ_BOUNDED,
    ),
)
