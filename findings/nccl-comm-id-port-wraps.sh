#!/usr/bin/env bash
# NCCL 2.32.3 (PyPI nvidia-nccl-cu13==2.32.3): the port in NCCL_COMM_ID is taken modulo 65,536, and what is no number is port 0.
#
# What happens: with NCCL_COMM_ID=127.0.0.1:99999 ncclGetUniqueId returns ncclSuccess, and the id leads to port 34463, which is 99999 - 65536.
# 127.0.0.1:65536 and 127.0.0.1:abc give port 0, 127.0.0.1:-1 gives 65535, and 127.0.0.1:29500x gives 29500. None of them is an error, and
# NCCL_DEBUG=WARN prints nothing.
#
# Why it surprises: a host that cannot be resolved is an error (result 4, ncclInvalidArgument), in the same variable and call. A port that
# was made by counting up, or from a job number, goes over the border without a word, and all ranks that read the same text get the same
# wrong port: one that no firewall was opened for, or that belongs to another program. Another library that reads the variable and
# refuses such a port, or that wants to meet at NCCL's, differs from NCCL on purpose.
#
# It needs no GPU: ncclGetUniqueId with this variable opens no device. Takes under a minute with the install, into a temporary folder.
# Exit code: 0 the behaviour is as described, 1 it is not, 2 the package could not be had.
set -euo pipefail

readonly RUN_LIMIT_S=60
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 143' INT TERM
{ python3 -m venv "$work/venv" &&
    "$work/venv/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check --no-deps nvidia-nccl-cu13==2.32.3; } >&2 ||
    { echo "cannot install: pip does not give nvidia-nccl-cu13 2.32.3" >&2; exit 2; }

cat >"$work/id.py" <<'PYTHON'
import ctypes, struct, sys


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 128)]


library, unique_id, version = ctypes.CDLL(sys.argv[1]), UniqueId(), ctypes.c_int()
library.ncclGetVersion(ctypes.byref(version))
result = library.ncclGetUniqueId(ctypes.byref(unique_id))
# Eight bytes, then a socket address: its family, and its port in network order.
family, = struct.unpack_from("<H", bytes(unique_id.bytes), 8)
port, = struct.unpack_from(">H", bytes(unique_id.bytes), 10)
print(f"version {version.value}, result {result}, family {family}, port {port}")
PYTHON

library=$(find "$work/venv" -name libnccl.so.2)
changed=0
for case in 29500=29500 99999=34463 65536=0 abc=0 -1=65535 29500x=29500; do
    found=$(NCCL_COMM_ID=127.0.0.1:${case%=*} NCCL_DEBUG=WARN timeout "$RUN_LIMIT_S" python3 "$work/id.py" "$library" 2>&1) || true
    echo "NCCL_COMM_ID=127.0.0.1:${case%=*}: $found"
    # The version line of NCCL_DEBUG=WARN may stand before it.
    [[ ${found##*$'\n'} == "version 23203, result 0, family 2, port ${case#*=}" ]] || changed=1
done
found=$(NCCL_COMM_ID=host.invalid:29500 timeout "$RUN_LIMIT_S" python3 "$work/id.py" "$library" 2>&1) || true
echo "NCCL_COMM_ID=host.invalid:29500: ${found##*$'\n'}"
[[ ${found##*$'\n'} == "version 23203, result 4, "* ]] || changed=1
((changed)) && { echo "changed"; exit 1; }
echo "as described"
