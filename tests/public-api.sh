#!/usr/bin/env bash
# Lists what programs can name of the library, out of its documentation, and compares the list with docs/public-api.txt.
#   tests/public-api.sh           fails where they differ: a change of the interface is a change of that file
#   tests/public-api.sh --write   writes the file anew
# It needs the documentation built with features cpp, mpi, cli and cuda, as ./test.sh does.
set -euo pipefail
cd "$(dirname "$0")/.."
kept=docs/public-api.txt
pages=${CARGO_TARGET_DIR:-target}/doc/rsccl

# An item's page has its own items first (methods, variants, fields), then the traits that it implements, then those that every type
# has. Methods that come from what a type dereferences to, and the types of other crates, are not ours to keep.
items_of() {
    local page=$1 path kind name
    path=${page%.html}
    name=${path##*/}
    kind=${name%%.*}
    name=${name#*.}
    path=$(dirname "$path")
    [[ $path == . ]] && path=rsccl || path=rsccl::${path//\//::}
    path+=::$name
    if [[ $path == rsccl::types::bf16 || $path == rsccl::types::f16 ]]; then
        echo "$kind $path, of crate half"
        return
    fi
    echo "$kind $path"
    sed 's/id="\(trait-implementations\|implementors\|synthetic-implementations\|blanket-implementations\|deref-methods\)/\n&/g' \
        "$pages/$page" |
        awk -v path="$path" '
            /^id="/ { part = /^id="(trait-implementations|implementors)/ ? "traits" : "foreign" }
            part == "foreign" { next }
            {
                rest = $0
                while (match(rest, /id="(method|tymethod|variant|structfield|associatedconstant|associatedtype|impl)[.-][^"]*"/)) {
                    id = substr(rest, RSTART + 4, RLENGTH - 5)
                    rest = substr(rest, RSTART + RLENGTH)
                    gsub(/%3C/, "<", id)
                    gsub(/%3E/, ">", id)
                    gsub(/%26/, "\\&", id)
                    if (id ~ /^impl-/) {
                        if (part == "traits" && id ~ /-for-/ && id !~ /^impl-StructuralPartialEq/) print "  impl " path " " substr(id, 6)
                    } else if (part != "traits") {
                        split(id, parts, ".")
                        sub(/-[0-9]+$/, "", parts[2])
                        print "  " (parts[1] == "tymethod" ? "method" : parts[1]) " " path "::" parts[2]
                    }
                }
            }' | sort -u
}

list() {
    # Items of `internals` are hidden: the index does not have them.
    sed 's/href="/\n&/g' "$pages/all.html" | sed -n 's/^href="\([^".][^"]*\.html\)".*/\1/p' | sort -u | while read -r page; do
        items_of "$page"
    done
}

[[ -f $pages/all.html ]] || {
    echo "tests/public-api.sh: $pages has no documentation: run cargo doc --no-deps --features cpp,mpi,cli,cuda first" >&2
    exit 2
}
if [[ ${1:-} == --write ]]; then
    list >"$kept"
    echo "$kept: $(wc -l <"$kept") items"
elif list | diff -u --label "$kept" --label "what cargo doc shows" "$kept" - ; then
    echo "$kept: $(wc -l <"$kept") items, all as they are"
else
    echo "the public interface differs from $kept: if that is meant, run tests/public-api.sh --write and say so in CHANGELOG.md" >&2
    exit 1
fi
