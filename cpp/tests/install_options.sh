#!/usr/bin/env bash
# install_options.sh FOLDER: install.sh with one library each, into a path with a space, under DESTDIR, into other folders than lib
# and include; what pkg-config and CMake make of it, also where the prefix was moved; installing again, uninstalling; wrong calls
# are refused.
set -euo pipefail
cpp=$(cd "$(dirname "$0")/.." && pwd)
unset PREFIX DESTDIR LIBDIR INCLUDEDIR
complain() {
    echo "$1" >&2
    exit 1
}

# With the command, which is built for this test alone: unoptimised, a profile of cpp/test.sh, in a fifth of the time.
mkdir -p "$1"
"$cpp/install.sh" "$1/a place" --static-only --profile unoptimised >"$1/said"
[[ -f "$1/a place/lib/librsccl.a" && ! -e "$1/a place/lib/librsccl.so" ]]
[[ $("$1/a place/bin/rsccl" --version) == "rsccl "* ]] || complain "the command is not installed"
# What it says last is what a user needs next, and works as it is said.
printf '#include <rsccl/rsccl.hpp>\nint main() { rsccl::Communicator::from_env().barrier(); }\n' >"$1/program.cpp"
(cd "$1" && eval "$(sed -n 's/^compile: //p' said) && $(sed -n 's/^run: *//p' said)") || complain "what install.sh says does not work"
# As distributions lay it out: several architectures side by side, and a folder that only its owner would be let into.
multiarch=lib/$("${CXX:-c++}" -print-multiarch 2>/dev/null || true)
[[ $multiarch != lib/ ]] || multiarch=lib/$(uname -m)-linux-gnu
(umask 077 && DESTDIR=$1/stage LIBDIR=/usr/$multiarch "$cpp/install.sh" --prefix=/usr --shared-only --no-command \
    --profile "$profile" --includedir include/deep)
staged=$1/stage/usr
[[ ! -e $staged/$multiarch/librsccl.a && -f $staged/$multiarch/librsccl.so && -f $staged/include/deep/rsccl/rsccl.hpp ]]
[[ ! -e $staged/lib/librsccl.so && ! -e $staged/bin ]]
for readable in "$staged" "$staged/$multiarch/pkgconfig" "$staged/include/deep/rsccl" "$staged/share/rsccl/manifest.txt"; do
    [[ $(stat -c %A "$readable") == ???????r?? ]] || complain "others cannot read $readable"
done
# Nothing that is installed knows where it was built or put.
if grep -rIl -e "$1" "$1/a place" "$1/stage"; then complain "the files above name the place they were installed to"; fi

# What was installed for /usr is used at another place, as pkg-config and CMake find it there.
mkdir "$1/elsewhere"
mv "$staged" "$1/elsewhere/usr"
moved=$1/elsewhere/usr
if command -v pkg-config >/dev/null; then
    # Flags for a path with a space come as a shell reads them.
    eval "flags=($(PKG_CONFIG_PATH="$1/a place/lib/pkgconfig" pkg-config --cflags --libs-only-L rsccl))"
    [[ ${#flags[@]} == 2 && -d ${flags[0]#-I}/rsccl && -f ${flags[1]#-L}/librsccl.a ]]
    eval "flags=($(PKG_CONFIG_PATH="$moved/$multiarch/pkgconfig" pkg-config --cflags --libs-only-L rsccl))"
    [[ ${#flags[@]} == 2 && -d ${flags[0]#-I}/rsccl && -f ${flags[1]#-L}/librsccl.so ]]
fi
if command -v cmake >/dev/null; then
    mkdir "$1/optional"
    # A component that is optional may be missing.
    cat >"$1/optional/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.16)
project(optional LANGUAGES CXX)
find_package(rsccl 0.1 REQUIRED OPTIONAL_COMPONENTS mpi)
get_target_property(includes ${WANTED} INTERFACE_INCLUDE_DIRECTORIES)
get_target_property(library ${WANTED} IMPORTED_LOCATION)
if(rsccl_mpi_FOUND OR NOT EXISTS "${includes}/rsccl/rsccl.hpp" OR NOT EXISTS "${library}")
  message(FATAL_ERROR "rsccl without its component mpi was asked for, and ${WANTED} is ${library} with ${includes}")
endif()
END
    for found in "a place:rsccl::static" "elsewhere/usr:rsccl::rsccl"; do
        cmake -S "$1/optional" -B "$1/optional/build-${found##*:}" -DCMAKE_PREFIX_PATH="$1/${found%%:*}" -DWANTED="${found#*:}" \
            -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON
    done
    # Where /lib is /usr/lib, as in most systems, it may be found by the shorter name.
    ln -s usr/lib "$1/elsewhere/lib"
    cmake -S "$1/optional" -B "$1/optional/merged" -Drsccl_DIR="$1/elsewhere/$multiarch/cmake/rsccl" -DWANTED=rsccl::rsccl \
        -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON
fi

# Installing again takes away what is no longer part of it, and nothing else.
touch "$1/a place/include/rsccl/mine.hpp" "$1/a place/include/rsccl/older.hpp"
echo include/rsccl/older.hpp >>"$1/a place/share/rsccl/manifest.txt"
"$cpp/install.sh" "$1/a place" --static-only --libdir lib64 --profile unoptimised
[[ -f "$1/a place/lib64/librsccl.a" && ! -e "$1/a place/lib" && ! -e "$1/a place/include/rsccl/older.hpp" ]]
"$cpp/install.sh" "$1/a place" --uninstall
[[ $(cd "$1/a place" && find . -type f) == ./include/rsccl/mine.hpp ]] || complain "uninstall left or took too much"
"$cpp/install.sh" "$moved" --uninstall
[[ ! -e $moved/include && ! -e $moved/lib && ! -e $moved/share ]] || complain "uninstall left something in $moved"
# A manifest that somebody has spoiled leads to nothing outside the prefix.
mkdir -p "$1/spoiled/share/rsccl" && touch "$1/victim"
for victim in ../victim "$1/victim" share/../../victim; do
    echo "$victim" >"$1/spoiled/share/rsccl/manifest.txt"
    if "$cpp/install.sh" "$1/spoiled" --uninstall 2>/dev/null || [[ ! -e $1/victim ]]; then complain "a manifest with $victim was followed"; fi
done

"$cpp/install.sh" --help | grep -q -- --libdir
# Without Rust it is said how to get it.
if CARGO=no-such-cargo "$cpp/install.sh" "$1/rustless" 2>"$1/said"; then complain "there is no cargo, and install.sh goes on"; fi
grep -q 'there is no no-such-cargo: rsccl is built by Rust 1' "$1/said" && grep -q 'https://rustup.rs' "$1/said" || complain "$(cat "$1/said")"
for wrong in '' '--static-only' '/x --shared-only --static-only' '/x /y' '/x --prefix /y' '/x --what' '/x --profile' '/x --libdir=' \
    '/x --libdir /lib' '/x --libdir /x' '/x --includedir a/../b' 'x --destdir /stage' '/nowhere --uninstall' "$1/optional --uninstall"; do
    # shellcheck disable=SC2086
    if "$cpp/install.sh" $wrong 2>"$1/said"; then complain "install.sh $wrong was not refused"; fi
    grep -q '^install.sh: ' "$1/said" || complain "install.sh $wrong is refused without a word: $(cat "$1/said")"
done
