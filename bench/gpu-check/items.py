"""The items of the check: what each runs, and how it is judged. README.md says what they mean."""

import collections
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib

from driver import LOCAL_BYTES, REGISTERS, Failed, Gpu

ROOT = pathlib.Path(__file__).resolve().parents[2]
# A virtual GPU (vcuda) tells nothing about times, and runs no machine code.
VIRTUAL = "VCUDA_STATE" in os.environ
MIB = 1 << 20

Item = collections.namedtuple("Item", "limit_s body")


class Skipped(Exception):
    """An item, or a part of one, cannot run here."""


class Check:
    """An item under way: its lines, and what it found wrong."""

    def __init__(self, name, options):
        self.name, self.binaries, self.quick = name, options.binaries, options.quick
        self.wrong, self.summary = [], ""

    def say(self, text):
        print(f"{self.name}: {text}", flush=True)

    def expect(self, what, found, expected):
        self.say(f"{what}: {found}" + ("" if found == expected else f" (expected: {expected})"))
        if found != expected:
            self.wrong.append(f"{what}: {found}")

    def fail(self, what):
        self.say(f"FAILED {what}")
        self.wrong.append(what)

    def binary(self, name):
        path = self.binaries / name
        if not path.exists():
            raise Skipped(f"there is no {path}: bench/gpu-check/build makes it")
        return str(path)

    def command(self, words, limit_s, environment=()):
        """Status and output of a program; the status is None where it had to be killed."""
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   errors="replace", env={**os.environ, **dict(environment)}, process_group=0)
        try:
            output = process.communicate(timeout=limit_s)[0]
            return process.returncode, output
        except subprocess.TimeoutExpired:
            # Its processes are in its group, which only this has made.
            os.killpg(process.pid, signal.SIGKILL)
            return None, process.communicate()[0]

    def case(self, what, words, limit_s, environment=(), accept=lambda _: True):
        """Runs a program that must end well; its output."""
        begun = time.monotonic()
        status, output = self.command(words, limit_s, environment)
        if status == 0 and accept(output):
            self.say(f"ok {what} ({time.monotonic() - begun:.1f} s)")
        else:
            ending = f"no end within {limit_s} s" if status is None else f"status {status}"
            for line in output.splitlines()[-LAST_LINES:]:
                self.say(f"    {line}")
            self.fail(f"{what}: {ending}")
        return output


LAST_LINES = 15


def run(name, options):
    """Runs an item; the verdict is its last line."""
    check = Check(name, options)
    try:
        ITEMS[name].body(check)
        verdict = f"FAILED: {len(check.wrong)} of it: {'; '.join(check.wrong[:3])}" if check.wrong else f"ok{check.summary}"
    except Skipped as why:
        verdict = f"FAILED: {'; '.join(check.wrong)}" if check.wrong else f"skipped: {why}"
    except Failed as error:
        verdict = f"FAILED: {error}"
    check.say(f"verdict: {verdict}")


# --- 1: what the machine says ------------------------------------------------------------------------------------------

ATTRIBUTES = {16: "multiprocessors", 95: "cooperative launch", 99: "host registration", 102: "virtual memory", 103: "POSIX descriptors",
              115: "pools", 122: "64-bit memory operations", 123: "wait with NOR", 128: "fabric handles"}
# What ranks do where the GPU lacks something; of the others nothing is asked.
WITHOUT = {95: "ranks that wait for each other on one GPU cannot run", 99: "processes of one GPU need RSCCL_COHORT=split, and staging is out",
           102: "memory comes from cuMemAlloc, which waits for kernels", 103: "processes share memory by legacy handles",
           122: "processes of one GPU need RSCCL_COHORT=split"}
OLDEST_DRIVER, OLDEST_CAPABILITY = 12000, (8, 0)


