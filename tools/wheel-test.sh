#!/usr/bin/env bash
# Runs tests on a wheel in a new environment: tools/wheel-test.sh PYTHON WHEEL [arguments of pytest]
# The environment has the wheel and, through a path to those of PYTHON, the packages that the tests need. PYTHON also has
# holdfast installed from the sources, which must not be the one that is tested.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$1
wheel=$2
shift 2
unset PYTHONPATH

scratch=$(mktemp -d)
chmod 755 "$scratch" # for tests that run as another user
trap 'rm -rf "$scratch"' EXIT
"$python" -m venv --without-pip "$scratch/venv"
site=$("$scratch/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -m pip --disable-pip-version-check --python "$scratch/venv/bin/python" install --quiet --no-deps "$wheel"
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/packages-of-the-tests.pth"

export PATH=$scratch/venv/bin:$PATH
HOLDFAST_NATIVE=1 "$scratch/venv/bin/python" -c '
import pathlib, sys
from holdfast._native import _chunks, _codec, _images, _png, _readahead
for one in (_chunks, _codec, _images, _png, _readahead):
    if not pathlib.Path(one.__file__).is_relative_to(sys.prefix):
        sys.exit(f"{one.__file__}: expected the wheel, got the sources")
'
"$scratch/venv/bin/holdfast" --version
"$scratch/venv/bin/python" -m pytest -q -p no:cacheprovider "${@:-tests/unit/native}"
