#!/usr/bin/env bash
# Sets up what the tests need and runs them all: format, lints, tests, models, documentation, examples, C++, programs under the
# system's MPIs, and a short contest with two MPIs of PyPI.
#   ./test.sh           what every push runs
#   ./test.sh --all     and what takes longer (tests/README.md lists it): ThreadSanitizer, AddressSanitizer, Miri, every pair of
#                       calls that differ, every kill, channels on 1,000 machines, all seeds of weak memory, the MPIs of PyPI,
#                       each C++ compiler with each standard, many more cases of the parsers; and torchrun of several versions
#                       of PyTorch, which are downloaded (gigabytes each). An hour more. A sanitizer, Miri or valgrind that is
#                       missing is a failure there.
# On Debian it installs what is missing by apt, as root or by sudo. Where it may not, tests that need it skip and say so.
set -euo pipefail
cd "$(dirname "$0")"
[[ -f $HOME/.cargo/env ]] && . "$HOME/.cargo/env"

everything=
case ${1-} in
    "") ;;
    --all) everything=yes ;;
    *) echo "test.sh: there is no option $1 (--all)" >&2; exit 2 ;;
esac

# One example, a long test, or a part of one may run this long before it counts as hung.
EXAMPLE_LIMIT_S=120 LONG_LIMIT_S=7200 PART_LIMIT_S=300
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
built=${CARGO_TARGET_DIR:-target}/debug
log=$scratch/log output=$scratch/output verdict=$scratch/verdict
: >"$log"
export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0} CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}

step() {
    local started=$SECONDS
    echo "== $*"
    times >"$scratch/before"
    "$@"
    times >"$scratch/after"
    echo "== $((SECONDS - started)) s, $(processor_s) s of processors"
}

# What the processes that ended between two calls of `times` took. The second line is theirs: "1m2.345s 0m1.234s", user and system.
processor_s() {
    awk 'FNR == 2 { for (i = 1; i <= 2; i++) { split($i, part, /[ms]/); took = part[1] * 60 + part[2]; total += FNR == NR ? -took : took } }
         END { printf "%d", total }' "$scratch/before" "$scratch/after"
}

