#!/usr/bin/env bash
# Slurm 22.05.8 (Debian 12, 22.05.8-4+deb12u3): a batch script can have the SLURM_STEP_ID of a step of another job.
#
# What happens: a task of `srun` calls `sbatch`. The new batch script has its own SLURM_JOB_ID, SLURM_NTASKS, SLURM_PROCID=0 and
# SLURM_LOCALID=0. It also has SLURM_STEP_ID, SLURM_STEP_NUM_TASKS and SLURM_STEP_NODELIST, and these belong to the step from which
# it was submitted. sbatch takes its whole environment along, and at the start of the script Slurm replaces only the variables that
# a batch script has. It does not remove those that only a step has.
#
# Why it surprises: from a login node, a batch script has no SLURM_STEP_ID at all, and inside Slurm the batch step has a special
# number that is far above every ordinary one. So the test "SLURM_STEP_ID is there and is an ordinary number" looks like a safe way
# to tell a task of srun, which has peers, from a batch script, which is alone. It is not safe. A program started by such a script
# takes itself for rank 0 of a step: with SLURM_NTASKS=2 it waits for a rank 1 that nobody started. SLURM_JOB_ID and SLURM_STEP_ID
# together can even name a step that exists later: the first srun in the script is step 0, and the outer step often was 0 too.
#
# Runs a Slurm of its own in namespaces, a few seconds. Needs root. Packages come from apt-get, into a temporary folder, unless they
# are installed in this version.
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

cat >batch.sh <<'BATCH'
#!/bin/bash
for name in SLURM_{JOB_ID,NTASKS,PROCID,LOCALID} SLURM_STEP_{ID,NUM_TASKS,NODELIST}; do echo "$name=${!name-(not set)}"; done
BATCH
cat >submit.sh <<'SUBMIT'
#!/bin/bash
# Only one task of the step submits. A batch job of 2 tasks, of which Slurm itself starts none but the script.
((SLURM_PROCID == 2)) || exit 0
echo "outer_job=$SLURM_JOB_ID outer_step=$SLURM_STEP_ID outer_tasks=$SLURM_STEP_NUM_TASKS" >outer
sbatch --quiet --wait --ntasks=2 --output=inside.out batch.sh
SUBMIT
chmod +x batch.sh submit.sh
srun --version
timeout "$RUN_LIMIT_S" sbatch --quiet --wait --ntasks=2 --output=login.out batch.sh
# The submitting step is number 1 of its job, so that its number is not the one that any first step has.
timeout "$RUN_LIMIT_S" salloc --quiet --ntasks=3 bash -c 'srun true && srun ./submit.sh'
echo "--- batch script, submitted outside of every step:"
cat login.out
echo "--- batch script, submitted by a task of srun ($(<outer)):"
cat inside.out

changed=()
expect() { grep -qxF -- "$2" "$1" || changed+=("$1: expected $2, found $(grep -F -- "${2%%=*}=" "$1" || echo nothing)"); }
eval "$(<outer)"
[[ $(srun --version) == "slurm-wlm 22.05.8" ]] || changed+=("another version: $(srun --version)")
for name in ID NUM_TASKS NODELIST; do expect login.out "SLURM_STEP_$name=(not set)"; done
for out in login.out inside.out; do
    expect "$out" SLURM_NTASKS=2
    expect "$out" SLURM_PROCID=0
    expect "$out" SLURM_LOCALID=0
done
expect inside.out "SLURM_JOB_ID=$((outer_job + 1))"
expect inside.out "SLURM_STEP_ID=$outer_step"
expect inside.out "SLURM_STEP_NUM_TASKS=$outer_tasks"
expect inside.out SLURM_STEP_NODELIST=lab
((outer_step == 1 && outer_tasks == 3)) || changed+=("the outer step is not 1 with 3 tasks: $(<outer)")
if ((${#changed[@]})); then
    printf 'changed: %s\n' "${changed[@]}"
    exit 1
fi
echo "as described: the batch script has the number and the size of the step that submitted it"
