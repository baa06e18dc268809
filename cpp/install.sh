#!/usr/bin/env bash
# Builds the C++ library and installs it: headers, librsccl.a, librsccl.so, pkg-config file, CMake package, and the command rsccl.
# `--help` says how.
# README.md beside this file says how to use the result.
set -euo pipefail

help() {
    cat <<END
usage: ${0##*/} PREFIX [OPTION...]
       ${0##*/} PREFIX --uninstall
Builds rsccl for C++ and installs it into PREFIX, which may be moved afterwards: nothing in it names its own place.
  --libdir DIR       libraries, pkg-config and CMake files go to DIR, e.g. lib64 or lib/x86_64-linux-gnu (lib)
  --includedir DIR   headers go to DIR/rsccl (include)
  --destdir DIR      put in front of PREFIX, for packagers; PREFIX is absolute then
  --static-only      no librsccl.so
  --shared-only      no librsccl.a
  --no-command       no bin/rsccl, which starts programs as ranks: building it takes about as long as the library
  --profile NAME     cargo's profile (release)
  --uninstall        removes what was installed into PREFIX; builds nothing
  --help             this
DIR of the first two is a path below PREFIX, relative or absolute. PREFIX, LIBDIR, INCLUDEDIR and DESTDIR of the environment
stand in for what is not given. What was installed is listed in PREFIX/share/rsccl/manifest.txt; installing again removes what is
no longer part of it. CARGO, CXX, OBJCOPY and CARGO_TARGET_DIR are used where they are set.
END
}

refuse() { # WHY
    echo "${0##*/}: $1; --help says how to call it" >&2
    exit 2
}

prefix='' static=yes shared=yes command=yes profile=release uninstall=no
lib=${LIBDIR:-lib} include=${INCLUDEDIR:-include} destination=${DESTDIR:-}
while (($#)); do
    option=$1
    # --name=value is --name value.
    if [[ $option == --*=* ]]; then
        set -- "${option%%=*}" "${option#*=}" "${@:2}"
        option=$1
    fi
    case $option in
        --static-only) shared=no ;;
        --shared-only) static=no ;;
        --no-command) command=no ;;
        --uninstall) uninstall=yes ;;
        --help | -h) help && exit ;;
        --prefix | --libdir | --includedir | --destdir | --profile)
            [[ -n ${2:-} ]] || refuse "$option needs a value"
            case $option in
                --prefix) [[ -z $prefix ]] || refuse "two prefixes, \"$prefix\" and \"$2\"" ;;&
                --prefix) prefix=$2 ;;
                --libdir) lib=$2 ;;
                --includedir) include=$2 ;;
                --destdir) destination=$2 ;;
                --profile) profile=$2 ;;
            esac
            shift
            ;;
        -*) refuse "there is no option \"$option\"" ;;
        *) [[ -z $prefix ]] || refuse "two prefixes, \"$prefix\" and \"$option\"" && prefix=$option ;;
    esac
    shift
