"""Collects what traced processes record: samples of their logs while they run, and the trace at the end."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import re
import shutil
import time
import tokenize
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..._util.fds import open_regular
from ...errors import HoldfastError
from ...procfs.descriptors import describe_all, list_fds
from ...procfs.processes import read_stat
from ...procfs.procfs import REAL, list_pids, read_or_none
from . import trace_file
from .image import EVENT, NO_STACK, Frame, Image, Stack, Stacks, read_folder, read_image, read_in_folder
from .log_format import AT_EXIT, CLOSE, CLOSE_UNSEEN, LIVE, NATIVE, PARTIAL
from .native_frames import MappedFile, NativeFrames, parse_maps
from .tables import Table
from .trace_file import SourceFrame, Trace, TracedProcess

if TYPE_CHECKING:
    from .recording import TraceOptions

_TICK_S, _QUICK_S = 1.0, 0.1
_MANY = 50  # processes that ended within a tick: the next one comes soon
_MAX_SAMPLES = 200_000  # 4 MB; then every second tick is dropped and the ticks come half as often
_SCAN_EVERY = 5  # ticks between two scans of /proc/PID/fd
_MAX_LINKS = 2_000
_MAX_FOLDED_EVENTS = 1 << 20  # 32 MB of the events of ended processes; then the oldest go, and their counts stay
_BACKGROUND_S = 0.5
_LIBRARY = "/_fdtrace.abi3.so"
_TRIES, _TRY_S = 4, 0.02
_SCAN_S = 0.02  # a scan of all processes that takes longer is made less often
_NAMED = 5
_MAX_STARTED = 10_000
_MAX_SOURCE_BYTES = 16 << 20
_ERRNOS = frozenset(map(str, errno.errorcode))


def is_alive(pid: int) -> bool:
    """Returns whether a process runs. One that has ended and waits for its parent does not."""
    stat = read_stat(REAL, pid)
    return stat is not None and stat.state not in "ZX"


# ---- reading the logs while the program runs


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
    image: Image | None = None  # of a process that has ended, whose log was removed


class Collector:
    """Samples the counters of every traced process about once a second.

    The ring of a log keeps the latest events only. The counters are exact, so their samples give the history of each
    site however long the program runs. The traced processes do nothing for it. The logs of those that have ended are
    taken into memory, where they are a tenth as large, and removed: a program may fork without end.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._watched: dict[Path, _Watched] = {}
        self.samples: list[tuple[float, Path, int, int]] = []  # time, log, stack, live descriptors
        self._ticks = 0
        self.untraced: dict[int, str] = {}  # processes without a log that were seen, and their commands
        self._started: dict[tuple[int, int], str] = {}  # commands of programs that have ended, by process and time
        self._last_start: dict[int, int] = {}  # of the logs of each process
        self._is_partial = False  # recorded by Python alone
        self._scan_s = 0.0
        self.interval_s = _QUICK_S
        self._sample_every_s = _TICK_S
        self._sampled_s = -math.inf
        self._folded: deque[_Watched] = deque()  # with their events, oldest first
        self._folded_events = 0
        # A number of another namespace says nothing about the process, which may be running.
        self._pid_namespace = os.stat("/proc/self/ns/pid").st_ino if os.path.exists("/proc/self/ns/pid") else -1
        self._owners: dict[tuple[int, int], _OwnersFile] = {}
        self._maps: dict[str, str] = {}  # forked processes have the maps of their parent
        self.start_ns = time.monotonic_ns()
        self.start_real = time.time()

    def tick(self) -> None:
        """Reads every log once."""
        now = (time.monotonic_ns() - self.start_ns) / 1e9
        folded = len(self._folded)
        if is_due := now - self._sampled_s > self._sample_every_s - _QUICK_S:
            self._ticks += 1
            self._sampled_s = now
        paths = list(self._folder.glob("fd.*.log"))
        last: dict[int, int] = {}  # what runs now: a process that called exec has an older log, too
        for path in paths:
            pid, start_ns = _image_of(path)
            last[pid] = max(last.get(pid, 0), start_ns)
        self._last_start |= last
        self._take_notes()
        for path in paths:
            watched = self._watched.setdefault(path, _Watched(path))
            if watched.is_gone:
                continue
            try:
                pid, start_ns = _image_of(path)
                is_gone = start_ns < last[pid] or not is_alive(pid)  # before the log is read: then it is complete
                if not is_gone and not is_due:
                    continue
                image = read_image(path, only_counts=not is_gone)
            except (HoldfastError, OSError, ValueError):
                continue
            watched.is_gone = is_gone
            self._sample(watched, image, now)
            if is_gone and image.header.pid_namespace == self._pid_namespace:
                self._fold(watched, image)
        if is_due and (self._scan_s < _SCAN_S or self._ticks % _SCAN_EVERY == 1):
            # Not by its name alone: as root, who follows a user's process, one may find `fd.1.1.log` there.
            self._find_untraced({_image_of(path)[0] for path in paths if self._watched[path].ring_head >= 0})
        self.interval_s = _QUICK_S if len(self._folded) - folded > _MANY else _TICK_S
        if len(self.samples) > _MAX_SAMPLES:
            self._thin()

    def _find_untraced(self, traced: set[int]) -> None:
        """Looks for processes below the traced ones that run without the tracing library."""
        began = time.monotonic()
        parents = {
            pid: seen.ppid for pid in list_pids(REAL) if (seen := read_stat(REAL, pid)) and seen.state not in "ZX"
        }

        def is_below(pid: int) -> bool:
            for _ in range(len(parents)):
                pid = parents.get(pid, 0)
                if pid in traced:
                    return True
            return False

        for pid in parents:
            if pid not in self.untraced and (pid in traced or is_below(pid)) and not self._is_partial and _is_bare(pid):
                words = (read_or_none(REAL, f"/proc/{pid}/cmdline") or "").rstrip("\0").split("\0")
                self.untraced[pid] = " ".join(words)[:200] or "?"
        self._scan_s = time.monotonic() - began

    def _take_notes(self) -> None:
        """Takes the notes of programs that were started and have ended. Those that have a log are of no interest."""
        for path in self._folder.glob("exec.*"):
            match = re.fullmatch(r"exec\.([0-9]+)\.([0-9]+)", path.name)
            if not match or is_alive(int(match[1])):  # one that is alive removes its note if it cannot be started
                continue
            with suppress(OSError):
                self._started[int(match[1]), int(match[2])] = os.readlink(path)
                path.unlink()
        if not self._started:
            return
        # A log is made before its process ends, so it was in the list that was made before, or is there now.
        for path in self._folder.glob("fd.*.log"):
            pid, start_ns = _image_of(path)
            self._last_start[pid] = max(self._last_start.get(pid, 0), start_ns)
        lost = {path.name.split(".")[1] for path in self._folder.glob("lost.*.*")}
        self._started = {
            (pid, before): text
            for (pid, before), text in list(self._started.items())[:_MAX_STARTED]
            if self._last_start.get(pid, 0) < before and str(pid) not in lost
        }

    def find_bare(self) -> dict[int, tuple[str, str]]:
        """Returns the processes that ran without the library, with command and reason: those that a traced process
        started, however soon they ended, and those that were seen."""
        self._take_notes()
        found = {pid: (command, "") for pid, command in self.untraced.items()}
        notes = [(pid, text) for (pid, _), text in sorted(self._started.items(), key=lambda note: note[0][1])]
        for path in self._folder.glob("exec.*.*"):  # of what is alive
            pid = path.name.split(".")[1]
            if pid.isdecimal() and _is_bare(int(pid)):
                with suppress(OSError):
                    notes.append((int(pid), os.readlink(path)))
        for number, text in notes:
            why, _, command = text.partition(" ")
            # Without a number: the shell of system(), which may have been seen.
            if number or not any(command.endswith(seen) for seen in self.untraced.values()):
                found[number] = (self.untraced.get(number, command), _reason(why, command))
        return found

    def _fold(self, watched: _Watched, image: Image) -> None:
        """Keeps the log of an ended process, and what it wrote beside it, and removes them."""
        if image.header.options & NATIVE:
            maps = "".join(line for line in self.maps(watched.path).splitlines(keepends=True) if " r-xp " in line)
            watched.maps = self._maps.setdefault(maps, maps)
        owners = self._folder / f"owners.{image.header.pid}.json"
        self._owners |= _read_owners([owners])
        watched.image = image
        self._folded.append(watched)
        self._folded_events += len(image.events)
        while self._folded_events > _MAX_FOLDED_EVENTS:
            oldest = self._folded.popleft()
            assert oldest.image is not None
            self._folded_events -= len(oldest.image.events)
            header = replace(oldest.image.header, ring_events=0)  # all events count as dropped
            oldest.image = replace(oldest.image, header=header, events=Table(EVENT))
        for path in (watched.path, watched.path.with_name(f"{watched.path.name}.maps"), owners):
            with suppress(OSError):
                path.unlink()

    def _sample(self, watched: _Watched, image: Image, now: float) -> None:
        pid = image.header.pid
        self._is_partial |= bool(image.header.options & PARTIAL)
        watched.last_s = now
        if image.header.ring_head != watched.ring_head:
            watched.ring_head = image.header.ring_head
            for stack, live in image.counters.rows("stack", "live"):
                if watched.live.get(stack) != live:
                    watched.live[stack] = live
                    self.samples.append((now, watched.path, stack, live))
        if self._ticks % _SCAN_EVERY == 1 and not watched.is_gone:
            _scan_descriptors(watched, image)
            if image.header.options & NATIVE:
                watched.maps = read_or_none(REAL, f"/proc/{pid}/maps") or watched.maps

    def _thin(self) -> None:
        times = sorted({sample[0] for sample in self.samples})
        kept = set(times[::2]) | {times[-1]}
        self.samples = [sample for sample in self.samples if sample[0] in kept]
        self._sample_every_s = min(self._sample_every_s * 2, 60.0)

    # The rest is read once, when the trace is put together.

    def last_seen(self, path: Path) -> float | None:
        watched = self._watched.get(path)
        return watched.last_s if watched else None

    def is_running(self, path: Path, image: Image) -> bool:
        watched = self._watched.get(path)
        return not (image.header.end_ns or (watched and watched.is_gone)) and is_alive(image.header.pid)

    def images(self) -> tuple[dict[tuple[int, int], Image], list[str]]:
        """Returns the log of every process, and a sentence for each file that could not be read."""
        images, problems = read_folder(self._folder)
        # Afterwards: a log that was removed meanwhile is among these.
        for watched in list(self._watched.values()):
            if watched.image is not None:
                images[watched.image.key] = watched.image
        return images, problems

    def owners(self) -> dict[tuple[int, int], _OwnersFile]:
        return {**_read_owners(self._folder.glob("owners.*.json")), **self._owners}

    def found(self, path: Path) -> tuple[list[str], dict[int, str]]:
        watched = self._watched.get(path)
        return (watched.unknown, watched.targets) if watched else ([], {})

    def maps(self, path: Path) -> str:
        """Returns the memory map of a process: as it was at its end, as it is now, or when it was last scanned."""
        watched = self._watched.get(path)
        if watched and watched.image is not None:
            return watched.maps
        try:
            kept: str | None = read_in_folder(path.with_name(f"{path.name}.maps")).decode(errors="replace")
        except OSError:
            kept = None
        if kept is None and (watched is None or not watched.is_gone):
            kept = read_or_none(REAL, f"/proc/{path.name.split('.')[1]}/maps")
        return kept or (watched.maps if watched else "")


