"""Options and caps of the supervisor, progress watches, and what is told to systemd."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from holdfast.process.guard.caps import RSS, SOFT_SAMPLES, Cap
from holdfast.process.guard.signals import handles_signal
from holdfast.process.guard.supervisor.config import NAMES, make_options, read_config, watched_words
from holdfast.process.guard.supervisor.outside_caps import CapWatches, ProcessUse, TreeUse, cap_parser, find_breach
from holdfast.process.guard.supervisor.process_tree import identities, read_tree, signal_process
from holdfast.process.guard.supervisor.progress import ProgressWatch
from holdfast.process.guard.supervisor.systemd import SystemdNotifier
from holdfast.process.guard.supervisor.worker_machine import RestartMode, RestartReason
from holdfast.procfs.processes import Identity

USE = TreeUse(
    processes=(ProcessUse(1, 100, 1000, 4), ProcessUse(2, 600, 1000, 9), ProcessUse(3, None, None, 1)),
    memory_bytes=5_000_000,
)


def test_every_option_of_the_command_is_a_key_of_the_file() -> None:
    from holdfast.cli.supervise import supervise

    ours = {"json", "quiet", "debug", "config"}
    named = {option.removeprefix("--") for param in supervise.params for option in param.opts if option[:2] == "--"}
    assert named - ours == set(NAMES) - {"command"}


def test_a_file_with_everything(tmp_path: Path) -> None:
    (tmp_path / "all.toml").write_text(
        """[supervise]
        command = "python 'my worker.py'"
        workers = 4
        fds = 0.5
        rss = "1GiB:2GiB"
        threads = 100
        children = ":7"
        progress-file = "beat"
        progress_timeout = 30
        stop-timeout = "5s"
        restart = "always"
        max-failures = 0
        backoff = 0.5
        """
    )
    options = make_options(read_config(str(tmp_path / "all.toml")))
    assert options.command == ("python", "my worker.py")
    assert (options.workers, options.probe_s, options.stop_s) == (4, 30, 5)
    assert options.restart is RestartMode.ALWAYS
    assert (options.rules.failures, options.rules.first_s, options.rules.longest_s) == (0, 0.5, 300)
    assert options.caps == {
        RestartReason.FDS: Cap(soft=0.5),
        RestartReason.RSS: Cap(soft="1GiB", hard="2GiB"),
        RestartReason.THREADS: Cap(soft=100),
        RestartReason.CHILDREN: Cap(hard=7),
    }


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"command": []},
        {"command": [""]},
        {"command": "a\0b"},
        {"command": 3},
        {"workers": True},
        {"workers": "-1"},
        {"workers": "1.5"},
        {"fds": ""},
        {"fds": ":"},
        {"fds": True},
        {"fds": "100MB"},
        {"threads": "0.5"},
        {"children": "0"},
        {"rss": "x:y"},
        {"stop-timeout": "0"},
        {"stop-timeout": True},
        {"restart": "sometimes"},
        {"progress-http": "http://"},
        {"progress-http": "http://x:99999/"},
        {"name": ""},
    ],
)
def test_values_that_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected|Port out of range"):
        make_options({"command": ["true"], **values} if values and "command" not in values else values)


@pytest.mark.parametrize(
    ("reason", "cap", "which", "sentence"),
    [
        (RestartReason.FDS, Cap(soft=0.5), "soft", "process 2: it uses 600 descriptors, its soft cap is 500 (limit"),
        (RestartReason.FDS, Cap(soft=50, hard=550), "hard", "process 2: it uses 600 descriptors, its hard cap is 550"),
        (RestartReason.FDS, Cap(soft=0.7), "", ""),
        (RestartReason.THREADS, Cap(hard=9), "hard", "process 2: it uses 9 threads"),
        (RestartReason.RSS, Cap(soft="4MB"), "soft", "it uses 5.00 MB of memory, its soft cap is 4.00 MB"),
        (RestartReason.CHILDREN, Cap(soft=2), "soft", "it uses 2 child processes"),
        (RestartReason.CHILDREN, Cap(soft=3), "", ""),
    ],
)
def test_breaches(reason: RestartReason, cap: Cap, which: str, sentence: str) -> None:
    watches: CapWatches = {}
    found = find_breach({reason: cap}, USE, watches)
    if which == "soft":  # for a while it may be
        assert [find_breach({reason: cap}, USE, watches) for _ in range(SOFT_SAMPLES - 2)] == [None] * (
            SOFT_SAMPLES - 2
        )
        assert found is None
        found = find_breach({reason: cap}, USE, watches)
    if not which:
        assert found is None
        return
    assert found is not None
    assert (found.reason, found.is_hard) == (reason, which == "hard")
    assert found.sentence.startswith(sentence)


@pytest.mark.parametrize(
    ("values", "words", "not_words"),
    [
        ({}, ("stays at 95% of its limit", "progress is only known with a hold.Guard"), ("its fds",)),
        ({"fds": "off"}, ("ends or is stopped", "hold.Guard"), ("descriptors", "its fds")),
        ({"fds": "0.5", "rss": "1GiB"}, ("its fds, its rss", "hold.Guard"), ("descriptors",)),
        ({"progress-file": "beat"}, ("descriptors", "its progress (beat)"), ("Guard",)),
    ],
)
def test_what_is_watched_is_reported(
    values: dict[str, Any], words: tuple[str, ...], not_words: tuple[str, ...]
) -> None:
    text = watched_words(make_options({"command": ["true"], **values}))
    assert all(word in text for word in words)
    assert not any(word in text for word in not_words)


def test_a_size_has_no_fraction() -> None:
    assert cap_parser(RSS)("1GB") == Cap(soft="1GB")
    with pytest.raises(ValueError, match="expected a size such as 24GiB"):
        cap_parser(RSS)("50%")


# ---- progress ----------------------------------------------------------------------------------------------


def test_a_file_must_change_and_a_page_must_answer() -> None:
    file = ProgressWatch("beat", 10, 0, is_page=False)
    page = ProgressWatch("http://x/", 10, 0, is_page=True)
    for now_s in (5, 10, 15):
        file.probed("+1", now_s)
        page.probed("+", now_s)
    assert "beat did not change for 11 s" in file.overdue(16)
    assert page.overdue(16) == ""
    page.probed("http://x/ answered with status 500", 20)
    assert "had no good answer for 11 s (http://x/ answered with status 500)" in page.overdue(26)
    page.probed("", 27)
    assert "did not answer within 10 s" in page.overdue(27)
    file.restart_clock(30)
    assert file.overdue(39) == ""


# ---- systemd -----------------------------------------------------------------------------------------------


def test_systemd_variables_are_taken_away_and_belong_to_this_process() -> None:
    environment = {"NOTIFY_SOCKET": "@holdfast-test", "WATCHDOG_USEC": "4000000", "WATCHDOG_PID": "1", "OTHER": "x"}
    notifier = SystemdNotifier(environment)
    assert environment == {"OTHER": "x"}
    assert notifier.watchdog_s is None
    notifier.ready()  # nobody listens
    notifier.close()
    environment = {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "4000000", "WATCHDOG_PID": str(os.getpid())}
    notifier = SystemdNotifier(environment)
    assert notifier.watchdog_s == 2.0
    notifier.close()
    assert not SystemdNotifier({}).is_on
    assert not SystemdNotifier({"NOTIFY_SOCKET": "vsock:1:2"}).is_on


def test_an_abstract_socket_and_a_status_once() -> None:
    name = f"holdfast-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}")
        listener.settimeout(10)
        notifier = SystemdNotifier({"NOTIFY_SOCKET": f"@{name}"})
        for sentence in ("one\ntwo", "one\ntwo", "three"):
            notifier.status(sentence)
        assert [listener.recv(100) for _ in range(2)] == [b"STATUS=one two", b"STATUS=three"]
        notifier.close()


# ---- processes ---------------------------------------------------------------------------------------------


def test_a_tree_is_read_and_a_reused_pid_is_never_signalled() -> None:
    ready_r, ready_w = os.pipe()
    child = os.fork()
    if not child:
        if not os.fork():
            os.write(ready_w, b"x")
        signal.alarm(60)  # ends both if the test fails
        while True:
            signal.pause()
    os.read(ready_r, 1)
    everything = read_tree(os.getpid())  # other tests may have helpers that stay
    grandchild = next(pid for pid in everything if everything[pid].ppid == child)
    tree = {pid: everything[pid] for pid in (child, grandchild)}
    assert list(everything).index(child) < list(everything).index(grandchild)
    other = Identity(grandchild, tree[grandchild].start_ticks + 1)
    assert not signal_process(other, 9)
    assert read_tree(child)
    for one in identities(tree):
        assert signal_process(one, 9)
    os.waitpid(child, 0)
    os.close(ready_r)
    os.close(ready_w)
    assert not signal_process(Identity(child, tree[child].start_ticks), 9)


def test_which_signals_a_process_catches() -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        assert handles_signal(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not handles_signal(os.getpid(), signal.SIGUSR1)
    assert not handles_signal(0, signal.SIGUSR1)
