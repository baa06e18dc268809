#!/usr/bin/env bash
# Installs the C++ library to a temporary prefix and tests it as a user's project would: what the library shows, headers, misuse
# that must not compile, consumers outside the tree, the API tests under sanitizers, the examples.
#   cpp/test.sh [--all] [--keep] [--build-only]
# Prints a line for each check and at the end "cpp: N passed; M failed". What the machine lacks is skipped, with the reason.
# The library is built unoptimised, with the assertions of a debug build.
# --all: the library as users install it; headers and consumers by each compiler with each standard, and not only by the first with the
# oldest and by the last with the newest; the API tests without sanitizers too, and not only those that run on GPUs.
# --build-only builds what it installs, and tests nothing. --keep leaves the working folder for a look at it. JOBS says how many compilers run side by side (2).
set -euo pipefail
cpp=$(cd "$(dirname "$0")" && pwd)
root=${cpp%/*}
# Programs of the tests say themselves what they want; a user's settings would change that.
while read -r name; do unset "$name"; done < <(compgen -e | grep -E '^(RSCCL_|NCCL_|MASTER_|OMPI_COMM|PMI|SLURM_|RANK$|WORLD_SIZE$)' || true)
unset PREFIX DESTDIR LIBDIR INCLUDEDIR

everything='' keep='' build_only=''
for option; do
    case $option in
        --all) everything=yes ;;
        --keep) keep=yes ;;
        --build-only) build_only=yes ;;
        *) echo "cpp/test.sh: there is no option $option (--all, --keep, --build-only)" >&2; exit 2 ;;
    esac
done

# What a push installs is built in a third of the time, and has the assertions of a debug build.
export CARGO_PROFILE_UNOPTIMISED_INHERITS=dev CARGO_PROFILE_UNOPTIMISED_OPT_LEVEL=0 CARGO_PROFILE_UNOPTIMISED_DEBUG=0
profile=unoptimised
[[ -z $everything ]] || profile=release
jobs=${JOBS:-2} work=$(mktemp -d)
export cpp root work prefix=$work/prefix jobs profile
# A build, a compilation and a run may take this long before they count as hung.
BUILD_LIMIT_S=900 COMPILE_LIMIT_S=180 RUN_LIMIT_S=120
passed=0 failed=0 skipped=0 number=0
mkdir "$work/results" "$work/logs" "$work/bin" "$work/objects"
[[ -n $keep ]] || trap 'rm -rf "$work"' EXIT

skip() {
    echo "skipped: $1" >&2
    skipped=$((skipped + 1))
}

have() { command -v "$1" >/dev/null; }

# queue NAME LIMIT COMMAND...: runs the command beside others; `settle` waits for all and prints what came of them.
queue() {
    local name=$1 limit=$2 log
    shift 2
    number=$((number + 1))
    log=$(printf '%s/logs/%04d' "$work" "$number")
    while (($(jobs -rp | wc -l) >= jobs)); do wait -n || true; done
    (
        started=$SECONDS outcome=ok
        timeout -k 10 "$limit" bash -euo pipefail -c '"$@"' _ "$@" >"$log" 2>&1 </dev/null || outcome="FAILED ($?)"
        echo "$outcome: $name, $((SECONDS - started)) s" >"$work/results/${log##*/}"
    ) &
}

settle() {
    local result
    wait
    for result in "$work"/results/*; do
        [[ -e $result ]] || continue
        cat "$result"
        if grep -q '^ok' "$result"; then
            passed=$((passed + 1))
            # What a program left out, it says itself.
            grep -h '^skipped: ' "$work/logs/${result##*/}" >&2 || true
        else
            failed=$((failed + 1))
            tail -n 40 "$work/logs/${result##*/}" | sed 's/^/    /'
        fi
        rm "$result"
    done
}

check() {
    queue "$@"
    settle
}

finish() {
    echo "cpp: $passed passed; $failed failed; $skipped skipped; $SECONDS s"
    exit $((failed > 0))
}

# ---- what the compilers are, and what they are asked

compilers=()
for compiler in g++ clang++ clang++-14; do
    # Two names of one clang are one compiler.
    if have "$compiler" && [[ $compiler != clang++-14 || " ${compilers[*]} " != *" clang++ "* ]]; then compilers+=("$compiler"); fi