done
prefix=${prefix:-${PREFIX:-}}
[[ -n $prefix ]] || refuse "no PREFIX is given"
[[ $static$shared != nono ]] || refuse "--static-only and --shared-only leave nothing to install"
[[ -z $destination || $prefix == /* ]] || refuse "with DESTDIR the prefix must be absolute, and \"$prefix\" is not"

# below NAME DIR: DIR as a path below the prefix. From there the installed files find each other, wherever the prefix is moved to.
below() {
    local inner=$2
    [[ $inner != "$prefix" ]] || refuse "the $1 \"$2\" is the prefix itself: give a folder below it"
    inner=${inner#"${prefix%/}/"}
    [[ $inner != /* ]] || refuse "the $1 \"$2\" is not below the prefix \"$prefix\""
    inner=$(sed -E 's|/+|/|g; s|/$||; s|^\./||' <<<"$inner")
    [[ -n $inner && ! "/$inner/" =~ /\.\.?/ ]] || refuse "the $1 \"$2\" has . or .. in it: give the plain path"
    echo "$inner"
}
lib=$(below libdir "$lib")
include=$(below includedir "$include")

# `install -d` and not mkdir: others must be able to read it whatever the umask is.
[[ $uninstall == yes ]] || install -d -m 755 "$destination$prefix"
[[ -d $destination$prefix ]] || { echo "${0##*/}: there is no folder $destination$prefix" >&2; exit 1; }
prefix=$(cd "$destination$prefix" && pwd)
manifest=share/rsccl/manifest.txt

# drop FILE...: removes files, named from the prefix on, and the folders that are empty then.
drop() {
    local file folder
    for file in "$@"; do
        [[ -n $file && $file != /* && ! "/$file/" =~ /\.\./ ]] ||
            { echo "${0##*/}: \"$file\" in $prefix/$manifest is no file of the prefix" >&2; exit 1; }
        rm -f -- "$prefix/$file"
        folder=${file%/*}
        while [[ $folder != . && $folder != "$file" ]] && rmdir -- "$prefix/$folder" 2>/dev/null; do
            file=$folder folder=${folder%/*}
        done
    done
}

listed=()
[[ ! -f $prefix/$manifest ]] || mapfile -t listed <"$prefix/$manifest"
if [[ $uninstall == yes ]]; then
    ((${#listed[@]})) || { echo "${0##*/}: nothing is installed in $prefix: it has no $manifest" >&2; exit 1; }
    drop "${listed[@]}" "$manifest"
    echo "rsccl is removed from $prefix"
    exit
fi

cpp=$(cd "$(dirname "$0")" && pwd)
root=${cpp%/*}
cargo=${CARGO:-cargo} objcopy=${OBJCOPY:-objcopy}
command -v "$cargo" >/dev/null || {
    rust=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$root/Cargo.toml")
    cat >&2 <<END
${0##*/}: there is no $cargo: rsccl is built by Rust $rust or newer, and Debian 12 packages 1.63.
https://rustup.rs installs it, for your user alone:
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y && . ~/.cargo/env
Where cargo is and is not found (sudo has a PATH of its own), set CARGO to its path.
END
    exit 1
}
# As make has it: a compiler may come with words of its own, "ccache g++".
read -ra cxx <<<"${CXX:-c++}"
# One compiler has one name for cargo, the whole path, as CMake writes it: cargo builds the library anew where CXX has changed.
if ((${#cxx[@]} == 1)); then
    cxx[0]=$(command -v "${cxx[0]}") || { echo "${0##*/}: there is no C++ compiler \"${CXX:-c++}\": set CXX" >&2; exit 1; }
fi
export CXX=${cxx[*]}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml" | head -n 1)
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || { echo "no version in $root/Cargo.toml" >&2; exit 1; }
# The soname changes with what breaks programs: a major version, before 1.0 a minor one too.
abi=${version%%.*}
[[ $abi != 0 ]] || abi=${version%.*}
soname=librsccl.so.$abi

# v0 names of Rust symbols: the older ones look like C++ names of namespace rsccl, and the version script would export them.
(cd "$root" && "$cargo" rustc --locked --quiet --lib --profile "$profile" --features cpp,cuda,encrypt \
    --crate-type staticlib -- -Csymbol-mangling-version=v0)
target=$(cd "$root" && "$cargo" metadata --locked --format-version 1 --no-deps |
    sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
# The profile `dev` is built into the folder `debug`.
built=$target/${profile/#dev/debug}/librsccl.a
[[ -f $built ]] || { echo "cargo has built no $built" >&2; exit 1; }

if [[ $command == yes ]]; then
    (cd "$root" && "$cargo" build --locked --quiet --bin rsccl --profile "$profile" --features cli,cuda,encrypt)
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Without line tables, and without the standard library a second time as bitcode, which only rustc's own linker reads.
"$objcopy" --strip-debug --remove-section=.llvmbc --remove-section=.llvmcmd "$built" "$work/librsccl.a"
if [[ $shared == yes ]]; then
    # rustc's own shared library hides the C++ symbols; so it is linked here, where the version script says what is seen.
    "${cxx[@]}" -shared -o "$work/librsccl.so.$version" -Wl,-soname,"$soname" \
        -Wl,--whole-archive "$work/librsccl.a" -Wl,--no-whole-archive -Wl,--version-script="$cpp/rsccl.map" \
        -Wl,--gc-sections -Wl,-z,defs -Wl,-z,relro,-z,now -Wl,--as-needed -lpthread -ldl -lrt -lutil -lm
    "$objcopy" --strip-unneeded "$work/librsccl.so.$version"
fi

# put MODE FILE PATH: installs a file and lists it.
installed=()
put() {
    install -D -m "$1" "$2" "$prefix/$3"
    installed+=("$3")
}

# lead NAME TARGET: a symbolic link beside the libraries.
lead() {
    ln -sfn "$2" "$prefix/$lib/$1"
    installed+=("$lib/$1")
}

# The way from a folder of the prefix back to the prefix: .. for each of its parts.
up() { sed -E 's|[^/]+|..|g' <<<"$1"; }

fill() { # TEMPLATE PATH
    sed -e "s|@VERSION@|$version|g" -e "s|@ABI@|$abi|g" -e "s|@LIB@|$lib|g" -e "s|@INCLUDE@|$include|g" \
        -e "s|@UP@|$(up "${2%/*}")|g" "$1" >"$work/filled"
    put 644 "$work/filled" "$2"
}

for header in "$cpp"/include/rsccl/*.hpp; do
    put 644 "$header" "$include/rsccl/${header##*/}"
done
if [[ $static == yes ]]; then
    put 644 "$work/librsccl.a" "$lib/librsccl.a"
fi
if [[ $shared == yes ]]; then
    put 755 "$work/librsccl.so.$version" "$lib/librsccl.so.$version"
    # Two names: what programs ask for when they start, and what -lrsccl finds.
    lead "$soname" "librsccl.so.$version"
    lead librsccl.so "$soname"
fi
put 644 "$cpp/tsan.supp" share/rsccl/tsan.supp
if [[ $command == yes ]]; then
    put 755 "${built%/*}/rsccl" bin/rsccl
fi
fill "$cpp/rsccl.pc.in" "$lib/pkgconfig/rsccl.pc"
fill "$cpp/cmake/rsccl-config.cmake.in" "$lib/cmake/rsccl/rsccl-config.cmake"
fill "$cpp/cmake/rsccl-config-version.cmake.in" "$lib/cmake/rsccl/rsccl-config-version.cmake"

# What an installation before this one has left and this one has not: an old header would still be found.
printf '%s\n' "${installed[@]}" >"$work/manifest"
for file in "${listed[@]}"; do
    grep -qxF -- "$file" "$work/manifest" || drop "$file"
done
install -D -m 644 "$work/manifest" "$prefix/$manifest"
echo "rsccl $version is installed in $prefix"
# Under DESTDIR it is used from another place.
[[ -z $destination ]] || exit 0
printf -v include_at %q "$prefix/$include"
printf -v lib_at %q "$prefix/$lib"
if [[ $shared == yes ]]; then
    echo "compile: c++ -std=c++17 program.cpp -I $include_at -L $lib_at -lrsccl -Wl,-rpath,$lib_at -o program"
else
    echo "compile: c++ -std=c++17 program.cpp -I $include_at $lib_at/librsccl.a -lgcc_s -lutil -lrt -lpthread -lm -ldl -o program"
fi
echo "or:      PKG_CONFIG_PATH=$lib_at/pkgconfig pkg-config --cflags --libs rsccl; CMake: find_package(rsccl), -DCMAKE_PREFIX_PATH"
if [[ $command == yes ]]; then
    printf 'run:     %q run -n 4 ./program\n' "$prefix/bin/rsccl"
fi
