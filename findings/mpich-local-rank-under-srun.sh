#!/usr/bin/env bash
# MPICH 5.0.2 (PyPI mpich==5.0.2) and Slurm 22.05.8 (Debian 12): under `mpiexec`, every task of `srun` has local rank 0.
#
# What happens: a program that mpiexec started runs `srun --mpi=pmi2 -n 2 prog`. Slurm sets PMI_RANK and PMI_SIZE anew for its
# tasks: ranks 0 and 1 of 2. It knows nothing of MPI_LOCALRANKID and MPI_LOCALNRANKS, which MPICH's mpiexec sets beside them, so
# both tasks get those of the outer process: local rank 0, of 1 on this node. One environment describes two different jobs.
#
# Why it surprises: the four variables come from one launcher and are usually read as one set, so PMI_RANK for the rank and
# MPI_LOCALRANKID for the number on the node looks right, and it is right under mpiexec alone. Here two ranks on one node both find
# 0. If they pick a GPU by it, both take the first one. No variable is missing and no number is out of range, so a program that
# checks each one alone sees no mistake. SLURM_LOCALID, or a count of the ranks with the same host, gives the true number.
#
# Runs a Slurm of its own in namespaces, under a minute with the install. Needs root. MPICH goes into a temporary folder. So does
# Slurm, from apt-get, unless it is installed in this version.
# Exit code: 0 the behaviour is as described (or the script was skipped), 1 it is not, 2 the packages or the lab could not be had.
set -euo pipefail

readonly PINNED=22.05.8-4+deb12u3 START_LIMIT_S=20 RUN_LIMIT_S=60
readonly PACKAGES=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins libslurm38)

