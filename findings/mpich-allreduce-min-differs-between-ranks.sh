#!/usr/bin/env bash
# MPICH 5.0.2 (PyPI mpich==5.0.2, with mpi4py==4.1.2): MPI_Allreduce with MPI_MIN or MPI_MAX gives ranks different results, for NaN and for zeros.
#
# What happens: four ranks of one host call MPI_Allreduce on one double each: 1, NaN, 3 and 4. With MPI_MIN rank 0 gets 3, ranks 1 and 3
# get 1, and rank 2 gets NaN. With MPI_MAX three ranks get 4, and rank 2 gets NaN. No NaN is needed: of 0.0, -0.0, 0.0 and 0.0 the
# minimum is -0.0 on rank 2 and 0.0 on the others. Two ranks with 1 and NaN each get the value of the other. With 1,000 equal elements
# all ranks have the same result, but its elements differ: for 1, NaN, 3 and 4 it holds 1, 3 and NaN. No error is returned.
#
# Why it surprises: the standard advises that the result of MPI_Allreduce be the same on all ranks, and programs branch on it: the ranks
# that got NaN leave a loop or write a file, the others call the next collective, and the job hangs. Both operands of a
# comparison that is false for NaN (or equal, for zeros) are legal answers; here each rank of a pair has its own value on the other
# side than its partner has, so each keeps what the other drops. Open MPI 5.0.11 loses numbers beside a NaN too, but gives
# all ranks the same (openmpi-min-loses-the-least-number.sh).
#
# Takes under a minute with the install, which goes into a temporary folder.
# Exit code: 0 the behaviour is as described, 1 it is not, 2 the packages could not be had.
set -euo pipefail

readonly RUN_LIMIT_S=120
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 143' INT TERM
{ python3 -m venv "$work/venv" &&
    "$work/venv/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check mpich==5.0.2 mpi4py==4.1.2; } >&2 ||
    { echo "cannot install: pip does not give mpich 5.0.2 and mpi4py 4.1.2" >&2; exit 2; }

cat >"$work/reduce.py" <<'PYTHON'
import array
from mpi4py import MPI

world, nan = MPI.COMM_WORLD, float("nan")
# The operation, a value for each rank, the number of elements, and the set of elements that each rank gets.
CASES = [
    ("MIN", [1.0, nan], 1, [{"nan"}, {"1.0"}]),
    ("MIN", [1.0, nan, 3.0, 4.0], 1, [{"3.0"}, {"1.0"}, {"nan"}, {"1.0"}]),
    ("MAX", [1.0, nan, 3.0, 4.0], 1, [{"4.0"}, {"4.0"}, {"nan"}, {"4.0"}]),
    ("MIN", [0.0, -0.0, 0.0, 0.0], 1, [{"0.0"}, {"0.0"}, {"-0.0"}, {"0.0"}]),
    ("MIN", [1.0, nan, 3.0, 4.0], 1000, [{"1.0", "3.0", "nan"}] * 4),
    ("MIN", [1.0, 2.0, 3.0, 4.0], 1, [{"1.0"}] * 4),
]
changed = False
for name, values, count, expected in CASES:
    part = world.Split(0 if world.rank < len(values) else MPI.UNDEFINED)
    if part == MPI.COMM_NULL:
        continue
    mine, result = array.array("d", [values[part.rank]]) * count, array.array("d", [0.0]) * count
    part.Allreduce(mine, result, getattr(MPI, name))
    found = part.gather({str(element) for element in result})
    if part.rank == 0:
        print(f"{name} of {values}, {count} equal elements:", *map(sorted, found))
        changed |= found != expected
if world.rank == 0:
    print(MPI.Get_library_version().split("\n")[0])
    print("changed" if changed else "as described")
PYTHON

output=$(timeout "$RUN_LIMIT_S" "$work/venv/bin/mpiexec" -n 4 "$work/venv/bin/python" "$work/reduce.py")
echo "$output"
[[ $output == *"MPICH Version:"*"5.0.2"*"as described" ]]
