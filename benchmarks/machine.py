"""What the numbers were measured on. No names of hosts, people or folders."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def machine_facts(data_folder: Path) -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "filesystem": _filesystem(data_folder),
    }


def load_average() -> float:
    return round(os.getloadavg()[0], 2)


def machine_lines(report: dict[str, Any]) -> list[str]:
    """What a report says of its machine, and why its numbers may be no good."""
    machine = report["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(report["versions"].items()))
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}, {machine['filesystem']}, "
        f"Python {machine['python']}, {versions}"
    ]
    if max(machine["load_average"]) > 2 * machine["cores"]:
        lines.append(f"The machine was busy (load {machine['load_average']}): take the numbers with care.")
    if report["quick"]:
        lines.append("A quick run: it shows that the benchmark works, not how fast anything is.")
    return lines


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _filesystem(folder: Path) -> str:
    """The type of the mount that holds the folder, from lines such as `/dev/vda / ext4 rw 0 0`."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    resolved = folder.resolve()
    holding = [(len(point), kind) for point, kind in mounts if resolved.is_relative_to(point)]
    return max(holding)[1] if holding else "unknown"
