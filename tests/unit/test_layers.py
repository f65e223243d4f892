"""Rules on the package tree that import-linter cannot express."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

import holdfast

ROOT = Path(holdfast.__file__).parent
PROCESS = ROOT / "process"
PURE = [
    *(
        PROCESS / "doctor" / f"{name}.py"
        for name in ("model", "fd_profile", "signatures", "trend", "verdict", "messages")
    ),
    PROCESS / "doctor" / "remedies.py",
    *sorted((PROCESS / "error_guide").glob("rules*.py")),
    PROCESS / "error_guide" / "cause_chain.py",
    PROCESS / "error_guide" / "sentences.py",
    *sorted((ROOT / "data" / "loader" / "order").glob("*.py")),
    PROCESS / "guard" / "caps.py",
    PROCESS / "guard" / "health.py",
    *(PROCESS / "guard" / "supervisor" / f"{name}.py" for name in ("policy", "escalation", "outside_caps")),
]

# A corrupt record of a TFRecord file, and a faulty part of a written dataset: to become one type of finding.
REPEATED = {"Problem"}


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.parametrize("path", PURE, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_pure_modules_import_neither_os_nor_time(path: Path) -> None:
    assert not _imports(path) & {"os", "time"}


def test_no_package_has_the_name_of_a_public_function() -> None:
    packages = {path.parent.name for path in ROOT.rglob("__init__.py")} - {ROOT.name}
    assert packages & set(holdfast.__all__) <= {"merge"}  # that of formats/hdf5


def test_a_public_class_name_occurs_once() -> None:
    names = Counter(
        node.name
        for path in ROOT.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, times in names.items() if times > 1} <= REPEATED
