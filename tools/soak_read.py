"""Injects faults into the workers of loaders, then creates and drops ten thousand loaders (churn).

    python tools/soak_read.py --faults 200 --churn 10000          # read, threads and torch, one after the other
    python tools/soak_read.py --kind read --faults 0 --churn 500

read: hold.read with two worker processes. threads: with two threads, which cannot be killed, so there are no faults.
torch: holdfast.torch.DataLoader with two workers. A fault kills or stops a worker at a random moment: then all batches
must arrive, or an error must name the worker, and no process, descriptor, thread or file in /dev/shm may be left.
Churn ends loaders in all the ways programs end them: then the counts of descriptors, threads and processes and the
memory must be what they were near the beginning. Exits with 1 if anything else happens or a pass hangs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))  # leftovers.py, process_tree.py

from soak_churn import COUNTS, soak_churn
from soak_faults import soak_faults
from soak_loaders import KINDS, make


def main() -> int:
    given = _arguments()
    report = _progress()
    found: dict[str, Any] = {}
    names_before = set(os.listdir("/dev/shm"))
    # Python and torch put their temporary files here, where they can be counted.
    with tempfile.TemporaryDirectory(prefix="holdfast-soak-") as scratch:
        data, temporary = Path(scratch, "data"), Path(scratch, "tmp")
        data.mkdir()
        temporary.mkdir()
        tempfile.tempdir = str(temporary)
        for kind in given.kind or KINDS:
            found[kind] = _soak(kind, make(kind, data), given, report)
        left = sorted(path.name for path in temporary.iterdir())
    found["left"] = left + sorted(set(os.listdir("/dev/shm")) - names_before)
    report("")
    if given.save:
        given.save.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(_without_samples(found)) if given.json else _summary(found))
    return int(bool(found["left"]) or any(part["problems"] for part in _parts(found)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, action="append", help="may be repeated [default: all]")
    parser.add_argument("--faults", type=int, default=200, help="workers to kill or stop, for each kind")
    parser.add_argument("--churn", type=int, default=10_000, help="loaders to create and drop, for each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", type=Path, help="JSON file to save all numbers to")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _soak(kind: str, loader: Any, given: argparse.Namespace, report: Callable[[str], None]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    started = time.monotonic()
    if given.faults and kind != "threads":
        found["faults"] = soak_faults(loader, given.faults, given.seed, report)
    if given.churn:
        found["churn"] = soak_churn(loader, given.churn, report)
    return found | {"took_s": round(time.monotonic() - started)}


def _progress() -> Callable[[str], None]:
    """Returns a callback that updates one line on a terminal, or else prints a line every minute."""
    if sys.stderr.isatty():
        return lambda text: print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    printed = time.monotonic()

    def report(text: str) -> None:
        nonlocal printed
        if text and time.monotonic() - printed > 60:
            printed = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    return report


# ---- the results -------------------------------------------------------------------------------------------


def _parts(found: dict[str, Any]) -> list[dict[str, Any]]:
    each = [found[kind] for kind in KINDS if kind in found]
    return [one[part] for one in each for part in ("faults", "churn") if part in one]


def _without_samples(found: dict[str, Any]) -> dict[str, Any]:
    for part in _parts(found):
        part.pop("samples", None)
    return found


def _summary(found: dict[str, Any]) -> str:
    lines = []
    for kind in KINDS:
        parts = found.get(kind, {})
        if faults := parts.get("faults"):
            lines.append(
                f"{kind}: {faults['killed']} workers killed, {faults['stopped']} stopped; {faults['named']} named "
                f"in an error, {faults['harmless']} had finished their work"
            )
        if churn := parts.get("churn"):
            end, grown = churn["at_the_end"], churn["grown"]
            counts = ", ".join(f"{end[name]} {name} ({grown[name]:+})" for name in COUNTS)
            memory = f"RSS {end['rss_bytes'] / 1e6:.1f} MB ({grown['rss_bytes'] / 1e6:+.2f})"
            maximum = ", ".join(f"{churn['most'][name]} {name}" for name in COUNTS)
            lines.append(f"{kind}: {churn['loaders']:,} loaders; {counts}, {memory}; at most {maximum}")
    problems = [problem for part in _parts(found) for problem in part["problems"]]
    lines += [f"PROBLEM: {problem}" for problem in problems]
    lines += [f"LEFT: {name}" for name in found["left"]]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
