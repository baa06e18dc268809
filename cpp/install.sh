#!/usr/bin/env bash
# Builds the C++ library and installs it: headers, librsccl.a, librsccl.so, pkg-config file, CMake package.
#   cpp/install.sh PREFIX [--static-only | --shared-only] [--profile NAME]
# PREFIX may be moved afterwards: nothing in it names its own place. DESTDIR is put in front of PREFIX, for packagers.
# Uses CARGO, CXX, OBJCOPY and CARGO_TARGET_DIR where they are set. README.md beside this file says how to use the result.
set -euo pipefail

usage() {
    echo "usage: ${0##*/} PREFIX [--static-only | --shared-only] [--profile NAME]" >&2
    exit 2
}

prefix='' static=yes shared=yes profile=release
while (($#)); do
    case $1 in
        --static-only) shared=no ;;
        --shared-only) static=no ;;
        --profile) profile=${2:-} && shift ;;
        -*) usage ;;
        *) [[ -z $prefix ]] || usage && prefix=$1 ;;
    esac
    shift || usage
done
[[ -n $prefix && -n $profile && $static$shared != nono ]] || usage
mkdir -p "${DESTDIR:-}$prefix"
prefix=$(cd "${DESTDIR:-}$prefix" && pwd)

cpp=$(cd "$(dirname "$0")" && pwd)
root=${cpp%/*}
cargo=${CARGO:-cargo} objcopy=${OBJCOPY:-objcopy}
# As make has it: a compiler may come with words of its own, "ccache g++".
read -ra cxx <<<"${CXX:-c++}"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml" | head -n 1)
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || { echo "no version in $root/Cargo.toml" >&2; exit 1; }
# The soname changes with what breaks programs: a major version, before 1.0 a minor one too.
abi=${version%%.*}
[[ $abi != 0 ]] || abi=${version%.*}
soname=librsccl.so.$abi

# v0 names of Rust symbols: the older ones look like C++ names of namespace rsccl, and the version script would export them.
(cd "$root" && "$cargo" rustc --locked --quiet --lib --profile "$profile" --no-default-features --features cpp \
    --crate-type staticlib -- -Csymbol-mangling-version=v0)
target=$(cd "$root" && "$cargo" metadata --locked --format-version 1 --no-deps |
    sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
# The profile `dev` is built into the folder `debug`.
built=$target/${profile/#dev/debug}/librsccl.a
[[ -f $built ]] || { echo "cargo has built no $built" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Without line tables, and without the standard library a second time as bitcode, which only rustc's own linker reads.
"$objcopy" --strip-debug --remove-section=.llvmbc --remove-section=.llvmcmd "$built" "$work/librsccl.a"

lib=$prefix/lib
mkdir -p "$prefix/include/rsccl" "$lib/pkgconfig" "$lib/cmake/rsccl"
install -m 644 "$cpp"/include/rsccl/*.hpp "$prefix/include/rsccl/"
if [[ $static == yes ]]; then
    install -m 644 "$work/librsccl.a" "$lib/"
fi
if [[ $shared == yes ]]; then
    # rustc's own shared library hides the C++ symbols; so it is linked here, where the version script says what is seen.
    "${cxx[@]}" -shared -o "$work/librsccl.so.$version" -Wl,-soname,"$soname" \
        -Wl,--whole-archive "$work/librsccl.a" -Wl,--no-whole-archive -Wl,--version-script="$cpp/rsccl.map" \
        -Wl,--gc-sections -Wl,-z,defs -Wl,-z,relro,-z,now -Wl,--as-needed -lpthread -ldl -lrt -lutil -lm
    "$objcopy" --strip-unneeded "$work/librsccl.so.$version"
    install -m 755 "$work/librsccl.so.$version" "$lib/"
    # Two names: what programs ask for when they start, and what -lrsccl finds.
    ln -sf "librsccl.so.$version" "$lib/$soname"
    ln -sf "$soname" "$lib/librsccl.so"
fi

fill() {
    sed -e "s/@VERSION@/$version/g" -e "s/@ABI@/$abi/g" "$1" >"$work/filled"
    install -m 644 "$work/filled" "$2"
}
fill "$cpp/rsccl.pc.in" "$lib/pkgconfig/rsccl.pc"
fill "$cpp/cmake/rsccl-config.cmake.in" "$lib/cmake/rsccl/rsccl-config.cmake"
fill "$cpp/cmake/rsccl-config-version.cmake.in" "$lib/cmake/rsccl/rsccl-config-version.cmake"
echo "rsccl $version is installed in $prefix"
