"""Programs that holdfast did not write run under the tracing library as they do without it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from holdfast.process.fdtrace.log_format import BIRTH, LIVE
from traced_process import Recording, as_array, assert_adds_up, environment, needs_library, read, run

pytestmark = needs_library


def both(command: list[str], folder: Path, *, stdin: str = "", cwd: Path | None = None) -> Recording:
    """Run a command without and with the library: output, errors and exit code have to be the same."""
    folder.mkdir(exist_ok=True)
    alone, traced = (
        subprocess.run(command, env=env, input=stdin, capture_output=True, text=True, timeout=120, cwd=cwd)
        for env in (dict(os.environ), environment(folder))
    )
    assert (traced.returncode, traced.stdout, traced.stderr) == (alone.returncode, alone.stdout, alone.stderr)
    recording = read(folder)
    assert recording.images
    assert not recording.problems
    return recording


@pytest.mark.needs("bash")
def test_bash(tmp_path: Path) -> None:
    script = r"""
set -o pipefail
trap 'echo trapped' USR1 EXIT
exec 9>/dev/null 8</etc/passwd
echo one >&9; read -r line <&8; echo "${line%%:*}"
seq 1 2000 | sort -rn | head -3 | cat; echo "${PIPESTATUS[@]: -1}"
diff <(printf 'a\nb\n') <(printf 'a\nc\n'); echo $?
kill -USR1 $$; (sleep 0.01 & wait; exit 3); echo $?
coproc { read -r x; echo "got $x"; }
echo hello >&"${COPROC[1]}"; read -r answer <&"${COPROC[0]}"; echo "$answer"
cat <<EOT
here $(printf %s document)
EOT
cat; exec 9>&- 8<&-; printf x >&9; exit 5
"""
    recording = both(["bash", "-c", script], tmp_path, stdin="from stdin\n")
    assert len(recording.images) >= 10
    assert not any(image.header.has_python_stacks for image in recording.images.values())


@pytest.mark.needs("git")
def test_git(tmp_path: Path) -> None:
    script = """
set -e
rm -rf work clone; mkdir work; cd work
export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_DATE='2020-01-01T00:00Z' GIT_COMMITTER_DATE='2020-01-01T00:00Z'
git init -q -b main .
git config user.name n; git config user.email n@example.org
for i in $(seq 40); do echo $i > file$i; done
git add .; git commit -qm first; echo changed > file1; git commit -qam second
git log --stat --no-color | cat; git gc -q; git fsck --strict 2>/dev/null; cd ..
git clone -q work clone; cd clone; git diff HEAD~1 --stat; git rev-parse HEAD; git checkout nothing
"""
    (tmp_path / "at").mkdir()
    both(["sh", "-c", script], tmp_path / "logs", cwd=tmp_path / "at")


@pytest.mark.needs("perl")
def test_perl(tmp_path: Path) -> None:
    script = r"""