def _is_bare(pid: int) -> bool:
    """Returns whether a process runs without the library, not only until the dynamic loader has loaded it."""
    for _ in range(_TRIES):
        maps = read_or_none(REAL, f"/proc/{pid}/maps")
        if maps == "" or (maps and _LIBRARY in maps) or not is_alive(pid):
            return False
        time.sleep(_TRY_S)
    return True


def _reason(why: str, command: str) -> str:
    """Says why the dynamic loader did not load the library into a program, "" if that cannot be told."""
    if why == "env":
        return "; the tracing library is not in its LD_PRELOAD"
    path = shutil.which(command.partition(" ")[0])
    try:
        mode = os.stat(path or "").st_mode
    except OSError:
        return ""
    return "; setuid or setgid" if mode & 0o6000 else "; statically linked" if is_static(path or "") else ""


def is_static(path: str) -> bool:
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


def _scan_descriptors(watched: _Watched, image: Image) -> None:
    """Compares the log with /proc: what is open there and not in the log was made without libc."""
    pid = image.header.pid
    numbers = list_fds(REAL, pid)
    if numbers is None:
        return
    unknown: list[str] = []
    targets: dict[int, str] = {}
    for descriptor in describe_all(REAL, pid, numbers[:_MAX_LINKS]):
        if descriptor.fd < len(image.entries) and image.entries["flags"][descriptor.fd] & LIVE:
            targets.setdefault(image.entries["stack"][descriptor.fd], descriptor.target)
        elif not descriptor.target.startswith(f"{watched.path.parent}/"):  # the log of a partial trace
            unknown.append(descriptor.target)
    watched.unknown, watched.targets = unknown, targets


