#!/usr/bin/env bash
# Builds the six programs of this folder, each in MPI (NAME.c) and in the classes (NAME.cpp), runs both at 4 ranks under one mpirun, and
# compares what they print. And every row of docs/from-mpi.md leads to one of them, which has a call of that row.
#   mpi-examples/ported/compare.sh PREFIX [MPI]
# PREFIX is where the library is installed (cpp/install.sh); MPI is openmpi or mpich, by default the first that is here.
# As root, and with more ranks than processors, it sets what the MPIs want for that.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
prefix=${1:?where is the library installed}
RUN_LIMIT_S=60

mpi=${2:-}
for candidate in openmpi mpich; do
    [[ -n $mpi ]] || ! command -v "mpicc.$candidate" >/dev/null || ! command -v "mpirun.$candidate" >/dev/null || mpi=$candidate
done
[[ -n $mpi ]] || { echo "skipped: neither mpicc.openmpi nor mpicc.mpich is here: the six programs are not compared"; exit 0; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
# What a job that was killed leaves lying, goes with the folder.
export OMPI_MCA_btl_vader_backing_directory=$work OMPI_MCA_btl_sm_backing_directory=$work
export RSCCL_TIMEOUT_MS=30000 RSCCL_INIT_TIMEOUT_MS=30000
outcome=0
complain() {
    echo "$1"
    outcome=1
}

mapfile -t programs < <(cd "$here" && ls -- *.c *.cpp | sed 's/\.[a-z]*$//' | sort -u)
for name in "${programs[@]}"; do
    [[ -f $here/$name.c ]] || complain "$name.cpp has no partner in MPI, $name.c"
    [[ -f $here/$name.cpp ]] || complain "$name.c has no partner in the classes, $name.cpp"
done
((outcome == 0)) || exit 1
((${#programs[@]} == 6)) || complain "${#programs[@]} programs found, and there are six"

# A row: its first cell names calls, its last one a program. "MPI_I…" is every call that begins so.
rows=0
while IFS= read -r row; do
    rows=$((rows + 1))
    program=$(sed -nE 's#.*\(\.\./mpi-examples/ported/([a-z]+)\.cpp\) \|$#\1#p' <<<"$row")
    [[ -n $program && -f $here/$program.c && -f $here/$program.cpp ]] || { complain "this row leads to no program: $row"; continue; }
    calls=$(cut -d '|' -f 2 <<<"$row" | grep -oE '\bMPI_[A-Za-z_]+…?' | sed 's/…$/[A-Za-z_]*/; s/$/\\b/' | paste -sd '|')
    [[ -z $calls ]] || grep -qE "$calls" "$here/$program.c" || complain "$program.c has none of the calls of this row: $row"
done < <(sed -n '/^|---/,/^$/p' "$here/../../docs/from-mpi.md" | grep '^| ')
((rows >= 30)) || complain "only $rows rows found in docs/from-mpi.md"

build() { # NAME
    # (MPICH declares its null arrays so that the compiler warns of them.)
    "mpicc.$mpi" -std=c99 -O1 -Wno-stringop-overflow "$here/$1.c" -lm -o "$work/$1-mpi"
    # As a reader would: a launcher's processes need no MPI to meet.
    "${CXX:-c++}" -std=c++17 "$here/$1.cpp" -I "$prefix/include" -L "$prefix/lib" -Wl,-rpath,"$prefix/lib" -lrsccl -o "$work/$1-rsccl"
}
building=()
for name in "${programs[@]}"; do
    build "$name" &
    building+=($!)
    ((${#building[@]} < 2)) || { wait "${building[0]}" || complain "it does not build"; building=("${building[@]:1}"); }
done
for job in "${building[@]}"; do wait "$job" || complain "it does not build"; done
((outcome == 0)) || exit 1

for name in "${programs[@]}"; do
    for kind in mpi rsccl; do
        timeout -k 10 "$RUN_LIMIT_S" "mpirun.$mpi" -n 4 "$work/$name-$kind" >"$work/$name-$kind.out" 2>"$work/said" </dev/null ||
            { complain "$name in ${kind/rsccl/the classes} ends badly"; tail -n 10 "$work/said"; }
    done
    if [[ ! -s $work/$name-mpi.out ]] || ! cmp -s "$work/$name-mpi.out" "$work/$name-rsccl.out"; then
        complain "$name: MPI and the classes differ"
        diff "$work/$name-mpi.out" "$work/$name-rsccl.out" | head -n 6 || true
    else
        echo "$name: the same in MPI and in the classes"
    fi
done
exit $outcome
