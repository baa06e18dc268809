#!/usr/bin/env bash
# NCCL 2.32.3 (PyPI nvidia-nccl-cu13==2.32.3): one name that it does not know makes NCCL forget the whole list in NCCL_DEBUG_SUBSYS.
#
# What happens: with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=BOOTSTRAP, ncclGetUniqueId prints lines of the bootstrap alone. With
# BOOTSTRAP,NETT (a typing error of NET) it prints those of the environment too: the default set is in force, as if the variable were not
# set. NET prints no line here, and NET,NETT the default set. A ^ before the second name of a list counts as such a name: NET,^ENV prints the lines
# of the environment, the very ones that were to be left out. Nothing says that a name was not known, at any level. A list that is empty, or
# only a comma, is not the default: it silences every INFO line.
#
# Why it surprises: the names that are right are thrown away with the wrong one, so a list that was to narrow the log widens it. Who
# asks for a subsystem that is not in the default set (COLL, P2P, TUNING) and mistypes a second one gets plenty of lines, and none of
# those that were asked for.
#
# It needs no GPU: ncclGetUniqueId opens no device. Takes under a minute with the install, into a temporary folder.
# Exit code: 0 the behaviour is as described, 1 it is not, 2 the package could not be had.
set -euo pipefail

readonly RUN_LIMIT_S=60
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 143' INT TERM
{ python3 -m venv "$work/venv" &&
    "$work/venv/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check --no-deps nvidia-nccl-cu13==2.32.3; } >&2 ||
    { echo "cannot install: pip does not give nvidia-nccl-cu13 2.32.3" >&2; exit 2; }
library=$(find "$work/venv" -name libnccl.so.2)
# The settings of whoever runs this script, and of this machine, must not reach the library.
unset ${!NCCL_*}
export NCCL_CONF_FILE=/dev/null NCCL_SOCKET_IFNAME=lo

cat >"$work/id.py" <<'PYTHON'
import ctypes, sys

library, version = ctypes.CDLL(sys.argv[1]), ctypes.c_int()
library.ncclGetVersion(ctypes.byref(version))
sys.exit(0 if version.value == 23203 and library.ncclGetUniqueId(ctypes.create_string_buffer(128)) == 0 else 1)
PYTHON

# Which of two lines were printed: of the environment (variables that are set), of the bootstrap (its interface).
seen() {
    local output kinds=
    output=$(NCCL_DEBUG=INFO timeout "$RUN_LIMIT_S" python3 "$work/id.py" "$library" 2>&1) || kinds+=" failed"
    [[ $output != *"NCCL INFO NCCL_SOCKET_IFNAME set by environment to lo"* ]] || kinds+=" environment"
    [[ $output != *"NCCL INFO Bootstrap: Using lo"* ]] || kinds+=" bootstrap"
    [[ $output != *"NETT"* ]] || kinds+=" names-it"
    echo "${kinds:- nothing}"
}

changed=0
check() {
    echo "$1:$2"
    [[ $2 == "$3" ]] || { echo "  changed: expected$3"; changed=1; }
}
check "(not set)" "$(seen)" " environment bootstrap"
while IFS=: read -r list expected; do
    check "'$list'" "$(NCCL_DEBUG_SUBSYS=$list seen)" " $expected"
done <<'CASES'
BOOTSTRAP:bootstrap
BOOTSTRAP,NETT:environment bootstrap
NET:nothing
NET,NETT:environment bootstrap
NET,^ENV:environment bootstrap
:nothing
,:nothing
CASES
((changed)) && exit 1
echo "as described"