done
((${#compilers[@]})) || { skip "neither g++ nor clang++ is here: nothing of cpp/ can be tested"; finish; }
[[ " ${compilers[*]} " == *" clang++"* ]] || skip "no clang++: only ${compilers[*]} compiles the headers and the consumers"
first=${compilers[0]} last=${compilers[-1]}
# Pairs of a compiler and a standard: each compiler and each standard in one of them.
pairs=("$first c++17" "$last c++20")
if [[ -n $everything ]]; then
    pairs=()
    for compiler in "${compilers[@]}"; do pairs+=("$compiler c++17" "$compiler c++20"); done
fi
strict="-Wall -Wextra -Wpedantic -Wshadow -Werror"
# What users may ask of their own code, headers must stand too.
picky="-Wconversion -Wsign-conversion -Wold-style-cast -Wnon-virtual-dtor -Woverloaded-virtual"
# What librsccl.a needs besides the C++ library, as rsccl.pc says it.
needs="-lgcc_s -lutil -lrt -lpthread -lm -ldl"
export strict picky needs first last

# ---- checks

exports_are_right() { bash "$cpp/tests/exports.sh" "$prefix"; }

headers_stand_alone() { # COMPILER STANDARD
    local header flags
    for header in "$prefix"/include/rsccl/*.hpp; do
        flags=''
        if [[ ${header##*/} == mpi.hpp ]]; then
            have mpicxx || continue
            # MPI's own headers are not ours to judge.
            flags=$(mpicxx -show | tr ' ' '\n' | sed -n 's/^-I/-isystem/p' | tr '\n' ' ')
        fi
        # A translation unit of its own that includes the header twice and nothing else.
        printf '#include <rsccl/%s>\n#include <rsccl/%s>\n' "${header##*/}" "${header##*/}" |
            "$1" -std="$2" $strict $picky $flags -I "$prefix/include" -fsyntax-only -x c++ - || { echo "in ${header##*/}"; return 1; }
    done
}

# README's line: nothing but -lrsccl.
consumer_by_hand() { # COMPILER STANDARD
    local out=$work/bin/by_hand-$1-$2
    "$1" -std="$2" $strict "$cpp/tests/consumer/main.cpp" -I "$prefix/include" -L "$prefix/lib" -lrsccl -o "$out"
    LD_LIBRARY_PATH=$prefix/lib "$out" shared
}

consumer_by_pkg_config() { # COMPILER STANDARD
    local out=$work/bin/pkg_config-$1-$2
    export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
    "$1" -std="$2" $strict "$cpp/tests/consumer/main.cpp" $(pkg-config --cflags --libs "rsccl >= 0.1") -o "$out"
    LD_LIBRARY_PATH=$prefix/lib "$out" shared
    "$1" -std="$2" $strict "$cpp/tests/consumer/main.cpp" $(pkg-config --cflags rsccl) "$prefix/lib/librsccl.a" \
        $(pkg-config --static --libs-only-l rsccl | sed 's/-lrsccl//') -o "$out-static"
    "$out-static" static
}

# The prefix is moved first: an installation knows no place.
consumer_by_cmake() { # COMPILER STANDARD
    local build=$work/cmake-$1-$2 moved=$work/moved-$1-$2
    cp -R "$prefix" "$moved"
    cp -R "$cpp/tests/consumer" "$build-source"
    cmake -S "$build-source" -B "$build" -DCMAKE_PREFIX_PATH="$moved" -DCMAKE_CXX_COMPILER="$1" \
        -DCMAKE_CXX_STANDARD="${2#c++}" -DCMAKE_CXX_FLAGS="$strict" -DWITH_MPI="$(have mpicxx && echo ON || echo OFF)"
    cmake --build "$build"
    "$build/consumer_shared" shared
    "$build/consumer_static" static
    rm -rf "$moved"
}

# rsccl's own CMakeLists.txt, in a project that has it as a part of itself. The library itself was built before.
part_of_a_project() { # BY
    local build=$work/part-$1
    cp -R "$cpp/tests/subproject" "$build-source"
    cp "$cpp/tests/consumer/main.cpp" "$build-source"
    cmake -S "$build-source" -B "$build" -DRSCCL="$root" -DBY="$1" -DRSCCL_PROFILE="$profile" -DCMAKE_CXX_FLAGS="$strict"
    cmake --build "$build"
    "$build/consumer_shared" shared
    "$build/consumer_static" static
    # Nothing has changed, so nothing is built.
    cmake --build "$build" | { ! grep -i 'building'; }
}

