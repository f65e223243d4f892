"""What restarts a process, from the command lines above it, its environment and its control group."""

from __future__ import annotations

import pytest
from unit.procfs.fake_proc import FakeProc

from holdfast.process.guard.service_manager import (
    ServiceManager,
    container_of,
    find_service_manager,
    parse_environ,
    supervisor_of,
    unit_of,
)

ID = "3f2a" * 16

SUPERVISORS: dict[str, str | None] = {
    "/venv/bin/holdfast supervise -- python w.py": "supervise",
    "/venv/bin/python /venv/bin/holdfast supervise --config s.toml": "supervise",
    "python -m holdfast supervise -- w": "supervise",
    "python -m holdfast watch 4711": None,
    "/usr/bin/python3 /usr/bin/supervisord -n -c s.conf": "supervisord",
    "supervisord": "supervisord",
    "python -m supervisor.supervisord": "supervisord",
    "vim supervisord.conf": None,
    "/venv/bin/python /venv/bin/torchrun --nproc-per-node 2 t.py": "torchrun",
    "python -m torch.distributed.run t.py": "torchrun",
    "bash": None,
    "": None,
}


@pytest.mark.parametrize("line", SUPERVISORS)
def test_supervisors_by_their_command_line(line: str) -> None:
    found = supervisor_of(7, line.split(), {})
    assert (None if found is None else found.kind) == SUPERVISORS[line]
    assert found is None or found.pid == 7


def test_supervisord_tells_its_programs_their_names() -> None:
    names = {"SUPERVISOR_GROUP_NAME": "worker", "SUPERVISOR_PROCESS_NAME": "worker_01"}
    found = supervisor_of(7, ["supervisord"], names)
    assert found is not None
    assert (found.name, found.restart) == ("worker:worker_01", "supervisorctl restart worker:worker_01")
    alone = supervisor_of(7, ["supervisord"], dict.fromkeys(names, "worker"))
    assert alone is not None
    assert str(alone) == "supervisord worker (pid 7)"


UNITS: dict[str, str] = {
    "/system.slice/worker.service": "systemctl restart worker.service",
    "/system.slice/system-worker.slice/worker@3.service": "systemctl restart worker@3.service",
    "/system.slice/worker.service/payload": "systemctl restart worker.service",
    "/user.slice/user-1000.slice/user@1000.service/app.slice/w.service": "systemctl --user restart w.service",
    "/user.slice/user-1000.slice/session-3.scope": "",
    "/user.slice/user-1000.slice/user@1000.service/app.slice/vte-spawn.scope": "",
    "/system.slice/cron.service": "",
    "/system.slice/ssh.service": "",
    "/": "",
}


@pytest.mark.parametrize("path", UNITS)
def test_systemd_units(path: str) -> None:
    found = unit_of([path])
    assert (found.restart if found else "") == UNITS[path]


CONTAINERS: dict[str, ServiceManager | None] = {
    f"/docker/{ID}": ServiceManager(kind="container", name=ID[:12], restart=f"docker restart {ID[:12]}"),
    f"/system.slice/docker-{ID}.scope": ServiceManager(
        kind="container", name=ID[:12], restart=f"docker restart {ID[:12]}"
    ),
    f"/machine.slice/libpod-{ID}.scope/container": ServiceManager(
        kind="container", name=ID[:12], restart=f"podman restart {ID[:12]}"
    ),
    "/lxc/web": ServiceManager(kind="container", name="web"),
    f"/kubepods.slice/kubepods-burstable.slice/cri-containerd-{ID}.scope": ServiceManager(
        kind="kubernetes", name="pod-1", restart="kubectl delete pod pod-1"
    ),
    "/system.slice/worker.service": None,
}


@pytest.mark.parametrize("path", CONTAINERS)
def test_containers(path: str) -> None:
    assert container_of([path], {"HOSTNAME": "pod-1"}) == CONTAINERS[path]


def test_in_a_pod_the_environment_tells() -> None:
    found = container_of(["/"], {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "worker-7d4-x"})
    assert found is not None
    assert found.restart == "kubectl delete pod worker-7d4-x"


def machine(group: str, environ: str = "", above: str = "bash") -> FakeProc:
    made = FakeProc()
    made.add_process(1, 0, comm="init")
    made.add_process(10, 1)
    made.add_process(20, 10)
    made.files["/proc/10/cmdline"] = above.replace(" ", "\0")
    made.files["/proc/20/cgroup"] = f"0::{group}\n"
    made.files["/proc/20/environ"] = environ
    return made


def test_the_nearest_one_is_found_first() -> None:
    unit, supervise = "/system.slice/w.service", "holdfast supervise -- w"
    found = [
        find_service_manager(machine(unit, above=supervise), 20),
        find_service_manager(machine(unit), 20),
        find_service_manager(machine(unit, "SLURM_JOB_ID=77\0HOME=/"), 20),
        find_service_manager(machine("/"), 20),
    ]
    assert [None if one is None else str(one) for one in found] == [
        "holdfast supervise (pid 10)",
        "systemd unit w.service",
        "Slurm job 77",
        None,
    ]


def test_of_a_supervisor_and_its_forked_helper_the_upper_one_is_named() -> None:
    made = machine("/", above="holdfast supervise -- w")
    made.add_process(15, 10)
    made.add_process(20, 15)
    made.files["/proc/15/cmdline"] = made.files["/proc/10/cmdline"]
    assert find_service_manager(made, 20) == ServiceManager(kind="supervise", pid=10)


def test_the_file_that_engines_leave_in_a_container_is_enough() -> None:
    inside = machine("/", "HOSTNAME=ab12\0")
    inside.files["/proc/20/root/.dockerenv"] = ""
    assert find_service_manager(inside, 20) == ServiceManager(kind="container", name="ab12")


def test_an_environment() -> None:
    assert parse_environ("A=1\0B=x=y\0junk\0\0") == {"A": "1", "B": "x=y"}
