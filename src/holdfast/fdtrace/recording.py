"""Runs a program with the tracing library and collects what it records."""

from __future__ import annotations

import errno
import fcntl
import json
import linecache
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO

import numpy as np

from ..errors import HoldfastError, InputError, TraceUnavailableError
from ..procfs.descriptors import describe_all, list_fds
from ..procfs.processes import read_stat
from ..procfs.procfs import REAL, read_or_none
from . import trace_file
from .image import NO_STACK, Frame, Image, Stack, Stacks, read_folder, read_image
from .log_format import AT_EXIT, BEFORE, BIRTH, CLOSE, CLOSE_UNSEEN, EBADF, INHERITED, LIVE, NATIVE, NO_REUSE, PARTIAL
from .native_frames import MappedFile, NativeFrames, parse_maps
from .partial import MISSES
from .trace_file import SourceFrame, Trace, TracedProcess

LIBRARY = Path(__file__).parents[1] / "_native" / "_fdtrace.abi3.so"
_BOOTSTRAP = Path(__file__).with_name("bootstrap")
_TICK_S = 1.0
_MOST_SAMPLES = 200_000  # 4 MB; then every second tick is dropped and the ticks come half as often
_LOOK_EVERY = 5  # ticks between two looks at /proc/PID/fd
_MOST_LINKS = 2_000
_LEAST_FREE = 64 << 20
_PREFIX = "holdfast-trace-"


@dataclass(frozen=True)
class TraceOptions:
    """What is recorded.

    Args:
        native: Also the C frames of each stack. Makes a descriptor cost about three times as much.
        ebadf: Also reads, writes and other calls that fail with EBADF.
        no_reuse: Give no number twice, so that a stale descriptor fails with EBADF instead of reaching another file.
        arm_above: Take stacks only while more descriptors than this are open.
        owners: Look at the end of a Python program for what keeps the descriptors of the largest sites open.
    """

    native: bool = False
    ebadf: bool = True
    no_reuse: bool = False
    arm_above: int = 0
    owners: bool = True

    def bits(self) -> int:
        return NATIVE * self.native | EBADF * self.ebadf | NO_REUSE * self.no_reuse


def has_library() -> bool:
    """Returns whether the tracing library was built. HOLDFAST_NATIVE=0 leaves it unused, as it does all C code."""
    return LIBRARY.exists() and os.environ.get("HOLDFAST_NATIVE") != "0"


def _why_no_library() -> str:
    if LIBRARY.exists():
        return "HOLDFAST_NATIVE=0 leaves the tracing library unused"
    return "holdfast was installed without a C compiler"


# ---- the folder of the logs


