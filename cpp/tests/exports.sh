#!/usr/bin/env bash
# exports.sh PREFIX: the shared library shows all that the headers promise and nothing else, needs no library but the system's,
# and has a soname; neither library carries line tables.
set -euo pipefail
lib=$1/lib
outcome=0
complain() {
    echo "$1" >&2
    outcome=1
}

shown=$(nm -DC --defined-only "$lib/librsccl.so" | sed 's/^[0-9a-f]* . //; s/@@RSCCL_[0-9]*$//' | grep -v '^RSCCL_')
# "vtable for rsccl::Error" and the like belong to what they name.
strangers=$(sed -E 's/^(typeinfo name|typeinfo|vtable|guard variable) for //' <<<"$shown" | grep -vE '^rsccl::' || true)
[[ -z $strangers ]] || complain "shown, and not of namespace rsccl:
$strangers"
inner=$(grep -E 'rsccl::ffi|rust::|cxxbridge|rsccl::testing|17h[0-9a-f]{16}E|^_R' <<<"$shown" || true)
[[ -z $inner ]] || complain "shown, though it belongs to the bridge or to Rust:
$inner"
for promised in 'rsccl::Communicator::submit(' 'rsccl::Communicator::~Communicator()' 'rsccl::UniqueId::generate(' \
    'rsccl::Error::code() const' 'typeinfo for rsccl::Error' 'vtable for rsccl::Error'; do
    grep -qF "$promised" <<<"$shown" || complain "not shown: $promised"
done

allowed='linux-vdso|ld-linux|libc\.so|libm\.so|libgcc_s\.so|libstdc\+\+\.so|libpthread|libdl|librt|libutil'
needed=$(ldd "$lib/librsccl.so" | grep -vE "$allowed" || true)
[[ -z $needed ]] || complain "needed besides the system's libraries:
$needed"
soname=$(readelf -d "$lib/librsccl.so" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
[[ $soname == librsccl.so.[0-9]* && -e $lib/$soname ]] || complain "the soname is \"$soname\", and no file has that name"
# Programs of 0.1 must not start with 0.2, which may break them.
version=$(sed -n 's/^Version: //p' "$lib/pkgconfig/rsccl.pc")
[[ $version != 0.* || $soname == "librsccl.so.${version%.*}" ]] || complain "the soname of $version is \"$soname\", also that of the next minor version"
if readelf -d "$lib/librsccl.so" | grep -qE 'RPATH|RUNPATH|TEXTREL'; then complain "the library has a run path or text relocations"; fi

for library in librsccl.a librsccl.so; do
    # Half a dozen section names of one archive member are enough to tell.
    if readelf -SW "$lib/$library" 2>/dev/null | grep -q '\.debug_line'; then complain "$library carries line tables"; fi
    echo "$library: $(($(stat -Lc %s "$lib/$library") / 1024)) KiB"
done
echo "$(wc -l <<<"$shown") symbols are shown"
exit $outcome
