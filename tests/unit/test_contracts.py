"""A new room of the package cannot be forgotten in the rules who may import whom."""

from __future__ import annotations

import pkgutil
import re
import tomllib
from pathlib import Path
from typing import Any

import holdfast

TOP = Path(__file__).resolve().parents[2]
ROOMS = {module.name for module in pkgutil.iter_modules(holdfast.__path__)} - {"__main__"}
# These import the framework whose name they carry.
FRAMEWORKS = {"_tensorflow", "_torch", "jax", "ray", "tensorflow", "torch"}


def contract(name: str) -> dict[str, Any]:
    config = tomllib.loads((TOP / "pyproject.toml").read_text())
    return next(found for found in config["tool"]["importlinter"]["contracts"] if found["name"] == name)


def rooms(entries: list[str]) -> set[str]:
    """From "holdfast.errors : holdfast._util" and the like."""
    return {name.removeprefix("holdfast.") for entry in entries for name in re.findall(r"[\w.]+", entry)}


def test_every_room_has_its_layer() -> None:
    assert sorted(ROOMS - rooms(contract("import downwards only")["layers"])) == []


def test_every_room_but_the_frameworks_own_stays_free_of_frameworks() -> None:
    free = rooms(contract("frameworks only in the module with their name")["source_modules"])
    assert sorted(ROOMS - free - FRAMEWORKS) == []
