#!/usr/bin/env python3
"""Measures rsccl and its peers side by side: for each case in turn, one short run of each, again and again.

    bench/peers/setup.sh openmpi
    cargo build --release
    bench/compare.py --peer openmpi --repetitions 7 --out shm

Prints a table of medians and ratios and writes bench/results/NAME.json and NAME.md. The result says which machine,
commit and versions. Python's standard library only.
"""

import argparse
import json
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
LOCAL = HERE / "local"
RESULTS = HERE / "results"
# A flag's round trip below this many ns means that the two processors share a cache (bench/README.md).
NEAR_BELOW_NS = 120.0
# One run of one contestant may take this long before it counts as hung.
RUN_LIMIT_S = 120
# Calls in a sample, the same for every contestant: about this many bytes in all, within these bounds.
SAMPLE_BYTES = 256 << 20
FEWEST_CALLS, MOST_CALLS = 5, 20000
# With more ranks than processors a call takes scheduler time, not cache time.
MOST_CALLS_OVERSUBSCRIBED = 500
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
MPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def parse_size(text):
    unit = text[-1].upper() if text[-1].isalpha() else ""
    return int(text[: len(text) - len(unit)]) * UNITS[unit]


def show_size(size):
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="append", default=[], choices=["openmpi", "mpich"], help="a peer; may repeat")
    parser.add_argument("--collective", action="append", default=[], help="default: all_reduce; may repeat")
    parser.add_argument("--ranks", default="2", help="numbers of ranks, by comma")
    parser.add_argument("--sizes", default="8,1K,16K,256K,1M,4M,64M", help="bytes, by comma; K, M, G are powers of 1024")
    parser.add_argument("--repetitions", type=int, default=5, help="runs of each contestant for each case")
    parser.add_argument("--rsccl", default=None, help="the program; default: target/release/rsccl")
    parser.add_argument("--transport", default="shm", help="passed to rsccl perf; for net, peers use TCP on loopback")
    parser.add_argument("--variant", action="append", default=[], metavar="NAME=OPTIONS",
                        help="a second rsccl contestant with more options, e.g. 'registered=-R 1'; may repeat")
    parser.add_argument("--out", default=None, help="name of the files in bench/results; default: write none")
    return parser.parse_args()


