"""Which processes are meant."""

from __future__ import annotations

from unit.procfs.fake_proc import FakeProc, FakeStat

from holdfast.procfs.processes import MANY_FDS, find_busy, find_by_name, roots_of


def machine() -> FakeProc:
    """1 ─ 10 (a shell) ─ 20 (this) and 30 (train.py) ─ 31 (train.py); 40 (another user's train.py); 50 idle."""
    fake = FakeProc(own=20)
    for pid, parent, words in (
        (10, 1, "bash"),
        (20, 10, "holdfast\0doctor\0--name\0train.py"),
        (30, 10, "python\0train.py"),
        (31, 30, "python\0train.py"),
        (40, 1, "python\0train.py"),
        (50, 1, "idle"),
    ):
        fake.add_process(pid, parent, comm=words.split("\0")[0])
        fake.files[f"/proc/{pid}/cmdline"] = words + "\0"
        fake.stats[f"/proc/{pid}"] = FakeStat(st_uid=1001 if pid == 40 else 1000)
        fake.stats[f"/proc/{pid}/fd"] = FakeStat(st_size=pid)
    return fake


def test_by_name_finds_the_top_of_each_tree_and_never_itself() -> None:
    assert find_by_name("train.py", machine()) == [30, 40]
    assert find_by_name("python", machine()) == [30, 40]
    assert find_by_name("nothing-like-it", machine()) == []


def test_the_shell_that_has_the_same_words_is_not_meant() -> None:
    fake = machine()
    fake.files["/proc/10/cmdline"] = "bash\0-c\0holdfast doctor --name train.py\0"
    assert find_by_name("train.py", fake) == [30, 40]


def test_busy_are_those_with_children_or_many_descriptors_of_this_user() -> None:
    fake = machine()
    assert find_busy(fake, uid=1000) == [30, 10]
    fake.stats["/proc/50/fd"] = FakeStat(st_size=MANY_FDS + 1)
    assert find_busy(fake, uid=1000) == [50, 30, 10]
    assert find_busy(fake, uid=7) == []


def test_roots_are_those_not_below_another() -> None:
    assert roots_of([31, 30, 50, 30], machine()) == [30, 50]
    assert roots_of([31, 20], machine()) == [31, 20]
