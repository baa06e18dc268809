#!/usr/bin/env bash
# MPICH 5.0.2 and Intel MPI 2021.18.1 (PyPI mpich, impi-rt), libmpi_abi.so.1: MPI_Error_string of a class is the text of another class.
#
# What happens: a program that was compiled for the standard's binary interface (MPICH's mpicc_abi) asks MPI_Error_string for each of the 62 error
# classes that the header names. MPI_ERR_TRUNCATE is "Other MPI error", MPI_ERR_ROOT is "Invalid group", MPI_ERR_NO_SUCH_FILE is "Error in spawn
# call", and MPI_ERR_SESSION is "Unknown error class". 52 have a text that is not theirs, and no call fails. Both libraries give the same texts. The
# code of a broadcast with a root that is not there has the class MPI_ERR_ROOT, and its text begins with "Invalid group" as well; only further down
# does it say "Invalid root". Compiled for MPICH's own interface (libmpi.so.12), the same source gets the right text for each class from MPICH.
#
# Why it surprises: the interface renumbered the classes (MPI_ERR_TRUNCATE is 15, and was 14 in MPICH). What MPI_Error_class gives is renumbered, what
# MPI_Error_string takes is not. So the class that a program branches on is right, and the first line that it prints for a reader sends him after
# another mistake. The first six classes (buffer, count, type, tag, communicator, rank) have one number in both, so a short test passes. A program
# that looks for "truncated" in the text no longer finds it there, and finds it for MPI_ERR_UNKNOWN.
#
# Needs cc. Takes a minute or two with the installs (a download of 150 MB), which go into a temporary folder.
# Exit code: 0 the behaviour is as described (or the script was skipped), 1 it is not, 2 the packages could not be had.
set -euo pipefail

readonly RUN_LIMIT_S=60
command -v cc >/dev/null || { echo "skipped: there is no cc"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 143' INT TERM
for mpi in mpich==5.0.2 impi-rt==2021.18.1; do
    { python3 -m venv "$work/${mpi%%=*}" &&
        "$work/${mpi%%=*}/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check "$mpi"; } >&2 ||
        { echo "cannot install: pip does not give $mpi" >&2; exit 2; }
done

# All classes that both headers name.
header=$work/mpich/include
for name in $(sed -n 's/^ *\(MPI_ERR_[A-Z_]*\) *= *[0-9]*,.*/\1/p' "$header/mpi_abi.h"); do
    grep -qw "$name" "$header/mpi.h" && echo "CLASS($name)"
done >"$work/classes.h"
cat >"$work/strings.c" <<'C'
#include <mpi.h>
#include <stdio.h>
#include <string.h>

static void tell(const char *name, int code, int expected) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length, class, result = MPI_Error_string(code, text, &length);
    MPI_Error_class(code, &class);
    text[strcspn(text, ",\n")] = 0;
    printf("%s: %s%s%s\n", name, text, result == MPI_SUCCESS ? "" : " (an error)", class == expected ? "" : " (another class)");
}

static void on_error(MPI_Comm *comm, int *code, ...) {
    (void)comm;
    tell("code of MPI_Bcast", *code, MPI_ERR_ROOT);
}

int main(int argc, char **argv) {
    int number = 0;
    MPI_Errhandler handler;
    MPI_Init(&argc, &argv);
#define CLASS(name) tell(#name, name, name);
#include "classes.h"
    MPI_Comm_create_errhandler(on_error, &handler);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, handler);
    MPI_Bcast(&number, 1, MPI_INT, 99, MPI_COMM_WORLD);
    return MPI_Finalize();
}
C
"$work/mpich/bin/mpicc_abi" "$work/strings.c" -o "$work/abi"
# Intel MPI and MPICH share the binary interface of libmpi.so.12.
"$work/mpich/bin/mpicc" "$work/strings.c" -o "$work/own"

changed=0
ask() { # LIBRARY PROGRAM
    local launcher="$work/mpich/bin/mpiexec"
    if [[ $1 == impi-rt ]]; then launcher="$work/impi-rt/bin/mpiexec.hydra"; fi
    # The library prints a line of its own at the end, about the error.
    I_MPI_FABRICS=shm LD_LIBRARY_PATH=$work/$1/lib timeout "$RUN_LIMIT_S" "$launcher" -n 1 "$work/$2" 2>&1 |
        grep -E '^(MPI_ERR_[A-Z_]*|code of MPI_Bcast): ' >"$work/$1-$2"
}
same() {
    cmp -s "$work/$1" "$work/$2" || { echo "changed: $1 and $2 differ: $(diff "$work/$1" "$work/$2")"; changed=1; }
}
has() {
    echo "$1: $2"
    grep -qxF -- "$2" "$work/$1" || { echo "  changed: it has $(grep -- "^${2%%:*}:" "$work/$1")"; changed=1; }
}
for mpi in mpich impi-rt; do
    for program in own abi; do ask "$mpi" "$program"; done
done
same mpich-abi impi-rt-abi
has mpich-own "MPI_ERR_TRUNCATE: Message truncated"
has mpich-own "MPI_ERR_ROOT: Invalid root"
has mpich-own "MPI_ERR_NO_SUCH_FILE: File does not exist"
has mpich-own "code of MPI_Bcast: Invalid root"
has mpich-abi "MPI_ERR_TRUNCATE: Other MPI error"
has mpich-abi "MPI_ERR_UNKNOWN: Message truncated"
has mpich-abi "MPI_ERR_ROOT: Invalid group"
has mpich-abi "MPI_ERR_NO_SUCH_FILE: Error in spawn call"
has mpich-abi "MPI_ERR_SESSION: Unknown error class"
has mpich-abi "code of MPI_Bcast: Invalid group"
has impi-rt-own "MPI_ERR_TRUNCATE: Message truncated"
has impi-rt-own "code of MPI_Bcast: Invalid root"
wrong=$(comm -23 <(sort "$work/mpich-abi") <(sort "$work/mpich-own") | grep -c '^MPI_ERR')
counts="$(grep -c '^MPI_ERR' "$work/mpich-abi") classes, $wrong with another text"
echo "mpich-abi: $counts"
[[ $counts == "62 classes, 52 with another text" ]] || { echo "  changed"; changed=1; }
((changed)) && exit 1
echo "as described"
