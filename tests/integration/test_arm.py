"""crc32c for ARMv8, built and run for that CPU on whatever machine this is."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import google_crc32c
import pytest

TOP = Path(__file__).resolve().parents[2]

# Around every step of the code: none, below and above a word, and where three lanes of 2,048 bytes begin.
LENGTHS = [*range(201), 6143, 6144, 6145, 20_000]

pytestmark = pytest.mark.needs("aarch64-linux-gnu-gcc", "qemu-aarch64")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("arm") / "crc"
    sources = [TOP / "tests/native/crc_main.c", TOP / "native/codec/crc32c.c"]
    flags = ["-static", "-O2", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{TOP / 'native/codec'}"]
    subprocess.run(["aarch64-linux-gnu-gcc", *flags, *sources, "-o", built], check=True)
    return built


@pytest.mark.parametrize(("arguments", "kind"), [([], "armv8"), (["table"], "table")])
def test_crc32c_on_arm(program: Path, arguments: list[str], kind: str) -> None:
    rng = random.Random(0)
    samples = [rng.randbytes(length) for length in LENGTHS]
    asked = "".join(f"{sample.hex()}\n" for sample in samples)
    done = subprocess.run(
        ["qemu-aarch64", program, *arguments], input=asked, capture_output=True, text=True, check=True
    )
    said_kind, *crcs = done.stdout.split()
    assert said_kind == kind
    assert crcs == [f"{google_crc32c.value(sample):08x}" for sample in samples]
