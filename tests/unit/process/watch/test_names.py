"""Labels, and which process continues which target."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from holdfast.process.watch.names import TargetKey, find_successor, parse_key, short_name, unique_label


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("/usr/bin/python3 -u -m ami.worker --all", "ami.worker"),
        ("python3.11 -W error -X dev /srv/train.py --lr 1", "train.py"),
        ("python -c 'import x'", "python"),
        ("bash /opt/run.sh", "run.sh"),
        ("bash", "bash"),
        ("timeout 600 python train.py", "train.py"),
        ("/usr/bin/timeout -k 5 1.5h ./serve --port 1", "serve"),
        ("bash -c cd /srv && python -m ami.worker; echo done", "ami.worker"),
        ("sh -c exec nice -n 5 python train.py --lr 1", "train.py"),
        ("sudo -u me env A=b nohup python3 train.py", "train.py"),
        ("/usr/bin/python -m holdfast trace -o x.hft train.py", "train.py"),
        ("timeout 5", "timeout"),
        ("bash -lc cd /srv", "bash"),
        ("/usr/sbin/nginx: worker process", "nginx"),
        ("nginx: master", "nginx"),
        ("./serve --port 1", "serve"),
        ("python", "python"),
        ("", "kworker/0:1"),
        ("x" * 500, "x" * 64),
        ("evil\x1b[31m\n name", "evil"),
    ],
)
def test_short_name(command: str, expected: str) -> None:
    assert short_name(command, "kworker/0:1") == expected


def test_short_name_of_nothing() -> None:
    assert short_name("", "") == "process"


def test_labels_are_unique() -> None:
    taken: list[str] = []
    for _ in range(3):
        taken.append(unique_label("worker", taken))
    assert taken == ["worker", "worker-2", "worker-3"]
    assert unique_label("\n\x00", []) == "process"


def test_key_survives_json() -> None:
    key = TargetKey("name:x", 'a "b"\n', "a")
    assert parse_key(key.as_text()) == key


@dataclass
class Ended:
    key: TargetKey


def test_successor_has_the_same_command() -> None:
    worker = Ended(TargetKey("name:worker", "python worker.py --id 1", "worker.py"))
    other = Ended(TargetKey("name:worker", "python worker.py --id 2", "worker.py"))
    assert find_successor(TargetKey("name:worker", "python worker.py --id 2", "worker.py"), [worker, other]) is other
    assert find_successor(TargetKey("name:worker", "python worker.py --id 9", "worker.py"), [worker, other]) is worker
    assert find_successor(TargetKey("pid", "python worker.py --id 9", "worker.py"), [worker, other]) is None
    assert find_successor(TargetKey("pid", "python worker.py --id 1", "worker.py"), [worker]) is worker
    assert find_successor(TargetKey("name:worker", "python x.py", "x.py"), [worker, other]) is None


def test_workers_continue_only_themselves() -> None:
    first = Ended(TargetKey("worker:1", "python worker.py", "worker"))
    assert find_successor(TargetKey("worker:2", "python worker.py", "worker"), [first]) is None
    assert find_successor(TargetKey("worker:1", "python worker.py", "worker"), [first]) is first
    assert find_successor(TargetKey("name:worker", "python worker.py", "worker"), [first]) is None
