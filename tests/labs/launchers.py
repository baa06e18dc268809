#!/usr/bin/env python3
"""Writes tests/data/launchers: what rank 1 of 2 sees under each launcher, and under each launcher that another one has started.

    tests/labs/slurm.sh 2 tests/labs/launchers.py FOLDER [NAME]...

NAME is a launcher or OUTER__INNER; without names, all are run, which takes three minutes. Runs as root in the lab; the jobs run as
`nobody`, since most users are not root. Launchers that are not installed are skipped. Where those that Debian has not are found:
RSCCL (the command line tool), TORCHRUN, OPENMPI5, MPICH5 and IMPI (folders with bin and lib). FACTS, if set, is a folder for all
that tell.py says of each rank.

A file of the folder has a comment with the versions, and then
    env NAME=VALUE              a variable of the rank
    ancestor COMM readable      a process it descends from, the nearest first; `unreadable`: not its environment
    has NAME=VALUE              a variable that this ancestor was started with
    expect SOURCE RANK SIZE     what the innermost launcher has said, or `expect none` where the process is no rank
"""
import json
import os
import re
import shutil
import subprocess
import sys
import time
from typing import NamedTuple

LAB = os.environ["LAB"]
HERE = os.path.dirname(os.path.abspath(__file__))
TELL = f"{LAB}/tell.py"
USER = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
AS_ROOT = "-as-root"
# One job may run this long: torchrun takes some seconds on a busy machine.
LIMIT_S = 40