def attributes(check):
    check.say(f"system: {' '.join(os.uname())}")
    version = pathlib.Path("/proc/version").read_text(encoding="utf-8", errors="replace")
    check.say("sandbox: " + ("gVisor" if "gvisor" in version.lower() or "Linux version 4.4.0 #1 SMP" in version else "none that shows"))
    gpu = Gpu()
    check.say(f"GPU: {gpu.name()}, {gpu.total_bytes() / (1 << 30):.1f} GiB" + (", virtual" if VIRTUAL else ""))
    driver, capability = gpu.number("cuDriverGetVersion"), gpu.capability()
    check.say(f"driver: {driver}, capability {capability[0]}.{capability[1]}, GPUs: {gpu.number('cuDeviceGetCount')}")
    if driver < OLDEST_DRIVER or capability < OLDEST_CAPABILITY:
        check.fail(f"rsccl needs driver {OLDEST_DRIVER} and capability {OLDEST_CAPABILITY[0]}.{OLDEST_CAPABILITY[1]}")
    for number, name in ATTRIBUTES.items():
        value = gpu.attribute(number)
        check.say(f"{name} ({number}): {value}" + ("" if value or number not in WITHOUT else f": {WITHOUT[number]}"))
    check.say(f"fabric memory by trying: {gpu.fabric()}")
    try:
        import torch
        check.say(f"torch {torch.__version__}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}")
    except Exception as error:  # Whatever a half-installed torch raises.
        check.say(f"no NCCL by torch: {type(error).__name__}: {error}")


# --- 2: what the design leans on ---------------------------------------------------------------------------------------

PROBES = ["ipc", "descriptor", "pages", "release", "orphan", "replay"]
# What bench/gpu-probe must find: the library is built on these.
FACTS = {"a handle of an inner address stands for": "the base", "handle of pool memory": "CUDA_ERROR_INVALID_VALUE",
         "memory by a descriptor": "works", "a memfd registered by two processes": "works"}


def facts(check):
    words = [sys.executable, "-u", str(ROOT / "bench/gpu-probe"), *(PROBES[:2] if check.quick else PROBES)]
    if check.command([sys.executable, "-c", "import cuda.bindings"], 10)[0] != 0:
        raise Skipped("bench/gpu-probe needs Python's cuda-bindings")
    status, output = check.command(words, ITEMS[check.name].limit_s - 3)
    for line in output.splitlines():
        check.say(line)
        _, what, found = (line.split(": ", 2) + ["", ""])[:3]
        if what in ("hung", "failed") or FACTS.get(what, found) != found:
            check.fail(f"{line}" + (f" (expected: {FACTS[what]})" if what in FACTS else ""))
    if status != 0:
        check.fail(f"bench/gpu-probe: status {status}")


# --- 3: modules --------------------------------------------------------------------------------------------------------

LOAD = """import sys, zlib; sys.path.insert(0, {here!r})
from driver import Gpu
gpu = Gpu()
print(sum(gpu.module(zlib.decompress(open(path, "rb").read()))[1] for path in {paths!r}))"""


