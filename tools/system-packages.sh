#!/usr/bin/env bash
# Installs the system packages that the tests use, as root with apt. Elsewhere it reports what is missing and continues,
# because the tests that need them are skipped by name.
set -euo pipefail
cd "$(dirname "$0")"

# Prints the missing packages. It searches for commands, not packages, because they may be installed in any way.
missing() {
    local command package
    while read -r command package; do
        command -v "$command" >/dev/null || echo "$package"
    done < <(grep -v '^#' system-packages.txt)
    # Two libraries without a command. clang prints a path when it has the file, else only the name.
    if command -v clang >/dev/null && [[ $(clang -print-file-name="libclang_rt.fuzzer-$(uname -m).a") != /* ]]; then
        echo "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev"
    fi
    [[ -e /usr/aarch64-linux-gnu/lib/libc.a || $(uname -m) == aarch64 ]] || echo libc6-dev-arm64-cross
}

# The package of promtool brings a server, which must not be started: exit code 101 of this program forbids it.
forbid_services() {
    local policy=/usr/sbin/policy-rc.d
    if [[ ! -e $policy ]]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    fi
}

install() {
    export DEBIAN_FRONTEND=noninteractive
    forbid_services
    apt-get update -qq && apt-get install -qq --yes --no-install-recommends "$@" >/dev/null
}

mapfile -t packages < <(missing)
if ((${#packages[@]})) && ((EUID == 0)) && command -v apt-get >/dev/null; then
    echo "installing system packages: ${packages[*]}"
    install "${packages[@]}" || true
    # Which runtime clang needs is known once it is installed.
    mapfile -t packages < <(missing)
    if ((${#packages[@]})); then
        install "${packages[@]}" || true
        mapfile -t packages < <(missing)
    fi
fi
if ((${#packages[@]})); then
    echo "without these system packages their tests are skipped: ${packages[*]}"
fi
