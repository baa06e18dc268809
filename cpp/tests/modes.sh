#!/usr/bin/env bash
# modes.sh COMPILER PREFIX FOLDER: how programs may and may not be compiled: without exceptions, by an older standard and with headers of
# another version they are refused in words; with many warnings, without run-time type information and with hidden names they are fine.
set -euo pipefail
compiler=$1 prefix=$2 work=$3
tests=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$work"
echo '#include <rsccl/rsccl.hpp>' >"$work/empty.cpp"

refused() { # WORDS COMMAND...
    local words=$1
    shift
    if "$@" >"$work/said" 2>&1; then
        echo "not refused: $*"
        exit 1
    fi
    grep -qF "$words" "$work/said" || { echo "refused without \"$words\": $*"; head -n 5 "$work/said"; exit 1; }
}
refused "rsccl needs C++17 or newer" "$compiler" -std=c++14 -I "$prefix/include" -fsyntax-only "$work/empty.cpp"
refused "rsccl says what went wrong by exceptions" "$compiler" -std=c++17 -fno-exceptions -I "$prefix/include" -fsyntax-only "$work/empty.cpp"

mkdir "$work/newer"
cp -R "$prefix/include/rsccl" "$work/newer/"
sed -i 's/^#define RSCCL_VERSION_MINOR .*/#define RSCCL_VERSION_MINOR 99/' "$work/newer/rsccl/version.hpp"
for library in -lrsccl "$prefix/lib/librsccl.a"; do
    refused "library_of_headers_0_99" "$compiler" -std=c++17 "$tests/consumer/main.cpp" -I "$work/newer" -L "$prefix/lib" "$library" \
        -lgcc_s -lutil -lrt -lpthread -lm -ldl -o "$work/program"
done

warnings=(-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wold-style-cast -Wnon-virtual-dtor -Woverloaded-virtual -Werror)
[[ $compiler == clang* ]] || warnings+=(-Wuseless-cast -Wduplicated-cond -Wlogical-op)
# Every template, used as it should be: the misuse, mended.
"$compiler" -std=c++17 "${warnings[@]}" -Wno-unused -DCASE=0 -DMENDED -I "$prefix/include" -fsyntax-only "$tests/misuse/cases.cpp"
"$compiler" -std=c++17 -fno-rtti -I "$prefix/include" -fsyntax-only "$work/empty.cpp"
"$compiler" -std=c++17 -fvisibility=hidden -fvisibility-inlines-hidden "$tests/consumer/main.cpp" -I "$prefix/include" -L "$prefix/lib" \
    -Wl,-rpath,"$prefix/lib" -lrsccl -lpthread -o "$work/hidden"
"$work/hidden" shared
