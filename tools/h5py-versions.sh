#!/usr/bin/env bash
# Runs the tests of parts with h5py 3.14 (HDF5 1.14) and with the newest, and lets each read what the other wrote.
# The environments stay in .venv-h5py: a second run takes a minute. holdfast is used from src/ as it was built.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
venvs=${H5PY_VENVS:-.venv-h5py}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONPATH=$PWD/src

for version in 3.14 newest; do
    venv=$venvs/$version
    if [ ! -e "$venv/.done" ]; then
        echo "installing h5py $version into $venv"
        "$python" -m venv "$venv"
        package=h5py
        [ $version = newest ] || package="h5py==$version.*"
        env -u PYTHONPATH "$venv/bin/python" -m pip --disable-pip-version-check --quiet install \
            "$package" numpy fsspec hdf5plugin pytest pytest-timeout
        touch "$venv/.done"
    fi
    "$venv/bin/python" tools/h5py_versions.py write "$work/$version"
done

for version in 3.14 newest; do
    for other in 3.14 newest; do
        "$venvs/$version/bin/python" tools/h5py_versions.py read "$work/$other"
    done
    "$venvs/$version/bin/python" -m pytest -q -p no:cacheprovider \
        tests/unit/data/writer/test_part.py tests/unit/data/writer/test_write_verify.py tests/unit/data/writer/test_storage.py \
        tests/unit/data/formats/hdf5/test_inplace_writer.py tests/unit/data/writer/server/test_server_in_place.py "$@"
done
