"""A new package cannot be forgotten: not in the rules who may import whom, and not in the design page."""

from __future__ import annotations

import pkgutil
import re
import tomllib
from pathlib import Path
from typing import Any

import holdfast
import holdfast.data
import holdfast.process

TOP = Path(__file__).resolve().parents[2]


def submodules(path: Any) -> set[str]:
    return {module.name for module in pkgutil.iter_modules(path)} - {"__main__"}


def contract(name: str) -> dict[str, Any]:
    config = tomllib.loads((TOP / "pyproject.toml").read_text())
    return next(found for found in config["tool"]["importlinter"]["contracts"] if found["name"] == name)


def named(entries: list[str]) -> set[str]:
    """From "holdfast.errors : holdfast._util" and the like."""
    return {name.removeprefix("holdfast.") for entry in entries for name in re.findall(r"[\w.]+", entry)}


def test_every_package_has_its_layer() -> None:
    assert submodules(holdfast.__path__) == named(contract("two independent halves on one foundation")["layers"])
    for half in (holdfast.data, holdfast.process):
        layers = contract(f"{half.__name__.partition('.')[2]} imports downwards only")["layers"]
        assert submodules(half.__path__) == named(layers)


def test_every_package_but_the_frameworks_own_stays_free_of_frameworks() -> None:
    free = named(contract("frameworks only in the module with their name")["source_modules"])
    assert submodules(holdfast.__path__) - free == {"data", "tensorflow", "torch"}
    in_data = {name.partition(".")[2] for name in free if name.startswith("data.")}
    assert submodules(holdfast.data.__path__) - in_data == {"torch_loader"}


def test_the_design_page_names_every_package() -> None:
    page = (TOP / "docs" / "design.md").read_text()
    picture = page.partition("## Architecture")[2].partition("### From file to batch")[0]
    paths = [holdfast.__path__, holdfast.data.__path__, holdfast.process.__path__]
    expected = {name for path in paths for name in submodules(path)}
    assert sorted(name for name in expected if not re.search(rf"\b{name}\b", picture)) == []


def test_the_walks_of_the_design_page_name_files_that_exist() -> None:
    page = (TOP / "docs" / "design.md").read_text()
    walks = page.partition("### From file to batch")[2].partition("### Where to put a change")[0]
    root = TOP / "src" / "holdfast"
    for line in re.findall(r"(?m)^([a-z_]+(?:/[\w<>]+)+(?:, \w+)*)  ", walks):
        first, *others = line.split(", ")
        paths = [first, *(f"{first.rpartition('/')[0]}/{other}" for other in others)]
        for path in paths:
            found = list(root.glob(path.replace("<format>", "*") + "*"))
            assert found, path
