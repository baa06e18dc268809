#!/usr/bin/env bash
# A Python program that calls the library through ctypes, and the children that Python makes: what python/children.py says.
#   python.sh COMPILER PREFIX FOLDER
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
compiler=$1 prefix=$2 folder=$3
command -v python3 >/dev/null && python3 -c 'import ctypes, multiprocessing' 2>/dev/null ||
    { echo "skipped: no python3: the children of Python programs are not tried"; exit 0; }
mkdir -p "$folder"
"$compiler" -std=c++17 -O1 -fPIC -shared "$here/python/shim.cpp" -I "$prefix/include" -L "$prefix/lib" -Wl,-rpath,"$prefix/lib" -lrsccl \
    -o "$folder/libshim.so"
python3 "$here/python/children.py" "$folder/libshim.so"
