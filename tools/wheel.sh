#!/usr/bin/env bash
# Builds the wheel: tools/wheel.sh PYTHON FOLDER [options of `pip wheel`]. It is built from a copy, so that nothing of an
# earlier build gets into it, and checked, because C that does not compile is silently left out of an installation.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$1
folder=$(realpath -m "$2")
shift 2

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cp -r LICENSE README.md native pyproject.toml setup.py src "$scratch"
find "$scratch/src" \( -name '*.so' -o -name '*.egg-info' -o -name __pycache__ \) -prune -exec rm -rf {} +

mkdir -p "$folder"
rm -f "$folder"/holdfast_io-*.whl
"$python" -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir "$folder" "$@" "$scratch"

"$python" - "$folder" <<'PYTHON'
import pathlib
import platform
import sys
import zipfile

[wheel] = pathlib.Path(sys.argv[1]).glob("holdfast_io-*.whl")
parts = {path.parent.name for path in pathlib.Path("native").glob("*/module.c")}
if platform.machine() == "x86_64":
    parts.add("fdtrace")  # no Python module; written for this processor
built = {name.rpartition("/_")[2].partition(".")[0] for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".abi3.so")}
if "-cp311-abi3-" not in wheel.name or built != parts:
    sys.exit(f"{wheel}: expected a wheel for cp311-abi3 with {sorted(parts)}, got {sorted(built)}")
print(wheel)
PYTHON