def modules(check):
    gpu = Gpu()
    compiled = ROOT / "kernels/compiled"
    texts = sorted(compiled.glob("*.ptx.z"))
    if check.quick:
        texts = [path for path in texts if path.name.startswith(("copy", "fold_f32", "program_f32"))]
    architecture = f"sm_{gpu.capability()[0] * 10}"
    codes = [path.with_name(path.name.replace(".ptx.z", f".{architecture}.z")) for path in texts]
    machine_code = not VIRTUAL and all(path.exists() for path in codes)
    if not machine_code:
        check.say("no machine code is loaded: " + ("a virtual GPU runs none" if VIRTUAL else f"the tree has none for {architecture}"))
    functions = 0
    for text, code in zip(texts, codes):
        ptx = zlib.decompress(text.read_bytes())
        module = gpu.module(zlib.decompress(code.read_bytes()) if machine_code else ptx)[0]
        # Of the assembler: `// registers KERNEL sm_80 40 sm_90 38`.
        told = {words[0]: dict(zip(words[1::2], words[2::2])) for words in
                (line.split()[2:] for line in ptx.decode().splitlines() if line.startswith("// registers "))}
        for entry in re.findall(r"\.entry (\w+)", ptx.decode()):
            function = gpu.function(module, entry)
            registers, local = (gpu.function_attribute(function, which) for which in (REGISTERS, LOCAL_BYTES))
            expected, functions = told.get(entry, {}).get(architecture), functions + 1
            if local != 0:
                check.fail(f"{entry}: {local} bytes of local memory a thread")
            if machine_code and expected not in (None, str(registers)):
                check.fail(f"{entry}: {registers} registers, and ptxas said {expected}")
    check.say(f"{functions} functions of {len(texts)} modules: registers" + (" as the assembler said" if machine_code else " are the driver's") +
              ", no local memory")
    with tempfile.TemporaryDirectory() as cache:
        kinds = [("PTX, cold", texts), ("PTX, the driver's cache warm", texts)] + [("machine code", codes)] * machine_code
        for kind, paths in kinds:
            program = LOAD.format(here=str(pathlib.Path(__file__).parent), paths=[str(path) for path in paths])
            status, output = check.command([sys.executable, "-c", program], 20, {"CUDA_CACHE_PATH": cache, "CUDA_CACHE_DISABLE": "0"})
            check.say(f"loading {len(paths)} modules of {kind}: " + (f"{float(output):.0f} ms" if status == 0 else f"FAILED {output[-300:]}"))
            if status != 0:
                check.wrong.append(f"loading {kind}")


# --- 4: vcuda's programs, on both ---------------------------------------------------------------------------------------

def litmus(check):
    if VIRTUAL:
        raise Skipped("the driver here is the virtual one, and this compares the two")
    words = [str(ROOT / "vcuda/check-real"), "--programs", check.binary("programs"), "--vcuda", check.binary("vcuda")]
    status, output = check.command(words, ITEMS[check.name].limit_s - 3)
    for line in output.splitlines():
        check.say(line)
    if status != 0:
        check.fail("vcuda/check-real: " + ("no end in time" if status is None else f"status {status}"))


# --- 5: the library ----------------------------------------------------------------------------------------------------

# Of test programs: which program, which tests, and what they are. They are those that need one GPU.
TESTS = [
    ("devices", "devices::contract::", "the contract of devices"),
    ("library", "device::cuda::tests::gpu::every_type_and_operator", "folds against the host's bits"),
    ("library", "device::cuda::tests::gpu::", "the device's own tests"),
    ("matrix", "gpu::alone::", "the matrix, ranks that are threads"),
    ("matrix", "gpu::several::on_one_", "ranks that wait for each other on one GPU"),
    ("matrix", "gpu::streams::calls_take", "calls in streams of cudarc"),
    ("matrix", "gpu::streams::a_captured_sequence", "a graph replayed 1,000 times between live calls"),
    ("matrix", "gpu::streams::ranks_in_separate", "ranks in separate captures are refused"),
    ("matrix", "gpu_processes::pair::on_one_", "graphs of two processes, and two that take turns"),
    ("faults_processes", "jobs::one_gpu_for_all", "processes of one GPU"),
    ("faults_processes", "jobs::calls_in_pieces", "buffers longer than their stages"),
    ("faults_processes", "jobs::threads_in_processes_of_one_gpu", "threads of processes"),
    ("faults_processes", "jobs::a_member_is_killed", "a member is killed"),
    ("faults_processes", "jobs::a_leader_is_killed", "the leader is killed"),
    ("faults_processes", "jobs::a_rank_of_a_shared_gpu_is_killed", "one of those that take turns is killed"),
    ("faults_processes", "jobs::aborts_on_one_gpu", "an abort"),
    ("faults_processes", "jobs::calls_differ_on_one_gpu", "calls that differ"),
    ("faults_processes", "jobs::deadlines_on_one_gpu", "a rank that does not come"),
]
QUICK_TESTS = ("gpu::streams::ranks_in_separate", "jobs::a_member_is_killed")
# Tests of processes start ranks on virtual machines alone, if nobody says that the GPU is real.
REAL = {} if VIRTUAL else {"RSCCL_TEST_REAL_GPU": "1"}
# No test of these takes longer on a GPU, however slow its processes take turns.
TEST_S, PERF_S = 40, 30


