#!/usr/bin/env bash
# install_options.sh FOLDER: install.sh with one library each, into a path with a space and under DESTDIR; wrong calls are refused.
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
for wrong in '' '--static-only' '/x --shared-only --static-only' '/x /y' '/x --what' '/x --profile'; do
    # shellcheck disable=SC2086
    if "$cpp/install.sh" $wrong 2>/dev/null; then
        echo "install.sh $wrong was not refused" >&2
        exit 1
    fi
done
