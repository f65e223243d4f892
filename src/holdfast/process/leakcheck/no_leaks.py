"""Checks that a block of code releases the descriptors, processes, threads and shared memory files it acquires."""

from __future__ import annotations

import gc
import inspect
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from ..._util.text import time_argument
from ...errors import LeakError
from ...procfs.descriptors import Kind
from ..fd_owners.owners import find_paths
from ..fd_owners.paths import OwnerGroup, OwnerPath, group_paths
from .import_hook import ImportWatch
from .resources import KINDS, Resource, exclude_other_processes, take_resource_snapshot

if TYPE_CHECKING:
    from .births import Births

STEP_S = 0.01
_MAX_LINES = 20
_MAX_GROUPS = 10
_MAX_TRACED = 500
_OWNERS_S = 5.0
_FD = "fd"


def check_kinds(kinds: Iterable[str] | None) -> frozenset[str]:
    """Expands `fd` to all kinds of descriptors and None to everything. Raises ValueError for an unknown kind."""
    if kinds is None:
        return KINDS
    wanted = {kinds} if isinstance(kinds, str) else {str(kind) for kind in kinds}
    if wrong := sorted(wanted - KINDS - {_FD}):
        raise ValueError(f"expected kinds of {', '.join(sorted({*KINDS, _FD}))}, got {wrong[0]!r}")
    return frozenset(wanted - {_FD} | ({str(kind) for kind in Kind} if _FD in wanted else set()))


class Check:
    """Takes a resource snapshot and compares later ones with it. Resources that a first import opens do not count.

    With `trace`, it records where descriptors are opened, until `end`.
    """

    def __init__(self, kinds: Iterable[str] | None = None, *, trace: bool = False) -> None:
        self.births: Births | None = None
        self.ignored: set[Hashable] = set()
        self._kinds = check_kinds(kinds)
        self._watch = ImportWatch()
        if trace:
            from .births import start_recording  # loads the tracer

            self.births = start_recording()  # before the snapshot, which then has what it opens itself
        self._before = frozenset(take_resource_snapshot())
        self._watch.__enter__()

    def stop(self) -> None:
        """Stops watching imports. Safe to call twice."""
        self._watch.__exit__()

    def end(self) -> None:
        """Stops watching imports, and recording where descriptors are opened. Safe to call twice."""
        self.stop()
        births, self.births = self.births, None
        if births is not None:
            from .births import stop_recording

            stop_recording(births)

    @contextmanager
    def ignoring(self) -> Iterator[None]:
        """Ignores what appears within the block."""
        before = take_resource_snapshot()
        try:
            yield
        finally:
            self.ignored |= take_resource_snapshot().keys() - before.keys()

    def left(self, collect: bool = False) -> list[Resource]:
        """Returns the resources that are new and neither opened by an import nor ignored."""
        if collect:
            gc.collect()
        known = self._before | self._watch.opened | self.ignored
        return [
            resource
            for key, resource in take_resource_snapshot().items()
            if key not in known and resource.kind in self._kinds
        ]

    def waits(self, maximum: int, within_s: float, collect: bool) -> Iterator[float]:
        """Yields how long to wait before each new check, until at most `maximum` are left or the time is over."""
        if len(self.left()) <= maximum or (collect and len(self.left(collect=True)) <= maximum):
            return
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            yield STEP_S
            if len(self.left()) <= maximum:
                return

    def over(self, maximum: int) -> list[Resource]:
        """Returns what is left without resources of other processes, or an empty list if it is at most `maximum`."""
        resources = self.left()
        if len(resources) <= maximum:
            return []
        certain = sorted(exclude_other_processes(dict(enumerate(resources))).values())
        return certain if len(certain) > maximum else []