def perf_cases(quick):
    """What the cases are, their options, and their variables."""
    if quick:
        yield "2 threads", ["all_reduce,all_gather", "--ranks", "2", "-b", "1K"], {}
        yield "2 processes, split", ["all_reduce", "--ranks", "2", "--transport", "auto", "-b", "1K"], {"RSCCL_COHORT": "split"}
        return
    for ranks in ["1", "2", "4", "8"]:
        for kind, transport in [("threads", "local"), ("processes", "auto")]:
            if (ranks, kind) != ("1", "processes"):
                sizes = ["--ranks", ranks, "--transport", transport, "-b", "8", "-e", "16M", "-f", "128"]
                yield f"{ranks} {kind}, every collective", ["all", *sizes], {}
    yield "2 threads, all types and operators", ["all_reduce,reduce_scatter", "-d", "all", "-o", "all", "-b", "40K", "-u", "1"], {}
    yield "2 processes, all types", ["all_reduce", "-d", "all", "--transport", "auto", "-b", "40K"], {}
    for kind, transport in [("threads", "local"), ("processes", "auto")]:
        sizes = ["--ranks", "2", "--transport", transport, "-b", "8", "-e", "1M", "-f", "128"]
        yield f"2 {kind}, split", ["all_reduce,all_gather,all_to_all,sendrecv", *sizes], {"RSCCL_COHORT": "split"}
    yield "4 threads, split, LL and LL128", ["all_reduce", "--ranks", "4", "-b", "8", "-e", "64K", "-f", "64"], {"RSCCL_COHORT": "split"}


def conformance(check):
    rsccl, done, missing = check.binary("rsccl"), 0, set()
    for what, options, variables in perf_cases(check.quick):
        check.case(what, [rsccl, "perf", *options, "--device", "cuda:0", "--check-only"], PERF_S, variables)
        done += 1
    # Tests skip where there is no GPU, and would pass; there is one: the cases above have used it.
    passed = re.compile(r"test result: ok\. [1-9]\d* passed").search
    for program, test, what in TESTS:
        if check.quick and test not in QUICK_TESTS:
            continue
        if not (check.binaries / program).exists():
            missing.add(program)
            continue
        check.case(f"{what} ({program} {test})", [check.binary(program), test, "--test-threads=1"], TEST_S, REAL, accept=passed)
        done += 1
    for program in sorted(missing):
        check.say(f"skipped: the tests of {program}: there is no {check.binaries / program}")
    check.summary = f": {done} cases" + (f", without the tests of {', '.join(sorted(missing))}" if missing else "")


# --- 6: compute-sanitizer ----------------------------------------------------------------------------------------------

SANITIZED = [("memcheck", "2 threads", ["all_reduce", "--ranks", "2", "-b", "40K"], {}),
             ("memcheck", "2 threads, split", ["all_reduce,all_gather", "--ranks", "2", "-b", "4K"], {"RSCCL_COHORT": "split"}),
             ("memcheck", "unaligned", ["all_gather,sendrecv", "--ranks", "2", "-b", "1K", "-u", "1", "-d", "half"], {}),
             ("racecheck", "2 threads", ["all_reduce", "--ranks", "2", "-b", "4K"], {}),
             ("racecheck", "2 threads, split", ["all_reduce", "--ranks", "2", "-b", "4K"], {"RSCCL_COHORT": "split"})]
REFUSED = re.compile(r"not supported|unsupported|Unable to|Failed to initialize|internal error|before first instrumented", re.IGNORECASE)


