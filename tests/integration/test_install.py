"""The package installs with and without a compiler, works either way, and says which it is."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast._native import codec

TOP = Path(__file__).resolve().parents[2]
PARTS = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "src", "native")
BUILT = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
HAS_COMPILER = any(shutil.which(name) for name in (os.environ.get("CC", "cc"), "cc", "gcc", "clang"))

ROUND_TRIP = """
import json, sys
import holdfast as hold
from holdfast._native import codec
schema = {"label": hold.Int64(), "name": hold.Bytes()}
with hold.TFRecordWriter(sys.argv[1], schema) as writer:
    writer.append(label=-7, name=b"fast")
with hold.TFRecordReader(sys.argv[1]) as reader:
    [batch] = reader.batches(schema, 8)
print(json.dumps([batch["label"].tolist(), bytes(batch["name"][0]).decode(), codec.NATIVE, hold.__file__]))
"""


def install(folder: Path, **env: str) -> Path:
    """From a copy: pip builds in the tree it is given, and leaves it there."""
    source, target = folder / "source", folder / "site"
    source.mkdir()
    for part in PARTS:
        if (TOP / part).is_dir():
            shutil.copytree(TOP / part, source / part, ignore=BUILT)
        else:
            shutil.copy(TOP / part, source)
    options = [
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--disable-pip-version-check",
        "--target",
        str(target),
    ]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(source)], env=os.environ | env, check=True)
    return target


def run(site: Path, *arguments: str) -> str:
    # HOLDFAST_NATIVE of the run this is part of is not meant for the package under test here.
    env = {name: value for name, value in os.environ.items() if name != "HOLDFAST_NATIVE"} | {"PYTHONPATH": str(site)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=site, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout


def round_trip(site: Path, folder: Path) -> Any:
    """What it reads of what it wrote, whether in C, and which holdfast that was."""
    return json.loads(run(site, "-c", ROUND_TRIP, str(folder / "a.tfrecord")))


@pytest.fixture(scope="module")
def without_compiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("pure"), CC="/bin/false")


@pytest.fixture(scope="module")
def with_compiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not HAS_COMPILER:
        pytest.skip("needs the system package gcc")
    return install(tmp_path_factory.mktemp("compiled"))


def test_without_a_compiler_it_installs_and_works(without_compiler: Path, tmp_path: Path) -> None:
    assert list(without_compiler.rglob("*.so")) == []
    home = str(without_compiler / "holdfast" / "__init__.py")
    assert round_trip(without_compiler, tmp_path) == [[-7], "fast", False, home]


def test_pages_and_other_files_beside_the_code_are_installed(without_compiler: Path) -> None:
    kinds = (".css", ".html", ".js", ".json", ".yml", ".typed")
    wanted = {path.relative_to(TOP / "src") for path in (TOP / "src").rglob("*") if path.suffix in kinds}
    assert len(wanted) > 8
    assert {one for one in wanted if not (without_compiler / one).exists()} == set()


def test_without_a_compiler_it_says_so_once(without_compiler: Path) -> None:
    said = run(without_compiler, "-m", "holdfast", "--version")
    assert said.count("pure Python") == 1
    assert "compiled codec" not in said


def test_with_a_compiler_the_compiled_codec_is_there(with_compiler: Path, tmp_path: Path) -> None:
    built = sorted(path.name for path in with_compiler.rglob("*.so"))
    tracing = ["_fdtrace"] if platform.machine() == "x86_64" else []
    names = ["_chunks", "_codec", *tracing, "_images", "_png", "_readahead"]
    assert built == [f"{name}.abi3.so" for name in names]
    home = str(with_compiler / "holdfast" / "__init__.py")
    assert round_trip(with_compiler, tmp_path) == [[-7], "fast", True, home]


def test_with_a_compiler_it_says_so(with_compiler: Path) -> None:
    said = run(with_compiler, "-m", "holdfast", "--version")
    assert "compiled codec" in said
    assert "pure Python" not in said


def test_these_very_tests_run_the_codec_they_should() -> None:
    """A codec that silently fell back to pure Python would pass everything, slowly."""
    if os.environ.get("HOLDFAST_NATIVE") == "0":
        assert not codec.NATIVE
    elif HAS_COMPILER:
        assert codec.NATIVE
