"""The table of what leaks look like: a row is a cause, how to tell it, and what to do.

A new row needs a function in fits.py that counts what it explains, and a program under tests/leaky_programs that leaks
on purpose, with a clean counterpart that does the same work without the leak.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import fits
from .cures import FIND_LEAK, LOADER, READ_BOUNDED, Cure
from .facts import Match, Structure
from .fits import Fit

# Fewer than this many, or less than this part, is nothing to speak of.
AT_LEAST = 16
AT_LEAST_PART = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """`ordinary` is how many a healthy process may have: seen once, only what it has beyond that stands out.

    `{what}` in the cause becomes the path or the address that they share. `of` tells what is counted.
    """

    name: str
    fits: Callable[[Structure], Fit]
    cause: str
    advice: tuple[str, ...]
    ordinary: int = 0
    of: str = "descriptors"
    cure: Cure | None = None


SIGNATURES = (
    # ---- pipes
    Signature(
        name="dead-dataloader-iterators",
        fits=fits.dead_loaders,
        cause="finished DataLoader iterators are still referenced: their workers have ended, their pipes stay open",
        advice=(
            "drop the iterator after the loop, or keep one loader with persistent_workers=True",
            "look for what keeps it: a list or attribute, a kept exception (its traceback), a reference cycle",
        ),
        cure=LOADER,
    ),
    Signature(
        name="ended-processes",
        fits=fits.ended_processes,
        cause="Process or Popen objects of children that have ended are still referenced, with their pipes",
        advice=(
            "call Process.join() and then Process.close(), and drop the object",
            "use `with subprocess.Popen(…)`, or subprocess.run, which close stdin and stdout",
        ),
        cure=FIND_LEAK,
    ),
    Signature(
        name="unread-output",
        fits=fits.unread_output,
        cause="the output of commands that have ended was never read to its end and closed",
        advice=("use `with subprocess.Popen(…)`, Popen.communicate() or subprocess.run(capture_output=True)",),
        cure=FIND_LEAK,
    ),
    Signature(
        name="queues-never-closed",
        fits=fits.queues,
        cause="pipes that only this process has both ends of: multiprocessing queues or pools made and never closed",
        advice=(
            "call Queue.close() and Queue.join_thread() when done with a queue; close both ends of a Pipe",
            "use `with multiprocessing.Pool(…)` and Pool.join(), or one pool for all jobs",
        ),
        ordinary=32,
        cure=FIND_LEAK,
    ),
    Signature(
        name="workers-never-joined",
        fits=fits.live_pipes,
        cause="pipes to processes that are still alive: loaders, pools or workers are started and never ended",
        advice=(
            "make one loader and keep it (persistent_workers=True), or drop its iterator before the next one starts",
            "drop exceptions that a loader raised, or set their __traceback__ to None: it holds the iterator",
            "end workers of your own: Process.join(), `with ProcessPoolExecutor(…)`, Pool.terminate() and Pool.join()",
        ),
        ordinary=4 * fits.MOST_WORKERS + 2,
        cure=LOADER,
    ),
    Signature(
        name="pipes-not-seen-through",
        fits=fits.unknown_pipes,
        cause="pipes whose far end could not be looked at: they may be dead or in use",
        advice=("look again as root or as a parent of the process: then it shows which pipes are dead",),
        ordinary=4 * fits.MOST_WORKERS + 2,
    ),
    # ---- sockets
    Signature(
        name="responses-never-closed",
        fits=fits.close_wait,
        cause="the other side closed these connections (CLOSE_WAIT) and this process did not",
        advice=(
            "use one session (requests.Session, httpx.Client, aiohttp.ClientSession) and close it",
            "close every response: `with session.get(…, stream=True) as response`, or read its body to the end",
        ),
        cure=FIND_LEAK,
    ),
    Signature(
        name="client-per-call",
        fits=fits.one_peer,
        cause="open connections to one address, {what}: a client is made for every call",
        advice=("make the client once and share it; bound its connection pool",),
        ordinary=64,
        cure=FIND_LEAK,
    ),
    Signature(
        name="event-loops-never-closed",
        fits=fits.event_loops,
        cause="event loops (an eventpoll and what wakes it) are made and never closed",
        advice=("use asyncio.run, or asyncio.Runner for many calls; call loop.close() on a loop of your own",),
        ordinary=48,
        cure=FIND_LEAK,
    ),
    Signature(
        name="unix-sockets-kept",
        fits=fits.unix_sockets,
        cause="Unix sockets stay open: connections to a multiprocessing Manager, a resource sharer or a local service",
        advice=(
            "call Manager.shutdown() (or use `with Manager()`), and close connections when done",
            "keep one connection to a local service instead of one for every call",
        ),
        ordinary=64,
        cure=FIND_LEAK,
    ),
    Signature(
        name="sockets-never-closed",
        fits=fits.other_sockets,
        cause="sockets, to many addresses or to none, are opened and never closed",
        advice=("use `with socket.socket(…)`, close clients after use, and set timeouts on what a server accepts",),
        ordinary=512,
        cure=FIND_LEAK,
    ),
    # ---- files and memory
    Signature(
        name="torch-tensors-kept",
        fits=fits.torch_tensors,
        cause="tensors that came from DataLoader workers are kept: each holds a shared file (/dev/shm/torch_…)",
        advice=(
            "keep tensor.clone() (of an array, array.copy()) instead of what the loader gave",
            'or call torch.multiprocessing.set_sharing_strategy("file_system"), and watch /dev/shm',
        ),
        ordinary=16,
        cure=LOADER,
    ),
    Signature(
        name="shared-memory-kept",
        fits=fits.shared_memory,
        cause="blocks of shared memory are opened and never closed",
        advice=("call SharedMemory.close() in every process, and SharedMemory.unlink() once",),
        ordinary=16,
        cure=FIND_LEAK,
    ),
    Signature(
        name="one-path-many-times",
        fits=fits.one_path,
        cause="{what} is open many times: it is opened again for every item",
        advice=("open it once in each process and share the handle, or close it after each item (`with open(…)`)",),
        ordinary=16,
        cure=READ_BOUNDED,
    ),
    Signature(
        name="files-never-closed",
        fits=fits.files,
        cause="files are opened and never closed",
        advice=(
            "use `with open(…)`; call Image.load() or close the image; close numpy.load and h5py.File",
            "bound the number of handles that are kept: functools.lru_cache does not close what it drops",
        ),
        ordinary=512,
        cure=READ_BOUNDED,
    ),
    Signature(
        name="deleted-files-kept",
        fits=fits.deleted_files,
        cause="files are open that have been deleted, and their space is not free: rotated logs, temporary files",
        advice=(
            "reopen logs when they are rotated (logging.handlers.WatchedFileHandler)",
            "use `with tempfile.TemporaryFile()`",
        ),
        ordinary=16,
        cure=FIND_LEAK,
    ),
    Signature(
        name="memfds-kept",
        fits=fits.memfds,
        cause="memory files (memfd) are made and never closed: shared buffers between processes",
        advice=("close the buffer in every process that got it, or use a fixed set of buffers again and again",),
        ordinary=16,
        cure=FIND_LEAK,
    ),
    Signature(
        name="gpu-handles-kept",
        fits=fits.gpu_handles,
        cause="handles of GPU devices or their buffers (nvidia, dmabuf) are not released",
        advice=(
            "drop CUDA tensors that came from another process: each holds an IPC handle; torch.cuda.ipc_collect()",
            "make one CUDA context in a process, not one for every job",
        ),
        ordinary=256,
    ),
    # ---- the rest
    Signature(
        name="watchers-kept",
        fits=fits.inotify,
        cause="a file watcher (inotify) is made for every job and never closed",
        advice=("share one watcher (one watchdog Observer), or call its stop() and join()",),
        cure=FIND_LEAK,
    ),
    Signature(
        name="pidfds-kept",
        fits=fits.pidfds,
        cause="handles of processes (pidfd) stay open: nobody waited for the child, or called os.close on the pidfd",
        advice=("wait for every child (Popen.wait, `await process.wait()`), and call os.close on a pidfd",),
        ordinary=16,
        cure=FIND_LEAK,
    ),
    # ---- no descriptors, but they run out as well
    Signature(
        name="zombies",
        fits=fits.zombies,
        cause="children have ended and nobody waited for them",
        advice=("call Popen.wait() or Process.join() for every child",),
        of="children",
    ),
    Signature(
        name="children-never-ended",
        fits=fits.live_children,
        cause="child processes are started and never ended",
        advice=("use one pool for all jobs, and end it: `with ProcessPoolExecutor(…)`, Pool.terminate() and join()",),
        ordinary=64,
        of="children",
    ),
    Signature(
        name="threads-never-ended",
        fits=fits.threads,
        cause="threads are started and never ended",
        advice=("use one pool for all jobs, and end it: `with ThreadPoolExecutor(…)`; call Thread.join()",),
        ordinary=512,
        of="threads",
    ),
)
_NEVER_ORDINARY = tuple(row for row in SIGNATURES if not row.ordinary)


def match(structure: Structure, grown: Structure | None = None) -> Match | None:
    """The row that explains most of what grew; seen once, most of what is there beyond the ordinary. None if none does.

    A look of half a minute sees a slow leak grow by nothing: what no healthy process has is named even then.
    """
    if grown is None:
        return _best(structure, SIGNATURES, seen_once=True)
    return _best(grown, SIGNATURES, seen_once=False) or _best(structure, _NEVER_ORDINARY, seen_once=True)


def is_certain(found: Match) -> bool:
    """Whether it is wrong by itself, however many there are and whether or not they grow."""
    return any(row.name == found.name for row in _NEVER_ORDINARY)


def _best(seen: Structure, rows: Sequence[Signature], *, seen_once: bool) -> Match | None:
    """Descriptors first: threads and children that came with them are their consequence."""
    for counted, total in _totals(seen).items():
        found = [(row, row.fits(seen), row.ordinary if seen_once else 0) for row in rows if row.of == counted]
        found = [one for one in found if one[1].count - one[2] >= max(AT_LEAST, AT_LEAST_PART * total)]
        if found:
            row, fit, _ = max(found, key=lambda one: one[1].count - one[2])
            return _match(row, fit, total)
    return None


def _totals(seen: Structure) -> dict[str, int]:
    """Some of what grew may have taken the place of what went: then the kinds tell of more than the sum does."""
    fds = max(seen.fds, sum(seen.kinds.values()))
    return {"descriptors": fds, "children": seen.children, "threads": seen.threads}


def _match(row: Signature, fit: Fit, total: int) -> Match:
    return Match(
        name=row.name,
        cause=row.cause.replace("{what}", fit.what),
        advice=row.advice,
        count=fit.count,
        dead=fit.dead,
        share=min(1.0, fit.count / total) if total else 0.0,
        cure=row.cure,
    )