compile_test() { # KIND FILE FLAGS...
    local kind=$1 file=$2
    shift 2
    "$@" $strict -pthread -I "$prefix/include" -c "$cpp/tests/$file.cpp" -o "$work/objects/$kind-$file.o"
}

link_sanitized() { # LIBRARY WORD...
    "$first" -pthread $sanitize "$work"/objects/{plain-main,sanitized-*}.o -o "$work/bin/tests-sanitized-$1" "${@:2}"
}

run_tests() { # KIND
    # Every branch of the tests prints its own lines; leaks and undefined behaviour end the program with an error.
    ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1 \
        UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 "$work/bin/tests-$1" --no-version=true
}

# Two files of the API tests. That they are called so still, and that they find GPUs, is a part of it.
on_virtual_gpus() {
    "$root/vcuda/run" 2-nvswitch -- "$work/bin/tests-plain" --no-version=true --source-file='*streams.cpp,*windows.cpp' |
        tee "$work/on-gpus"
    grep -q '^\[doctest\] test cases: *[4-9]' "$work/on-gpus" || { echo "few tests of streams and windows have run"; return 1; }
    ! grep '^skipped: no GPU' "$work/on-gpus"
}

# A panic does not cross the bridge. Linked statically: what provokes it is not shown by the shared library.
panics_stay_inside() { # COMPILER
    "$1" -std=c++17 $strict -g1 $sanitize "$cpp/tests/internals/panic.cpp" -I "$prefix/include" "$prefix/lib/librsccl.a" $needs \
        -pthread -o "$work/bin/panic"
    "$work/bin/panic"
}

# rsccl/mpi.hpp under one MPI, at 1 to 4 ranks. mpi-examples/run-all.sh runs the programs of mpi-examples/cpp.
under_mpi() { # MPICXX MPIRUN
    local ranks
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
    "$1" -std=c++17 -O1 "$cpp/tests/mpi/from_mpi.cpp" -I "$prefix/include" "$prefix/lib/librsccl.a" $needs -o "$work/bin/from_mpi-$1"
    for ranks in 1 2 3 4; do
        timeout -k 10 60 "$2" -n "$ranks" "$work/bin/from_mpi-$1" "$ranks"
    done
    # A world of one where the launcher has started several: the program that torchrun or a wrong mpirun starts. Numbers that were
    # exported around an mpirun would be left over, so a shell sets them below it.
    timeout -k 10 60 "$2" -n 1 sh -c "RANK=0 WORLD_SIZE=2 exec '$work/bin/from_mpi-$1' 1" 2>"$work/lone-world" || return 1
    grep -q 'rsccl: warning: torchrun has started 2 ranks, but MPI knows of one' "$work/lone-world" || { cat "$work/lone-world"; return 1; }
    # An exception that nobody catches ends the job, with its words; so does a rank that gives up, long before the default deadline.
    ends_with "$1" "$2" abort 'the input is broken' && ends_with "$1" "$2" late 'NCCL_SHM_DISABLE'
}

ends_with() { # MPICXX MPIRUN MODE WORDS
    local outcome=0
    timeout -k 10 60 "$2" -n 3 "$work/bin/from_mpi-$1" 3 "$3" >"$work/last-words" 2>&1 || outcome=$?
    cat "$work/last-words"
    ((outcome != 0 && outcome != 124)) && grep -q "rsccl: .*$4.*: aborting the MPI job" "$work/last-words"
}

example_runs() { # FILE STANDARD COMPILER
    local name out
    name=$(basename "$1" .cpp) out=$work/bin/$(basename "$1" .cpp)
    "$3" -std="$2" $strict -O1 -pthread "$1" -I "$prefix/include" -L "$prefix/lib" -Wl,-rpath,"$prefix/lib" -lrsccl -ldl -o "$out"
    cd "$work" && "$out"
}

# The program of README.md, as a reader would run it: four threads, then four processes.
readme_program() {
    bash "$cpp/tests/readme.sh" "$prefix" "$work/readme"
}

export -f have exports_are_right headers_stand_alone consumer_by_hand consumer_by_pkg_config consumer_by_cmake part_of_a_project
export -f run_tests on_virtual_gpus example_runs readme_program panics_stay_inside under_mpi ends_with

# ---- install

