"""The report of a contest: tables in Markdown, all samples as JSON, plots as SVG."""

import json
import math
import os
import pathlib
import statistics
import subprocess
import sys

import in_use
from contestants import BENCH, LOCAL
from figures import figure, median, ratio, size_of, table

README = BENCH.parent / "README.md"
# The README's table stands between these lines.
BEGINS, ENDS = "<!-- contest begins -->", "<!-- contest ends -->"
# The same of the rows of what programs do besides blocking calls, by the name of the results.
IN_USE = {name: (f"<!-- {name} begins -->", f"<!-- {name} ends -->") for name in ("contest-requests", "contest-busy")}
# The most sizes in the README's table, which must be short.
README_SIZES = 6
NAMES = {"openmpi": "Open MPI", "mpich": "MPICH", "impi": "Intel MPI", "oneccl": "oneCCL"}
OURS = ("rsccl", "rsccl registered", "rsccl registered in place", "rsccl, bound", "rsccl, a session each")
# What the names of contestants of an earlier commit begin with.
BEFORE = "before: "
# A cell is slower than the baseline's where it is by more than this, and its spread.
ALLOWED = 0.03
PLOTS = LOCAL / "plots"
PLOTS_PACKAGE = "matplotlib==3.10.0"


class Cells:
    """The medians of one part, by case and size."""

    def __init__(self, samples, part):
        self.samples = [sample for sample in samples if sample["part"] == part]

    def cases(self):
        found = []
        for sample in self.samples:
            case = (sample["transport"], sample["ranks"], sample["collective"])
            if case not in found:
                found.append(case)
        return found

    def of(self, case, place=None):
        return [sample for sample in self.samples
                if (sample["transport"], sample["ranks"], sample["collective"]) == case and place in (None, sample["place"])]


    def places(self, case):
        """The placements that rsccl and a peer both met, where that is not all there was."""
        if case[1] != 2:
            return []
        met = {place: self.of(case, place) for place in ("near", "far")}
        return [place for place, own in met.items()
                if len(own) < len(self.of(case)) and {sample["library"] for sample in own} > {"rsccl"}]


def best_peers(samples, size, field="us"):
    """Of each peer the best of its settings, by its median: {library: (µs, name)}."""
    times = {}
    for sample in samples:
        if sample.get("bytes") == size and sample["library"] != "rsccl":
            times.setdefault((sample["library"], sample["contestant"]), []).append(sample[field])
    best = {}
    for (library, name), values in times.items():
        value = median(values)
        if library not in best or value < best[library][0]:
            best[library] = (value, name)
    return best


def ours_of(samples, size, name, field="us"):
    return median([sample[field] for sample in samples if sample.get("bytes") == size and sample["contestant"] == name])


def comparison(samples, limits):
    """The table of one case, and (rsccl / best peer) of each size."""
    sizes = sorted({sample["bytes"] for sample in samples})
    libraries = sorted({sample["library"] for sample in samples} - {"rsccl"})
    names = [name for name in OURS if any(sample["contestant"] == name for sample in samples)]
    kinds = [kind for kind in ("memory", "staged", "tcp") if any(kind == kind_ for kind_, _ in limits)]
    heads = ["size", *names, "best peer", *(f"{name} / best" for name in names), *libraries]
    heads += [word for kind in kinds for word in (f"limit: {kind}", f"{names[-1] if kind == 'memory' else names[0]} / {kind}")]
    rows, ratios = [], {}
    for size in sizes:
        peers = best_peers(samples, size)
        best = min(peers.values(), default=(None, ""))
        mine = {name: ours_of(samples, size, name) for name in names}
        row = [size_of(size), *(figure(mine[name]) for name in names), f"{figure(best[0])} {best[1]}".strip()]
        row += [ratio(mine[name], best[0]) for name in names]
        row += [figure(peers.get(library, (None,))[0]) for library in libraries]
        for kind in kinds:
            limit = limits.get((kind, size))
            row += [figure(limit), ratio(mine[names[-1] if kind == "memory" else names[0]], limit)]
        rows.append(row)
        if mine[names[0]] and best[0]:
            ratios[size] = mine[names[0]] / best[0]
    return table(heads, rows), ratios


