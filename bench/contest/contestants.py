"""Who takes part, each at the best settings known for it, and how its ranks are started."""

import json
import os
import pathlib
import re
import signal
import subprocess

BENCH = pathlib.Path(__file__).resolve().parent.parent
LOCAL = BENCH / "local"
# One run of one contestant may take this long before it counts as hung, besides the time that it was asked to measure.
RUN_LIMIT_S = 120
MPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
# At its start it would ask libfabric for networks, and that sleeps for a second. No part uses them.
OPEN_MPI = {"OMPI_MCA_btl": "^ofi"}
# With more ranks than processors MPICH's collectives over shared memory spin without yielding.
MPICH_CROWDED = {f"MPIR_CVAR_{it}_POSIX_INTRA_ALGORITHM": "mpir" for it in ("ALLREDUCE", "BARRIER", "BCAST", "REDUCE")}
ONECCL_CROWDED = {"CCL_YIELD": "sched_yield", "CCL_SPIN_COUNT": "1", "CCL_WORKER_OFFLOAD": "1", "CCL_WORKER_WAIT": "1"}


# The parts of blocking calls back to back; the others are requests, persistent, busy.
PLAIN = ("collective", "rewrite", "crowd", "first", "late", "overlap", "footprint", "startup")


class Failed(Exception):
    """A run that ended with an error, late, or with wrong results."""


def processors():
    return len(os.sched_getaffinity(0))