def sanitizer(check):
    tool, rsccl = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer"), check.binary("rsccl")
    if VIRTUAL:
        raise Skipped("compute-sanitizer works on the real driver only; a virtual GPU checks every access itself")
    if not tool:
        raise Skipped("compute-sanitizer is not installed")
    for kind, what, options, variables in SANITIZED[:1] if check.quick else SANITIZED:
        words = [tool, "--tool", kind, "--error-exitcode", "9", rsccl, "perf", *options, "--device", "cuda:0", "--check-only"]
        status, output = check.command(words, 20, variables)
        refused = REFUSED.search(output)
        if status != 0 and refused and status != 9:
            raise Skipped(next(line.strip() for line in output.splitlines() if REFUSED.search(line)))
        check.say(f"{'ok' if status == 0 else 'FAILED'} {kind}, {what}")
        if status != 0:
            for line in output.splitlines()[:LAST_LINES]:
                check.say(f"    {line}")
            check.wrong.append(f"{kind}, {what}")


# --- 7: figures --------------------------------------------------------------------------------------------------------

# Of the issue: the part of the copy limit that an all-reduce of two ranks of one GPU reaches from 256 MiB on.
GOALS = [("2 threads", ["--transport", "local"], 0.85), ("2 processes, windows", ["--transport", "auto", "-R", "2"], 0.70),
         ("2 processes, staged", ["--transport", "auto"], 0.30)]
# Of 8 bytes: as long as an empty kernel with the same joins, and so many microseconds.
MORE_US = 1.0


def figures(check):
    gpu, rsccl, met = Gpu(), check.binary("rsccl"), []
    sizes = [1 << 10] if check.quick else [8, 512, 32 << 10, MIB, 16 * MIB, 256 * MIB, 1 << 30]
    if VIRTUAL:
        check.say("no goal is judged: a virtual GPU tells nothing about times")
    calls = ["-n", "1", "-w", "1"] if VIRTUAL else ["--warmup-time", "0.2"]
    for size in sizes:
        # The limit and the library in turns, so that both see the same clocks.
        for what, options, goal in GOALS:
            limit = gpu.copy_us(size, 1 if VIRTUAL else 20)
            words = [rsccl, "perf", "all_reduce", "--ranks", "2", "--device", "cuda:0", "-b", str(size), "-c", "0", "-J", "-", *calls, *options]
            status, output = check.command(words, 30)
            try:
                results = json.loads(output[output.index("{"):output.rindex("}") + 1])["results"]
                taken = min(result["time_us"] for result in results)
            except (ValueError, KeyError, TypeError):
                check.fail(f"{what}, {size} B: status {status}: {output[-300:]}")
                continue
            # Two ranks read and write two buffers each; a copy reads one and writes one.
            ratio = 2 * limit / taken
            judged = not VIRTUAL and size >= 256 * MIB
            check.say(f"{size} B, {what}: {taken:.1f} us, a copy {limit:.1f} us" +
                      (f", {ratio:.2f} of the copy limit: goal {goal:.2f} {'met' if ratio >= goal else 'MISSED'}" if judged else ""))
            met += [ratio >= goal] * judged
    launches(check, met)
    check.say("NCCL is not compared: it takes no two ranks on one GPU, and with one rank each call is a copy")
    check.summary = f": {met.count(True)} of {len(met)} goals met" if met else ": no goal judged"


def launches(check, met):
    try:
        program = check.binary("launches")
    except Skipped as why:
        check.say(f"skipped: launches: {why}")
        return
    status, output = check.command([program] + ["--quick"] * check.quick, 30)
    for line in output.splitlines():
        check.say(line)
        words = line.split()
        if len(words) == 6 and words[0].isdigit() and not VIRTUAL:
            more = float(words[3]) - float(words[5])
            reached = more <= MORE_US
            check.say(f"8 B, {words[0]} ranks, {words[1]} stream(s): {more:+.2f} us beside an empty kernel: goal {'met' if reached else 'MISSED'}")
            met.append(reached)
    if status != 0:
        check.fail(f"launches: status {status}")


# In the order in which they run.
ITEMS = {"attributes": Item(20, attributes), "facts": Item(60, facts), "modules": Item(60, modules), "litmus": Item(60, litmus),
         "conformance": Item(150, conformance), "sanitizer": Item(40, sanitizer), "figures": Item(120, figures)}
