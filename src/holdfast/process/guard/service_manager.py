"""Finds out what restarts a process when it ends: a supervisor above it, its systemd unit, or its container."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from ...procfs.limits import parse_cgroup
from ...procfs.processes import line_of, read_parents
from ...procfs.procfs import ProcFS, read_or_none

_POD = re.compile(r"/kubepods[^/]*(?:/|$)")
_CONTAINER = re.compile(
    r"/(?:docker|lxc|libpod|crio|cri-containerd)[-/](?:conmon-)?([0-9a-f]{12,64}|[\w.-]+?)(?:\.scope)?(?:/|$)"
)
_SHORT_ID = 12
# The file that a container engine leaves in the root folder of its containers.
_MARKS = ("/.dockerenv", "/run/.containerenv")
# Services that start programs of others, which their restart would end and not start again.
_STARTERS = frozenset(
    f"{name}.service" for name in ("atd", "containerd", "cron", "crond", "docker", "slurmd", "ssh", "sshd")
)


TITLES = {
    "supervise": "holdfast supervise",
    "supervisord": "supervisord",
    "torchrun": "torchrun",
    "slurm": "Slurm job",
    "kubernetes": "Kubernetes pod",
    "container": "container",
    "systemd": "systemd unit",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceManager:
    """What restarts the process. `kind` is one of the keys of `TITLES`.

    name     the unit, the program or the container; "" where unknown
    pid      of the supervisor, if it is a process above this one
    restart  the command that restarts the process by it; "" where there is none
    """

    kind: str
    name: str = ""
    pid: int | None = None
    restart: str = ""

    def __str__(self) -> str:
        name = f" {self.name}" if self.name else ""
        by = f" (pid {self.pid})" if self.pid is not None else ""
        return f"{TITLES[self.kind]}{name}{by}"


def find_service_manager(procfs: ProcFS, pid: int) -> ServiceManager | None:
    """Returns the nearest one; None if nothing is known to restart the process."""
    environ = parse_environ(read_or_none(procfs, f"/proc/{pid}/environ") or "")
    nearest: ServiceManager | None = None
    for above in line_of(read_parents(procfs), pid)[1:]:
        words = [word for word in (read_or_none(procfs, f"/proc/{above}/cmdline") or "").split("\0") if word]
        found = supervisor_of(above, words, environ)
        if nearest is not None and (found is None or found.kind != nearest.kind):
            break
        nearest = found or nearest  # a supervisor may have forked the parent of the process
    if nearest is not None:
        return nearest
    if job := environ.get("SLURM_JOB_ID"):
        return ServiceManager(kind="slurm", name=job, restart=f"scontrol requeue {shlex.quote(job)}")
    paths = parse_cgroup(read_or_none(procfs, f"/proc/{pid}/cgroup") or "")
    known = container_of(paths.values(), environ) or unit_of(paths.values())
    if known is None and any(procfs.exists(f"/proc/{pid}/root{mark}") for mark in _MARKS):
        return ServiceManager(kind="container", name=environ.get("HOSTNAME", ""))
    return known


def parse_environ(text: str) -> dict[str, str]:
    """Parses `/proc/PID/environ`: `NAME=value` with zero bytes between them."""
    rows = (entry.partition("=") for entry in text.split("\0"))
    return {name: value for name, equals, value in rows if equals}


def supervisor_of(pid: int, command: Sequence[str], environ: Mapping[str, str]) -> ServiceManager | None:
    """Returns the supervisor that this command line of an ancestor is. `environ` is that of the process itself."""
    names = [PurePath(word).name for word in command[:8]]
    if "holdfast" in names and "supervise" in command[names.index("holdfast") + 1 :]:
        return ServiceManager(kind="supervise", pid=pid)
    if any(name == "supervisord" for name in names[:2]) or names[1:3] == ["-m", "supervisor.supervisord"]:
        group, program = environ.get("SUPERVISOR_GROUP_NAME", ""), environ.get("SUPERVISOR_PROCESS_NAME", "")
        name = program if group in ("", program) else f"{group}:{program}"
        restart = f"supervisorctl restart {shlex.quote(name)}" if name else ""
        return ServiceManager(kind="supervisord", pid=pid, name=name, restart=restart)
    if "torchrun" in names[:2] or names[1:3] in (["-m", "torch.distributed.run"], ["-m", "torch.distributed.launch"]):
        return ServiceManager(kind="torchrun", pid=pid)
    return None


def container_of(groups: Iterable[str], environ: Mapping[str, str]) -> ServiceManager | None:
    """Returns the pod or the container that one of these control groups belongs to."""
    paths = list(groups)
    if "KUBERNETES_SERVICE_HOST" in environ or any(map(_POD.search, paths)):
        name = environ.get("HOSTNAME", "")  # the name of the pod
        return ServiceManager(kind="kubernetes", name=name, restart=f"kubectl delete pod {shlex.quote(name or 'POD')}")
    for path in paths:
        if found := _CONTAINER.search(path):
            name = found[1][:_SHORT_ID]
            engine = "podman" if "libpod" in path else "docker" if "docker" in path else ""
            return ServiceManager(kind="container", name=name, restart=f"{engine} restart {name}" if engine else "")
    return None


def unit_of(groups: Iterable[str]) -> ServiceManager | None:
    """Returns the systemd service of a control group: `/system.slice/worker.service`, or that of a user's manager."""
    for path in groups:
        parts = [part for part in path.split("/") if part]
        units = [part for part in parts if part.endswith(".service")]
        by_user = any(part.startswith("user@") for part in units)
        units = [part for part in units if not part.startswith("user@") and part not in _STARTERS]
        # A scope inside of a service is a login session or a container: systemd does not restart it.
        if units and not parts[-1].endswith(".scope"):
            how = "systemctl --user" if by_user else "systemctl"
            return ServiceManager(kind="systemd", name=units[-1], restart=f"{how} restart {shlex.quote(units[-1])}")
    return None
