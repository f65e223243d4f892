#!/usr/bin/env bash
# Installs what the tests drive beside Python, where it can: as root, by apt. Elsewhere it says what is missing and goes on,
# because the tests that need it are skipped by name.
set -euo pipefail
cd "$(dirname "$0")"

# Prints the packages that are not here. Commands are looked for, not packages: they may come from anywhere.
missing() {
    local command package
    while read -r command package; do
        command -v "$command" >/dev/null || echo "$package"
    done < <(grep -v '^#' system-packages.txt)
    # Two libraries no command stands for. clang answers with a path when it has the file, else with the bare name.
    if command -v clang >/dev/null && [[ $(clang -print-file-name="libclang_rt.fuzzer-$(uname -m).a") != /* ]]; then
        echo "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev"
    fi
    [[ -e /usr/aarch64-linux-gnu/lib/libc.a || $(uname -m) == aarch64 ]] || echo libc6-dev-arm64-cross
}

install() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq && apt-get install -qq --yes --no-install-recommends "$@" >/dev/null
}

mapfile -t wanted < <(missing)
if ((${#wanted[@]})) && ((EUID == 0)) && command -v apt-get >/dev/null; then
    echo "installing system packages: ${wanted[*]}"
    install "${wanted[@]}" || true
    # Which runtime a clang needs is known once it is here.
    mapfile -t wanted < <(missing)
    if ((${#wanted[@]})); then
        install "${wanted[@]}" || true
        mapfile -t wanted < <(missing)
    fi
fi
if ((${#wanted[@]})); then
    echo "without these system packages their tests are skipped: ${wanted[*]}"
fi
