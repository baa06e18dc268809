#!/usr/bin/env bash
# Real jobs of Slurm, alone, side by side at one meeting place, and inside other launchers: no two ever form one world.
#   PROGRAM=tests/launch.rs, compiled  tests/labs/slurm.sh 3 tests/labs/jobs.sh [CASE]...
# Prints "case NAME: right" or "case NAME: WRONG: what was seen"; "skipped: ..." for a case that needs what is not here. Ends with
# 1 if anything is wrong.
set -euo pipefail
# shellcheck source=tests/labs/worlds.sh
. "${BASH_SOURCE%/*}/worlds.sh"

# The nodes have one network: the address of each of them is this host's.
readonly ADDRESS=192.0.2.1 LIMIT_S=25 OUT=$LAB/tmp
# A second job waits a quarter of it for the first one to leave a place.
export RSCCL_INIT_TIMEOUT_MS=20000
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
wanted=" $* " failed=0 port=29500
plugins=" $(srun --mpi=list 2>&1 | tr '\n\t' '  ') "

wants() { [[ $wanted == "  " || $wanted == *" $1 "* ]]; }

tell() { # CASE VERDICT
    if [[ $2 == right ]]; then
        echo "case $1: right"
    else
        echo "case $1: WRONG: $2"
        failed=1
    fi
}

# Whether `srun --mpi=PLUGIN` is here; else says which case is skipped.
has_plugin() { # PLUGIN CASE
    [[ $plugins == *" $1 "* ]] || { skip "$2" "no plug-in $1 of Slurm on this machine"; return 1; }
}

skip() { # CASE WHY
    if wants "$1"; then echo "skipped: case $1: $2"; fi
}

# Runs COMMAND, the job with this number. Its words lie in FILE.
run() { # FILE NUMBER COMMAND...
    LAB_VALUE=$2 timeout --kill-after=1 "$LIMIT_S" "${@:3}" >"$OUT/$1" 2>&1 </dev/null || true
}

# COMMAND is one job of SIZE ranks.
alone() { # CASE SIZE COMMAND...
    wants "$1" || return 0
    run "$1" 1000 "${@:3}"
    tell "$1" "$(verdict "$OUT/$1" 1000 "$2")"
}

# COMMAND is one job, of which RANKS ranks end with an error that contains all WORDS (separated by /), within LIMIT seconds.
error() { # CASE RANKS LIMIT WORDS COMMAND...
    wants "$1" || return 0
    local begun=$SECONDS seen=right word words
    run "$1" 1000 "${@:5}"
    IFS=/ read -ra words <<<"$4"
    for word in "${words[@]}"; do
        if [[ $(grep -a 'LAB 1000 error: ' "$OUT/$1" | grep -cF -- "$word") != "$2" ]]; then
            seen="'$word' is not in $2 errors: $(verdict "$OUT/$1" 1000 "$2")"
        fi
    done
    ((SECONDS - begun <= $3)) || seen="took $((SECONDS - begun)) s, more than $3"
    tell "$1" "$seen"
}

# Two steps side by side in one allocation, over two nodes, of SIZES ranks. They share the place that VARIABLE=VALUE... name, where
# @ stands for a number of its own for each round. Both end right, unless this machine is so busy that the second does not wait
# long enough for the first: then it is refused.
pair() { # CASE ROUNDS SIZES VARIABLE=VALUE...
    wants "$1" || return 0
    local place=("${@:4}") sizes seen=() starts wrong="" round job
    read -ra sizes <<<"$3"
    for ((round = 0; round < $2; round++)); do
        port=$((port + 1)) starts=()
        for job in 0 1; do
            run "$1.$job" "$((1000 * (job + 1)))" env "${place[@]//@/$port}" srun --jobid="$allocation" --overlap --quiet \
                -N 2 -n "${sizes[job]}" bash -c "$STAGGERED" "$((round * 5 + job * 2))" "${rank[@]}" &
            starts+=("$!")
        done
        wait "${starts[@]}"
        for job in 0 1; do seen[job]=$(verdict "$OUT/$1.$job" "$((1000 * (job + 1)))" "${sizes[job]}"); done
        case ${seen[0]%% *},${seen[1]%% *} in
            right,right | right,refused | refused,right) ;;
            *) wrong+="round $round: ${seen[0]} || ${seen[1]}; " ;;
        esac
    done
    tell "$1" "${wrong:-right}"
}