def run(command, environment=None, limit_s=RUN_LIMIT_S, enter=None):
    """Runs a command in a session of its own, so that a hung one can be ended with all that it started. `enter` is called in the child."""
    words = [str(word) for word in command]
    child = begun(words, enter, env={**os.environ, **(environment or {})}, stdin=subprocess.DEVNULL,
                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        output, errors = child.communicate(timeout=limit_s)
    except BaseException as reason:
        # Also where the user interrupts: nothing is left running.
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        if isinstance(reason, subprocess.TimeoutExpired):
            raise Failed(f"no end after {limit_s:.0f} s: {' '.join(words)}") from None
        raise
    if child.returncode != 0:
        raise Failed(f"exit {child.returncode}: {' '.join(words)}\n{output[-2000:]}{errors[-2000:]}")
    return output


def begun(words, enter, **options):
    """The child, which calls `enter` before it becomes the program. Python says of an error there only that there was one, so a pipe tells it."""
    if enter is None:
        return subprocess.Popen(words, **options)
    told, tell = os.pipe()
    with open(told, encoding="utf-8") as reader, open(tell, "w", encoding="utf-8") as writer:

        def entered():
            try:
                enter()
            except Exception as error:
                os.write(writer.fileno(), str(error).encode())
                raise

        try:
            return subprocess.Popen(words, preexec_fn=entered, **options)
        except subprocess.SubprocessError as error:
            writer.close()
            raise Failed(f"{words[0]} was not started: {reader.read() or error}") from None


def rows_of(output):
    """The JSON objects, one a line; `rsccl run` writes the rank in brackets before each."""
    found = (re.fullmatch(r"(?:\[\d+\] )?(\{.*\})", line) for line in output.splitlines())
    return [json.loads(match[1]) for match in found if match]


class Contestant:
    """A library with one set of settings. `library` is what the table calls it, `name` tells its settings too."""

    # How its programs say messages both ways, and an all-reduce: a run of the part `requests` for each.
    ways = ("blocking", "requests")

    def __init__(self, library, name=None, environment=None, words=(), only=None, parts=None):
        self.library, self.name = library, name or library
        self.environment, self.words = environment or {}, list(words)
        # Which (collective, ranks) of the part `collective` these settings are for, and which parts: None for all.
        self.only, self.parts = only, parts

    def takes_part(self, mode, collective, ranks, transport):
        if self.parts is not None and mode not in self.parts:
            return False
        if self.only is None:
            return True
        return self.only(collective, ranks) if mode == "collective" else self.parts is not None

    def driver(self):
        return [LOCAL / f"contest.{self.library}"]

    def launch(self, ranks, transport):
        """Words before the driver, and the environment."""
        raise NotImplementedError

    def settings(self):
        return " ".join([*(f"{key}={value}" for key, value in self.environment.items()), *self.words]) or "as they come"

    def measure(self, mode, ranks, transport, arguments, limit_s=RUN_LIMIT_S, load=None):
        before, environment = self.launch(ranks, transport)
        words = [f"{key}={value}" for key, value in arguments.items()]
        beside, enter = (load.words, load.enter) if load else ([], None)
        rows = rows_of(run([*before, *beside, *self.driver(), mode, *words, *self.words], environment, limit_s, enter))
        wrong = [row for row in rows if row.get("wrong")]
        if wrong or not rows:
            raise Failed(f"{self.name}: right results expected of {mode} {words} at {ranks} ranks, got {rows}")
        return rows


class Rsccl(Contestant):
    """`folder` is where cargo put the programs. `sessions` starts each rank in a session of its own, as some launchers do; `bound` binds each to a core, as some
    do unasked."""

    def __init__(self, folder, name, words=(), sessions=False, bound=False, only=None, parts=None, program=None):
        super().__init__("rsccl", name, words=words, only=only, parts=parts)
        self.folder, self.sessions, self.bound = pathlib.Path(folder), sessions, bound
        self.program = program or self.folder / "examples" / "contest"
        # The C++ classes have those of the peers.
        if program is None:
            self.ways = ("blocking", "group", "scope", "owned")

    def settings(self):
        return "--bind core" if self.bound else super().settings()

    def driver(self):
        return [self.program]

    def takes_part(self, mode, collective, ranks, transport):
        if any(word.startswith("registered=") for word in self.words) and transport != "shm":
            return False
        return super().takes_part(mode, collective, ranks, transport)

    def launch(self, ranks, transport):
        environment = dict(self.environment)
        if transport == "tcp":
            environment.update(NCCL_SHM_DISABLE="1", NCCL_SOCKET_IFNAME="lo")
        if self.sessions:
            return [LOCAL / "mpich" / "bin" / "mpiexec", "-n", ranks], environment
        bind = ["--bind", "core"] if self.bound else []
        return [self.folder / "rsccl", "run", "-n", ranks, *bind, "--"], environment

    def version(self):
        return run([self.folder / "rsccl", "--version"]).strip()


class OpenMpi(Contestant):
    """`bound`: each rank to a core, as it comes."""

    def __init__(self, library, name=None, bound=True, **others):
        super().__init__(library, name, **others)
        self.bound = bound

    def settings(self):
        return super().settings() + ("" if self.bound else " --bind-to none")

    def launch(self, ranks, transport):
        words = [LOCAL / "openmpi" / "bin" / "mpirun", "-n", ranks]
        if ranks > processors() or not self.bound:
            words += ["--bind-to", "none"]
        if transport == "tcp":
            words += ["--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"]
        return words, {**MPI_ENVIRONMENT, "LD_LIBRARY_PATH": str(LOCAL / "openmpi" / "lib"), **self.environment}

    def version(self):
        return run([LOCAL / "openmpi" / "bin" / "mpirun", "--version"], MPI_ENVIRONMENT).splitlines()[0]


class Mpich(Contestant):
    def launch(self, ranks, transport):
        environment = {"LD_LIBRARY_PATH": str(LOCAL / "mpich" / "lib"), **self.environment}
        if ranks > processors():
            environment.update(MPICH_CROWDED)
        if transport == "tcp":
            environment.update(MPIR_CVAR_NOLOCAL="1", FI_PROVIDER="tcp", MPIR_CVAR_CH4_NETMOD="ofi")
        return [LOCAL / "mpich" / "bin" / "mpiexec", "-n", ranks], environment

    def version(self):
        lines = run([LOCAL / "mpich" / "bin" / "mpiexec", "--version"]).splitlines()
        return "MPICH " + next((line.split()[-1] for line in lines if "Version" in line), "?")


class IntelMpi(Contestant):
    def launch(self, ranks, transport):
        home = LOCAL / "impi"
        environment = {"I_MPI_ROOT": str(home), "FI_PROVIDER_PATH": str(home / "lib"), "LD_LIBRARY_PATH": str(home / "lib"),
                       **self.environment}
        if transport == "tcp":
            environment.update(I_MPI_FABRICS="ofi", FI_PROVIDER="tcp", FI_TCP_IFACE="lo", I_MPI_COLL_INTRANODE="pt2pt")
        return [home / "bin" / "mpiexec.hydra", "-n", ranks], environment

    def version(self):
        output = run([LOCAL / "impi" / "bin" / "mpiexec.hydra", "--version"], {"I_MPI_ROOT": str(LOCAL / "impi")})
        return output.splitlines()[0]


class OneCcl(IntelMpi):
    def takes_part(self, mode, collective, ranks, transport):
        if mode not in PLAIN:
            return False
        # Its library for processors has no messages; over sockets it is Intel MPI's.
        if collective == "send_recv" or transport == "tcp" or mode == "startup":
            return False
        return super().takes_part(mode, collective, ranks, transport)

    def launch(self, ranks, transport):
        words, environment = super().launch(ranks, transport)
        environment["CCL_ATL_TRANSPORT"] = "mpi"
        environment["CCL_LOG_LEVEL"] = "error"
        if ranks > processors():
            environment.update(ONECCL_CROWDED)
        return words, environment

    def version(self):
        return "oneCCL 2022.2.0 over " + super().version()


def is_installed(peer):
    """Whether the compiler wrapper of a peer, or of what it stands on, can be used."""
    wrapper = LOCAL / ("impi" if peer == "oneccl" else peer) / "bin" / "mpicc"
    try:
        return subprocess.run([wrapper, "-show"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0
    except OSError:
        return False


def is_all_reduce(collective, ranks):
    return collective == "all_reduce"


def peers(names):
    """The contestants of each peer that was asked for: as it comes, and with the settings that help it somewhere."""
    known = {
        "openmpi": [OpenMpi("openmpi", environment=OPEN_MPI),
                    # Bound it is better beside burners, unbound under a quota.
                    OpenMpi("openmpi", "openmpi, unbound", bound=False, environment=OPEN_MPI, parts=("busy",))],
        "mpich": [Mpich("mpich")],
        "impi": [
            IntelMpi("impi"),
            *(IntelMpi("impi", f"impi, algorithm {number}", {"I_MPI_ADJUST_ALLREDUCE": number}, only=is_all_reduce)
              for number in ("1", "8", "13")),
        ],
        "oneccl": [
            OneCcl("oneccl"),
            *(OneCcl("oneccl", f"oneccl, {way}", {"CCL_ALLREDUCE": way}, only=is_all_reduce)
              for way in ("direct", "ring", "nreduce")),
        ],
    }
    return [contestant for name in names for contestant in known[name]]


PEERS = ("openmpi", "mpich", "impi", "oneccl")