def _image_of(path: Path) -> tuple[int, int]:
    """Returns the process number and the start time from `fd.PID.START.log`, zeros from another name."""
    match = re.fullmatch(r"fd\.([0-9]+)\.([0-9]+)\.log", path.name)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _log_path(folder: Path, image: Image) -> Path:
    return folder / f"fd.{image.header.pid}.{image.header.start_ns}.log"


# ---- putting the trace together

_ENDS = {0: "killed", 1: "exit", 2: "_exit", 3: "stopped"}


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
    images, problems = collector.images()
    ordered = sorted(images.values(), key=lambda image: image.header.start_ns)
    index = {image.key: number for number, image in enumerate(ordered)}
    end_s = (time.monotonic_ns() - collector.start_ns) / 1e9
    interning = _Interning()
    resolve = _Resolver(Stacks(images), interning)
    paths = {image.key: _log_path(folder, image) for image in ordered}
    numbers = {paths[key]: number for key, number in index.items()}

    def seconds(ns: int) -> float:
        return (ns - collector.start_ns) / 1e9

    starts: dict[int, list[int]] = defaultdict(list)  # of the images of a process: it may call exec
    for image in ordered:
        starts[image.header.pid].append(image.header.start_ns)
    processes = []
    events, opened, counts = (Table(layout) for layout in (trace_file.EVENTS, trace_file.OPEN, trace_file.COUNTS))
    targets: dict[int, list[str]] = defaultdict(list)
    owners: dict[int, list[str]] = defaultdict(list)
    at_exit = collector.owners()
    for number, image in enumerate(ordered):
        path = paths[image.key]
        unknown, found = collector.found(path)
        for stack, target in found.items():
            targets[resolve(image, stack)].append(target)
        last = at_exit.get(image.key)
        for stack, lines in last.owners.items() if last else ():
            owners[resolve(image, stack)].extend(lines)
        processes.append(_process(image, starts, index, collector, path, unknown, seconds, last.at_ns if last else 0))
        _append(events, image.events, number, resolve, image, collector.start_ns)
        still, at_exit_only = _open_at_end(
            image, min(filter(None, (last.at_ns if last else 0, image.header.finalizing_ns)), default=0)
        )
        _append(opened, image.entries.take(still + at_exit_only), number, resolve, image, collector.start_ns)
        opened["fd"].extend(still + at_exit_only)
        for at in range(len(opened) - len(at_exit_only), len(opened)):
            opened["flags"][at] |= AT_EXIT
        _append(counts, image.counters, number, resolve, image, collector.start_ns)
    samples = _samples(collector, {paths[image.key]: image for image in ordered}, numbers, resolve)
    found_warnings = [*warnings, *problems, *_warnings(folder, ordered)]
    if exit_code is not None:
        found_warnings += _background(folder, processes)
    untraced = collector.find_bare()
    if untraced:
        named = [f"{pid or '?'} ({command[:80]}{why})" for pid, (command, why) in untraced.items()]
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        found_warnings.append(
            f"not traced: process {', '.join(named[:_NAMED])}{more}, started without the tracing library (another "
            "environment, setuid, static, or after an attach); what was opened there is not in this recording"
        )
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
        events=events,
        open=opened,
        counts=counts,
        samples=samples,
        no_reuse=options.no_reuse,
        untraced=tuple((pid, command) for pid, (command, _) in untraced.items()),
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
    collector: Collector, images: Mapping[Path, Image], numbers: Mapping[Path, int], resolve: _Resolver
) -> Table:
    rows = []
    last: dict[tuple[Path, int], int] = {}
    sums: dict[tuple[int, int], int] = defaultdict(int)  # stacks that differ in their C frames only become one
    for t, path, stack, live in collector.samples:
        if path not in images:
            continue
        process_stack = (numbers[path], resolve(images[path], stack))
        sums[process_stack] += live - last.get((path, stack), 0)
        last[path, stack] = live
        rows.append((t, *process_stack, sums[process_stack]))
    return Table(trace_file.SAMPLES, rows)