# valgrind counts instructions (tests/instructions.rs). iproute2: network namespaces stand in for hosts. Two MPIs for the glue, libclang for what generates its bindings, venv for two
# more. Slurm's daemons, for a lab in namespaces (tests/labs). g++, clang++, cmake, doctest, doxygen: the C++ classes, programs that
# use them, and their reference.
install_missing() {
    local packages=() clang
    missing() { ! command -v "$1" >/dev/null; }
    if missing ip; then packages+=(iproute2); fi
    if missing cc; then packages+=(gcc libc6-dev); fi
    if missing g++; then packages+=(g++); fi
    if missing mpicc; then packages+=(libopenmpi-dev openmpi-bin); fi
    if missing mpicc.mpich; then packages+=(libmpich-dev mpich); fi
    if missing slurmd || missing srun; then packages+=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins); fi
    if missing cmake; then packages+=(cmake make pkg-config); fi
    if missing doxygen; then packages+=(doxygen); fi
    if missing valgrind; then packages+=(valgrind); fi
    if [[ -n ${everything:-} ]] && missing qemu-system-x86_64; then packages+=(qemu-system-x86 kmod cpio); fi
    if ! compgen -G '/usr/lib/*/libfabric.so.1' >/dev/null; then packages+=(libfabric1); fi
    if ! compgen -G '/usr/lib/*/libjemalloc.so.2' >/dev/null; then packages+=(libjemalloc2); fi
    if ! [[ -f /usr/include/rdma/fabric.h ]]; then packages+=(libfabric-dev); fi
    if ! [[ -f /usr/include/infiniband/verbs.h ]]; then packages+=(libibverbs-dev); fi
    if ! python3 -c 'import ensurepip' 2>/dev/null; then packages+=(python3-venv); fi
    if command -v apt-get >/dev/null; then
        apt_get update || true
        # The version that Debian calls usual, without its 300 MB of headers.
        clang=$(apt-cache depends libclang-dev | sed -n 's/.*Depends: libclang-\([0-9]*\)-dev$/\1/p')
        if [[ -n $clang ]] && ! dpkg -s "libclang1-$clang" "libclang-common-$clang-dev" >/dev/null 2>&1; then
            packages+=("libclang1-$clang" "libclang-common-$clang-dev")
        fi
        # Other allocators, in whose blocks memory is registered where it lies; releases name their packages differently.
        for library in mimalloc.so.2=libmimalloc2.0 tcmalloc_minimal.so.4=libtcmalloc-minimal4; do
            if ! compgen -G "/usr/lib/*/lib${library%=*}" >/dev/null && apt-cache show "${library#*=}" >/dev/null 2>&1; then
                packages+=("${library#*=}")
            fi
        done
        if missing clang++ && missing "clang++-$clang"; then packages+=("clang-$clang"); fi
        if ! [[ -f /usr/include/doctest/doctest.h ]]; then packages+=(doctest-dev); fi
    fi
    if ((${#packages[@]})) && ! apt_get install -y --no-install-recommends "${packages[@]}"; then
        tail -n 3 "$log"
        echo "skipped: could not install ${packages[*]}; what needs them skips"
    fi
    if ! { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1; then
        rustup component add rustfmt clippy
    fi
    if [[ -n $everything ]]; then
        cargo +nightly miri --version >/dev/null 2>&1 ||
            rustup toolchain install nightly --profile minimal --component miri,rust-src --no-self-update
        missing valgrind && { echo "valgrind is missing, and could not be installed"; return 1; }
    fi
    return 0
}

apt_get() {
    local root=()
    ((EUID == 0)) || root=(sudo -n)
    command -v apt-get >"$log" && DEBIAN_FRONTEND=noninteractive "${root[@]}" apt-get -q "$@" >"$log" 2>&1
}

# The optional parts that this machine can build.
choose_features() {
    local wanted=()
    if command -v g++ >/dev/null; then wanted+=(cpp); else echo "skipped: no g++, so no C++ classes"; fi
    if command -v mpicc >/dev/null; then wanted+=(mpi); else echo "skipped: no mpicc, so no MPI glue"; fi
    if command -v cc >/dev/null; then wanted+=(encrypt); else echo "skipped: no C compiler, so no encryption"; fi
    # The driver is loaded when it is asked for: the same programs are tested without one, and on virtual GPUs.
    wanted+=(cli cuda)
    features=$(IFS=,; echo "${wanted[*]}")
}

# Tests are packages of their own (tests/README.md), but for those of the command. The virtual GPU machine: vcuda/README.md.
packages=(-p rsccl -p rsccl-examples -p rsccl-tests -p machine -p rsccl-kernels -p vcuda -p vcuda-driver -p vcuda-nvml)

run_tests() {
    local status=0 programs=(--bins --test '*')
    # A program that is named, by a pattern too, must have its features: those of `mpi` are the only ones whose names begin so.
    [[ $features == *mpi* ]] || programs=(--bins --test '[!m]*' --test 'm[!p]*')
    # Examples as programs: `cargo test --examples` would build them as tests. With the same packages and features each time, all of these
    # commands share what they build.
    cargo build --locked "${packages[@]}" --features "$features" --quiet --bins --examples 2>&1 || return 1
    cargo test --locked "${packages[@]}" --features "$features" --quiet --no-run "${programs[@]}" 2>&1 || return 1
    # A group of its own, so that all of it ends with this script.
    set -m
    build_ahead >"$scratch/builds" 2>&1 &
    ahead=$!
    set +m
    cargo_test "${packages[@]}" --features "$features" "${programs[@]}" || status=$?
    # A library's unit tests are one program, which takes three times as long to compile optimised as not. All that stands above runs
    # the virtual machine or the library for longer, and has them optimised.
    cargo_test "${packages[@]}" --features "$features" --lib --config profile.test.package.rsccl.opt-level=0 \
        --config profile.test.package.vcuda.opt-level=0 || status=$?
    cargo_test "${packages[@]}" --features "$features" --doc || status=$?
    return "$status"
}

# cargo_test WHICH...: tests of faults wait for most of their time, so more tests run at a time than there are processors.
# A test that skips prints "skipped: ..." past the capture of its output.
cargo_test() {
    RSCCL_TEST_BUILT=1 RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(nproc) + 2))} \
        cargo test --locked --no-fail-fast "$@" 2>&1 | tee -a "$log"
}

# `rsccl topo` sees the virtual machine's GPUs by NVML: capability, links, and the rings that these allow. `run_tests` has built the
# command and the examples.
show_virtual_gpus() {
    local shown
    shown=$(vcuda/run 8-cube-mesh -- "$built/rsccl" topo)
    for words in "GPU 7 .*(sm_80, 6 links)" "rings: .* = 130\(.896\)\? GB/s"; do
        grep -q "$words" <<<"$shown" || { echo "rsccl topo on virtual GPUs lacks \"$words\":"; echo "$shown"; return 1; }
    done
    # What a framework does, with ranks that share GPUs.
    shown=$(timeout "$EXAMPLE_LIMIT_S" vcuda/run --strict 2-nvswitch -- "$built/examples/11_process_group")
    grep "^cuda:0: 4 ranks, sum 10" <<<"$shown" || { echo "11_process_group on virtual GPUs:"; echo "$shown"; return 1; }
}