@contextmanager
def log_folder(warnings: list[str]) -> Iterator[Path]:
    """Makes the private folder that the traced processes write to, on tmpfs if there is room, and removes it."""
    base = Path("/dev/shm")
    _remove_abandoned(base)
    if not os.access(base, os.W_OK) or shutil.disk_usage(base).free < _LEAST_FREE:
        warnings.append(
            "the logs are on disk because /dev/shm is full or not writable: tracing costs several percent more"
        )
        base = Path(tempfile.gettempdir())
        _remove_abandoned(base)
    try:
        folder, lock = _make_folder(base)
    except OSError as error:
        raise TraceUnavailableError(
            f"cannot make a folder for the logs in {base}: {error.strerror}; set TMPDIR to one with free space"
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _make_folder(base: Path) -> tuple[Path, int]:
    """Returns a new folder of mode 0700 and a descriptor that holds its lock as long as this process lives."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        lock = _lock_folder(folder)
        if lock is not None:
            return folder, lock
        # Another process took it for an abandoned one, in the moment before it was locked.


def _lock_folder(folder: Path) -> int | None:
    """Locks a folder of this user. Returns None if it is locked, gone, or somebody else's."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mine, here = os.fstat(fd), os.stat(folder, follow_symlinks=False)
        if mine.st_uid == os.geteuid() and os.path.samestat(mine, here):
            return fd
    except OSError:
        pass  # another process has the lock, or has removed the folder
    os.close(fd)
    return None


def _remove_abandoned(base: Path) -> None:
    """Removes the folders of recordings whose process was killed: its lock ended with it."""
    for folder in base.glob(f"{_PREFIX}*"):
        lock = _lock_folder(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def environment(folder: Path, options: TraceOptions, base: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment that makes a program and its children record."""
    env = dict(base)
    env["HOLDFAST_FDTRACE_DIR"] = str(folder)
    env["HOLDFAST_FDTRACE_OPTIONS"] = str(options.bits())
    env["HOLDFAST_FDTRACE_ARM_ABOVE"] = str(options.arm_above)
    env["HOLDFAST_FDTRACE_OWNERS"] = str(int(options.owners))
    if has_library():
        env["LD_PRELOAD"] = ":".join([str(LIBRARY), *filter(None, [env.get("LD_PRELOAD", "")])])
    else:
        env["HOLDFAST_FDTRACE_PARTIAL"] = "1"
    if options.owners or not has_library():
        env["PYTHONPATH"] = os.pathsep.join([str(_BOOTSTRAP), *filter(None, [env.get("PYTHONPATH", "")])])
    return env


def is_alive(pid: int) -> bool:
    """Returns whether a process runs. One that has ended and waits for its parent does not."""
    stat = read_stat(REAL, pid)
    return stat is not None and stat.state not in "ZX"


# ---- looking at the logs while the program runs


@dataclass
class _Watched:
    """What the collector knows of one process image."""

    path: Path
    ring_head: int = -1
    last_s: float = 0.0
    is_gone: bool = False
    live: dict[int, int] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    targets: dict[int, str] = field(default_factory=dict)
    maps: str = ""


class Collector:
    """Samples the counters of every traced process about once a second.

    The ring of a log keeps the latest events only. The counters are exact, so their samples give the history of each
    site however long the program runs. The traced processes do nothing for it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._watched: dict[Path, _Watched] = {}
        self._samples: list[tuple[float, Path, int, int]] = []
        self._totals: list[tuple[float, Path, int]] = []
        self._ticks = 0
        self.interval_s = _TICK_S
        self.start_ns = time.monotonic_ns()
        self.start_real = time.time()

    def tick(self) -> None:
        """Looks at every log once."""
        self._ticks += 1
        now = (time.monotonic_ns() - self.start_ns) / 1e9
        for path in self._folder.glob("fd.*.log"):
            watched = self._watched.setdefault(path, _Watched(path))
            if watched.is_gone:
                continue
            try:
                image = read_image(path)
            except (HoldfastError, OSError, ValueError):
                continue
            self._sample(watched, image, now)
        if len(self._samples) > _MOST_SAMPLES:
            self._thin()

    def _sample(self, watched: _Watched, image: Image, now: float) -> None:
        pid = image.header.pid
        watched.is_gone = bool(image.header.end_ns) or not is_alive(pid)
        watched.last_s = now
        if image.header.ring_head != watched.ring_head:
            watched.ring_head = image.header.ring_head
            self._totals.append((now, watched.path, image.header.live))
            for stack, live in zip(image.counters["stack"].tolist(), image.counters["live"].tolist(), strict=True):
                if watched.live.get(stack) != live:
                    watched.live[stack] = live
                    self._samples.append((now, watched.path, stack, live))
        if self._ticks % _LOOK_EVERY == 1 and not watched.is_gone:
            _look_at_descriptors(watched, image)
            if image.header.options & NATIVE:
                watched.maps = read_or_none(REAL, f"/proc/{pid}/maps") or watched.maps

    def _thin(self) -> None:
        times = sorted({sample[0] for sample in self._samples})
        kept = set(times[::2]) | {times[-1]}
        self._samples = [sample for sample in self._samples if sample[0] in kept]
        self._totals = [sample for sample in self._totals if sample[0] in kept]
        self.interval_s = min(self.interval_s * 2, 60.0)

    # The rest is read once, when the trace is put together.

    def last_seen(self, path: Path) -> float | None:
        watched = self._watched.get(path)
        return watched.last_s if watched else None

    def is_running(self, image: Image) -> bool:
        return not image.header.end_ns and is_alive(image.header.pid)

    def found(self, path: Path) -> tuple[list[str], dict[int, str]]:
        watched = self._watched.get(path)
        return (watched.unknown, watched.targets) if watched else ([], {})

    def maps(self, path: Path) -> str:
        """Returns the memory map of a process: as it was at its end, as it is now, or when it was last looked at."""
        kept = read_or_none(REAL, f"{path}.maps")
        watched = self._watched.get(path)
        if kept is None and (watched is None or not watched.is_gone):
            kept = read_or_none(REAL, f"/proc/{path.name.split('.')[1]}/maps")
        return kept or (watched.maps if watched else "")

    def samples(self) -> list[tuple[float, Path, int, int]]:
        return self._samples

    def totals(self) -> list[tuple[float, Path, int]]:
        return self._totals


def _look_at_descriptors(watched: _Watched, image: Image) -> None:
    """Compares the log with /proc: what is open there and not in the log was made without libc."""
    pid = image.header.pid
    numbers = list_fds(REAL, pid)
    if numbers is None:
        return
    unknown: list[str] = []
    targets: dict[int, str] = {}
    for descriptor in describe_all(REAL, pid, numbers[:_MOST_LINKS]):
        entry = image.entries[descriptor.fd] if descriptor.fd < len(image.entries) else None
        if entry is not None and entry["flags"] & LIVE:
            targets.setdefault(int(entry["stack"]), descriptor.target)
        elif not descriptor.target.startswith(f"{watched.path.parent}/"):  # the log of a partial trace
            unknown.append(descriptor.target)
    watched.unknown, watched.targets = unknown, targets


def _log_path(folder: Path, image: Image) -> Path:
    return folder / f"fd.{image.header.pid}.{image.header.start_ns}.log"


# ---- running a program


@dataclass(frozen=True)
class Outcome:
    """How the traced program ended: `returncode` as in subprocess, negative for a signal."""

    trace: Trace
    returncode: int


def record(
    command: Sequence[str],
    options: TraceOptions | None = None,
    *,
    env: Mapping[str, str] | None = None,
    watch: Callable[[Trace], None] | None = None,
    started: Callable[[int], None] = lambda pid: None,
    output: IO[bytes] | None = None,
) -> Outcome:
    """Runs a command to its end and returns what it recorded. Its streams are those of this process.

    Args:
        watch: Called about once a second with what was recorded so far, for a live view.
        started: Called with the number of the process.
        output: Gets what the program prints, on stdout and stderr. Its stdin is then empty.
    """
    check_command(command)
    options = options or TraceOptions()
    warnings: list[str] = []
    if not has_library():
        warnings.append(f"partial: {_why_no_library()}; only Python is traced, {MISSES}")
    with log_folder(warnings) as folder:
        collector = Collector(folder)
        with _pass_signals() as pass_to:
            try:
                process = subprocess.Popen(
                    command,
                    env=environment(folder, options, os.environ if env is None else env),
                    stdin=subprocess.DEVNULL if output else None,
                    stdout=output,
                    stderr=output,
                )
            except OSError as error:
                raise InputError(f"cannot run {command[0]}: {error.strerror}") from error
            pass_to(process)
            started(process.pid)
            while True:
                try:
                    returncode = process.wait(collector.interval_s)
                    break
                except subprocess.TimeoutExpired:
                    collector.tick()
                    if watch:
                        watch(assemble(folder, collector, command, warnings, exit_code=None, options=options))
        trace = assemble(folder, collector, command, warnings, exit_code=returncode, options=options)
    return Outcome(trace, returncode)


def check_command(command: Sequence[str]) -> None:
    """Raises an error if the dynamic loader would not load the tracing library into this program."""
    found = shutil.which(command[0])
    if found is None and os.path.isfile(command[0]):
        raise InputError(f"expected a program, got {command[0]!r}, which may not be executed (chmod +x allows it)")
    if found is None:
        raise InputError(f"expected a program, got {command[0]!r}, which is not on PATH")
    path = os.path.realpath(found)
    mode = os.stat(path).st_mode
    if mode & 0o6000 and os.geteuid() != os.stat(path).st_uid:
        raise TraceUnavailableError(
            f"{found} is setuid: the system does not load other libraries into it. Trace the program that it starts"
        )
    if has_library() and _is_static(path):
        raise TraceUnavailableError(
            f"{found} is statically linked: no library can be loaded into it. Trace a dynamically linked build"
        )


def _is_static(path: str) -> bool:
    """Returns whether an ELF program has no dynamic loader (PT_INTERP)."""
    try:
        with open(path, "rb") as file:
            head = file.read(64)
            if head[:5] != b"\x7fELF\x02":
                return False
            at, size, count = (
                int.from_bytes(head[32:40], "little"),
                int.from_bytes(head[54:56], "little"),
                int.from_bytes(head[56:58], "little"),
            )
            file.seek(at)
            table = file.read(size * count)
    except OSError:
        return False
    return not any(int.from_bytes(table[i * size : i * size + 4], "little") == 3 for i in range(count))


@contextmanager
def _pass_signals() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Lets the program decide what a signal means, from the moment that it is passed to the function that this yields.

    The terminal sends Ctrl-C to both processes, so this one only ignores it. It does so in a handler, because the
    program would inherit SIG_IGN.
    """
    program: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    if threading.current_thread() is not threading.main_thread():
        yield program.append  # a live view, which has its own keys
        return

    def forward(number: int, _: FrameType | None) -> None:
        if program:
            program[0].send_signal(number)
        else:
            early.append(number)

    def ignore(number: int, _: FrameType | None) -> None: ...

    def pass_to(process: subprocess.Popen[bytes]) -> None:
        program.append(process)
        for number in early:
            process.send_signal(number)

    handlers = dict.fromkeys((signal.SIGINT, signal.SIGQUIT), ignore)
    handlers |= dict.fromkeys((signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2), forward)
    before = {}
    for number, handler in handlers.items():
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup: the program ignores it too
            before[number] = signal.signal(number, handler)
    try:
        yield pass_to
    finally:
        for number, old in before.items():
            signal.signal(number, old)


# ---- putting the trace together

_ENDS = {0: "killed", 1: "exit", 2: "_exit", 3: "stopped"}
_OWN = str(_BOOTSTRAP)


class _Interning:
    """Gives frames and stacks numbers that hold for the entire trace."""

    def __init__(self) -> None:
        self.frames: dict[Frame, int] = {}
        self.stacks: dict[tuple[int, ...], int] = {(): 0}

    def number(self, stack: Stack) -> int:
        frames = tuple(self.frames.setdefault(frame, len(self.frames)) for frame in stack.frames)
        return self.stacks.setdefault(frames, len(self.stacks))


def assemble(
    folder: Path,
    collector: Collector,
    command: Sequence[str],
    warnings: Sequence[str] = (),
    *,
    exit_code: int | None,
    options: TraceOptions,
) -> Trace:
    """Reads all logs and resolves their stacks."""
    images, problems = read_folder(folder)
    ordered = sorted(images.values(), key=lambda image: image.header.start_ns)
    index = {image.key: number for number, image in enumerate(ordered)}
    end_s = (time.monotonic_ns() - collector.start_ns) / 1e9
    interning = _Interning()
    resolve = _Resolver(Stacks(images), interning)
    paths = {image.key: _log_path(folder, image) for image in ordered}
    numbers = {paths[key]: number for key, number in index.items()}

    def seconds(ns: int) -> float:
        return (ns - collector.start_ns) / 1e9

    processes, events, opened, counts = [], [], [], []
    targets: dict[int, list[str]] = defaultdict(list)
    owners: dict[int, list[str]] = defaultdict(list)
    at_exit = _read_owners(folder)
    for number, image in enumerate(ordered):
        path = paths[image.key]
        unknown, found = collector.found(path)
        for stack, target in found.items():
            targets[resolve(image, stack)].append(target)
        last = at_exit.get(image.key)
        for stack, lines in last.owners.items() if last else ():
            owners[resolve(image, stack)].extend(lines)
        processes.append(_process(image, ordered, index, collector, path, unknown, seconds, last.at_ns if last else 0))
        events.append(_renumber(image.events, number, resolve, image, trace_file.EVENTS, collector.start_ns))
        still, at_exit_only = _open_at_end(
            image, min(filter(None, (last.at_ns if last else 0, image.header.finalizing_ns)), default=0)
        )
        fds = np.concatenate([still, at_exit_only])
        rows = _renumber(image.entries[fds], number, resolve, image, trace_file.OPEN, collector.start_ns)
        rows["fd"] = fds
        rows["flags"][len(still) :] |= AT_EXIT
        opened.append(rows)
        counts.append(_renumber(image.counters, number, resolve, image, trace_file.COUNTS, collector.start_ns))
    samples = _samples(collector, processes, {paths[image.key]: image for image in ordered}, numbers, resolve, end_s)
    totals = np.array(
        [(t, numbers[path], live) for t, path, live in collector.totals() if path in numbers], trace_file.TOTALS
    )
    found_warnings = [*warnings, *problems, *_warnings(folder, ordered)]
    return Trace(
        command=" ".join(command),
        started=collector.start_real,
        duration_s=end_s,
        is_partial=any(image.header.options & PARTIAL for image in ordered),
        exit_code=exit_code,
        calls=ordered[0].header.calls if ordered else (),
        processes=tuple(processes),
        frames=tuple(_with_text(frame) for frame in interning.frames),
        stacks=tuple(interning.stacks),
        native=_native_frames(folder, images, collector, resolve.addresses) if options.native else {},
        owners=owners,
        targets={stack: sorted(set(names))[:5] for stack, names in targets.items() if stack},
        warnings=tuple(found_warnings),
        events=_joined(events, trace_file.EVENTS),
        open=_joined(opened, trace_file.OPEN),
        counts=_joined(counts, trace_file.COUNTS),
        samples=samples,
        totals=totals,
        no_reuse=options.no_reuse,
    )


def _native_frames(
    folder: Path,
    images: Mapping[tuple[int, int], Image],
    collector: Collector,
    addresses: Mapping[int, tuple[Image, tuple[int, ...]]],
) -> dict[int, list[str]]:
    """Names the C frames of each stack."""
    frames = NativeFrames()
    maps: dict[tuple[int, int], list[MappedFile]] = {}

    def maps_of(image: Image) -> list[MappedFile]:
        if image.key not in maps:
            text = collector.maps(_log_path(folder, image))
            # A forked process that was killed has the libraries of its parent at the same addresses.
            parent = images.get(image.header.parent) if image.header.parent else None
            maps[image.key] = []  # ends a cycle of parents in a damaged log
            maps[image.key] = parse_maps(text) if text or parent is None else maps_of(parent)
        return maps[image.key]

    return {stack: frames.describe(found, maps_of(image)) for stack, (image, found) in addresses.items()}


def _samples(
    collector: Collector,
    processes: Sequence[TracedProcess],
    images: Mapping[Path, Image],
    numbers: Mapping[Path, int],
    resolve: _Resolver,
    end_s: float,
) -> np.ndarray:
    """Returns the samples of the collector, and one more for the end of each process that has dropped events."""
    found = [sample for sample in collector.samples() if sample[1] in images]
    for path, image in images.items():
        process = processes[numbers[path]]
        if process.dropped_events:
            at_s = min(end for end in (process.finalizing_s, process.end_s, end_s) if end is not None)
            at_ns = collector.start_ns + int(at_s * 1e9)
            found += [(at_s, path, stack, live) for stack, live in _live_at(image, at_ns).items()]
    found.sort(key=lambda sample: sample[0])
    rows = []
    last: dict[tuple[Path, int], int] = {}
    sums: dict[tuple[int, int], int] = defaultdict(int)  # stacks that differ in their C frames only become one
    for t, path, stack, live in found:
        process_stack = (numbers[path], resolve(images[path], stack))
        sums[process_stack] += live - last.get((path, stack), 0)
        last[path, stack] = live
        rows.append((t, *process_stack, sums[process_stack]))
    return np.array(rows, trace_file.SAMPLES)


def _live_at(image: Image, at_ns: int) -> dict[int, int]:
    """Returns the live descriptors by stack at a moment near the end: what changed since is still in the ring."""
    live: dict[int, int] = defaultdict(int)
    for stack, count in zip(image.counters["stack"].tolist(), image.counters["live"].tolist(), strict=True):
        live[stack] += count
    later = image.events[image.events["t_ns"] > at_ns]
    for event in later[later["action"] == BIRTH]:
        live[int(event["stack"])] -= 1
    closes = later[(later["action"] == CLOSE) | (later["action"] == CLOSE_UNSEEN)]
    for event in closes[closes["fd"] < len(image.entries)]:
        entry = image.entries[event["fd"]]
        if entry["gen"] == event["gen"] and not entry["flags"] & (INHERITED | BEFORE):
            live[int(entry["stack"])] += 1
    return live


def _open_at_end(image: Image, exit_ns: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers that are open, and those that the process closed only while it shut down."""
    entries, events = image.entries, image.events
    still = np.flatnonzero(entries["flags"] & LIVE)
    if not exit_ns:
        return still, still[:0]
    closes = events[((events["action"] == CLOSE) | (events["action"] == CLOSE_UNSEEN)) & (events["t_ns"] > exit_ns)]
    closes = closes[(closes["fd"] >= 0) & (closes["fd"] < len(entries))]
    lives = entries[closes["fd"]]
    # The entry of a number describes its latest lifetime.
    mine = (lives["gen"] == closes["gen"]) & (lives["t_ns"] <= exit_ns) & ((lives["flags"] & LIVE) == 0)
    return still, np.unique(closes["fd"][mine]).astype(np.int64)


class _Resolver:
    """Maps the stack id of an image to the number of the stack in the trace."""

    def __init__(self, stacks: Stacks, interning: _Interning) -> None:
        self._stacks = stacks
        self._interning = interning
        self._known: dict[tuple[tuple[int, int], int], int] = {}
        self.addresses: dict[int, tuple[Image, tuple[int, ...]]] = {}  # of C frames, by number

    def __call__(self, image: Image, stack: int) -> int:
        key = (image.key, stack)
        if key not in self._known:
            found = self._stacks.resolve(image, stack) if stack else NO_STACK
            self._known[key] = number = self._interning.number(found)
            if found.addresses:
                self.addresses.setdefault(number, (image, found.addresses))
        return self._known[key]


def _renumber(
    rows: np.ndarray, process: int, resolve: _Resolver, image: Image, dtype: np.dtype, start_ns: int
) -> np.ndarray:
    made = np.zeros(len(rows), dtype)
    for name in set(dtype.names or ()) & set(rows.dtype.names or ()) - {"stack"}:
        made[name] = rows[name]
    made["process"] = process
    unique, inverse = np.unique(rows["stack"], return_inverse=True)
    made["stack"] = (
        np.array([resolve(image, stack) for stack in unique.tolist()], np.uint32)[inverse] if len(rows) else 0
    )
    if "t_s" in (dtype.names or ()):
        made["t_s"] = (rows["t_ns"].astype(np.int64) - start_ns) / 1e9
    return made


def _joined(parts: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, dtype)


def _process(
    image: Image,
    ordered: Sequence[Image],
    index: Mapping[tuple[int, int], int],
    collector: Collector,
    path: Path,
    unknown: Sequence[str],
    seconds: Callable[[int], float],
    exit_ns: int,
) -> TracedProcess:
    header = image.header
    later = [
        other.header.start_ns
        for other in ordered
        if other.header.pid == header.pid and other.header.start_ns > header.start_ns
    ]
    ended, end_s = _ENDS.get(header.end_kind, "killed"), None
    if header.end_ns:
        end_s = seconds(header.end_ns)
    elif later:
        ended, end_s = "exec", seconds(min(later))
    elif collector.is_running(image):
        ended = "running"
    else:
        last_event = seconds(int(image.events["t_ns"].max())) if len(image.events) else seconds(header.start_ns)
        end_s = max(last_event, collector.last_seen(path) or 0.0)
    version = header.python
    return TracedProcess(
        pid=header.pid,
        parent=index.get(header.parent) if header.parent else None,
        command=" ".join(header.command),
        python=f"{version >> 24}.{version >> 16 & 255}.{version >> 8 & 255}" if version else "",
        start_s=seconds(header.start_ns),
        end_s=end_s,
        ended=ended,
        finalizing_s=min(map(seconds, filter(None, (exit_ns, header.finalizing_ns))), default=None),
        live=header.live,
        peak=header.peak,
        dropped_events=image.dropped_events,
        has_stacks=header.has_python_stacks,
        stopped_by=header.stopped,
        counts=header.counts,
        unknown=tuple(unknown),
    )


def _with_text(frame: Frame) -> SourceFrame:
    is_file = frame.line and not frame.file.startswith("<") and "\0" not in frame.file
    text = linecache.getline(frame.file, frame.line).strip() if is_file else ""
    return SourceFrame(frame.file, frame.line, frame.function, text[:200])


def _warnings(folder: Path, images: Sequence[Image]) -> Iterator[str]:
    if not images:
        yield "nothing was recorded: no process of the program wrote a log"
    stopped: dict[int, list[int]] = defaultdict(list)
    for image in images:
        if image.header.stopped:
            stopped[image.header.stopped].append(image.header.pid)
    for error, pids in stopped.items():
        why = "no space was left for the log" if error == errno.ENOSPC else os.strerror(error)
        yield f"recording stopped early in process {', '.join(map(str, pids[:5]))}: {why}"
    lost: dict[int, int] = defaultdict(int)
    for path in folder.glob("lost.*.*"):
        number = path.name.rsplit(".", 1)[-1]
        lost[int(number) if number.isdigit() else 0] += 1
    # A child that has no free descriptor, or cannot reach the folder, leaves no file: only its parent has counted it.
    silent = sum(image.header.counts["lost_children"] for image in images) - sum(lost.values())
    reasons = [(count, os.strerror(error)) for error, count in lost.items()]
    if silent > 0:
        reasons.append((silent, "no descriptor was free, or the folder of the logs was out of reach (chroot, setuid)"))
    for count, why in reasons:
        yield f"no log could be made for {count} {'process' if count == 1 else 'processes'}: {why}"
    without = sorted(
        {image.header.python >> 16 for image in images if image.header.python and not image.header.has_python_stacks}
    )
    for version in without:
        name = f"{version >> 8}.{version & 255}"
        yield f"this version of holdfast cannot read the frames of Python {name}: its descriptors have no stacks"


@dataclass(frozen=True)
class _OwnersFile:
    """What a traced Python program wrote at its end: when its own work was over, and what keeps its descriptors."""

    at_ns: int
    owners: Mapping[int, Sequence[str]]


def _read_owners(folder: Path) -> dict[tuple[int, int], _OwnersFile]:
    found: dict[tuple[int, int], _OwnersFile] = {}
    for path in folder.glob("owners.*.json"):
        try:
            facts = json.loads(path.read_text())
            owners = {int(stack): [str(line) for line in lines] for stack, lines in facts["owners"].items()}
            found[int(facts["pid"]), int(facts["start_ns"])] = _OwnersFile(int(facts["at_ns"]), owners)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # the program was killed while it wrote
    return found
