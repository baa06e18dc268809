#!/usr/bin/env bash
# PyTorch 2.15.0: TCPStore.add past 2^63 - 1 gives a negative number, and no error.
#
# What happens: a key of torch.distributed.TCPStore holds 9223372036854775807. add(key, 1) returns -9223372036854775808, and that is
# what the store then holds and every other process reads. add(key, -1) goes back over the same border. Both servers do so, the one
# with use_libuv=True and the one with use_libuv=False, and so does a counter whose number came from set().
#
# Why it surprises: a shared counter is expected to refuse what it cannot hold. In the same call the
# Python side does check: add(key, 2**63) is a TypeError, so a number that does not fit is refused as an argument and accepted as a
# sum. Programs use add() to hand out tickets and to count arrivals until `count >= world_size`, and that comparison is false after
# the jump. Another server for the same clients that wants to give the same answers has to wrap on purpose, also where its language
# would rather stop the program.
#
# Installs torch==2.15.0 from PyPI, with all it needs: a download of several GB, into a temporary folder that is removed at the end.
# TORCH_PYTHON=/path/to/python uses that Python's torch, and installs nothing. Servers listen on a free port of 127.0.0.1.
# Exit code: 0 the behaviour is as described, 1 it is not, 2 torch could not be had.
set -euo pipefail

readonly RUN_LIMIT_S=120
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 143' INT TERM
python=${TORCH_PYTHON-}
if [[ -z $python ]]; then
    python=$work/venv/bin/python
    export TMPDIR=$work
    { python3 -m venv "$work/venv" &&
        "$python" -m pip install --quiet --no-cache-dir --disable-pip-version-check torch==2.15.0; } >&2 ||
        { echo "cannot install: pip does not give torch 2.15.0" >&2; exit 2; }
fi

cat >"$work/add.py" <<'PY'
import datetime
import sys

import torch
from torch.distributed import TCPStore

MAX, MIN = 2**63 - 1, -(2**63)
changed = []


def expect(what, found, expected):
    print(f"  {what}: {found!r}")
    if found != expected:
        changed.append(f"{what} gives {found!r}, not {expected!r}")


def attempt(call):
    try:
        return call()
    except Exception as error:
        return type(error).__name__


print("torch", torch.__version__)
if torch.__version__.split("+")[0] != "2.15.0":
    changed.append(f"another version: {torch.__version__}")
limit = datetime.timedelta(seconds=20)
for libuv in (True, False):
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit, use_libuv=libuv)
    client = TCPStore("127.0.0.1", server.port, is_master=False, timeout=limit)
    print(f"use_libuv={libuv}")
    expect("is the libuv server", server.libuvBackend, libuv)
    expect("add('a', 2**63 - 1)", attempt(lambda: server.add("a", MAX)), MAX)
    expect("add('a', 1)", attempt(lambda: server.add("a", 1)), MIN)
    expect("get('a') by another client", attempt(lambda: client.get("a")), str(MIN).encode())
    expect("add('a', -1)", attempt(lambda: client.add("a", -1)), MAX)
    server.set("b", str(MAX))
    expect("set('b', '9223372036854775807'), add('b', 2)", attempt(lambda: client.add("b", 2)), MIN + 1)
    expect("add('c', 2**63)", attempt(lambda: server.add("c", MAX + 1)), "TypeError")
for line in changed:
    print("changed:", line)
if changed:
    sys.exit(1)
print("as described: the sum wraps around in both servers, without an error")
PY
# -W: torch warns when there is no numpy, which is not needed here.
timeout "$RUN_LIMIT_S" "$python" -W ignore "$work/add.py"
