#!/usr/bin/env bash
# install_options.sh FOLDER: install.sh with one library each, into a path with a space and under DESTDIR; what pkg-config and
# CMake make of the first; wrong calls are refused.
set -euo pipefail
cpp=$(cd "$(dirname "$0")/.." && pwd)

"$cpp/install.sh" "$1/a place" --static-only
[[ -f "$1/a place/lib/librsccl.a" && ! -e "$1/a place/lib/librsccl.so" ]]
DESTDIR=$1/stage "$cpp/install.sh" /usr/local --shared-only
[[ ! -e $1/stage/usr/local/lib/librsccl.a && -f $1/stage/usr/local/lib/librsccl.so ]]
# Nothing that is installed knows where it was built or put.
if grep -rIl -e "$1" "$1/a place" "$1/stage"; then
    echo "the files above name the place they were installed to" >&2
    exit 1
fi
# Flags for a path with a space come as a shell reads them.
if command -v pkg-config >/dev/null; then
    eval "flags=($(PKG_CONFIG_PATH="$1/a place/lib/pkgconfig" pkg-config --cflags --libs-only-L rsccl))"
    [[ ${#flags[@]} == 2 && -d ${flags[0]#-I}/rsccl && -f ${flags[1]#-L}/librsccl.a ]]
fi
# A component that is optional may be missing.
if command -v cmake >/dev/null; then
    mkdir "$1/optional"
    cat >"$1/optional/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.16)
project(optional LANGUAGES CXX)
find_package(rsccl 0.1 REQUIRED OPTIONAL_COMPONENTS mpi)
if(rsccl_mpi_FOUND OR NOT TARGET rsccl::static)
  message(FATAL_ERROR "rsccl without its component mpi was asked for")
endif()
END
    cmake -S "$1/optional" -B "$1/optional/build" -DCMAKE_PREFIX_PATH="$1/a place" -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON
fi
for wrong in '' '--static-only' '/x --shared-only --static-only' '/x /y' '/x --what' '/x --profile'; do
    # shellcheck disable=SC2086
    if "$cpp/install.sh" $wrong 2>/dev/null; then
        echo "install.sh $wrong was not refused" >&2
        exit 1
    fi
done