def _open_at_end(image: Image, exit_ns: int) -> tuple[list[int], list[int]]:
    """Returns the numbers that are open, and those that the process closed only while it shut down."""
    entries = image.entries
    still = [fd for fd, flags in enumerate(entries["flags"]) if flags & LIVE]
    if not exit_ns:
        return still, []
    gens, times, flags = entries["gen"], entries["t_ns"], entries["flags"]
    # The entry of a number describes its latest lifetime.
    closed = {
        fd
        for t_ns, action, fd, gen in image.events.rows("t_ns", "action", "fd", "gen")
        if t_ns > exit_ns and action in (CLOSE, CLOSE_UNSEEN) and 0 <= fd < len(entries)
        if gens[fd] == gen and times[fd] <= exit_ns and not flags[fd] & LIVE
    }
    return still, sorted(closed)


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


def _append(made: Table, rows: Table, process: int, resolve: _Resolver, image: Image, start_ns: int) -> None:
    """Appends the rows of an image to a table of the recording, with its numbers of processes and stacks."""
    for name, code in made.layout.items():
        if name == "process":
            made[name].extend([process] * len(rows))
        elif name == "t_s":
            made[name].extend((t_ns - start_ns) / 1e9 for t_ns in rows["t_ns"])
        elif name == "stack":
            numbers = {stack: resolve(image, stack) for stack in dict.fromkeys(rows[name])}
            made[name].extend(map(numbers.__getitem__, rows[name]))
        elif name in rows.layout:
            is_wide = code != rows.layout[name]
            made[name].extend((value & 255 for value in rows[name]) if is_wide else rows[name])


