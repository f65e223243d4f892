"""Measures what `import holdfast` adds to the start of Python: the best of ten, minus a bare start."""

from __future__ import annotations

import subprocess
import sys
import time

ROUNDS = 10


def best_s(program: str) -> float:
    return min(once_s(program) for _ in range(ROUNDS))


def once_s(program: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return time.perf_counter() - start


def main() -> None:
    once_s("import holdfast")  # writes its bytecode
    empty, full = best_s("pass"), best_s("import holdfast")
    print(f"python -c pass              {1000 * empty:6.1f} ms")
    print(f"python -c 'import holdfast' {1000 * full:6.1f} ms")
    print(f"import holdfast             {1000 * (full - empty):6.1f} ms")


if __name__ == "__main__":
    main()
