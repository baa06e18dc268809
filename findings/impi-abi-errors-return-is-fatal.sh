#!/usr/bin/env bash
# Intel MPI 2021.18.1 (PyPI impi-rt==2021.18.1), libmpi_abi.so.1: MPI_ERRORS_RETURN ends the job, and MPI_ERRORS_ABORT returns the error.
#
# What happens: a program is compiled once, by MPICH 5.0.2's mpicc_abi (PyPI mpich==5.0.2) with the header of the standard's binary interface, and
# runs with either library's libmpi_abi.so.1. It sets an error handler on MPI_COMM_WORLD and sends to a rank that is not there. With MPI_ERRORS_RETURN
# MPICH returns MPI_ERR_RANK, and Intel MPI ends the job. With MPI_ERRORS_ABORT MPICH ends the job, and Intel MPI returns MPI_ERR_RANK. A window's
# handlers are exchanged in the same way. MPI_ERRORS_ARE_FATAL and handlers of the program's own do what they should. MPI_Comm_get_errhandler gives
# back what was set, so the program cannot see it. Intel's other library, libmpi.so.12, does as the names say, for the same source.
#
# Why it surprises: the two predefined handlers keep their names and their values, and have each other's effect. MPI_ERRORS_RETURN is what every
# library that turns MPI's errors into its own sets first, and what a test of error paths relies on. With this file in place of the other it is the
# job that ends. MPI_ERRORS_ABORT is chosen where going on would be wrong, and there the program goes on. A handler of the program's own that does
# nothing is a way round it.
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

cat >"$work/errors.c" <<'C'
#include <mpi.h>
#include <stdio.h>
#include <string.h>

static void own_of_comm(MPI_Comm *comm, int *code, ...) { (void)comm, (void)code; printf("own handler, "); }
static void own_of_win(MPI_Win *win, int *code, ...) { (void)win, (void)code; printf("own handler, "); }

int main(int argc, char **argv) {
    const char *object = argv[1], *name = argv[2];
    int number = 0, memory = 0, code, class;
    MPI_Win win;
    MPI_Init(&argc, &argv);
    MPI_Win_create(&memory, sizeof memory, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    MPI_Errhandler set = MPI_ERRORS_RETURN, got;
    if (!strcmp(name, "abort")) set = MPI_ERRORS_ABORT;
    if (!strcmp(name, "fatal")) set = MPI_ERRORS_ARE_FATAL;
    if (!strcmp(object, "comm")) {
        if (!strcmp(name, "own")) MPI_Comm_create_errhandler(own_of_comm, &set);
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, set);
        MPI_Comm_get_errhandler(MPI_COMM_WORLD, &got);
    } else {
        if (!strcmp(name, "own")) MPI_Win_create_errhandler(own_of_win, &set);
        MPI_Win_set_errhandler(win, set);
        MPI_Win_get_errhandler(win, &got);
    }
    if (got != set) printf("another handler is set, ");
    fflush(stdout);
    MPI_Win_lock_all(0, win);
    code = strcmp(object, "comm") ? MPI_Put(&number, 1, MPI_INT, 99, 0, 1, MPI_INT, win)
                                  : MPI_Send(&number, 1, MPI_INT, 99, 0, MPI_COMM_WORLD);
    MPI_Error_class(code, &class);
    printf(class == MPI_ERR_RANK ? "MPI_ERR_RANK, " : class == MPI_SUCCESS ? "MPI_SUCCESS, " : "another error, ");
    printf("the program goes on\n");
    MPI_Win_unlock_all(win);
    MPI_Win_free(&win);
    return MPI_Finalize();
}
C
"$work/mpich/bin/mpicc_abi" "$work/errors.c" -o "$work/abi"
# Intel MPI and MPICH share the binary interface of libmpi.so.12.
"$work/mpich/bin/mpicc" "$work/errors.c" -o "$work/own"

changed=0
check() { # LIBRARY PROGRAM OBJECT HANDLER EXPECTED
    local output launcher="$work/mpich/bin/mpiexec" libraries="$work/mpich/lib"
    if [[ $1 == impi-rt ]]; then launcher="$work/impi-rt/bin/mpiexec.hydra" libraries="$work/impi-rt/lib"; fi
    output=$(I_MPI_FABRICS=shm LD_LIBRARY_PATH=$libraries timeout "$RUN_LIMIT_S" "$launcher" -n 1 "$work/$2" "$3" "$4" 2>&1) || true
    if [[ $output == *"Fatal error in internal_"*"Invalid rank"* ]]; then output="the job ends"; fi
    echo "$1, ${2/own/libmpi.so.12}, $3, $4: $output"
    [[ $output == "$5" ]] || { echo "  changed: expected $5"; changed=1; }
}
returned="MPI_ERR_RANK, the program goes on" ended="the job ends"
for object in comm win; do
    check mpich abi "$object" return "$returned"
    check mpich abi "$object" abort "$ended"
    check impi-rt abi "$object" return "$ended"
    check impi-rt abi "$object" abort "$returned"
    check impi-rt own "$object" return "$returned"
    check impi-rt own "$object" abort "$ended"
    for program in abi own; do
        check impi-rt "$program" "$object" fatal "$ended"
        check impi-rt "$program" "$object" own "own handler, $returned"
    done
done
((changed)) && exit 1
echo "as described"