def _process(
    image: Image,
    starts: Mapping[int, Sequence[int]],
    index: Mapping[tuple[int, int], int],
    collector: Collector,
    path: Path,
    unknown: Sequence[str],
    seconds: Callable[[int], float],
    exit_ns: int,
) -> TracedProcess:
    header = image.header
    later = [start for start in starts[header.pid] if start > header.start_ns]
    ended, end_s = _ENDS.get(header.end_kind, "killed"), None
    if header.end_ns:
        end_s = seconds(header.end_ns)
    elif later:
        ended, end_s = "exec", seconds(min(later))
    elif collector.is_running(path, image):
        ended = "running"
    else:
        last_event = seconds(max(image.events["t_ns"])) if len(image.events) else seconds(header.start_ns)
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
    lines = _source_lines(frame.file) if is_file else []
    text = lines[frame.line - 1].strip() if 0 < frame.line <= len(lines) else ""
    return SourceFrame(frame.file, frame.line, frame.function, text[:200])


@lru_cache(maxsize=512)
def _source_lines(file: str) -> list[str]:
    """Returns the lines of a source file. Not with linecache: a log can name any file, also a pipe."""
    try:
        with open(open_regular(file, follow=True), "rb") as opened:
            data = opened.read(_MAX_SOURCE_BYTES)
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding, "replace").splitlines()
    except (OSError, SyntaxError, LookupError, ValueError):
        return []