# Starts a rank 0 to 0.3 s late: either job comes first in some rounds, and its ranks come between those of the other.
# shellcheck disable=SC2016 # the rank's shell expands it
readonly STAGGERED='sleep "0.$((($0 + SLURM_PROCID * 3) % 4))"; exec "$@"'

# A command line for `sh -c` that starts the rank: it has no characters that a shell takes for more than themselves.
words=${rank[*]}
master=(MASTER_ADDR="$ADDRESS" MASTER_PORT=29400)

# What users do.
alone one_node 3 srun --quiet -N 1 -n 3 "${rank[@]}"
alone one_node_with_master 3 env "${master[@]}" srun --quiet -N 1 -n 3 "${rank[@]}"
for plugin in none pmi2 pmix; do
    has_plugin "$plugin" "three_nodes_$plugin" || continue
    alone "three_nodes_$plugin" 5 env "${master[@]}" srun --quiet --mpi="$plugin" -N 3 -n 5 "${rank[@]}"
done
# With nothing but the launcher: its process manager gives the id on.
if has_plugin pmi2 pmi2_alone; then alone pmi2_alone 5 srun --quiet --mpi=pmi2 -N 3 -n 5 "${rank[@]}"; fi
if has_plugin pmix pmix_alone; then alone pmix_alone 5 srun --quiet --mpi=pmix -N 3 -n 5 "${rank[@]}"; fi
if has_plugin pmix pmix_without_one; then
    # A fence waits without end for a rank that never comes to it: the deadline is the callers' own.
    # shellcheck disable=SC2016 # the rank's shell expands it
    error pmix_without_one 3 12 "timed out after 3.0 s (RSCCL_INIT_TIMEOUT_MS)/wait for all ranks (PMIx_Fence)" \
        env RSCCL_INIT_TIMEOUT_MS=3000 srun --quiet --mpi=pmix -N 2 -n 4 \
        sh -c '[ "$SLURM_PROCID" = 3 ] && exec sleep 5; exec "$0" "$@"' "${rank[@]}"
fi
if command -v mpirun.openmpi >/dev/null; then
    alone open_mpi_alone 4 salloc --quiet -N 2 -n 4 mpirun.openmpi -n 4 "${rank[@]}"
else
    skip open_mpi_alone "no mpirun.openmpi on this machine"
fi
if command -v mpiexec.mpich >/dev/null; then
    alone hydra_alone 4 salloc --quiet -N 2 -n 4 mpiexec.mpich -launcher slurm -n 4 "${rank[@]}"
else
    skip hydra_alone "no mpiexec.mpich on this machine"
fi
# With nothing at all: a port of the first node, which need not have rank 0, and which other jobs on it may have, too.
alone slurm_alone 5 srun --quiet -N 3 -n 5 "${rank[@]}"
printf 'n%d\n' 1 0 1 >"$OUT/hosts"
alone slurm_alone_arbitrary 3 env SLURM_HOSTFILE="$OUT/hosts" srun --quiet -n 3 -m arbitrary "${rank[@]}"
alone slurm_alone_ports 4 env RSCCL_PORT_RANGE=21000-21015 RSCCL_SECRET=hush srun --quiet -N 2 -n 4 "${rank[@]}"
alone slurm_alone_het 3 salloc --quiet -n 1 : -n 2 srun --quiet --het-group=0,1 "${rank[@]}"
# shellcheck disable=SC2016 # the rank's shell expands it
no_names='[ "$SLURM_PROCID" = 0 ] || mount --bind /dev/null /etc/hosts; exec "$0" "$@"'
error slurm_alone_no_names 2 12 "the node n0 has no address on this host/set MASTER_ADDR to an address of the node of rank 0" \
    env RSCCL_INIT_TIMEOUT_MS=8000 srun --quiet -N 3 -n 3 unshare --mount sh -c "$no_names" "${rank[@]}"
if wants slurm_alone_restarted; then
    # As where a job was requeued, and ranks from before still run and hold their ports.
    # shellcheck disable=SC2016 # the rank's shell expands it
    both='SLURM_RESTART_COUNT=1 LAB_VALUE=2000 "$0" "$@" & "$0" "$@"; wait'
    run slurm_alone_restarted 1000 srun --quiet -N 2 -n 3 sh -c "$both" "${rank[@]}"
    for number in 1000 2000; do
        grep -a "LAB $number " "$OUT/slurm_alone_restarted" >"$OUT/slurm_alone_restarted.$number" || true
    done
    tell slurm_alone_restarted "$(for number in 1000 2000; do verdict "$OUT/slurm_alone_restarted.$number" "$number" 3; done | uniq | tr '\n' ' ' | sed 's/ $//')"
