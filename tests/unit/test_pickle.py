"""Functions that use `import holdfast as hold` go to other processes, by every package that carries functions."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import holdfast as hold

# A fresh process, so that a function of `__main__` is carried by its value, as in a script or a notebook.
PROGRAM = """
import subprocess, sys
import {carrier} as carrier
import holdfast as hold

class Shape:
    column = hold.Int64

    def make(self, count):
        return hold.Float32(count)

def columns(count):
    return [Shape().make(count), hold.Ragged(Shape.column())]

if hasattr(carrier, "settings"):
    carrier.settings["recurse"] = True  # dill takes what a function names along only then
data = carrier.dumps(columns)
load = "import sys, {carrier} as carrier; print(carrier.loads(sys.stdin.buffer.read())(3))"
done = subprocess.run([sys.executable, "-c", load], input=data, stdout=subprocess.PIPE, check=True)
assert done.stdout.decode().strip() == str(columns(3)), done.stdout
print("carried")
"""

LOKY = """
import holdfast as hold
from joblib import Parallel, delayed
from joblib.externals.loky import get_reusable_executor

def columns(count):
    return str(hold.Float32(count))

if __name__ == "__main__":
    found = Parallel(n_jobs=2, backend="loky")(delayed(columns)(count) for count in (2, 3))
    assert found == [columns(2), columns(3)], found
    get_reusable_executor().shutdown(wait=True)
    print("carried")
"""


@pytest.mark.parametrize("carrier", ["cloudpickle", "dill"])
def test_functions_and_classes_that_use_holdfast(carrier: str) -> None:
    pytest.importorskip(carrier)
    assert run(PROGRAM.replace("{carrier}", carrier)) == "carried"


def test_joblib_workers_run_functions_that_use_holdfast() -> None:
    pytest.importorskip("joblib")
    assert run(LOKY) == "carried"


@pytest.mark.parametrize("carrier", ["pickle", "cloudpickle", "dill"])
def test_the_module_itself(carrier: str) -> None:
    package: Any = pickle if carrier == "pickle" else pytest.importorskip(carrier)
    assert package.loads(package.dumps(hold)) is hold
    assert copy.deepcopy({"hold": hold})["hold"] is import_module("holdfast")


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    return done.stdout.strip()


def test_an_iteration_says_what_to_pickle_instead(tmp_path: Path) -> None:
    with hold.TFRecordWriter(tmp_path / "a.tfrecord", {"n": hold.Int64()}) as writer:
        for n in range(6):
            writer.append(n=n)
    dataset = hold.read(tmp_path / "a.tfrecord").batch(2)
    with dataset.iterate() as iteration:
        next(iteration)
        with pytest.raises(TypeError, match=r"cannot pickle an iteration: pickle its state_dict\(\), and the dataset"):
            pickle.dumps(iteration)
        other, state = pickle.loads(pickle.dumps((dataset, iteration.state_dict())))
    with other.iterate() as iteration:
        iteration.load_state_dict(state)
        assert [batch["n"].tolist() for batch in iteration] == [[2, 3], [4, 5]]
