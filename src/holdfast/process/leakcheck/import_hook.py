"""Records what a first import opens, so that it does not count as a leak.

A module imported for the first time may open a device, start a thread or keep a log, once in the life of a process.
While an `ImportWatch` is installed, everything that appears during the outermost first import in a thread is recorded,
including what other threads open in that time.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .resources import take_resource_snapshot


class ImportWatch:
    """Wraps the loaders that later finders return. It is installed within the `with` block; blocks may be nested."""

    def __init__(self) -> None:
        self.opened: set[Hashable] = set()
        self._importing: set[int] = set()

    def __enter__(self) -> ImportWatch:
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if threading.get_ident() in self._importing:  # within another first import
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :] if self in sys.meta_path else ():
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Watched(spec.loader, self)
                return spec
        return None

    def invalidate_caches(self) -> None: ...

    @contextmanager
    def watching(self) -> Iterator[None]:
        thread = threading.get_ident()
        if thread in self._importing:
            yield
            return
        before = take_resource_snapshot(processes=False)
        self._importing.add(thread)
        try:
            yield
        finally:
            self._importing.discard(thread)
            self.opened |= take_resource_snapshot(processes=False).keys() - before.keys()


class _Watched(Loader):
    """Replaces a module's loader until the module is executed."""

    def __init__(self, real: Any, watch: ImportWatch) -> None:
        self._real = real
        self._watch = watch

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        with self._watch.watching():
            made: ModuleType | None = self._real.create_module(spec)
            return made

    def exec_module(self, module: ModuleType) -> None:
        # The module needs its real loader: resources and sources are found through it.
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        module.__loader__ = self._real
        with self._watch.watching():
            self._real.exec_module(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
