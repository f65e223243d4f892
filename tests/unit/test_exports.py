"""The public API is complete and declared, and its classes answer with their public module."""

from __future__ import annotations

import importlib
import inspect
import os
import pickle
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest

import holdfast

# __main__ runs the command, attach_gdb runs inside gdb, and _fdtrace is a library for any program, not for Python.
NOT_IMPORTED = {"holdfast.__main__", "holdfast.process.fdtrace.attach_gdb", "holdfast._native._fdtrace"}
MODULES = sorted(
    module.name for module in pkgutil.walk_packages(holdfast.__path__, "holdfast.") if module.name not in NOT_IMPORTED
)


def test_the_public_api_declares_exactly_what_it_shows() -> None:
    # A submodule that was imported is an attribute of the package; that does not make it public.
    shown = {name for name in dir(holdfast) if not name.startswith("_") and not is_submodule(name)}
    declared = {name for name in holdfast.__all__ if not name.startswith("_") and not is_submodule(name)}
    assert shown == declared


def is_submodule(name: str) -> bool:
    return isinstance(getattr(holdfast, name), ModuleType) and f"holdfast.{name}" in MODULES


def test_the_public_api_lists_each_name_once() -> None:
    assert len(holdfast.__all__) == len(set(holdfast.__all__))


@pytest.mark.parametrize("name", getattr(holdfast, "__all__", ()))
def test_each_public_name_resolves(name: str) -> None:
    assert getattr(holdfast, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(holdfast, "no_such_name")  # noqa: B009


@pytest.mark.parametrize("module", MODULES)
def test_each_module_has_what_it_declares(module: str) -> None:
    loaded = importlib.import_module(module)
    declared = getattr(loaded, "__all__", ())
    assert [name for name in declared if not hasattr(loaded, name)] == []


def test_public_classes_answer_with_their_public_module() -> None:
    """A pickle names a class by its module: it must not change when the class moves."""
    torch = importlib.import_module("holdfast.torch")
    for module in (holdfast, torch):
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, type):
                public = "holdfast.errors" if name == "HoldfastError" else module.__name__
                assert (name, value.__module__) == (name, public)
                assert pickle.loads(pickle.dumps(value)) is value


SEAMS = {"procfs", "jobs", "cap", "clock", "uniform", "source"}


@pytest.mark.parametrize(
    "name",
    [
        "Guard",
        "Records",
        "Tracer",
        "connect",
        "diagnose",
        "explain",
        "listen",
        "locked",
        "locks",
        "log",
        "no_leaks",
        "owners",
        "owners_summary",
        "progress",
        "snapshot",
    ],
)
def test_a_public_signature_has_no_seam_and_takes_times_as_text(name: str) -> None:
    parameters = inspect.signature(getattr(holdfast, name)).parameters
    assert not parameters.keys() & SEAMS
    assert not [one for one in parameters if one.endswith("_s")]
    assert " object at 0x" not in str(inspect.signature(getattr(holdfast, name)))


def test_results_have_a_short_repr_and_a_public_type(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.touch()
    [found, *_] = holdfast.diagnose(duration="0s", tree=False)
    assert repr(found).startswith(f"<Diagnosed {os.getpid()} ")
    with holdfast.locked(path, timeout="10min") as lock:
        assert repr(lock) == f"<Locked {str(path)!r}: held>"
        held = holdfast.locks(path)
        [owner] = holdfast.owners(lock._fd, within="60s")
        [group] = holdfast.owners_summary([lock._fd], within="60s", max=1)
    results = [found, held, owner, group, holdfast.snapshot(tree=False)]
    public = [holdfast.Diagnosed, holdfast.Locks, holdfast.OwnerPath, holdfast.OwnerGroup, holdfast.Snapshot]
    assert [type(one) for one in results] == public
    assert all(" object at 0x" not in repr(one) for one in results)


def documented() -> list[tuple[str, object]]:
    """Returns the public functions and classes, and the public methods of these."""
    modules = [importlib.import_module(name) for name in ("holdfast", "holdfast.torch", "holdfast.testing")]
    found = [(name, getattr(module, name)) for module in modules for name in module.__all__]
    methods = [
        (f"{name}.{key}", each) for name, one in found if inspect.isclass(one) for key, each in vars(one).items()
    ]
    return [(name, one) for name, one in [*found, *methods] if callable(one) and "._" not in name]


def test_arguments_are_documented_in_googles_style() -> None:
    """One style, which reference pages can render: `Args:`, then the name of each argument."""
    for name, one in documented():
        text = inspect.getdoc(one) or ""
        try:
            parameters = inspect.signature(one).parameters  # type: ignore[arg-type]
        except (TypeError, ValueError):
            continue
        old = [each for each in parameters if re.search(rf"^{each}(:|  ) *\S", text, re.MULTILINE)]
        assert not old, f"{name}: expected {old} below `Args:`, indented"
        args = re.search(r"^Args:\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
        listed = re.findall(r"^    (\w+(?:, \w+)*): ", args[1], re.MULTILINE) if args else []
        unknown = {each for names in listed for each in names.split(", ")} - parameters.keys()
        assert not unknown, f"{name}: {sorted(unknown)} are no arguments"
