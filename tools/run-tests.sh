#!/usr/bin/env bash
# Runs the tests in two processes at once, which share them file by file: tools/run-tests.sh PYTHON [arguments of pytest]
# What the second one says is shown when both are done. Most tests wait for other processes: two runs take little more
# than half the time of one on two cores.
set -euo pipefail
set -m # each in a process group of its own, by which it knows its processes

python=$1
shift
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
