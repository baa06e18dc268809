#!/usr/bin/env bash
# Ranks that real torchruns start, of each version of PyTorch given:
#   tests/labs/torchrun.sh VERSION...            e.g. 2.4.1 2.9.1 2.15.0
# Each is installed in a temporary folder, one after the other (up to 6 GB each), unless TORCH_PYTHON names a Python that has it. For
# each: the tests of the agent's store beside PyTorch's own store, both back ends; jobs on one host by all three rendezvous; a host with
# 4,000 outgoing connections; two agents; a worker that is killed below one of two agents; two jobs with neighbouring ports.
# Prints a line a case, and fails if one is wrong.
set -euo pipefail
cd "$(dirname "$0")/../.."
readonly LIMIT_S=120 JOBS=5 BUSY_JOBS=20 CONNECTIONS=4000
scratch=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$scratch"' EXIT
wrong=0

# A line is right where the job has ended well and every rank has the sum of its own world.
judge() {
    local name=$1 ranks=$2 status=$3 output=$4 right
    right=$(grep -c "^LAB 1000 rank [0-9]* of $ranks: total $((1000 * ranks))\$" "$output") || true
    if ((status == 0 && right >= ranks)); then
        echo "case $name: right"
    else
        echo "case $name: WRONG: exit code $status, $right of $ranks ranks have the right sum"
        grep -v '^$' "$output" | tail -n 12
        wrong=$((wrong + 1))
    fi
}

job() {
    timeout "$LIMIT_S" "$python" -m torch.distributed.run "$@" --no-python "$program" worker --exact --ignored --nocapture
}

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# Two agents of two workers each; the words are the rendezvous.
agents() {
    local status=0 first
    job --nnodes=2 --nproc-per-node=2 --node-rank=0 "$@" >"$scratch/agent0" 2>&1 &
    first=$!
    job --nnodes=2 --nproc-per-node=2 --node-rank=1 "$@" >"$scratch/agent1" 2>&1 || status=$?
    wait "$first" || status=$?
    cat "$scratch/agent0" "$scratch/agent1" >"$scratch/out"
    return "$status"
}

cases() {
    local status port number
    for number in $(seq "$JOBS"); do
        status=0; job --standalone --nproc-per-node=4 >"$scratch/out" 2>&1 || status=$?
        judge "torch $version, standalone, $number" 4 "$status" "$scratch/out"
    done
    port=$(free_port)
    status=0; job --nproc-per-node=3 --rdzv-backend=static --master-addr=127.0.0.1 --master-port="$port" >"$scratch/out" 2>&1 || status=$?
    judge "torch $version, static" 3 "$status" "$scratch/out"
    port=$(free_port)
    status=0; job --nproc-per-node=3 --rdzv-backend=c10d --rdzv-endpoint="127.0.0.1:$port" --rdzv-id=lab >"$scratch/out" 2>&1 || status=$?
    judge "torch $version, c10d" 3 "$status" "$scratch/out"
    port=$(free_port)
    status=0; agents --rdzv-backend=c10d --rdzv-endpoint="127.0.0.1:$port" --rdzv-id=lab || status=$?
    judge "torch $version, two agents" 4 "$status" "$scratch/out"
    port=$(free_port)
    status=0; agents --rdzv-backend=static --master-addr=127.0.0.1 --master-port="$port" || status=$?
    judge "torch $version, two agents, static" 4 "$status" "$scratch/out"
    # A worker kills itself in the first round, once; all meet in the next one.
    port=$(free_port)
    rm -f "$scratch/killed"
    printf '#!/bin/sh\nif [ "$RANK" = 3 ] && mkdir "%s/killed" 2>/dev/null; then sleep 1; kill -9 $$; fi\nexec "%s" "$@"\n' \
        "$scratch" "$real" >"$scratch/once"
    chmod +x "$scratch/once"
    program=$scratch/once
    status=0; agents --max-restarts=2 --rdzv-backend=c10d --rdzv-endpoint="127.0.0.1:$port" --rdzv-id=lab || status=$?
    program=$real
    judge "torch $version, a worker is killed" 4 "$status" "$scratch/out"
    neighbours
    busy
}

# Users count ports up by one: the second job's agent has the port above the first one's.
neighbours() {
    local port status=0 first
    port=$(free_port)
    job --nproc-per-node=2 --rdzv-backend=static --master-addr=127.0.0.1 --master-port="$port" >"$scratch/first" 2>&1 &
    first=$!
    job --nproc-per-node=2 --rdzv-backend=static --master-addr=127.0.0.1 --master-port="$((port + 1))" >"$scratch/out" 2>&1 || status=$?
    judge "torch $version, the port above another job's" 2 "$status" "$scratch/out"
    status=0; wait "$first" || status=$?
    judge "torch $version, the port below another job's" 2 "$status" "$scratch/first"
}

# Outgoing connections have the even half of the ports: a store at MASTER_PORT + 1 met one of them in a third of all jobs.
busy() {
    local number status connections
    (ulimit -n $((4 * CONNECTIONS)) && exec python3 - "$CONNECTIONS" <<'PYTHON'
import socket, sys, time
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(4096)
kept = []
for _ in range(int(sys.argv[1])):
    kept.append(socket.create_connection(listener.getsockname()))
    kept.append(listener.accept())
time.sleep(3600)
PYTHON
    ) &
    connections=$!
    until (($(ss -Htn state established 2>/dev/null | wc -l) >= CONNECTIONS)) || ! kill -0 "$connections"; do sleep 0.1; done
    for number in $(seq "$BUSY_JOBS"); do
        status=0; job --standalone --nproc-per-node=2 >"$scratch/out" 2>&1 || status=$?
        judge "torch $version, $CONNECTIONS connections, $number" 2 "$status" "$scratch/out"
    done
    kill "$connections"
    wait "$connections" 2>/dev/null || true
}

export LAB_VALUE=1000 OMP_NUM_THREADS=1 RSCCL_INIT_TIMEOUT_MS=30000
real=$(cargo test --locked --features cli --test launch --no-run 2>&1 | sed -n 's/.*(\(.*launch-[0-9a-f]*\))$/\1/p')
program=$real
for version in "$@"; do
    python=${TORCH_PYTHON-}
    if [[ -z $python ]]; then
        python3 -m venv "$scratch/venv"
        python=$scratch/venv/bin/python
        "$python" -m pip install --quiet "torch==$version" 'numpy<2' || { echo "skipped: no network for torch $version"; continue; }
    fi
    RSCCL_TEST_TORCH=$python cargo test --locked --quiet --features cli --test stores -- torch
    cases
    rm -rf "$scratch/venv"
done
((wrong == 0))