# What threads share, in every order that matters: tests/README.md. The time goes into loom and the coroutines under it, which are
# optimised, and into the build of this crate, which is not optimised here.
models() {
    RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom" CARGO_PROFILE_TEST_DEBUG=0 CARGO_PROFILE_TEST_OPT_LEVEL=0 \
        cargo test --locked --quiet --lib --config profile.test.package.loom.opt-level=2 \
        --config profile.test.package.generator.opt-level=2 "$@" 2>&1
}

# The compiler is busy with one crate most of the time, so another build has a processor to itself. The library alone, as users build it,
# has the locks of tests/sanitize.sh, which nothing else builds in each run.
run_clippy() {
    local status=0
    models --no-run >"$scratch/models" &
    { cargo clippy --locked --quiet "${packages[@]}" --all-targets --features "$features" -- -D warnings &&
        cargo clippy --locked --quiet --lib -- -D warnings --cfg sanitize_thread; } || status=$?
    # A build that fails does so again in `run_models`, which says why.
    wait $! || true
    return "$status"
}

# The compilers of kernels take one processor, the models the other.
run_models() {
    local status=0 compiler
    kernels/build --check >"$scratch/kernels" 2>&1 &
    compiler=$!
    models models:: | tee -a "$log" || status=$?
    wait "$compiler" || status=$?
    ((status == 0)) || cat "$scratch/kernels"
    # Where nothing could be compiled, it says so.
    grep '^skipped: ' "$scratch/kernels" || tail -n 1 "$scratch/kernels"
    return "$status"
}

# The programs for mpirun, under the MPIs of the system, and in `--all` under those of PyPI too. For one of them `cargo test` has built.
run_mpis=(mpi-examples/run-all.sh --built "$built/examples")
[[ -n $everything ]] || run_mpis+=(--system)

# What the steps for C++ and MPI build: tests of faults wait for most of their time, and leave a processor to it. These builds have
# folders of their own, so no test waits for one.
build_ahead() {
    if [[ $features == *cpp* ]]; then nice -n 19 cpp/test.sh ${everything:+--all} --build-only || true; fi
    if [[ $features == *mpi* ]]; then nice -n 19 "${run_mpis[@]}" --build-only; fi
}

end_builds_ahead() {
    [[ -n $ahead ]] || return 0
    kill -- "-$ahead" 2>/dev/null || true
    wait "$ahead" 2>/dev/null || true
}

# Tests that take long; their programs are those of run_tests. Words after `--` are names of tests.
#   long LIMIT_S NAME=VALUE... -- WORD...
long() {
    local limit=$1 status=0 variables=()
    shift
    while [[ $1 != -- ]]; do
        variables+=("$1")
        shift
    done
    shift
    echo "${variables[*]} cargo test $*"
    env "${variables[@]}" timeout "$limit" cargo test --locked "${packages[@]}" --features "$features" "$@" >"$scratch/long" 2>&1 || status=$?
    grep -E '^(test result: ok. [1-9]|seed: |skipped: )' "$scratch/long" || status=1
    ((status == 0)) || tail -n 60 "$scratch/long"
    return "$status"
}

# The glue under another MPI than the usual one: what a launcher's options and its MPI do differs from MPI to MPI.
test_mpich() {
    command -v mpicc.mpich >/dev/null || { echo "skipped: no mpicc.mpich"; return 0; }
    MPICC=mpicc.mpich CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/mpich" timeout "$LONG_LIMIT_S" \
        cargo test --locked --quiet -p rsccl -p rsccl-tests --features cli,mpi --test mpi --test mpi_status 2>&1 | tee -a "$log"
}

# Each of them whole, in `--all`.
run_long_tests() {
    if [[ $features == *mpi* ]]; then step test_mpich; fi
    step tests/sanitize.sh thread
    step tests/sanitize.sh address
    step tests/miri.sh
    step long "$LONG_LIMIT_S" RSCCL_EXHAUSTIVE=1 -- --test matrix
    step long "$LONG_LIMIT_S" RSCCL_TEST_KILLS=all -- --test faults_processes kill
    step long "$LONG_LIMIT_S" RSCCL_EXHAUSTIVE=1 -- --test topo_search no_more
    step long "$LONG_LIMIT_S" RSCCL_EXHAUSTIVE=1 -- -p rsccl --lib -- device::host::tests::every_case random_life any_call_of_a_move
    step long "$LONG_LIMIT_S" RSCCL_TEST_ROUNDS=all -- --test faults_processes given_back
    step long "$LONG_LIMIT_S" RSCCL_TEST_COMMUNICATORS=all -- --test faults_processes many_communicators
    step long "$LONG_LIMIT_S" RSCCL_TEST_RANKS=1024 -- --test bootstrap_scale -- --skip several_processes
    step long "$LONG_LIMIT_S" RSCCL_TEST_PROCESSES=8 RSCCL_TEST_RANKS=256 -- --test bootstrap_scale several_processes
    step long "$LONG_LIMIT_S" RUST_BACKTRACE=1 -- --test verbs -- --ignored soft_roce
    step long "$LONG_LIMIT_S" RSCCL_FUZZ_CASES=200000 -- --test fuzz_parsers
    step long "$LONG_LIMIT_S" PROPTEST_CASES=20000 -- --lib -- any_text any_bytes come_back lines_lead_back
}

