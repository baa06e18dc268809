#!/usr/bin/env bash
# plugin.sh COMPILER PREFIX FOLDER: the library inside a plugin, static and shared, that a program in C loads, runs and unloads again
# and again; communicators that live as long as the plugin.
set -euo pipefail
compiler=$1 prefix=$2 work=$3
plugin=$(cd "$(dirname "$0")" && pwd)/plugin
RUN_LIMIT_S=60
needs="-lgcc_s -lutil -lrt -lpthread -lm -ldl"
mkdir -p "$work"
"${CC:-cc}" -Wall -Wextra "$plugin/host.c" -ldl -o "$work/host"
# Hidden, as plugins are compiled: what is thrown is caught all the same.
"$compiler" -std=c++17 -O1 -fPIC -fvisibility=hidden -fvisibility-inlines-hidden -I "$prefix/include" -c "$plugin/plugin.cpp" -o "$work/plugin.o"
# shellcheck disable=SC2086
"$compiler" -shared "$work/plugin.o" "$prefix/lib/librsccl.a" $needs -Wl,-z,defs -Wl,--exclude-libs,ALL -o "$work/static.so"
"$compiler" -shared "$work/plugin.o" -L "$prefix/lib" -Wl,-rpath,"$prefix/lib" -lrsccl -lpthread -Wl,-z,defs -o "$work/shared.so"
for kind in static shared; do
    timeout "$RUN_LIMIT_S" "$work/host" "$work/$kind.so" || { echo "the $kind plugin: $?"; exit 1; }
done
# It shows what it means to show, and nothing of rsccl or Rust.
shown=$(nm -D --defined-only "$work/static.so" | sed 's/^[0-9a-f]* . //' | grep -E 'rsccl|rust|cxxbridge' || true)
# What exceptions and stores are known by is shown everywhere, for programs that pass them on.
strangers=$(c++filt <<<"$shown" | grep -vE '^(typeinfo( name)?|vtable) for rsccl::|^rsccl::(detail::)?[A-Za-z]+(<.*>)?::~?[A-Za-z]+\(.*\)$|^$' || true)
[[ -z $strangers ]] || { printf 'the static plugin shows\n%s\n' "$strangers"; exit 1; }
