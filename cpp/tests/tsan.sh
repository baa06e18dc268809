#!/usr/bin/env bash
# tsan.sh COMPILER PREFIX FOLDER: ThreadSanitizer, with the suppressions that are installed, reports nothing in a correct program whose ranks are
# threads, and the program's own race.
set -euo pipefail
compiler=$1 prefix=$2 work=$3
tests=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$work"
if ! { echo 'int main() {}' | "$compiler" -x c++ -fsanitize=thread - -o "$work/probe" && "$work/probe"; } >"$work/why" 2>&1; then
    echo "skipped: $compiler has no thread sanitizer here"
    exit 0
fi
"$compiler" -std=c++17 -g1 -O1 -fsanitize=thread "$tests/tsan/ranks.cpp" -I "$prefix/include" -L "$prefix/lib" -lrsccl \
    -Wl,-rpath,"$prefix/lib" -o "$work/program"
export TSAN_OPTIONS="suppressions=$prefix/share/rsccl/tsan.supp exitcode=66"
"$work/program" >"$work/said" 2>&1 || { echo "a correct program failed ($?):"; head -n 40 "$work/said"; exit 1; }
[[ $(<"$work/said") == right ]] || { echo "a correct program says more than \"right\":"; head -n 40 "$work/said"; exit 1; }
status=0
"$work/program" race >"$work/said" 2>&1 || status=$?
[[ $status == 66 ]] && grep -q 'SUMMARY: ThreadSanitizer: data race .*race_on' "$work/said" ||
    { echo "the program's own race was not reported ($status):"; head -n 40 "$work/said"; exit 1; }
# Two ranks of three race in each round, and reports of one place are joined.
if grep 'SUMMARY' "$work/said" | grep -v race_on; then echo "a race that is none was reported"; exit 1; fi
