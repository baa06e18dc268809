#!/usr/bin/env bash
# NCCL 2.32.3 (PyPI nvidia-nccl-cu13==2.32.3): its configuration file sets any variable of the process, not NCCL's alone.
#
# What happens: the file that NCCL_CONF_FILE names (or ~/.nccl.conf, /etc/nccl.conf) has lines NAME=VALUE. The first call of NCCL puts each
# name that is not set yet into the environment of the process, whatever the name is: after ncclGetUniqueId, getenv("RANK")
# and getenv("OMP_NUM_THREADS") give what the file says, and every process that is started afterwards inherits them. Variables that are set
# already stay. The rest of a line is the value, a comment too: "NCCL_DEBUG=INFO # all of it" is the level "INFO # all of it", which is
# none, so nothing is logged and no message says so. A line with a blank before the = sets nothing.
#
# Why it surprises: NCCL's documentation describes the file as a place for NCCL's variables. A program reads RANK or OMP_NUM_THREADS
# before its first NCCL call and finds none, and a library that reads them later finds one, with no sign of where it came from. Python's
# os.environ, which is read once at the start, never shows them.
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
unset RANK OMP_NUM_THREADS LOCAL_RANK
export NCCL_CONF_FILE=$work/nccl.conf NCCL_SOCKET_IFNAME=lo

cat >"$work/nccl.conf" <<'CONF'
RANK=7
WORLD_SIZE=8
OMP_NUM_THREADS=1
LOCAL_RANK =3
NCCL_DEBUG=INFO # all of it
CONF
cat >"$work/show.py" <<'PYTHON'
import ctypes, os, subprocess, sys

library, getenv = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
NAMES = ["RANK", "WORLD_SIZE", "OMP_NUM_THREADS", "LOCAL_RANK", "NCCL_DEBUG"]


def show(when):
    print(when, *(f"{name}={(getenv(name.encode()) or b'(none)').decode()}" for name in NAMES), sep=", ", flush=True)


show("before")
version = ctypes.c_int()
library.ncclGetVersion(ctypes.byref(version))
assert version.value == 23203 and library.ncclGetUniqueId(ctypes.create_string_buffer(128)) == 0
show("after")
print("os.environ has RANK:", "RANK" in os.environ, flush=True)
pid = os.fork()  # A child that is given the environment of the process, not os.environ.
if pid == 0:
    ctypes.CDLL(None).system(b'echo "child, RANK=$RANK"')
    os._exit(0)
os.waitpid(pid, 0)
PYTHON

# WORLD_SIZE is set before, and stays.
found=$(WORLD_SIZE=2 timeout "$RUN_LIMIT_S" python3 "$work/show.py" "$library" 2>&1) || true
echo "$found"
[[ $found == "before, RANK=(none), WORLD_SIZE=2, OMP_NUM_THREADS=(none), LOCAL_RANK=(none), NCCL_DEBUG=(none)
after, RANK=7, WORLD_SIZE=2, OMP_NUM_THREADS=1, LOCAL_RANK=(none), NCCL_DEBUG=INFO # all of it
os.environ has RANK: False
child, RANK=7" ]] || { echo "changed"; exit 1; }
echo "as described"
