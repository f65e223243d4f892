"""Runs at the start of every traced Python program: registers a search for the owners of descriptors at its end.

It is found through PYTHONPATH and stands before a sitecustomize of the installation, which it runs afterwards.
"""

import os
import sys
from _frozen_importlib_external import PathFinder  # importlib.machinery would import more

if os.environ.get("HOLDFAST_FDTRACE_DIR"):
    import atexit
    import resource  # now: at the end there may be no descriptor to import with
    import time

    def _set_soft_limit(soft: int, hard: int) -> None:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        except (OSError, ValueError):
            pass

    _has_searched = [False]

    def _find_owners() -> None:
        if _has_searched[0]:
            return
        _has_searched[0] = True
        at_ns = time.monotonic_ns()  # before the imports, which are not the program's work
        # A program that has used up its descriptors is the one to inspect, and the search takes a few.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        _set_soft_limit(min(soft + 64, hard % (1 << 63)), hard)
        try:
            if len(os.listdir("/proc/self/fd")) < 12:  # nothing worth an import
                return
            from holdfast.process.fdtrace.at_exit import write_owners

            write_owners(at_ns)
        except Exception:  # noqa: BLE001, S110 - this interpreter has no holdfast, or nothing is free
            pass
        finally:
            _set_soft_limit(soft, hard)
            if getattr(sys, "last_type", None) is KeyboardInterrupt:
                # Python ends by SIGINT if this was the last code run from a string. dataclasses runs such code too.
                try:
                    exec("raise KeyboardInterrupt")
                except KeyboardInterrupt:
                    pass

    def _register_search() -> None:
        # Handlers run in reverse order, and those of multiprocessing close what the program has leaked. So the look is
        # registered as late as possible: when Python, at its end, begins to wait for the program's threads.
        import threading

        atexit.register(_find_owners)
        if hasattr(threading, "_register_atexit"):  # from Python 3.9 on
            threading._register_atexit(atexit.register, _find_owners)

    if os.environ.get("HOLDFAST_FDTRACE_PARTIAL"):
        try:
            from holdfast.process.fdtrace.partial import start_from_environment
        except ImportError:
            pass  # this interpreter has no holdfast
        else:
            start_from_environment()
    if os.environ.get("HOLDFAST_FDTRACE_OWNERS") == "1":
        _register_search()

_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _here]
_next = PathFinder.find_spec("sitecustomize", sys.path)
if _next is not None and _next.loader is not None:
    import importlib.util

    sys.modules["sitecustomize"] = _module = importlib.util.module_from_spec(_next)
    _next.loader.exec_module(_module)
