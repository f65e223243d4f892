"""Rules for errors about processes, threads and memory."""

from __future__ import annotations

import errno

from ..doctor.remedies import LOCKED, READ_BOUNDED
from .rules import Fact, Rank, Rule

_FEWER_THREADS = (
    "Start fewer threads: fewer workers, one shared pool, and OMP_NUM_THREADS=1 (OPENBLAS_NUM_THREADS, "
    "MKL_NUM_THREADS) in workers, because every process starts one thread per core."
)
_MORE_TASKS = (
    "Raise the limit that is reached: `ulimit -u`, docker's --pids-limit, Kubernetes' podPidsLimit, or "
    "systemd's TasksMax=."
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
            "The kernel refused a new process or thread because a task limit is reached: RLIMIT_NPROC (all threads of "
            "the user together, not enforced for root), pids.max of the control group, or threads-max."
        ),
        mistaken_for="Too many open files. That gives errno 24, and fork still works.",
        facts=(Fact.TASKS,),
        advice=(
            _FEWER_THREADS,
            "Look for zombie processes, which no parent has waited for: `ps -eo stat,ppid,comm | grep ^Z`.",
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
            "The system refused a new thread, and Python does not report why. Either a task limit is reached "
            "(RLIMIT_NPROC, pids.max of the control group, threads-max), or there is no address space for the stack "
            "(`ulimit -v`)."
        ),
        mistaken_for="Too little memory on the machine, or too many open files. A thread needs no descriptor.",
        facts=(Fact.TASKS, Fact.MEMORY),
        advice=(
            "Find out what starts the threads: `py-spy dump --pid PID` or `threading.enumerate()` lists them. The "
            "usual reason is a pool or a client that is created per job.",
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
            "This errno has three causes: a task limit is reached (in fork, Popen, Process.start), another process "
            "holds a lock (in flock or lockf with LOCK_NB, in h5py.File), or a non-blocking socket or pipe is not "
            "ready."
        ),
        mistaken_for="Too many open files. That gives errno 24; a lack of descriptors never gives errno 11.",
        facts=(Fact.TASKS, Fact.LOCKS),
        advice=(
            "Find the call that raised it: it is the last line of the traceback in your own code.",
            "In a fork, start fewer processes and threads, or raise the task limit.",
            "At a lock, wait for its holder. A socket or pipe was made non-blocking: poll it first.",
        ),
        remedy=LOCKED,
    ),
    Rule(
        name="oom",
        title="Out of memory: killed by the kernel",
        needles=("oom-kill", "out of memory: kill", "oomkilled", "memory cgroup out of memory", "oom_reaper"),
        rank=Rank.CAUSE,
        says=(
            "The kernel killed a process with SIGKILL because the machine, or the control group (container, Slurm "
            "job), had no memory left. Pages in /dev/shm count as memory of the control group."
        ),
        mistaken_for=(
            "A crash of the process that died. The kernel picks the largest process, which need not be the one that "
            "leaks."
        ),
        facts=(Fact.MEMORY, Fact.SHM),
        advice=(
            "Use less memory: fewer workers, a smaller prefetch_factor and batch, and no big Python lists in the "
            "Dataset, because reference counting copies their pages in every worker.",
            "Watch the memory of the process tree with `holdfast top`.",
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
            "torch could not map a shared tensor. With `Cannot allocate memory (12)` the process has usually reached "
            "vm.max_map_count (65,530 mappings), one for every tensor that is kept; there is enough memory."
        ),
        mistaken_for="Too little memory.",
        facts=(Fact.MAPS, Fact.SHM, Fact.MEMORY),
        advice=(
            "Keep fewer tensors that workers send: `clone()` those that you store, or concatenate small ones.",
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
            "The kernel refused to reserve memory, although memory may be free. In fork, the child may need as much "
            "as its parent has, and the overcommit setting does not allow that. In mmap, the reason is the same, or "
            "the process has reached vm.max_map_count."
        ),
        mistaken_for=(
            "A leak. A control group that runs out of memory does not give this error: it kills the process (exit "
            "code 137)."
        ),
        facts=(Fact.MEMORY, Fact.MAPS),
        advice=(
            "Start workers before you load big data, or use the start method `forkserver`. subprocess.Popen uses "
            "vfork, which reserves no memory, unless preexec_fn is given.",
            "Share big arrays through a file (numpy.memmap) instead of copying them.",
            "As root: `sysctl vm.overcommit_memory=1`, or add swap.",
        ),
    ),
    Rule(
        name="killed",
        title="Killed: a process was killed by SIGKILL",
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
        # "Killed" counts only in the form in which shells print it.
        pattern=(
            r"signals\.SIGKILL|\(SIGKILL\)|signal SIGKILL|\{SIGKILL\(-9\)|exit (code|status) 137|exitcode:? -9"
            r"|^\s*(\[\d+\][+-]?\s+)?Killed\s*$|^\s*\[\d+\][+-]?\s+Killed\s|line \d+:\s+\d+ Killed\b|^zsh: killed\b"
            r"|\*\*\* .*\bKilled$"
        ),
        rank=Rank.SIGN,
        says=(
            "A process received SIGKILL, which cannot be caught, so it left no message. The sender is the kernel (out "
            "of memory), the batch system or container runtime (time or memory limit), or a user with kill -9."
        ),
        mistaken_for="A bug in the program that died.",
        facts=(Fact.MEMORY, Fact.SHM),
        advice=(
            "`dmesg -T | grep -i -E 'oom|killed process'`, `oom_kill` in the control group's memory.events, `kubectl "
            "describe pod` or `sacct -j JOB` show who sent it.",
            "If it ran out of memory, use fewer workers, smaller batches and less prefetch, or give the container "
            "more memory.",
        ),
        remedy=READ_BOUNDED,
    ),
)