# Both profiles where they differ: the test of the options has its own.
if [[ -n $build_only ]]; then
    "$cpp/install.sh" "$prefix" --no-command --profile "$profile" && "$cpp/install.sh" "$prefix" --static-only --profile unoptimised
    exit
fi
# The command is built beside what follows, by the test of the options: the classes need none.
check "install" $BUILD_LIMIT_S "$cpp/install.sh" "$prefix" --no-command --profile "$profile"
if ((failed)); then finish; fi
queue "install.sh: its options, prefixes that move, uninstalling" $BUILD_LIMIT_S bash "$cpp/tests/install_options.sh" "$work"
queue "the libraries show what they should, and need nothing else" $RUN_LIMIT_S exports_are_right

# ---- headers, misuse, consumers

have mpicxx || skip "no mpicxx: rsccl/mpi.hpp is not compiled by itself"
for pair in "${pairs[@]}"; do
    queue "headers stand alone: $pair" $COMPILE_LIMIT_S headers_stand_alone "${pair% *}" "${pair#* }"
done
queue "misuse does not compile: $first c++17" $COMPILE_LIMIT_S bash "$cpp/tests/misuse.sh" "$first" c++17 "$prefix"
[[ $first == "$last" ]] ||
    queue "misuse does not compile: $last c++20" $COMPILE_LIMIT_S bash "$cpp/tests/misuse.sh" "$last" c++20 "$prefix"
for compiler in "${compilers[@]}"; do
    queue "modes of compiling: $compiler" $COMPILE_LIMIT_S bash "$cpp/tests/modes.sh" "$compiler" "$prefix" "$work/modes-$compiler"
done
queue "ThreadSanitizer: $first" $COMPILE_LIMIT_S bash "$cpp/tests/tsan.sh" "$first" "$prefix" "$work/tsan"
queue "plugins, static and shared" $COMPILE_LIMIT_S bash "$cpp/tests/plugin.sh" "$first" "$prefix" "$work/plugin"
queue "children of Python programs" $COMPILE_LIMIT_S bash "$cpp/tests/python.sh" "$first" "$prefix" "$work/python"
if have mpicxx; then
    queue "the C++ of docs/from-nccl.md" $COMPILE_LIMIT_S bash "$cpp/tests/from_nccl.sh" "$prefix" "$work/from_nccl"
else
    skip "no mpicxx: the C++ of docs/from-nccl.md is not compiled"
fi
for pair in "${pairs[@]}"; do
    compiler=${pair% *} standard=${pair#* }
    queue "consumer by hand: $pair" $COMPILE_LIMIT_S consumer_by_hand "$compiler" "$standard"
    if have pkg-config; then
        queue "consumer by pkg-config, shared and static: $pair" $COMPILE_LIMIT_S consumer_by_pkg_config "$compiler" "$standard"
    fi
    if have cmake; then
        queue "consumer by CMake, shared and static: $pair" $COMPILE_LIMIT_S consumer_by_cmake "$compiler" "$standard"
    fi
done
if have cmake; then
    export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}
    # Both run cargo, which lets one wait for the other.
    for by in add_subdirectory FetchContent; do
        queue "rsccl as a part of a CMake project: $by" $BUILD_LIMIT_S part_of_a_project "$by"
    done
fi
if have doxygen; then
    queue "the reference: Doxygen has nothing to warn of" $COMPILE_LIMIT_S "$cpp/doxygen.sh" "$work/reference"
else
    skip "no doxygen: the reference of the C++ classes is not built"
fi
have pkg-config || skip "no pkg-config: rsccl.pc is not tested"
have cmake || skip "no cmake: find_package(rsccl) is not tested"
settle

# ---- the API tests: the oldest standard and sanitizers; the newest standard without

sanitize="-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
if ! { echo 'int main() {}' | "$first" -x c++ $sanitize - -o "$work/bin/sanitizers" && "$work/bin/sanitizers"; } >/dev/null 2>&1; then
    skip "$first has no address and undefined-behaviour sanitizers here: the tests run without them"
    sanitize=''
fi
export sanitize
queue "a panic does not cross: $first c++17" $COMPILE_LIMIT_S panics_stay_inside "$first"
if ! echo '#include <doctest/doctest.h>' | "$first" -x c++ -fsyntax-only - 2>/dev/null; then
    skip "no <doctest/doctest.h> (Debian: doctest-dev): the API tests are not built"
