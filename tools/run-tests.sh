#!/usr/bin/env bash
# Runs the tests in two processes at once, which share them file by file: tools/run-tests.sh PYTHON [arguments of pytest]
# Most tests wait for other processes: on two cores, two runs take little more than half the time of one. Each mounts its
# own /dev/shm (tests/support/leftovers.py), to see only what its own tests leave there; where it may not, there is one run.
# The output of the second run is shown when both are done.
set -euo pipefail
set -m # each in its own process group, which identifies its processes

python=$1
shift
if ! unshare --mount true 2>/dev/null; then
    exec "$python" -m pytest "$@"
fi

shared=$(mktemp -d)
mkdir "$shared/claims"
trap 'rm -rf "$shared"' EXIT

run() {
    HOLDFAST_TESTS_SHARED=$shared/claims HOLDFAST_TESTS_FROM=$1 "$python" -m pytest "${@:2}" </dev/null
}

run end "$@" >"$shared/log" 2>&1 &
second=$!
run start "$@" &
first=$!
trap 'kill -INT -- -$first -$second; wait; cat "$shared/log"; exit 130' INT TERM

code=0
wait $first || code=$?
wait $second || code=$?
cat "$shared/log"
exit $code
