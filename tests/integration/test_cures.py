"""What `explain` and `doctor` say to write can be written: the lines run as they are, and the pages are there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.process.doctor.remedies import REMEDIES, Remedy
from holdfast.process.doctor.signatures import SIGNATURES
from holdfast.process.error_guide.cause_chain import RULES

TOP = Path(__file__).resolve().parents[2]

# What the lines take for granted: some data, a schema, a sample, a dataset, a job.
AROUND = """
import json, os, sys
import h5py, numpy, torch
import holdfast as hold

schema, sample = {"label": hold.Int64()}, {"label": 1}
os.mkdir("data")
with hold.TFRecordWriter("data/a.tfrecord", schema) as writer:
    writer.append(**sample)
dataset, job = torch.utils.data.TensorDataset(torch.arange(64)), lambda: None
for code in json.load(sys.stdin):
    names = dict(globals())
    exec(code, names)
    if "ds" in names:
        assert len(list(names["ds"])) == 1, code
    if "loader" in names:
        assert type(names["loader"]).__module__.startswith("holdfast"), code
assert len(list(hold.read("run.hold"))) == 1
"""


def test_every_cure_runs_as_it_is_written(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AROUND],
        input=json.dumps(["\n".join(remedy.code) for remedy in REMEDIES]),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


NAMED = (
    "holdfast.torch",
    "on_corrupt=",
    "limits(",
    "hold.write(",
    "hold.locked(",
    "hold.protect_h5py(",
    "hold.no_leaks(",
)


@pytest.mark.parametrize(("remedy", "named"), list(zip(REMEDIES, NAMED, strict=True)), ids=NAMED)
def test_every_cure_is_on_its_page_and_in_the_tables(remedy: Remedy, named: str) -> None:
    assert named in " ".join(remedy.code)
    assert named in (TOP / remedy.page).read_text()
    assert any(rule.remedy is remedy for rule in (*RULES, *SIGNATURES))
