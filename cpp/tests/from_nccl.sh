#!/usr/bin/env bash
# from_nccl.sh PREFIX FOLDER: the C++ of docs/from-nccl.md compiles: of a block that shows old and new side by side, what stands behind
# the slashes.
set -euo pipefail
prefix=$1 work=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$work"
read -ra flags <<<"$(mpicxx -show | tr ' ' '\n' | sed -n 's/^-I/-isystem/p' | tr '\n' ' ')"
awk -v folder="$work" '
    /^```cpp$/ { block = folder "/block-" ++blocks ".txt"; next }
    /^```/ { block = "" }
    block != "" { print > block }
' "$root/docs/from-nccl.md"
count=0
for block in "$work"/block-*.txt; do
    count=$((count + 1))
    # Prose, in parentheses, is left out.
    if grep -q '^ncclComm_t' "$block"; then sed -Ei 's|^[^/]*// ?||; /^\(/d' "$block"; fi
    grep -q 'all_reduce' "$block" || { echo "a block of docs/from-nccl.md has no all_reduce:"; cat "$block"; exit 1; }
    # The form with a type takes pointers.
    buffer='std::vector<float>&'
    ! grep -q 'DataType' "$block" || buffer='float*'
    {
        printf '#include <vector>\n#include <rsccl/mpi.hpp>\n#include <rsccl/rsccl.hpp>\n'
        printf 'void run([[maybe_unused]] int rank, [[maybe_unused]] int size, [[maybe_unused]] int n, %s in, %s out) {\n' "$buffer" "$buffer"
        cat "$block"
        printf '}\n'
    } >"${block%.txt}.cpp"
    "${CXX:-c++}" -std=c++17 -Wall -Wextra -Werror "${flags[@]}" -I "$prefix/include" -fsyntax-only "${block%.txt}.cpp"
done
((count >= 2)) || { echo "$count blocks of C++ found in docs/from-nccl.md"; exit 1; }
