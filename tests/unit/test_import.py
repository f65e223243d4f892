"""`import holdfast` costs nothing that was not asked for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]

PROGRAM = """
import json, sys, time
before = set(sys.modules)
start = time.perf_counter()
import holdfast
took = time.perf_counter() - start
print(json.dumps([sorted(set(sys.modules) - before), took]))
"""


def test_importing_loads_the_standard_library_only() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, check=True)
    loaded, took_s = json.loads(done.stdout)
    print(f"import holdfast: {1000 * took_s:.1f} ms, {len(loaded)} modules")
    allowed = sys.stdlib_module_names | {"holdfast"}
    assert [name for name in loaded if name.partition(".")[0] not in allowed] == []


def test_another_distribution_in_the_same_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "holdfast").symlink_to(TOP / "src" / "holdfast")
    (tmp_path / "holdfast-3.1.dist-info").mkdir()
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import holdfast"
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=True)
    assert "this is holdfast-io" in done.stderr
    assert "(holdfast-3.1.dist-info)" in done.stderr
    assert "pip uninstall holdfast" in done.stderr
    (tmp_path / "holdfast-3.1.dist-info").rmdir()
    assert not subprocess.run(command, stderr=subprocess.PIPE, text=True, check=True).stderr


def test_nothing_sends_users_to_the_distribution_of_somebody_else() -> None:
    wrong = re.compile(r"pip install (--?[\w-]+ )*['\"`]?holdfast(?!-io|[\w/.-])|holdfast\[\w+\]")
    folders = [TOP / name for name in ("src", "docs", "examples", "tools", "benchmarks")]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in {".py", ".md", ".yaml", ".sh"}]
    found = [
        f"{path.relative_to(TOP)}: {line.strip()}"
        for path in [*files, TOP / "README.md", TOP / "CONTRIBUTING.md", TOP / "pyproject.toml"]
        for line in path.read_text().splitlines()
        if wrong.search(line)
    ]
    assert found == []