def describe_leaks(
    resources: Collection[Resource], allowed: int = 0, births: Births | None = None
) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Returns a message that shows what holds the descriptors, and the kind and name of each resource."""
    counts = Counter(resource.kind for resource in resources)
    head = ", ".join(f"{count:,} {kind}" for kind, count in counts.most_common())
    lines = [f"left behind: {head}" + (f" (allowed: {allowed:,})" if allowed else "")]
    lines += [f"  {resource.kind}: {resource.what}" for resource in list(resources)[:_MAX_LINES]]
    if len(resources) > _MAX_LINES:
        lines.append(f"  … and {len(resources) - _MAX_LINES:,} more")
    lines += [f"  held by {line}" for line in _holders(resources)]
    if births is not None:
        fds = [resource.fd for resource in resources if resource.fd is not None]
        lines += [f"  opened at {line}" for line in births.describe(fds)]
    return "\n".join(lines), tuple((resource.kind, resource.what) for resource in resources)


def _holders(resources: Iterable[Resource]) -> list[str]:
    fds = [resource.fd for resource in resources if resource.fd is not None][:_MAX_TRACED]
    if not fds:
        return []
    paths: list[OwnerPath] = find_paths(fds, within_s=_OWNERS_S)
    groups: list[OwnerGroup] = group_paths(paths)
    return [str(group.example) if group.count == 1 else str(group) for group in groups[:_MAX_GROUPS]]


F = TypeVar("F", bound=Callable[..., Any])

WITHIN_S = 1.0


def no_leaks(
    kinds: Iterable[str] | None = None,
    max: int = 0,
    gc: bool = True,
    within: str | float = WITHIN_S,
    *,
    trace: bool = False,
) -> NoLeaks:
    """`with no_leaks():`, `async with no_leaks():` or `@no_leaks()`: raises LeakError if something is left behind.

    It checks descriptors (by number and target), child processes, Python threads and files in /dev/shm. Ignored are
    resources that a first import within the block opened, /dev/urandom, and multiprocessing's resource tracker and fork
    server, which Python keeps. What another thread opens meanwhile and keeps counts as a leak of this block, and so
    does a file in /dev/shm that another process of this user made meanwhile and does not have open, as its creator is
    unknown. An exception within the block is raised as usual, with a note of what was left.

    Args:
        kinds: What to check: "fd" for all descriptors or their kinds ("pipe", "socket", "file", …), "process",
            "thread", "shm_file"; by default everything.
        max: How many resources may be left.
        gc: Collect garbage once, if something is left, before it counts.
        within: How long the check is repeated, because a thread may be about to end.
        trace: Show which lines opened the descriptors. Each block then takes a millisecond more, or some tens of them
            where large libraries such as torch are loaded.

    Raises:
        LeakError: Something is left.
    """
    return NoLeaks(kinds, max, gc, time_argument(within, "within"), trace)


class NoLeaks:
    def __init__(self, kinds: Iterable[str] | None, max: int, gc: bool, within_s: float, trace: bool = False) -> None:
        if max < 0:
            raise ValueError(f"expected max of at least 0, got {max}")
        self._kinds = check_kinds(kinds)
        self._max = max
        self._gc = gc
        self._within_s = within_s
        self._trace = trace
        self._checks: list[Check] = []  # a stack: the same object may be entered again within its block

    def __enter__(self) -> Self:
        self._checks.append(Check(self._kinds, trace=self._trace))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._ending(error) as check:
            if check is not None:
                for wait_s in check.waits(self._max, self._within_s, self._gc):
                    time.sleep(wait_s)
                self._raise_if_leaked(check)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Lets the event loop run during the wait: it closes transports a moment after their close() was called."""
        import asyncio  # slow to load, and already loaded wherever this runs

        with self._ending(error) as check:
            if check is not None:
                for wait_s in check.waits(self._max, self._within_s, self._gc):
                    await asyncio.sleep(wait_s)
                self._raise_if_leaked(check)

    @contextmanager
    def _ending(self, error: BaseException | None) -> Iterator[Check | None]:
        """Ends the check after its block; after an exception it only adds a note to that one and yields None."""
        check = self._checks.pop()
        check.stop()
        try:
            if error is None:
                yield check
                return
            if isinstance(error, Exception) and (left := check.over(self._max)):
                text, _ = describe_leaks(left, self._max, check.births)
                error.add_note(f"also, {text}\n  (resources held only by this exception's frames are released with it)")
            yield None
        finally:
            check.end()

    def _raise_if_leaked(self, check: Check) -> None:
        if left := check.over(self._max):
            raise LeakError(*describe_leaks(left, self._max, check.births))

    def __call__(self, function: F) -> F:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"expected a function or coroutine function, got the generator {function.__name__}")
        wrap = _wrap_coroutine if inspect.iscoroutinefunction(function) else _wrap
        return cast(F, wraps(function)(wrap(self, function)))

    def _copy(self) -> NoLeaks:
        return NoLeaks(self._kinds, self._max, self._gc, self._within_s, self._trace)


def _wrap(block: NoLeaks, function: Callable[..., Any]) -> Callable[..., Any]:
    def inner(*args: Any, **kwargs: Any) -> Any:
        with block._copy():
            return function(*args, **kwargs)

    return inner


def _wrap_coroutine(block: NoLeaks, function: Callable[..., Any]) -> Callable[..., Any]:
    async def inner(*args: Any, **kwargs: Any) -> Any:
        async with block._copy():
            return await function(*args, **kwargs)

    return inner