fi
if wants slurm_alone_often; then
    often=right
    for ((start = 0; start < 20; start++)); do
        run slurm_alone_often 1000 srun --quiet -N 2 -n 3 "${rank[@]}"
        seen=$(verdict "$OUT/slurm_alone_often" 1000 3)
        [[ $seen == right ]] || often="start $start: $seen"
    done
    tell slurm_alone_often "$often"
fi
alone het 3 env "${master[@]}" salloc --quiet -n 1 : -n 2 srun --quiet --het-group=0,1 "${rank[@]}"

# Side by side.
allocation=$(salloc --no-shell -N 2 -n 6 2>&1 | sed -n 's/.*Granted job allocation //p')
pair pair_master 4 "3 3" MASTER_ADDR="$ADDRESS" MASTER_PORT=@
pair pair_master_sizes 4 "2 3" MASTER_ADDR="$ADDRESS" MASTER_PORT=@
pair pair_comm_id 2 "3 3" NCCL_COMM_ID="$ADDRESS:@"
pair pair_tcp 2 "3 3" RSCCL_STORE="tcp://$ADDRESS:@"
pair pair_alone 4 "3 3"
pair pair_file 2 "3 3" RSCCL_STORE="file://$OUT/store.@"
scancel "$allocation"
if wants array; then
    # shellcheck disable=SC2016 # the batch script expands it
    # The tasks of the array set the number.
    run array 0 env "${master[@]}" sbatch --quiet --wait --array=1-2 -N 2 -n 3 --output="$OUT/array.%a" \
        --wrap 'LAB_VALUE=$((1000 * SLURM_ARRAY_TASK_ID)) srun --quiet '"$words"
    tell array "$(for task in 1 2; do verdict "$OUT/array.$task" "${task}000" 3; done | uniq | tr '\n' ' ' | sed 's/ $//')"
fi

# Inside others.
alone stale_pmi 3 env PMI_RANK=0 PMI_SIZE=1 srun --quiet --mpi=none -n 3 "${rank[@]}"
alone stale_open_mpi 3 env OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 srun --quiet -n 3 "${rank[@]}"
error stale_by_hand 3 5 "RANK=0 and WORLD_SIZE=1/SLURM_STEP_NUM_TASKS=3 (Slurm)" \
    env RANK=0 WORLD_SIZE=1 srun --quiet -n 3 "${rank[@]}"
if has_plugin pmix world_size_of_nodes; then
    alone world_size_of_nodes 3 env WORLD_SIZE=2 srun --quiet --mpi=pmix -n 3 "${rank[@]}"
fi
if command -v mpirun.openmpi >/dev/null; then
    batch=(sbatch --quiet --wait --output="$OUT/batch.out")
    alone batch_in_open_mpi 3 sh -c 'mpirun.openmpi -n 1 "$@"; cat "$0"' "$OUT/batch.out" "${batch[@]}" -n 3 \
        --wrap "srun --quiet $words"
    alone open_mpi_in_batch 3 env "${master[@]}" sh -c '"$@"; cat "$0"' "$OUT/batch.out" "${batch[@]}" -N 2 -n 3 \
        --wrap "mpirun.openmpi -n 3 $words"
else
    for name in batch_in_open_mpi open_mpi_in_batch; do skip "$name" "no mpirun.openmpi on this machine"; done
fi

# As in containers. The rank's program may lie in the /tmp that it no longer sees.
# shellcheck disable=SC2016 # the rank's shell expands it
own_tmp='exec 9<"$0"; mount -t tmpfs none /tmp; exec /proc/self/fd/9 "$@"'
alone own_tmp 3 srun --quiet -n 3 unshare --mount sh -c "$own_tmp" "${rank[@]}"
alone own_processes 3 srun --quiet -n 3 unshare --pid --fork --mount-proc "${rank[@]}"
alone own_session 3 srun --quiet -n 3 setsid --wait "${rank[@]}"

# Rank 1 dies while it waits with others for rank 3, which never comes.
# shellcheck disable=SC2016 # the rank's shell expands it
dies='case $SLURM_PROCID in 1) "$0" "$@" & sleep 1; kill -KILL $!; exit ;; 3) sleep 2; exit ;; esac; exec "$0" "$@"'
error killed_rank 2 6 "rank 1 has died" srun --quiet -n 4 sh -c "$dies" "${rank[@]}"
exit "$failed"