# A part of one of them, by the seed: less than a minute on two processors. What has to be built first, the sanitizers' and Miri's
# programs, is for `--all` only.
run_a_part() {
    local seed=${RSCCL_TEST_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
    echo "again: RSCCL_TEST_SEED=$seed ./test.sh"
    case $((seed % 3)) in
        0) long "$PART_LIMIT_S" RSCCL_TEST_SEED="$seed" RSCCL_TEST_KILLS=100 -- --test faults_processes a_kill_in_each_collective ;;
        1) long "$PART_LIMIT_S" RSCCL_TEST_SEED="$seed" -- --test matrix mismatches::every_pair ;;
        2) long "$PART_LIMIT_S" RSCCL_TEST_SEED="$seed" RSCCL_FUZZ_CASES=60000 -- --test fuzz_parsers ;;
    esac
}

build_documentation() {
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --quiet --features "$features"
}

run_examples() {
    local path name
    for path in examples/*.rs examples/*/main.rs; do
        [[ -f $path ]] || continue
        name=${path#examples/}
        name=${name%/main.rs}
        name=${name%.rs}
        echo "-- $name"
        timeout "$EXAMPLE_LIMIT_S" "$built/examples/$name" </dev/null
        examples=$((examples + 1))
    done
}

# "test result: ok. 12 passed; 0 failed; 1 ignored; ..." of every test program, added up.
count() {
    awk -v word="$1" '/^test result:/ { for (i = 2; i <= NF; i++) if (index($i, word) == 1) total += $(i - 1) }
                      END { print total + 0 }' "$log"
}

main() {
    trap end_builds_ahead EXIT
    trap 'exit 143' TERM
    step install_missing
    step choose_features
    step cargo fmt --all --check
    step run_clippy
    step run_tests
    step show_virtual_gpus
    step run_a_part
    step run_models
    passed=$(count passed) failed=$(count failed) ignored=$(count ignored)
    step build_documentation
    if [[ $features == cpp,mpi,* ]]; then
        step tests/public-api.sh
    else
        echo "skipped: the public interface is compared where features cpp and mpi can be built"
    fi
    step run_examples
    step tests/recipes --built "$built" ${everything:+--all}
    # What has failed ahead does so again, and says why.
    [[ -z $ahead ]] || wait "$ahead" || true
    ahead=
    if [[ $features == *cpp* ]]; then step cpp/test.sh ${everything:+--all}; fi
    if [[ $features == *mpi* ]]; then step "${run_mpis[@]}"; fi
    if [[ -n $everything ]]; then
        step tests/labs/torchrun.sh 2.4.1 2.9.1 2.15.0
        step bench/starts "${CARGO_TARGET_DIR:-target}/debug/examples/10_whole_program"
        run_long_tests
    fi
    # It judges no time, so the programs that cargo has built for the tests will do. Its MPIs it installs itself.
    step bench/contest/contest --check --rsccl "${CARGO_TARGET_DIR:-target}/debug"
    echo "all of it in $SECONDS s, $examples examples"
    echo "test result: ok. $passed passed; $failed failed; $ignored ignored" >"$verdict"
}

# Whoever skips says "skipped: why" on a line of its own. CI runs as root where packages can be had: there only what the machine
# itself lacks may skip.
judge_skips() {
    local skips avoidable
    skips=$(grep -c '^skipped: ' "$output") || true
    grep '^skipped: ' "$output" | sort | uniq -c || true
    avoidable=$(grep '^skipped: ' "$output" | grep -vE "^skipped: ($MACHINE_LACKS)" | sort -u) || true
    echo "$skips skipped"
    # Where everything was asked for, nobody may go without the count of instructions.
    if [[ -n $everything ]] && grep '^skipped: valgrind' "$output"; then return 1; fi
    if [[ ${CI:-} == true && -n $avoidable ]]; then
        echo "under CI=true nothing may skip that the machine could have run:"
        echo "$avoidable"
        return 1
    fi
}

# Beginnings of reasons that no installation can remove; and Intel MPI (mpi-examples/README.md) and PyTorch, which are installed on request only.
MACHINE_LACKS="no reference files|impi-pypi: not installed|no peers for the contest|no GPU|no network|no torch|this toolchain has no|this kernel has no"

examples=0 features= ahead=
main 2>&1 | tee "$output"
judge_skips
tail -n 1 "$verdict"
