#!/usr/bin/env bash
# NCCL 2.32.3 (PyPI nvidia-nccl-cu13==2.32.3): the new ncclParam functions know ten variables, and NCCL_BUFFSIZE is none of them.
#
# What happens: nccl.h declares ncclParamBind, ncclParamGetParameter and ncclParamGetAllParameterKeys to look up NCCL's parameters; the last
# one gives "only parameters published in NCCL documentation", and all of them with NCCL_PARAM_DUMP_ALL=true. It gives 7, and 10. They are
# about logging and thread names. For NCCL_BUFFSIZE, NCCL_SOCKET_IFNAME and NCCL_MIN_NCHANNELS, which are documented, the result
# is 4 (ncclInvalidArgument), also where they are set and after ncclGetUniqueId has read NCCL_SOCKET_IFNAME. The library's file
# holds more than 370 names of variables.
#
# Why it surprises: "not known" here does not mean that NCCL does not have the variable. A tool that shows what is set, or that warns of
# mistyped names, cannot use the list: it would call nearly every variable of NCCL a mistake.
# Of the ten, NCCL_SET_THREAD_NAME shows how values are read: "1" and "true" are TRUE, and "2", "yes" and "on" are FALSE.
#
# It needs no GPU. Takes under a minute with the install, into a temporary folder.
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

cat >"$work/params.py" <<'PYTHON'
import ctypes, sys

library, keys, count, version = ctypes.CDLL(sys.argv[1]), ctypes.POINTER(ctypes.c_char_p)(), ctypes.c_int(), ctypes.c_int()
library.ncclGetVersion(ctypes.byref(version))
assert version.value == 23203 and library.ncclGetUniqueId(ctypes.create_string_buffer(128)) == 0
result = library.ncclParamGetAllParameterKeys(ctypes.byref(keys), ctypes.byref(count))
print(f"all keys: result {result}:", *sorted(keys[place].decode() for place in range(count.value)))
for name in sys.argv[2:]:
    value, length = ctypes.c_char_p(), ctypes.c_int()
    result = library.ncclParamGetParameter(name.encode(), ctypes.byref(value), ctypes.byref(length))
    print(f"{name}: result {result}, {value.value.decode() if value.value else 'no value'}")
PYTHON

params() { timeout "$RUN_LIMIT_S" python3 "$work/params.py" "$library" "$@" 2>&1 || true; }
export NCCL_BUFFSIZE=1048576 NCCL_MIN_NCHANNELS=2
found=$(
    params NCCL_BUFFSIZE NCCL_SOCKET_IFNAME NCCL_MIN_NCHANNELS
    NCCL_PARAM_DUMP_ALL=true params
    for value in 1 true 2 yes on; do NCCL_SET_THREAD_NAME=$value params NCCL_SET_THREAD_NAME | tail -n 1; done
)
names=$(grep -aoE 'NCCL_[A-Z0-9_]+' "$library" | sort -u | wc -l)
echo "$found"
echo "names in the file: $names"
[[ $names -gt 370 && $found == "all keys: result 0: NCCL_DEBUG NCCL_DEBUG_FILE NCCL_DEBUG_LEVELS NCCL_DEBUG_SUBSYS NCCL_DEBUG_TIMESTAMP_FORMAT \
NCCL_DEBUG_TIMESTAMP_LEVELS NCCL_SET_THREAD_NAME
NCCL_BUFFSIZE: result 4, no value
NCCL_SOCKET_IFNAME: result 4, no value
NCCL_MIN_NCHANNELS: result 4, no value
all keys: result 0: NCCL_DEBUG NCCL_DEBUG_FILE NCCL_DEBUG_LEVELS NCCL_DEBUG_SUBSYS NCCL_DEBUG_TIMESTAMP_FORMAT \
NCCL_DEBUG_TIMESTAMP_LEVELS NCCL_NO_CACHE NCCL_PARAM_DUMP_ALL NCCL_SET_THREAD_NAME NCCL_WARN_ENABLE_DEBUG_INFO
NCCL_SET_THREAD_NAME: result 0, TRUE
NCCL_SET_THREAD_NAME: result 0, TRUE
NCCL_SET_THREAD_NAME: result 0, FALSE
NCCL_SET_THREAD_NAME: result 0, FALSE
NCCL_SET_THREAD_NAME: result 0, FALSE" ]] || { echo "changed"; exit 1; }
echo "as described"