def limits_of(samples, case, place):
    """The median of each bound, for the cases that it bounds; of one placement where that is asked for."""
    kinds = {("shm", 2, "all_reduce"): ("memory", "staged"), ("tcp", 2, "send_recv"): ("tcp",)}.get(case, ())
    found = {}
    for sample in samples:
        if sample["part"] == "limit" and sample["kind"] in kinds and place in (None, sample.get("place")):
            found.setdefault((sample["kind"], sample["bytes"]), []).append(sample["us"])
    return {key: median(values) for key, values in found.items()}


class BesideBaseline:
    """One cell of rsccl beside the same of its baseline. Ratios are of runs of the same turn, so that a machine that changes
    meanwhile changes both."""

    def __init__(self, case, size, contestant, pairs):
        self.case, self.size, self.contestant = case, size, contestant
        self.now, self.before = median([now for now, _ in pairs]), median([before for _, before in pairs])
        ratios = sorted(now / before for now, before in pairs)
        self.ratio = median(ratios)
        # Half of the distance between the quartiles: of few runs that between the outermost.
        quarter = len(ratios) // 4
        self.spread = (ratios[-1 - quarter] - ratios[quarter]) / 2
        self.slower = self.ratio - self.spread > 1 + ALLOWED

    def words(self):
        part, transport, ranks, collective = self.case
        return (f"{part}, {collective}, {ranks} ranks, {transport}, {size_of(self.size)}, {self.contestant}: "
                f"{self.ratio:.2f} ± {self.spread:.2f} ({figure(self.before)} to {figure(self.now)} µs)")

    def row(self):
        part, transport, ranks, collective = self.case
        return [part, collective, ranks, transport, size_of(self.size), self.contestant, figure(self.now), figure(self.before),
                f"{self.ratio:.2f}", f"{self.spread:.2f}", "slower" if self.slower else ""]


def against_baseline(samples):
    """Each cell that rsccl and its baseline have both run: first what is slowest."""
    runs = {}
    for sample in samples:
        if sample["part"] in ("collective", "rewrite", "crowd") and sample["library"] == "rsccl":
            case = tuple(sample[key] for key in ("part", "transport", "ranks", "collective"))
            name = sample["contestant"]
            pair = runs.setdefault((case, sample["bytes"], name.removeprefix(BEFORE)), {}).setdefault(sample["step"], {})
            pair[name.startswith(BEFORE)] = sample["us"]
    cells = []
    for (case, size, name), steps in runs.items():
        pairs = [(pair[False], pair[True]) for pair in steps.values() if len(pair) == 2]
        if pairs:
            cells.append(BesideBaseline(case, size, name, pairs))
    return sorted(cells, key=lambda cell: -cell.ratio)


def baseline_table(samples):
    cells = against_baseline(samples)
    if not cells:
        return []
    heads = ["part", "collective", "ranks", "transport", "size", "contestant", "now, µs", "before, µs", "now / before", "spread", ""]
    slower, mean = sum(cell.slower for cell in cells), geometric_mean([cell.ratio for cell in cells])
    return ["", "## Beside the baseline", "",
            f"{slower} of {len(cells)} cells are slower by more than {ALLOWED:.0%} and their spread; geometric mean of now / before {mean:.3f}.",
            "", table(heads, [cell.row() for cell in cells])]


def geometric_mean(values):
    return math.exp(statistics.fmean(math.log(value) for value in values))


def collectives(result):
    lines, ratios = [], {}
    samples = result["samples"]
    for part, title in (("collective", ""), ("rewrite", ", the send buffer rewritten before each call"), ("crowd", "")):
        cells = Cells(samples, part)
        for case in cells.cases():
            transport, ranks, collective = case
            for place in (None, *(cells.places(case) if part == "collective" else ())):
                limits = limits_of(samples, case, place) if part == "collective" else {}
                text, found = comparison(cells.of(case, place), limits)
                where = f", processors {place}" if place else ""
                lines += ["", f"### {collective}, {ranks} ranks, {transport}{title}{where}, µs", "", text]
                ratios[part, case, place] = found
    return lines, ratios