# Launchers' variables that say nothing of ranks and jobs, and paths and ports of one machine.
NOISE = re.compile(
    "OMPI_(?!COMM_WORLD|MCA_ess_base_|UNIVERSE_SIZE|VERSION)|OMPI_COMM_WORLD_NODE_RANK|PRTE_|PMIX_(?!RANK|NAMESPACE)|HYDRA_|"
    "HYDI_CONTROL|PMI_FD|TORCHELASTIC_(ERROR_FILE|SIGNALS)|SLURM_(TASK_PID|SRUN_COMM|LAUNCH_NODE_IPADDR)|"
    "RSCCL_SECRET"
)
# The variables of rank and size that each source sets.
RANKS = {
    "rsccl run": ("RSCCL_RANK", "RSCCL_WORLD_SIZE"),
    "torchrun": ("RANK", "WORLD_SIZE"),
    "by hand": ("RANK", "WORLD_SIZE"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "PMI": ("PMI_RANK", "PMI_SIZE"),
    "PMIx": ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
    "Slurm": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
}
# Started by a shell script, the program is its child.
SCRIPTS = {
    "script": '#!/bin/sh\n"$@"\n',
    "hand": 'export WORLD_SIZE=$1 RANK=0\nshift\nif [ "$WORLD_SIZE" = 1 ]; then "$@"; exit; fi\n"$@" &\nRANK=1\n"$@"\nwait\n',
}


class Launcher(NamedTuple):
    """In title and words, {n} stands for the number of ranks."""

    title: str
    words: list
    # None: what it starts is no rank.
    source: str | None

    def named(self, ranks):
        return self.title.replace("{n}", str(ranks))

    def command(self, ranks):
        return [word.replace("{n}", str(ranks)) for word in self.words]


class Job(NamedTuple):
    name: str
    title: str
    command: list
    source: str | None


def version(*command):
    found = re.search(r"\d+\.[\d.]*\d", subprocess.run(command, capture_output=True, text=True).stdout)
    return found.group() if found else "of no known version"


def launchers():
    all = mpis() | slurms() | torchruns()
    all["rsccl"] = Launcher("rsccl run -n {n}", [os.environ.get("RSCCL", "rsccl"), "run", "-n", "{n}", "--"], "rsccl run")
    all["hand"] = Launcher("RANK and WORLD_SIZE={n} set by a shell script", ["sh", f"{LAB}/hand", "{n}"], "by hand")
    return all


def mpis():
    places = {
        "openmpi4": ("Open MPI", "mpirun.openmpi", None, "Open MPI"),
        "openmpi5": ("Open MPI", "mpirun", "OPENMPI5", "Open MPI"),
        "mpich4": ("MPICH", "mpirun.mpich", None, "PMI"),
        "mpich5": ("MPICH", "mpiexec.hydra", "MPICH5", "PMI"),
        "impi": ("Intel MPI", "mpiexec.hydra", "IMPI", "PMI"),
    }
    found = {}
    for name, (maker, program, variable, source) in places.items():
        command = [program]
        if variable:
            folder = os.environ.get(variable, "/nowhere")
            program = f"{folder}/bin/{program}"
            command = ["env", f"PATH={folder}/bin:{os.environ['PATH']}", f"LD_LIBRARY_PATH={folder}/lib", program]
        if not shutil.which(program):
            print(f"skipped: no {name} on this machine")
            continue
        title = f"{maker} {version(*command, '--version')} {program.split('/')[-1].split('.')[0]} -n {{n}}"
        found[name] = Launcher(title, [*command, "-n", "{n}"], source)
    return found


def slurms():
    title = f"Slurm {version('srun', '--version')}"
    found = {}
    for plugin, source in (("none", "Slurm"), ("pmi2", "PMI"), ("pmix", "PMIx")):
        # A step within a step shares its only processor.
        step = ["srun", "--overlap", "--overcommit", "--quiet", f"--mpi={plugin}", "-n", "{n}"]
        found[f"srun-{plugin}"] = Launcher(f"{title} srun --mpi={plugin} -n {{n}}", step, source)
    batch = ["sbatch", "--quiet", "--wait", f"--output={LAB}/tmp/out"]
    found["sbatch"] = Launcher(f"{title} sbatch, its script", [*batch, "-n", "2", f"{LAB}/script"], None)
    # There the slots suffice, and Open MPI 5 would put both ranks on one node if told that they may not.
    batch[:0] = ["env", "--unset=PRTE_MCA_rmaps_default_mapping_policy"]
    two = [*batch, "--nodes=2", "--ntasks-per-node=1", f"{LAB}/script"]
    found["sbatch-2-nodes"] = Launcher(f"{title} sbatch on 2 nodes, its script", two, None)
    found["salloc"] = Launcher(f"{title} salloc, its shell", ["salloc", "--quiet", "-n", "2"], None)
    return found


def torchruns():
    program = shutil.which(os.environ.get("TORCHRUN", "torchrun"))
    if not program:
        print("skipped: no torchrun on this machine")
        return {}
    torch = version(f"{os.path.dirname(program)}/python", "-c", "from torch.version import __version__ as v; print(v)")
    found = {}
    for name, options in (
        ("torchrun", "--standalone"),
        ("torchrun-static", "--nnodes=1 --node-rank=0 --rdzv-backend=static --master-addr=127.0.0.1 --master-port=29700"),
        ("torchrun-c10d", "--nnodes=1 --rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-id=mine"),
    ):
        title = f"torchrun of torch {torch}, {options} --nproc-per-node={{n}}"
        found[name] = Launcher(title, [program, *options.split(), "--nproc-per-node={n}", "--no-python"], "torchrun")
    return found


def jobs(found):
    for name, launcher in found.items():
        yield Job(name, launcher.named(2), launcher.command(2), launcher.source)
    yield from pairs(found)
    for name, launcher in found.items():
        if not name.startswith(("openmpi", "mpich", "impi", "srun")):
            continue
        # What the launcher says, under the names that torch reads, and the program in the shell's place.
        script = 'RANK=${} WORLD_SIZE=${} exec "$@"'.format(*RANKS[launcher.source])
        title = f"{launcher.named(2)}, whose ranks are sh -c '{script}'"
        yield Job(f"{name}__exec", title, [*launcher.command(2), "sh", "-c", script, "sh"], "by hand")
        # A rank that submits a batch job gives it all its variables.
        yield nested(found, name, "sbatch")
        yield nested(found, name, "sbatch", "srun-none")
    # Root can read what slurmstepd was started with, which is the environment of slurmd and not of the job.
    for names in (("hand", "srun-none"), ("hand", "srun-pmi2"), ("srun-none", "hand"), ("sbatch", "srun-none")):
        job = nested(found, *names)
        yield job._replace(name=job.name + AS_ROOT, title=job.title + ", as root")
    for plugin, source in (("none", "Slurm"), ("pmi2", "PMI"), ("pmix", "PMIx")):
        command = f"salloc --quiet -n 1 : -n 1 srun --mpi={plugin} --het-group=0,1"
        title = f"Slurm {version('srun', '--version')} {command}, the second component"
        yield Job(f"srun-{plugin}-het", title, command.split(), source)


def pairs(found):
    for outer in found:
        for inner, launcher in found.items():
            # Open MPI 4 refuses to run in Open MPI. The kinds of torchrun differ in the port and the run's id only.
            if launcher.source is None or inner == "openmpi4" and outer.startswith("openmpi"):
                continue
            if {outer, inner} & {"torchrun-static", "torchrun-c10d"}:
                continue
            # Over two nodes, Open MPI starts a daemon on the other one by srun, and Hydra one on each. Rank 1 is on the other.
            if outer != "sbatch-2-nodes" or inner.startswith(("openmpi", "mpich", "impi", "srun")):
                yield nested(found, outer, inner)


def nested(found, *names):
    """The last launcher has two ranks, those around it one."""
    counts = [1] * (len(names) - 1) + [2]
    title = ", inside it ".join(found[name].named(count) for name, count in zip(names, counts))
    command = [word for name, count in zip(names, counts) for word in found[name].command(count)]
    return Job("__".join(names), title, command, found[names[-1]].source)


def run(command, user):
    """Runs a job; returns what each of its processes told, and what it said."""
    out = f"{LAB}/told"
    shutil.rmtree(out, ignore_errors=True)
    os.mkdir(out)
    os.chmod(out, 0o1777)
    home = f"{LAB}/tmp/home"
    os.makedirs(home, exist_ok=True)
    os.chmod(home, 0o777)
    environment = {name: os.environ[name] for name in ("PATH", "SLURM_CONF", "TMPDIR", "LAB")}
    # More ranks than slots, as either release says it.
    environment |= {"OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "HOME": home}
    job = subprocess.Popen(
        [*user, "timeout", "--kill-after=1", str(LIMIT_S), *command, TELL, out],
        env=environment,
        cwd=home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said = job.communicate()[0]
    if os.path.exists(f"{LAB}/tmp/out"):
        with open(f"{LAB}/tmp/out") as file:
            said += file.read()
        os.remove(f"{LAB}/tmp/out")
    told = []
    for name in os.listdir(out):
        if name.endswith(".json"):
            with open(f"{out}/{name}") as file:
                told.append(json.load(file))
    return job.returncode, told, said


def neutral(value):
    value = value.replace(LAB, "/scratch")
    return re.sub(r"\blab\b", "host", value)


def record(job, told):
    lines = [f"# real: {job.title}"]
    lines += [f"env {name}={neutral(value)}" for name, value in told["env"].items() if not NOISE.match(name)]
    for ancestor in told["ancestors"]:
        # Above are this program and the lab.
        if ancestor["comm"] in ("timeout", "launchers.py") or ancestor["pid"] == 1:
            break
        lines.append(f"ancestor {ancestor['comm']} {'readable' if ancestor['readable'] else 'unreadable'}")
        lines += [f"has {name}={neutral(value)}" for name, value in sorted(ancestor.get("has", {}).items())]
    lines.append(f"expect {job.source} 1 2" if job.source else "expect none")
    return "\n".join(lines) + "\n"


def main():
    folder, wanted = sys.argv[1], sys.argv[2:]
    # By this name, what a rank descends from ends at this program.
    with open("/proc/self/comm", "w") as file:
        file.write("launchers.py")
    os.makedirs(folder, exist_ok=True)
    shutil.copy(f"{HERE}/tell.py", TELL)
    for name, text in SCRIPTS.items():
        with open(f"{LAB}/{name}", "w") as file:
            file.write(text)
        os.chmod(f"{LAB}/{name}", 0o755)
    failed = 0
    for job in jobs(launchers()):
        if wanted and job.name not in wanted:
            continue
        began = time.monotonic()
        code, told, said = run(job.command, [] if job.name.endswith(AS_ROOT) else USER)
        took = time.monotonic() - began
        if os.environ.get("FACTS"):
            with open(f"{os.environ['FACTS']}/{job.name}.json", "w") as file:
                json.dump({"code": code, "told": told, "said": said}, file)
        ones = [process for process in told if not job.source or process["env"].get(RANKS[job.source][0]) == "1"]
        if code or len(told) != (2 if job.source else 1) or len(ones) != 1:
            failed += 1
            print(f"FAILED: {job.name}: exit {code}, {len(told)} ranks, {len(ones)} of them number 1, {took:.1f} s")
            print("\n".join("    " + line[:200] for line in said.strip().splitlines()[:12]), flush=True)
            continue
        with open(f"{folder}/{job.name}.txt", "w") as file:
            file.write(record(job, ones[0]))
        print(f"{job.name}: {took:.1f} s", flush=True)
    sys.exit(1 if failed else 0)


main()
