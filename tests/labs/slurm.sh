#!/usr/bin/env bash
# Runs a program beside a real Slurm that lives only as long as the program:
#   tests/labs/slurm.sh NODES PROGRAM [ARGUMENT]...
# slurmctld and NODES slurmd, nodes n0, n1 ... of 8 processors each, run in namespaces of their own (network, processes, mounts),
# so nothing of this machine's own Slurm is touched, and several labs run side by side. PROGRAM runs on a host named lab, and each
# node has a host name and an address of its own; network, processes and files are common. Ends with PROGRAM's exit code, or with
# 124 after LAB_LIMIT_S seconds (120). PROGRAM finds SLURM_CONF, TMPDIR and LAB (a folder for its files) set. Files there, and all
# processes, are gone when it ends. LAB_CONF: further lines for slurm.conf.
# Needs root, and Debian's slurmctld, slurmd and slurm-client; `srun --mpi=pmi2` and `pmix` slurm-wlm-basic-plugins.
set -euo pipefail

if [[ ${1-} != --inside ]]; then
    (($# >= 2)) || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
    # slurmctld and slurmd stand where a user's PATH does not lead.
    PATH=$PATH:/usr/sbin:/sbin
    for tool in slurmctld slurmd srun unshare ip; do
        command -v "$tool" >/dev/null || { echo "skipped: no $tool on this machine"; exit 0; }
    done
    ((EUID == 0)) || { echo "skipped: a Slurm lab needs root"; exit 0; }
    namespaces=(unshare --net --pid --uts --mount --ipc --fork --kill-child --mount-proc)
    "${namespaces[@]}" true 2>/dev/null || { echo "skipped: this machine permits no namespaces"; exit 0; }
    # Only the mount point lies on this machine: what the lab writes is in memory, and goes with the mount namespace.
    lab=$(mktemp -d)
    trap 'rmdir "$lab"' EXIT
    trap 'kill -KILL "$!"; wait 2>/dev/null; exit 143' INT TERM
    # --kill-child and the process namespace end all of the lab when `unshare` ends, however that comes about. stdin goes on by
    # name, since the shell gives a background command /dev/null.
    exec 3<&0
    "${namespaces[@]}" -- "$0" --inside "$lab" "$@" <&3 3<&- &
    status=0
    wait "$!" || status=$?
    exit "$status"
fi

lab=$2 nodes=$3
shift 3
readonly START_LIMIT_S=30 NETWORK=192.0.2
mount -t tmpfs -o mode=755 lab "$lab"
mkdir -m 1777 "$lab/tmp"
# What was set around the lab, such as the variables of a step in which it runs, is none of its jobs' business.
unset ${!SLURM_*} ${!SBATCH_*} ${!SALLOC_*} ${!PMI_*} ${!PMIX_*}
export LAB=$lab SLURM_CONF=$lab/slurm.conf TMPDIR=$lab/tmp
ip link set lo up
hostname lab
printf '127.0.0.1 localhost\n%s lab\n' "$NETWORK.250" >"$lab/hosts"
for ((node = 0; node < nodes; node++)); do echo "$NETWORK.$((node + 1)) n$node" >>"$lab/hosts"; done
# Open MPI does without the loopback interface, so the addresses are those of another. All its packets still go over `lo`.
ip link add lab0 type veth peer name lab1
ip link set lab0 up
ip link set lab1 up
for ((host = 1; host <= nodes; host++)); do ip address add "$NETWORK.$host/24" dev lab0; done
ip address add "$NETWORK.250/24" dev lab0
mount --bind "$lab/hosts" /etc/hosts

# auth/none and cred/none need no munge. batch_sched_delay and its like: by default, a batch job waits seconds for its turn.
# cred_expire: that long a requeued job waits. TmpFS: the PMIx plug-in of each slurmd wants a folder of its own there, and all
# slurmd share this host. cgroup/v1 is named, not used: otherwise slurmd asks systemd, which may not be here.
cat >"$SLURM_CONF" <<CONF
ClusterName=lab
SlurmctldHost=lab
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1
ReturnToService=2
KillWait=5
TmpFS=$lab/tmp.%n
StateSaveLocation=$lab/state
SlurmdSpoolDir=$lab/spool.%n
SlurmctldPidFile=$lab/slurmctld.pid
SlurmdPidFile=$lab/slurmd.%n.pid
SlurmdParameters=config_overrides
${LAB_CONF-}
NodeName=n[0-$((nodes - 1))] Port=[17000-$((17000 + nodes - 1))] CPUs=8 CoresPerSocket=8 RealMemory=100
PartitionName=lab Nodes=ALL Default=YES State=UP OverSubscribe=YES:4
CONF
echo "CgroupPlugin=cgroup/v1" >"$lab/cgroup.conf"
mkdir "$lab/state"
slurmctld -D -c >"$lab/slurmctld.log" 2>&1 </dev/null &
# A slurmd that finds no slurmctld waits a second before it asks again.
until (exec 3<>"/dev/tcp/lab/6817") 2>/dev/null || ((SECONDS >= START_LIMIT_S)); do sleep 0.01; done
for ((node = 0; node < nodes; node++)); do
    mkdir -m 1777 "$lab/tmp.n$node"
    unshare --uts bash -c "hostname n$node; exec slurmd -D" >"$lab/slurmd.n$node.log" 2>&1 </dev/null &
done
until [[ $(sinfo --noheader --states=idle --format=%D 2>/dev/null) == "$nodes" ]]; do
    if ((SECONDS >= START_LIMIT_S)); then
        echo "slurm.sh: the nodes are not idle after $START_LIMIT_S s:" >&2
        tail -n 5 "$lab"/*.log >&2
        exit 1
    fi
    sleep 0.02
done

timeout --foreground --kill-after=1 "${LAB_LIMIT_S:-120}" "$@"
