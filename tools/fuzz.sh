#!/usr/bin/env bash
# fuzz.sh [SECONDS]: builds every native/fuzz/fuzz_*.c with the Python-free sources, and fuzzes each for its share
# of the time. The corpus stays in build/fuzz/<target>/, so that the next run continues from there.
# Exit: 0 nothing found, 1 a crash (its input's path is printed), 2 no target to run, 3 no fuzzer to build with.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${1:-600}
out=build/fuzz
flags=(-g -O1 -std=c11 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -Inative/codec
    -Inative/images)

shopt -s nullglob
targets=(native/fuzz/fuzz_*.c)
if ((${#targets[@]} == 0)); then
    echo "no native/fuzz/fuzz_*.c to run" >&2
    exit 2
fi
if ! command -v clang >/dev/null || [[ $(clang -print-file-name="libclang_rt.fuzzer-$(uname -m).a") != /* ]]; then
    echo "fuzzing needs clang with libFuzzer: the packages clang and libclang-rt-*-dev" >&2
    exit 3
fi

mkdir -p "$out/bin" "$out/objects" "$out/crashes"
objects=()
for source in native/codec/*.c native/images/*.c; do
    case $(basename "$source") in
    module.c | py_*.c) continue ;; # these need Python
    esac
    object=$out/objects/$(basename "$source" .c).o
    clang "${flags[@]}" -fsanitize=fuzzer-no-link -c "$source" -o "$object" &
    objects+=("$object")
done
for job in $(jobs -p); do
    wait "$job"
done

# At least one second: to libFuzzer a limit of 0 means none.
share=$((seconds / ${#targets[@]}))
share=$((share > 0 ? share : 1))
failed=0
for source in "${targets[@]}"; do
    target=$(basename "$source" .c)
    clang "${flags[@]}" -fsanitize=fuzzer "$source" "${objects[@]}" -lm -o "$out/bin/$target"
    corpus=("$out/$target")
    mkdir -p "${corpus[0]}"
    if [[ -d native/fuzz/seeds/$target ]]; then
        corpus+=("native/fuzz/seeds/$target")
    fi
    log=$out/$target.log
    if "$out/bin/$target" -max_total_time="$share" -max_len=4096 -timeout=25 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$out/crashes/$target-" "${corpus[@]}" >"$log" 2>&1; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
        echo "$target: $runs executions in $share s, nothing found"
    else
        failed=1
        grep -E 'ERROR|runtime error|SUMMARY' "$log" | head -5 >&2 || true
        crash=$(sed -n 's/.*Test unit written to //p' "$log" | tail -1)
        echo "$target: crashed on ${crash:-an input that was not kept}; its output is in $log" >&2
    fi
done
exit "$failed"