def summary(ratios):
    """How rsccl stands to the best peer: the geometric mean over sizes, and the worst cell."""
    rows = []
    for (part, (transport, ranks, collective), place), found in ratios.items():
        if found:
            worst = max(found, key=found.get)
            rows.append([collective, ranks, transport, part, place or "all", f"{geometric_mean(found.values()):.2f}",
                         f"{found[worst]:.2f} at {size_of(worst)}", f"{sum(value <= 1 for value in found.values())} of {len(found)}"])
    return table(["collective", "ranks", "transport", "part", "processors", "rsccl / best peer", "worst", "cells at or below 1"], rows)


def others(result):
    """First calls, a late rank, overlap, footprint, start-up."""
    lines = []
    fields = {
        "first": ("The first calls of a size, µs: the first, the mean of 2 to 20, of 21 to 100",
                  ("first_us", "to_20_us", "to_100_us")),
        "late": ("A rank that comes 200 ms late: processor time of the rank that waits, ms; the late rank's call, µs",
                 ("waiting_cpu_ms", "late_call_us")),
        "overlap": ("An all-reduce that goes on while the caller sleeps as long, ms",
                    ("blocking_ms", "alone_ms", "behind_sleep_ms", "hidden")),
    }
    for part, (title, names) in fields.items():
        own = [sample for sample in result["samples"] if sample["part"] == part]
        if not own:
            continue
        rows = []
        for size in sorted({sample["bytes"] for sample in own}):
            for contestant in dict.fromkeys(sample["contestant"] for sample in own):
                here = [sample for sample in own if (sample["bytes"], sample["contestant"]) == (size, contestant)]
                rows.append([size_of(size), contestant, *(figure(median([sample[name] for sample in here])) for name in names)])
        lines += ["", f"### {title}", "", table(["size", "contestant", *names], rows)]

    own = [sample for sample in result["samples"] if sample["part"] == "footprint"]
    if own:
        rows = []
        for contestant in dict.fromkeys(sample["contestant"] for sample in own):
            here = [sample for sample in own if sample["contestant"] == contestant]
            for stage in ("init", "small", "large"):
                rows.append([contestant, stage, *(f"{median([sample[stage][name] for sample in here]):,.0f}"
                                                  for name in ("rss_kb", "pss_kb", "descriptors", "threads"))])
        lines += ["", "### Rank 0 after init, after calls of 8 B, after calls of 1 MiB", "",
                  table(["contestant", "after", "RSS, kB", "PSS, kB", "descriptors", "threads"], rows)]

    own = [sample for sample in result["samples"] if sample["part"] == "startup"]
    if own:
        names = list(dict.fromkeys(sample["contestant"] for sample in own))
        rows = [[ranks, *(figure(median([sample["wall_s"] for sample in own
                                         if (sample["ranks"], sample["contestant"]) == (ranks, name)])) for name in names)]
                for ranks in sorted({sample["ranks"] for sample in own})]
        lines += ["", "### Start, one all-reduce of 8 B, and end: s of the whole job", "", table(["ranks", *names], rows)]
    return lines


