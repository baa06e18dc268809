#!/usr/bin/env bash
# misuse.sh COMPILER STANDARD PREFIX: every case of misuse/cases.cpp fails to compile, with the words that it promises, and all
# compile once their mistakes are mended. Where "refused alone:" stands before the words, the compiler says nothing else.
set -euo pipefail
compiler=$1 standard=$2 prefix=$3
cases=$(cd "$(dirname "$0")" && pwd)/misuse/cases.cpp
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
outcome=0

# What all cases include is compiled once. It comes first in each of them: where anything stands before it, g++ does not use it.
grep '^#include' "$cases" >"$work/prelude.hpp"
"$compiler" -std="$standard" -I "$prefix/include" -x c++-header "$work/prelude.hpp" -o "$work/prelude.hpp.gch" \
    >"$work/said" 2>&1 || { cat "$work/said"; exit 1; }
if [[ $compiler == clang* ]]; then first=(-include-pch "$work/prelude.hpp.gch"); else first=(-include "$work/prelude.hpp"); fi
# Values that nobody uses are warnings everywhere but here.
compile=("$compiler" "${first[@]}" -std="$standard" -Werror=unused-result -Winvalid-pch -I "$prefix/include" -fsyntax-only)

mapfile -t lines < <(grep -nE '^#if ON\([0-9]+\) //' "$cases")
if ! "${compile[@]}" -DCASE=0 -DMENDED "$cases" >"$work/said" 2>&1; then
    echo "not all cases compile once they are mended"
    grep -m 5 error "$work/said"
    outcome=1
fi
((${#lines[@]} > 20)) || { echo "only ${#lines[@]} cases found"; exit 1; }
for line in "${lines[@]}"; do
    number=$(sed -E 's/.*ON\(([0-9]+)\).*/\1/' <<<"$line")
    about=$(sed -E 's/.*\/\/ (.*); refused( alone)?: .*/\1/' <<<"$line")
    words=$(sed -E 's/.*; refused( alone)?: //' <<<"$line")
    if "${compile[@]}" -DCASE="$number" "$cases" >"$work/said" 2>&1; then
        echo "case $number compiles, and must not: $about"
        outcome=1
    elif ! grep -qE "error.*($words)" "$work/said"; then
        echo "case $number fails for another reason than \"$words\": $about"
        grep -m 3 error "$work/said"
        outcome=1
    elif [[ $line == *"; refused alone: "* ]] && grep ' error: ' "$work/said" | grep -qvE "error.*($words)"; then
        echo "case $number has errors beside \"$words\": $about"
        grep ' error: ' "$work/said"
        outcome=1
    fi
done
echo "${#lines[@]} cases"
exit $outcome