_FULL_TABLES = {
    "lost_stacks": "calls have no stack",
    "short_stacks": "calls have a stack of two lines (the innermost one, and the innermost of the program)",
}


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
        lost[int(number) if number in _ERRNOS else 0] += 1
    # A child that has no free descriptor, or cannot reach the folder, leaves no file: only its parent has counted it.
    silent = sum(image.header.counts["lost_children"] for image in images) - sum(lost.values())
    reasons = [(count, os.strerror(error)) for error, count in lost.items()]
    if silent > 0:
        reasons.append((silent, "no descriptor was free, or the folder of the logs was out of reach (chroot, setuid)"))
    for count, why in reasons:
        yield f"no log could be made for {count} {'process' if count == 1 else 'processes'}: {why}"
    for key, what in _FULL_TABLES.items():
        full = {image.header.pid: image.header.counts.get(key, 0) for image in images if image.header.counts.get(key)}
        if full:
            where = ", ".join(map(str, list(full)[:5]))
            yield f"{sum(full.values()):,} {what} in process {where}: the tables of its log were full"
    without = sorted(
        {image.header.python >> 16 for image in images if image.header.python and not image.header.has_python_stacks}
    )
    for version in without:
        name = f"{version >> 8}.{version & 255}"
        yield f"this version of holdfast cannot read the frames of Python {name}: its descriptors have no stacks"


def _background(folder: Path, processes: Sequence[TracedProcess]) -> Iterator[str]:
    """Names processes that go on after the program has ended, as a daemon does. One that is about to end may do so."""
    running = {process.pid: process.command for process in processes if process.ended == "running"}
    # One that was forked a moment ago has no log yet, but the environment that makes it record.
    mark = f"HOLDFAST_FDTRACE_DIR={folder}\0"
    end = time.monotonic() + _BACKGROUND_S
    while True:
        pids = list_pids(REAL)
        for pid in pids:
            if pid not in running and mark in (read_or_none(REAL, f"/proc/{pid}/environ") or ""):
                running[pid] = (read_or_none(REAL, f"/proc/{pid}/cmdline") or "").replace("\0", " ").strip()
        running = {pid: command for pid, command in running.items() if is_alive(pid)}
        # What ended during the scan may have started another one before.
        if (not running and set(list_pids(REAL)) <= set(pids)) or time.monotonic() > end:
            break
        time.sleep(0.02)
    if running:
        named = ", ".join(f"{pid} ({command[:80]})" for pid, command in list(running.items())[:5])
        more = f" and {len(running) - 5} more" if len(running) > 5 else ""
        yield (
            f"the program went on in the background as process {named}{more}: the recording ends here; "
            "keep it in the foreground, or trace it with --attach"
        )


@dataclass(frozen=True)
class _OwnersFile:
    """What a traced Python program wrote at its end: when its own work was over, and what keeps its descriptors."""

    at_ns: int
    owners: Mapping[int, Sequence[str]]


def _read_owners(paths: Iterable[Path]) -> dict[tuple[int, int], _OwnersFile]:
    found: dict[tuple[int, int], _OwnersFile] = {}
    for path in paths:
        try:
            facts = json.loads(read_in_folder(path))
            owners = {int(stack): [str(line) for line in lines] for stack, lines in facts["owners"].items()}
            found[int(facts["pid"]), int(facts["start_ns"])] = _OwnersFile(int(facts["at_ns"]), owners)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # the program was killed while it wrote
    return found
