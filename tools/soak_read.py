"""Kills and stops workers of loaders at random moments; then lets loaders come and go ten thousand times.

    python tools/soak_read.py --strikes 200 --lives 10000          # read, threads and torch, one after the other
    python tools/soak_read.py --kind read --strikes 0 --lives 500

read: hold.read with two worker processes. threads: with two threads, which nobody can strike. torch:
holdfast.torch.DataLoader with two workers. After a strike all batches must have come, or an error must name the worker;
and no process, descriptor, thread or file in /dev/shm may be left. After the lives, which end in all the ways programs
end them, descriptors, threads and processes must be as many as near the beginning, and memory as much.
Exits with 1 if anything else happens, or hangs.
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

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))  # leftovers.py, process_tree.py

from soak_lives import COUNTS, soak_lives
from soak_loaders import KINDS, make
from soak_strikes import soak_strikes


def main() -> int:
    given = _arguments()
    say = _progress()
    found: dict[str, Any] = {}
    names_before = set(os.listdir("/dev/shm"))
    # Whatever Python or torch put below the temporary folder is there to be counted.
    with tempfile.TemporaryDirectory(prefix="holdfast-soak-") as scratch:
        data, temporary = Path(scratch, "data"), Path(scratch, "tmp")
        data.mkdir()
        temporary.mkdir()
        tempfile.tempdir = str(temporary)
        for kind in given.kind or KINDS:
            found[kind] = _soak(kind, make(kind, data), given, say)
        left = sorted(path.name for path in temporary.iterdir())
    found["left"] = left + sorted(set(os.listdir("/dev/shm")) - names_before)
    say("")
    if given.save:
        given.save.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(_without_samples(found)) if given.json else _told(found))
    return int(bool(found["left"]) or any(part["problems"] for part in _parts(found)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, action="append", help="may be given again [default: all]")
    parser.add_argument("--strikes", type=int, default=200)
    parser.add_argument("--lives", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", type=Path, help="a JSON file for all numbers")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _soak(kind: str, loader: Any, given: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    started = time.monotonic()
    if given.strikes and kind != "threads":
        found["strikes"] = soak_strikes(loader, given.strikes, given.seed, say)
    if given.lives:
        found["lives"] = soak_lives(loader, given.lives, say)
    return found | {"took_s": round(time.monotonic() - started)}


def _progress() -> Callable[[str], None]:
    """On a terminal one line that changes, else a line every minute."""
    if sys.stderr.isatty():
        return lambda text: print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    said = time.monotonic()

    def say(text: str) -> None:
        nonlocal said
        if text and time.monotonic() - said > 60:
            said = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    return say


# ---- what came of it ---------------------------------------------------------------------------------------


def _parts(found: dict[str, Any]) -> list[dict[str, Any]]:
    each = [found[kind] for kind in KINDS if kind in found]
    return [one[part] for one in each for part in ("strikes", "lives") if part in one]


def _without_samples(found: dict[str, Any]) -> dict[str, Any]:
    for part in _parts(found):
        part.pop("samples", None)
    return found


def _told(found: dict[str, Any]) -> str:
    lines = []
    for kind in KINDS:
        fates = found.get(kind, {})
        if strikes := fates.get("strikes"):
            lines.append(
                f"{kind}: {strikes['killed']} workers killed, {strikes['stopped']} stopped; {strikes['named']} named, "
                f"{strikes['harmless']} after their work"
            )
        if lives := fates.get("lives"):
            end, grown = lives["at_the_end"], lives["grown"]
            counts = ", ".join(f"{end[name]} {name} ({grown[name]:+})" for name in COUNTS)
            memory = f"RSS {end['rss_bytes'] / 1e6:.1f} MB ({grown['rss_bytes'] / 1e6:+.2f})"
            most = ", ".join(f"{lives['most'][name]} {name}" for name in COUNTS)
            lines.append(f"{kind}: {lives['lives']:,} lives; {counts}, {memory}; at the most {most}")
    problems = [problem for part in _parts(found) for problem in part["problems"]]
    lines += [f"PROBLEM: {problem}" for problem in problems]
    lines += [f"LEFT: {name}" for name in found["left"]]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
