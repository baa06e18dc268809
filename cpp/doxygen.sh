#!/usr/bin/env bash
# Builds the reference of the C++ classes into a folder; fails where Doxygen warns.
#   cpp/doxygen.sh FOLDER
set -euo pipefail
[[ $# -eq 1 ]] || { echo "usage: ${0##*/} FOLDER" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")"
{ cat Doxyfile; echo "OUTPUT_DIRECTORY = \"$out\""; } | doxygen -