def run(command, environment=None):
    """Runs a contestant in a session of its own, so that a hung one can be ended with all it started."""
    child = subprocess.Popen(command, env={**os.environ, **(environment or {})}, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        output, errors = child.communicate(timeout=RUN_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        raise SystemExit(f"compare.py: no end after {RUN_LIMIT_S} s: {' '.join(command)}")
    if child.returncode != 0:
        raise SystemExit(f"compare.py: exit {child.returncode}: {' '.join(command)}\n{output}{errors}")
    return output


def calls_of(ranks, size):
    most = MOST_CALLS if ranks <= len(os.sched_getaffinity(0)) else MOST_CALLS_OVERSUBSCRIBED
    return max(FEWEST_CALLS, min(most, SAMPLE_BYTES // size))


class Rsccl:
    """rsccl perf; started by the first peer's mpirun where there is one, so that ranks are bound to processors alike."""

    def __init__(self, program, transport, name="rsccl", options=(), launcher=None):
        self.name, self.program, self.transport, self.options = name, program, transport, list(options)
        self.launcher = launcher
        self.report = {}

    def time_us(self, collective, ranks, size):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "perf.json")
            measure = [self.program, "perf", collective, "-b", str(size), "-e", str(size), "--iters",
                       str(calls_of(ranks, size)), "--transport", self.transport, "--json", file, *self.options]
            if self.launcher:
                environment = dict(self.launcher.environment, RSCCL_STORE=f"file://{folder}")
                run([*self.launcher.start(ranks), *measure, "--launched"], environment)
            else:
                run([*measure, "--ranks", str(ranks)])
            with open(file, encoding="utf-8") as text:
                self.report = json.load(text)
        rows = [row for row in self.report["results"] if not row["in_place"]]
        if len(rows) != 1 or rows[0]["wrong"]:
            raise SystemExit(f"compare.py: {self.name} {collective} of {size} B: one right result expected, got {rows}")
        return rows[0]["time_us"]

    def version(self):
        return self.report.get("commit") or self.report.get("versions") or "?"


class Mpi:
    def start(self, ranks):
        crowded = ranks > len(os.sched_getaffinity(0)) and self.name == "openmpi"
        return [str(self.launcher), "-n", str(ranks), *(["--bind-to", "none"] if crowded else [])]

    def __init__(self, name, transport):
        self.name = name
        self.program = LOCAL / f"mpi_perf.{name}"
        self.launcher = LOCAL / name / "bin" / "mpirun"
        self.environment = dict(MPI_ENVIRONMENT, LD_LIBRARY_PATH=str(LOCAL / name / "lib"))
        self.options = []
        if not self.program.exists():
            raise SystemExit(f"compare.py: {self.program} is missing: run bench/peers/setup.sh {name}")
        if transport == "net" and name == "openmpi":
            self.options = ["--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"]
        elif transport == "net":
            self.environment.update(MPIR_CVAR_NOLOCAL="1", FI_PROVIDER="tcp")

    def time_us(self, collective, ranks, size):
        command = [*self.start(ranks), *self.options, str(self.program), collective, str(size), "1",
                   str(calls_of(ranks, size))]
        rows = [json.loads(line) for line in run(command, self.environment).splitlines() if line.startswith("{")]
        if len(rows) != 1 or rows[0]["wrong"] or rows[0]["ranks"] != ranks:
            raise SystemExit(f"compare.py: {self.name} {collective} of {size} B: one right result expected, got {rows}")
        return rows[0]["time_us"]

    def version(self):
        words = run([str(self.launcher), "--version"], self.environment).split("\n")[0:2]
        return " ".join(" ".join(words).split())


def build_flag_trip():
    LOCAL.mkdir(exist_ok=True)
    program = LOCAL / "flag_trip"
    subprocess.run(["cc", "-O2", "-pthread", str(HERE / "peers" / "flag_trip.c"), "-o", str(program)], check=True)
    return program


def flag_trip_ns(program):
    answer = subprocess.run([str(program)], capture_output=True, text=True, timeout=RUN_LIMIT_S)
    return float(answer.stdout) if answer.returncode == 0 else None


def place_of(trips):
    """Where the processors stood during a sample: the trip was measured before and after it."""
    if None in trips:
        return "one"
    near = [trip < NEAR_BELOW_NS for trip in trips]
    return "near" if all(near) else "mixed" if any(near) else "far"


def measure(contestants, cases, repetitions, flag_trip):
    samples = []
    for number, (collective, ranks, size) in enumerate(cases, 1):
        for repetition in range(repetitions):
            # Whoever runs first changes from turn to turn.
            turn = repetition % len(contestants)
            for contestant in contestants[turn:] + contestants[:turn]:
                before = flag_trip_ns(flag_trip)
                time_us = contestant.time_us(collective, ranks, size)
                trips = [before, flag_trip_ns(flag_trip)]
                samples.append(dict(collective=collective, ranks=ranks, bytes=size, contestant=contestant.name,
                                    repetition=repetition, time_us=time_us, flag_trip_ns=trips, place=place_of(trips)))
        if sys.stderr.isatty():
            print(f"\r{number}/{len(cases)} cases", end="", file=sys.stderr)
    return samples


def summarise(samples, cases, contestants):
    """One row for each case and place in which every contestant has samples, and one for all places together."""
    rows = []
    for collective, ranks, size in cases:
        own = [s for s in samples if (s["collective"], s["ranks"], s["bytes"]) == (collective, ranks, size)]
        for place in ("all", "near", "far"):
            times = {c.name: [s["time_us"] for s in own if s["contestant"] == c.name and place in ("all", s["place"])]
                     for c in contestants}
            if all(times.values()):
                median = {name: statistics.median(values) for name, values in times.items()}
                least = {name: min(values) for name, values in times.items()}
                rows.append(dict(collective=collective, ranks=ranks, bytes=size, place=place, median_us=median,
                                 least_us=least, samples={name: len(values) for name, values in times.items()}))
    return rows


def table(rows, contestants):
    own = [c.name for c in contestants if isinstance(c, Rsccl)]
    peers = [c.name for c in contestants if isinstance(c, Mpi)]
    ratios = [(mine, peer) for mine in own for peer in peers]
    heads = ["collective", "ranks", "size", "place", "samples"] + [f"{name}, µs" for name in own + peers]
    heads += [f"{mine} / {peer}" for mine, peer in ratios]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        median = row["median_us"]
        cells = [row["collective"], row["ranks"], show_size(row["bytes"]), row["place"], min(row["samples"].values())]
        cells += [f"{median[name]:,.2f}" if median[name] < 100 else f"{median[name]:,.0f}" for name in own + peers]
        cells += [f"{median[mine] / median[peer]:.2f}" for mine, peer in ratios]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(lines)


def machine():
    model = "?"
    with open("/proc/cpuinfo", encoding="utf-8") as text:
        for line in text:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return dict(processor=model, processors=len(os.sched_getaffinity(0)), kernel=platform.release(),
                load_average=os.getloadavg()[0])


def commit():
    answer = subprocess.run(["git", "-C", str(HERE), "describe", "--always", "--dirty"], capture_output=True, text=True)
    return answer.stdout.strip() or "?"


def main():
    arguments = parse_arguments()
    target = os.environ.get("CARGO_TARGET_DIR", str(HERE.parent / "target"))
    program = arguments.rsccl or os.path.join(target, "release", "rsccl")
    peers = [Mpi(peer, arguments.transport) for peer in arguments.peer]
    launcher = peers[0] if peers else None
    contestants = []
    if os.access(program, os.X_OK):
        contestants.append(Rsccl(program, arguments.transport, launcher=launcher))
        for variant in arguments.variant:
            name, _, options = variant.partition("=")
            contestants.append(Rsccl(program, arguments.transport, f"rsccl {name}", options.split(), launcher))
    else:
        print(f"compare.py: {program} is missing (cargo build --release): peers only", file=sys.stderr)
    contestants += peers
    if not contestants:
        raise SystemExit("compare.py: nobody to measure")
    cases = [(collective, int(ranks), parse_size(size)) for collective in arguments.collective or ["all_reduce"]
             for ranks in arguments.ranks.split(",") for size in arguments.sizes.split(",")]
    about = machine()
    samples = measure(contestants, cases, arguments.repetitions, build_flag_trip())
    rows = summarise(samples, cases, contestants)
    text = table(rows, contestants)
    print(text)
    if arguments.out:
        RESULTS.mkdir(exist_ok=True)
        versions = {contestant.name: contestant.version() for contestant in contestants}
        report = dict(machine=about, commit=commit(), date=time.strftime("%Y-%m-%d"), transport=arguments.transport,
                      versions=versions, command="bench/compare.py " + " ".join(sys.argv[1:]), rows=rows, samples=samples)
        (RESULTS / f"{arguments.out}.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        head = (f"{about['processors']} × {about['processor']}, Linux {about['kernel']}, commit {report['commit']}, "
                f"{report['date']}; medians of {arguments.repetitions} alternating runs.\n\n"
                + "".join(f"- {name}: {version}\n" for name, version in versions.items())
                + f"\n    {report['command']}\n\n")
        (RESULTS / f"{arguments.out}.md").write_text(head + text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
