#!/usr/bin/env bash
# readme.sh PREFIX FOLDER: the C++ program of README.md, as a reader would build and run it: with nothing but -lrsccl, as four threads,
# and as four processes under each mpirun that is here.
set -euo pipefail
prefix=$1 work=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
export LD_LIBRARY_PATH=$prefix/lib NCCL_SOCKET_IFNAME=lo RSCCL_TIMEOUT_MS=30000 RSCCL_INIT_TIMEOUT_MS=30000
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
RUN_LIMIT_S=60
mkdir -p "$work"

complete() { # WHAT COMMAND...: four lines that end with the sums
    local what=$1 lines
    shift
    lines=$(timeout "$RUN_LIMIT_S" "$@" </dev/null | grep -cE '^rank [0-3] of 4: 6 4$' || true)
    [[ $lines == 4 ]] || { echo "$what: $lines of 4 ranks have the sums"; return 1; }
    echo "$what: as promised"
}

# From the first ```cpp to the next ```.
awk '/^```cpp$/ && !seen { inside = seen = 1; next } /^```$/ { inside = 0 } inside' "$root/README.md" >"$work/program.cpp"
lines=$(grep -c . "$work/program.cpp" || true)
((lines >= 1 && lines <= 22)) || { echo "the program of README.md has $lines lines, 1 to 22 are wanted"; exit 1; }
"${CXX:-c++}" -std=c++17 "$work/program.cpp" -I "$prefix/include" -L "$prefix/lib" -lrsccl -o "$work/program"
complete "threads" "$work/program" threads
for mpirun in mpirun.openmpi mpirun.mpich; do
    command -v "$mpirun" >/dev/null || { echo "skipped: no $mpirun: the program of README.md is not run by it"; continue; }
    complete "$mpirun" "$mpirun" -n 4 env "RSCCL_STORE=file://$work/store-$mpirun" "$work/program"
done
