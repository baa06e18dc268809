#!/usr/bin/env bash
# MPICH 5.0.2 (PyPI mpich==5.0.2, with mpi4py==4.1.2): a rank that leaves early with exit code 0 ends the job, and mpiexec says success.
#
# What happens: of two ranks that have called MPI_Init, rank 1 leaves by exit code 0 without MPI_Finalize. Hydra's mpiexec kills rank 0 at once,
# in the middle of its work, prints nothing, and returns 0. If rank 1 leaves with 3, rank 0 is killed too, nothing is printed
# either, and mpiexec returns 3.
# Exit codes of several ranks are combined bit by bit: ranks that leave with 1, 3 and 5 make mpiexec return 7, which no rank has given.
#
# Why it surprises: a script that tests the exit code of mpiexec takes a job for done whose other ranks never came to their end: what they
# had to write is missing. A rank that leaves with exit(0), by a library's own idea of "nothing to do" or by a caught error, is
# enough. Open MPI's mpirun returns 1 here and says which process left without MPI_Finalize.
#
# Takes under a minute with the install, which goes into a temporary folder.
# Exit code: 0 the behaviour is as described, 1 it is not, 2 the packages could not be had.
set -euo pipefail

readonly RUN_LIMIT_S=60
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 143' INT TERM
{ python3 -m venv "$work/venv" &&
    "$work/venv/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check mpich==5.0.2 mpi4py==4.1.2; } >&2 ||
    { echo "cannot install: pip does not give mpich 5.0.2 and mpi4py 4.1.2" >&2; exit 2; }

cat >"$work/leave.py" <<'PYTHON'
import os, sys, time
from mpi4py import MPI

world = MPI.COMM_WORLD
world.Barrier()
if world.rank == 1:
    os._exit(int(sys.argv[1]))
open(sys.argv[2], "w").write("begun")
time.sleep(10)
open(sys.argv[2], "w").write("ended")
PYTHON

changed=0
check() {
    echo "$1: $2"
    [[ $2 == "$3" ]] || { echo "  changed: expected $3"; changed=1; }
}
mpiexec=$work/venv/bin/mpiexec
check "version" "$("$mpiexec" --version | sed -n 's/^ *Version: *//p')" 5.0.2
for code in 0 3; do
    status=0
    output=$(timeout "$RUN_LIMIT_S" "$mpiexec" -n 2 "$work/venv/bin/python" "$work/leave.py" "$code" "$work/rank0-$code" 2>&1) || status=$?
    # Rank 0 may be killed before its first word.
    state=$(cat "$work/rank0-$code" 2>/dev/null) || state=begun
    check "rank 1 leaves with $code" "mpiexec returns $status, prints '$output', rank 0 has ${state:-begun}" \
        "mpiexec returns $code, prints '', rank 0 has begun"
done
status=0
timeout "$RUN_LIMIT_S" "$mpiexec" -n 3 sh -c 'exit $((PMI_RANK * 2 + 1))' || status=$?
check "ranks leave with 1, 3 and 5" "mpiexec returns $status" "mpiexec returns 7"
((changed)) && exit 1
echo "as described"