def write(result, folder, name):
    folder = pathlib.Path(folder)
    data = folder / f"{name}.json"
    data.write_text(to_json(result), encoding="utf-8")
    about = result["machine"]
    tables, ratios = collectives(result)
    lines = [
        "# The contest",
        "",
        f"`{result['command']}`, {about['processors']} × {about['processor']}, Linux {about['kernel']}, load {about['load']:.1f}, "
        f"commit {result['commit']}, {result['date']}, {result['minutes']:.0f} minutes. Medians over runs; of each peer the best of its settings.",
        *(["", f"Interrupted: {result['left']} of {result['steps']} steps were not run."] if result["left"] else []),
        "",
        *(f"- {library}: {version}" for library, version in result["versions"].items()),
        "",
        "| contestant | settings |", "|---|---|",
        *(f"| {contestant} | {settings} |" for contestant, settings in result["settings"].items()),
        *baseline_table(result["samples"]),
        # Without peers there is nothing to sum up.
        *(["", "## Summary", "", summary(ratios)] if any(ratios.values()) else []), "", *in_use.goals(result), "", "## Tables", *tables, *others(result), *in_use.tables(result),
    ]
    if result.get("left_out"):
        lines += ["", "### Left out", "", *(f"- {words}" for words in result["left_out"])]
    if result["failures"]:
        lines += ["", "### Runs that failed", "", *(f"- {failure['contestant']}, {failure['part']}, {failure['ranks']} ranks: {failure['why']}"
                                                  for failure in result["failures"])]
    (folder / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    plot(data, folder / name)


def to_json(result):
    """A line for each sample, so that two contests can be compared by their lines."""
    about = {key: value for key, value in result.items() if key != "samples"}
    samples = ",\n".join("  " + json.dumps(sample) for sample in result["samples"])
    return json.dumps(about, indent=1)[:-2] + ',\n "samples": [\n' + samples + "\n ]\n}\n"


def readme_rows(cells):
    """A row for each collective of two ranks on shared memory, as what writes its cell of a size; and all sizes.

    Where rsccl and its peers met both placements a cell has both ratios: that of all runs would compare runs of different placements."""
    rows, sizes = {}, set()
    for case in cells.cases():
        if case[:2] == ("shm", 2):
            places = cells.places(case)
            found = [comparison(cells.of(case, place), {})[1] for place in (places if len(places) == 2 else [None])]
            rows[case[2]] = lambda size, found=found: " · ".join(f"{ratios[size]:.2f}" for ratios in found if size in ratios)
            sizes |= {size for ratios in found for size in ratios}
    return rows, sorted(sizes)


def readme_block(result, name):
    """What the README shows: time of rsccl / time of the best peer, of two ranks on shared memory, a row for each collective."""
    cells = Cells(result["samples"], "collective")
    rows, sizes = readme_rows(cells)
    if not sizes:
        return None
    wanted = min(README_SIZES, len(sizes))
    sizes = [sizes[round(place * (len(sizes) - 1) / max(wanted - 1, 1))] for place in range(wanted)]
    rows = [[collective, *(cell(size) for size in sizes)] for collective, cell in rows.items()]
    about, results = result["machine"], "bench/results"
    both = "; the first figure where their processors share a cache, the second where not" if any("·" in cell for row in rows for cell in row) else ""
    peers = [NAMES[library] for library in result["versions"] if library != "rsccl"]
    lines = [
        f"Time of rsccl / time of the best of {', '.join(peers)}: `{result['command']}`, two ranks on shared memory,",
        f"{about['processors']} × {about['processor']}, {result['date']} ([all tables]({results}/{name}.md), [samples]({results}/{name}.json)){both}:",
        "",
        table(["ordinary buffers", *map(size_of, sizes)], rows),
    ]
    if any(row[0] == "all_reduce" for row in rows):
        lines += ["", f"![all_reduce of two ranks]({results}/{name}-all_reduce-2-shm.svg)"]
    return "\n".join(lines)


def in_use_block(result, name):
    """What the README shows of requests and of busy machines: time of rsccl / time of the best peer."""
    samples = result["samples"]
    sizes, rows = in_use.readme_rows(samples)
    if not rows:
        return None
    peers = [NAMES[library] for library in result["versions"] if library != "rsccl"]
    about = f"{result['machine']['processor']}, {result['date']} ([tables](bench/results/{name}.md))"
    return table([f"best of {', '.join(peers)}; {about}", *map(size_of, sizes)], rows)


def fill_readme(result, name, readme=README):
    """Puts the table where the README has its place."""
    if name in IN_USE:
        put(readme, IN_USE[name], in_use_block(result, name))
    else:
        put(readme, (BEGINS, ENDS), readme_block(result, name))


def put(readme, marks, block):
    text, (begins, ends) = readme.read_text(encoding="utf-8"), marks
    if text.count(begins) != 1 or text.count(ends) != 1 or text.index(begins) > text.index(ends):
        raise SystemExit(f"contest: {readme} must have the lines {begins} and {ends} once each, in this order")
    if block:
        before, after = text.split(begins)[0], text.split(ends)[1]
        readme.write_text(f"{before}{begins}\n{block}\n{ends}{after}", encoding="utf-8")


def plot(data, prefix):
    """By a Python of its own, which has matplotlib."""
    python = PLOTS / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", PLOTS], check=True)
    if subprocess.run([python, "-c", "import matplotlib"], stderr=subprocess.DEVNULL, check=False).returncode:
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PLOTS_PACKAGE], check=True)
    environment = dict(os.environ, MPLBACKEND="svg")
    subprocess.run([python, pathlib.Path(__file__).with_name("plots.py"), data, prefix], check=True, env=environment)