else
    export -f compile_test link_sanitized
    # Those that run on GPUs do so without sanitizers.
    kinds=(plain) on_gpus=(streams windows)
    [[ -z $sanitize ]] || kinds+=(sanitized-static)
    # The framework itself is compiled once; sanitizers have nothing to look for in it.
    queue "compile main.cpp" $COMPILE_LIMIT_S compile_test plain main "$last" -std=c++17 -O1
    for source in "$cpp"/tests/*.cpp; do
        name=$(basename "$source" .cpp)
        [[ $name != main ]] || continue
        if [[ -n $everything || -z $sanitize || " ${on_gpus[*]} " == *" $name "* ]]; then
            queue "compile $name.cpp" $COMPILE_LIMIT_S compile_test plain "$name" "$last" -std=c++20 -O1
        fi
        [[ -z $sanitize ]] || queue "compile $name.cpp, sanitized" $COMPILE_LIMIT_S \
            compile_test sanitized "$name" "$first" -std=c++17 -O1 -g1 $sanitize
    done
    settle
    shared=(-L "$prefix/lib" -Wl,-rpath,"$prefix/lib" -lrsccl)
    queue "link the API tests: $last c++20, shared" $COMPILE_LIMIT_S bash -ec \
        '"$0" -pthread "$work"/objects/plain-*.o -o "$work/bin/tests-plain" "$@"' "$last" "${shared[@]}"
    # All of them against both libraries: whatever a test calls, each has. Those of the static one are run.
    if [[ -n $sanitize ]]; then
        queue "link the API tests: $first c++17, static, sanitized" $COMPILE_LIMIT_S link_sanitized static "$prefix/lib/librsccl.a" $needs
        queue "link the API tests: $first c++17, shared, sanitized" $COMPILE_LIMIT_S link_sanitized shared "${shared[@]}"
    fi
    settle
    # One after the other: they watch the clock.
    for kind in "${kinds[@]}"; do
        check "API tests, $kind" $RUN_LIMIT_S run_tests "$kind"
        grep -h '^\[doctest\]' "$work/logs/$(printf %04d "$number")" | sed 's/^/    /' || true
    done
    check "streams and windows, on two virtual GPUs" $BUILD_LIMIT_S on_virtual_gpus
fi
gpu_example() {
    "$last" -std=c++17 $strict -O1 "$root/examples/cpp/07_gpu.cpp" -I "$prefix/include" -L "$prefix/lib" -Wl,-rpath,"$prefix/lib" -lrsccl -ldl \
        -o "$work/bin/gpu-example"
    # Without the command, which this prefix has not.
    RSCCL_STORE=file://$work/gpu-example-store RSCCL_WORLD_SIZE=2 "$root/vcuda/run" 2-nvswitch -- \
        bash -c 'RSCCL_RANK=0 "$0" & RSCCL_RANK=1 "$0"; status=$?; wait $! && exit $status' "$work/bin/gpu-example" | tee "$work/gpu-example-said"
    grep -q '2 ranks on GPUs: every sum is 3' "$work/gpu-example-said"
}
export -f gpu_example
check "the example on GPUs, on two virtual ones" $BUILD_LIMIT_S gpu_example

# ---- examples

queue "the program of README.md, as threads and as processes" $COMPILE_LIMIT_S readme_program
standards=(c++17 c++20) turn=0
for source in "$root"/examples/cpp/*.cpp; do
    queue "example ${source##*/}" $COMPILE_LIMIT_S example_runs "$source" "${standards[turn % 2]}" "${compilers[turn / 2 % ${#compilers[@]}]}"
    turn=$((turn + 1))
done
settle
# One after the other: four ranks on few processors are enough.
mpis=0
for kind in openmpi mpich; do
    if have "mpicxx.$kind" && have "mpirun.$kind"; then
        mpis=$((mpis + 1))
        check "rsccl/mpi.hpp at 1 to 4 ranks: $kind" $BUILD_LIMIT_S under_mpi "mpicxx.$kind" "mpirun.$kind"
    fi
done
if ((mpis == 0)); then
    if have mpicxx && have mpirun; then
        check "rsccl/mpi.hpp at 1 to 4 ranks" $BUILD_LIMIT_S under_mpi mpicxx mpirun
    else
        skip "no mpicxx and mpirun: no program with MPI is run"
    fi
fi
check "six programs in MPI and in the classes: the same numbers" $COMPILE_LIMIT_S bash "$root/mpi-examples/ported/compare.sh" "$prefix"
finish
