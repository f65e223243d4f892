"""`import holdfast` costs nothing that was not asked for."""

from __future__ import annotations

import json
import subprocess
import sys

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
