#!/usr/bin/env bash
# Two jobs of 3 ranks at one meeting place, again and again, each started at a random moment within 0.3 s:
#   PROGRAM=tests/launch.rs, compiled  tests/labs/rounds.sh LAUNCHER PLACE ROUNDS [SEED]
# LAUNCHER is srun (inside tests/labs/slurm.sh, over 2 nodes), openmpi or mpich (on this host); PLACE is master, tcp, file or id.
# Prints the seed and how the rounds ended: both right; one refused with a sentence that names both jobs; MIXED; other. Each round
# that is neither of the first two is printed. Ends with 1 if there are any. LIMIT_S: no round begins after so many seconds.
set -euo pipefail
# shellcheck source=tests/labs/worlds.sh
. "${BASH_SOURCE%/*}/worlds.sh"

readonly LAUNCHER=$1 PLACE=$2 ROUNDS=$3 SEED=${4:-$$}
readonly RANKS=3 ROUND_LIMIT_S=25 LIMIT_S=${LIMIT_S:-600}
# A second job waits a quarter of it for the first one to leave the place.
export RSCCL_INIT_TIMEOUT_MS=20000
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
folder=$(mktemp -d) address=127.0.0.1
trap 'rm -rf "$folder"' EXIT
case $LAUNCHER in
    srun) address=192.0.2.1 launch=(srun --quiet --overlap -N 2 -n "$RANKS") ;;
    openmpi) launch=(mpirun.openmpi --oversubscribe -n "$RANKS") ;;
    mpich) launch=(mpirun.mpich -n "$RANKS") ;;
    *) sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
# Starts a rank late by its own share of the offsets.
# shellcheck disable=SC2016 # the rank's shell expands it
late='sleep "0.$(printf %03d "$((($0 + ${SLURM_PROCID:-${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}} * 97) % 300))")"; exec "$@"'
RANDOM=$SEED
declare -A ends=()
for ((round = 0; round < ROUNDS && SECONDS < LIMIT_S; round++)); do
    # Below the ports that the kernel gives to outgoing connections.
    port=$((20000 + (SEED * 211 + round) % 10000))
    case $PLACE in
        master) place=(MASTER_ADDR="$address" MASTER_PORT="$port") ;;
        tcp) place=(RSCCL_STORE="tcp://$address:$port") ;;
        file) place=(RSCCL_STORE="file://$folder/store.$round") ;;
        id) place=(NCCL_COMM_ID="$address:$port") ;;
        *) exit 2 ;;
    esac
    starts=() seen=()
    for job in 1 2; do
        # Two mpirun of Open MPI 4 fail now and then where they make one folder below TMPDIR.
        mkdir -p "$folder/tmp.$job"
        LAB_VALUE=$((1000 * job)) timeout --kill-after=1 "$ROUND_LIMIT_S" env "${place[@]}" TMPDIR="$folder/tmp.$job" \
            "${launch[@]}" bash -c "$late" "$((RANDOM % 300))" "${rank[@]}" >"$folder/$job" 2>&1 </dev/null &
        starts+=("$!")
    done
    for start in "${starts[@]}"; do wait "$start" || true; done
    for job in 1 2; do seen+=("$(verdict "$folder/$job" "${job}000" "$RANKS")"); done
    case ${seen[0]%% *},${seen[1]%% *} in
        right,right) end="both right" ;;
        right,refused | refused,right) end="one refused" ;;
        *MIXED*) end=MIXED ;;
        *) end=other ;;
    esac
    ends[$end]=$((${ends[$end]:-0} + 1))
    case $end in MIXED | other) echo "round $round: ${seen[0]} || ${seen[1]}" ;; esac
done
echo "$LAUNCHER $PLACE seed $SEED: $round rounds in $SECONDS s: both right ${ends[both right]:-0}," \
    "one refused ${ends[one refused]:-0}, MIXED ${ends[MIXED]:-0}, other ${ends[other]:-0}"
((${ends[MIXED]:-0} + ${ends[other]:-0} == 0))
