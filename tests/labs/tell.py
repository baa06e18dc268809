#!/usr/bin/env -S python3 -S -E
"""Tells what launchers have done to this process: their variables, and the processes it descends from.

tell.py [FOLDER]: one JSON object, on stdout or in a new file of FOLDER. An ancestor's variables are those it was started with:
/proc/PID/environ does not follow setenv.
"""
import json
import os
import sys

PREFIXES = (
    "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_", "GROUP_", "OMPI_", "PMIX_", "PMI_", "PMI2_", "PRTE_", "HYDI_",
    "HYDRA_", "MPI_LOCAL", "RSCCL_", "SLURM_HET_", "SLURM_SRUN_COMM",
)
SLURM = (
    "PROCID", "JOB_ID", "STEP_ID", "STEPID", "NTASKS", "STEP_NUM_TASKS", "STEP_NUM_NODES", "NNODES", "LOCALID", "NODEID",
    "RESTART_COUNT", "JOB_NUM_NODES", "LAUNCH_NODE", "LAUNCH_NODE_IPADDR", "STEP_NODELIST", "MPI_TYPE", "ARRAY_JOB_ID",
    "ARRAY_TASK_ID", "TASK_PID",
)  # fmt: skip
OF_ANCESTORS = (
    "RSCCL_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID", "SLURM_STEP_ID", "SLURM_JOB_ID",
    "PMI_JOBID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "TORCHELASTIC_RUN_ID",
)  # fmt: skip


def is_ours(name):
    return name.startswith(PREFIXES) or name.removeprefix("SLURM_") in SLURM and name.startswith("SLURM_")


def ancestor(pid):
    with open(f"/proc/{pid}/stat", "rb") as file:
        text = file.read()
    begin, end = text.index(b"("), text.rindex(b")")
    fields = text[end + 2 :].split()
    told = {"pid": pid, "comm": text[begin + 1 : end].decode(), "start": int(fields[19]), "parent": int(fields[1])}
    told["uid"] = os.stat(f"/proc/{pid}").st_uid
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = [entry.decode(errors="replace").partition("=") for entry in file.read().split(b"\0") if entry]
        told["readable"] = True
        told["variables"] = len(pairs)
        told["has"] = {name: value for name, _, value in pairs if name in OF_ANCESTORS}
    except OSError as error:
        told["readable"] = False
        told["why"] = error.strerror
    return told


def main():
    told = {"pid": os.getpid(), "uid": os.getuid(), "ancestors": []}
    told["env"] = {name: value for name, value in sorted(os.environ.items()) if is_ours(name)}
    pid = os.getppid()
    while pid > 0:
        told["ancestors"].append(ancestor(pid))
        pid = told["ancestors"][-1]["parent"]
    text = json.dumps(told)
    if len(sys.argv) < 2:
        print(text, flush=True)
        return
    path = f"{sys.argv[1]}/{os.getpid()}"
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path + ".json")


main()