use strict; use IO::Socket::UNIX; use File::Temp qw(tempfile);
my ($file, $name) = tempfile(UNLINK => 1); print $file "line $_\n" for 1..100; close $file;
open my $in, '<', $name or die; my @lines = <$in>; close $in; print scalar(@lines), "\n";
print `echo from a shell`; open my $p, '-|', 'seq 3' or die; print <$p>; close $p;
pipe my $r, my $w; my $pid = fork;
if (!$pid) { close $r; print $w "child\n"; close $w; exit 4 }
close $w; print <$r>; waitpid $pid, 0; print $? >> 8, "\n";
opendir my $d, '/' or die; my $n = () = readdir $d; closedir $d; print $n > 2 ? "ok\n" : "no\n";
local $SIG{ALRM} = sub { die "alarm\n" }; eval { alarm 1; select undef, undef, undef, 5 }; print $@;
open my $bad, '<', '/nonexistent' or print "$!\n"; exit 9;
"""
    both(["perl", "-e", script], tmp_path)


# The parts of CPython's own tests that use descriptors most, and take seconds.
CPYTHON = {
    "test_subprocess": [
        "POSIXProcessTestCase.test_close_fd*",
        "POSIXProcessTestCase.test_pass_fds*",
        "ContextManager*",
    ],
    "test_socket": ["RecvmsgSCMRights*", "SendRecvFds*", "TestUnixDomain*", "BasicTCP*"],
    "test_os": ["FDInheritance*", "EventfdTests*", "MemfdCreate*", "FileTests*", "TestScandir*"],
}


@pytest.mark.parametrize("module", CPYTHON)
def test_parts_of_the_tests_of_cpython(tmp_path: Path, module: str) -> None:
    if find_spec("test.test_subprocess") is None:
        pytest.skip("needs the tests of CPython (Debian: libpython3-testsuite)")
    matches = [word for pattern in CPYTHON[module] for word in ("-m", f"*.{pattern}")]
    command = [sys.executable, "-m", "test", "-v", *matches, module]

    def results(env: dict[str, str]) -> tuple[int, dict[str, str]]:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=250, cwd=tmp_path)
        return done.returncode, dict(re.findall(r"^\w+ \(([\w.]+)\)(?:\n.*?)? \.\.\. (\w+)", done.stdout, re.MULTILINE))

    alone = results(dict(os.environ))
    assert len(alone[1]) > 10
    assert results(environment(tmp_path)) == alone


@pytest.mark.skipif(find_spec("h5py") is None, reason="needs the Python package h5py")
@pytest.mark.skipif(find_spec("torch") is None, reason="needs the Python package torch")
def test_a_loader_of_torch_that_reads_hdf5(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("""
import sys, h5py, torch
from torch.utils.data import DataLoader, Dataset
class Rows(Dataset):
    def __len__(self): return 64
    def __getitem__(self, index):
        with h5py.File(sys.argv[1], "r") as file:
            return torch.from_numpy(file["x"][index : index + 1])
if __name__ == "__main__":
    with h5py.File(sys.argv[1], "w") as file:
        file["x"] = list(range(64))
    for epoch in range(2):
        print(sum(int(batch.sum()) for batch in DataLoader(Rows(), batch_size=8, num_workers=2)))
    leaked = h5py.File(sys.argv[1], "r")
    sys.stdout.flush()
    import os; os._exit(0)
""")
    recording, output = run([sys.executable, script, tmp_path / "x.h5"], tmp_path / "logs")
    assert output == "2016\n2016\n"
    parent = min(recording.images.values(), key=lambda image: image.header.start_ns)
    workers = [image for image in recording.images.values() if image.header.parent == parent.key]
    assert len(workers) == 4
    for worker in workers:
        # HDF5 opens the file in C; the stack ends in the user's line.
        births = as_array(worker.events, action=BIRTH)
        stacks = [recording.frames(worker, event) for event in births]
        lines = [frame.line for stack in stacks for frame in stack if frame.function == "Rows.__getitem__"]
        assert lines.count(7) == 32
        assert_adds_up(worker)
    assert_adds_up(parent)
    live = as_array(parent.entries, flags=LIVE)
    left = [frame.line for entry in live for frame in recording.frames(parent, entry) if frame.file == str(script)]
    assert 14 in left


FRAMEWORKS = ("tensorflow", "keras", "torch", "lightning", "transformers")


def test_a_leak_has_its_line_after_the_imports_of_frameworks(tmp_path: Path) -> None:
    present = [name for name in FRAMEWORKS if find_spec(name) is not None]
    if not present:
        pytest.skip(f"needs one of the Python packages {', '.join(FRAMEWORKS)}")
    script = tmp_path / "script.py"
    script.write_text(f"""
import importlib, os
for name in {present}:
    importlib.import_module(name)
def leak(): return os.open("/dev/null", 0)
kept = [leak() for _ in range(60)]
os._exit(0)
""")
    recording, _ = run([sys.executable, script], tmp_path / "logs", timeout=300)
    image = min(recording.images.values(), key=lambda image: image.header.start_ns)
    counts = image.header.counts
    assert not counts["lost_stacks"] | counts["short_stacks"]
    live = as_array(image.entries, flags=LIVE)
    assert sum(recording.frames(image, entry)[0].line == 5 for entry in live if recording.frames(image, entry)) == 60
    with_lines = sum(int(row["born"]) for row in as_array(image.counters) if recording.frames(image, row))
    assert with_lines >= 0.99 * sum(image.counters["born"])
