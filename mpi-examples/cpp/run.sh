#!/usr/bin/env bash
# Builds the programs of this folder for an MPI and runs them at 1 to 4 ranks.
#   mpi-examples/cpp/run.sh [--ranks "1 2 3 4"] [--build-only FOLDER] MPICXX [MPIRUN [WORD]...]
# The library is that of $RSCCL_PREFIX; without one it is installed to a temporary folder. --build-only leaves the programs in
# FOLDER and runs nothing: they take "--ranks N", which makes them look whether they are as many as they should be.
# As root, and with more ranks than processors, it sets what the MPIs want for that.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# One program, and one build of one, may take this long.
RUN_LIMIT_S=90 BUILD_LIMIT_S=180

ranks='1 2 3 4' folder=''
while [[ ${1:-} == --* ]]; do
    case $1 in
        --ranks) ranks=$2 ;;
        --build-only) folder=$2 ;;
        *) echo "run.sh: unknown option $1" >&2; exit 2 ;;
    esac
    shift 2
done
mpicxx=${1:?which MPI: MPICXX MPIRUN}
shift
(($#)) || set -- mpirun

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=${RSCCL_PREFIX:-}
if [[ -z $prefix ]]; then
    prefix=$work/prefix
    "$here/../../cpp/install.sh" "$prefix" --static-only --no-command
fi
out=${folder:-$work/bin}
mkdir -p "$out"
built=()
for source in "$here"/*.cpp; do
    name=$(basename "$source" .cpp)
    # MPI's own headers are not ours to judge, so there are no warnings here. Without contraction, so that the Jacobi solver's bits are
    # the same on every processor.
    timeout "$BUILD_LIMIT_S" "$mpicxx" -std=c++17 -O2 -ffp-contract=off "$source" -I "$prefix/include" "$prefix/lib/librsccl.a" \
        -lgcc_s -lutil -lrt -lpthread -lm -ldl -o "$out/$name"
    built+=("$name")
done
[[ -z $folder ]] || exit 0

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
# What a job that was killed leaves lying, goes with the folder.
export OMPI_MCA_btl_vader_backing_directory=$work OMPI_MCA_btl_sm_backing_directory=$work
passed=0 failed=0
for count in $ranks; do
    for name in "${built[@]}"; do
        if timeout -k 10 "$RUN_LIMIT_S" "$@" -n "$count" "$out/$name" --ranks "$count" >"$work/log" 2>&1 </dev/null; then
            passed=$((passed + 1))
            sed "s/^/    /" "$work/log"
        else
            failed=$((failed + 1))
            echo "FAILED: $name at $count ranks ($*)"
            tail -n 25 "$work/log" | sed 's/^/    /'
        fi
    done
done
echo "mpi-examples/cpp with $*: $passed passed; $failed failed"
exit $((failed > 0))