# Outside the namespaces: gets the packages, starts the lab, takes everything away at the end.
if [[ ${1-} != --inside ]]; then
    ((EUID == 0)) || { echo "skipped: this needs root"; exit 0; }
    namespaces=(unshare --net --pid --uts --mount --ipc --fork --kill-child --mount-proc)
    "${namespaces[@]}" true 2>/dev/null || { echo "skipped: no namespaces can be made here"; exit 0; }
    work=$(mktemp -d)
    chmod 755 "$work"
    lab=
    clean() {
        [[ -z $lab ]] || kill -KILL "$lab" 2>/dev/null || true
        wait
        rm -rf "$work"
    }
    trap clean EXIT
    trap 'exit 143' INT TERM
    root=
    for package in "${PACKAGES[@]}"; do
        have=$(dpkg-query -W -f '${db:Status-Status} ${Version}' "$package" 2>/dev/null || true)
        [[ $have == "installed $PINNED" ]] || root=$work/root
    done
    # Packages that are not installed in this version are unpacked, not installed, with those that they need.
    if [[ -n $root ]]; then
        mkdir -p "$work/debs/partial" "$root"
        apt-get -qq -y -o Dir::Cache::archives="$work/debs" -o APT::Sandbox::User=root install --download-only \
            --reinstall --allow-downgrades --no-install-recommends "${PACKAGES[@]/%/=$PINNED}" >&2 ||
            { echo "cannot install: apt-get does not give Slurm $PINNED" >&2; exit 2; }
        for deb in "$work"/debs/*.deb; do dpkg -x "$deb" "$root"; done
    fi
    { python3 -m venv "$work/venv" &&
        "$work/venv/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check mpich==5.0.2; } >&2 ||
        { echo "cannot install: pip does not give mpich 5.0.2" >&2; exit 2; }
    "${namespaces[@]}" -- bash "$(realpath "$0")" --inside "$work" "$root" </dev/null &
    lab=$!
    status=0
    wait "$lab" || status=$?
    lab=
    exit "$status"
fi

# Inside: one node, in this namespace, which is also the host of slurmctld and of srun.
work=$2 root=$3
mkdir "$work/lab" "$work/lab/state" "$work/lab/tmp"
cd "$work/lab"
# Variables of a job in which this script itself may run must not reach the lab.
unset ${!SLURM*} ${!SBATCH_*} ${!SRUN_*} ${!PMI*} ${!MPI_*} ${!HYD*}
export SLURM_CONF=$work/lab/slurm.conf TMPDIR=$work/lab/tmp PATH=$root/usr/sbin:$root/usr/bin:$PATH:/usr/sbin:/sbin
libraries=$root/usr/lib/x86_64-linux-gnu
[[ -z $root ]] || export LD_LIBRARY_PATH=$libraries/slurm-wlm:$libraries
# Slurm finds no address where there is only the loopback interface.
ip link set lo up
ip link add lab0 type veth peer name lab1
ip link set lab0 up
ip link set lab1 up
ip address add 192.0.2.1/24 dev lab0
hostname lab
printf '127.0.0.1 localhost\n192.0.2.1 lab\n' >hosts
mount --bind hosts /etc/hosts
cat >slurm.conf <<CONF
ClusterName=lab
SlurmctldHost=lab
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
MpiDefault=none
PluginDir=$libraries/slurm-wlm
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1
TmpFS=$work/lab/tmp
StateSaveLocation=$work/lab/state
SlurmdSpoolDir=$work/lab/spool
SlurmctldPidFile=$work/lab/slurmctld.pid
SlurmdPidFile=$work/lab/slurmd.pid
SlurmdParameters=config_overrides
NodeName=lab CPUs=8 CoresPerSocket=8 RealMemory=100
PartitionName=lab Nodes=ALL Default=YES State=UP OverSubscribe=YES:4
CONF
echo CgroupPlugin=cgroup/v1 >cgroup.conf
slurmctld-wlm -D -c >slurmctld.log 2>&1 &
until (exec 3<>/dev/tcp/lab/6817) 2>/dev/null || ((SECONDS >= START_LIMIT_S)); do sleep 0.02; done
slurmd-wlm -D -d "$(command -v slurmstepd-wlm)" >slurmd.log 2>&1 &
until [[ $(sinfo --noheader --states=idle --format=%D 2>/dev/null) == 1 ]]; do
    ((SECONDS < START_LIMIT_S)) || { echo "the lab did not start:" >&2; tail -n 5 ./*.log >&2; exit 2; }
    sleep 0.02
done

cat >show.sh <<'SHOW'
#!/bin/bash
# Each task writes one line.
line=
for name in PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS SLURM_LOCALID; do line+="$name=${!name--} "; done
echo "${line% }"
SHOW
chmod +x show.sh
mpiexec=$work/venv/bin/mpiexec
version=$("$mpiexec" --version | sed -n 's/^ *Version: *//p')
echo "mpiexec $version, $(srun --version)"
timeout "$RUN_LIMIT_S" "$mpiexec" -n 2 ./show.sh | sort >mpiexec.out
timeout "$RUN_LIMIT_S" srun --mpi=pmi2 -n 2 ./show.sh | sort >srun.out
timeout "$RUN_LIMIT_S" "$mpiexec" -n 1 srun --mpi=pmi2 -n 2 ./show.sh | sort >both.out
echo "--- mpiexec -n 2 (a - stands for a variable that is not set):"
cat mpiexec.out
echo "--- srun --mpi=pmi2 -n 2:"
cat srun.out
echo "--- mpiexec -n 1 srun --mpi=pmi2 -n 2:"
cat both.out

changed=()
expect() { grep -qxF -- "$2" "$1" || changed+=("$1 has no line '$2'"); }
[[ $version == 5.0.2 && $(srun --version) == "slurm-wlm 22.05.8" ]] || changed+=("another version: $version, $(srun --version)")
for rank in 0 1; do
    head="PMI_RANK=$rank PMI_SIZE=2"
    expect mpiexec.out "$head MPI_LOCALRANKID=$rank MPI_LOCALNRANKS=2 SLURM_LOCALID=-"
    expect srun.out "$head MPI_LOCALRANKID=- MPI_LOCALNRANKS=- SLURM_LOCALID=$rank"
    expect both.out "$head MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1 SLURM_LOCALID=$rank"
done
if ((${#changed[@]})); then
    printf 'changed: %s\n' "${changed[@]}"
    exit 1
fi
echo "as described: ranks 0 and 1 on one node both have local rank 0 of 1"
