"""Plots of a contest: latency and bandwidth over size, one line a library, both axes logarithmic.

    plots.py contest.json PREFIX        writes PREFIX-COLLECTIVE-RANKS-TRANSPORT.svg
"""

import json
import statistics
import sys

import matplotlib
from matplotlib import pyplot

matplotlib.rcParams["svg.hashsalt"] = "rsccl"
COLOURS = {"rsccl": "#d62728", "rsccl registered": "#ff7f0e", "rsccl registered in place": "#bcbd22", "openmpi": "#1f77b4", "mpich": "#2ca02c", "impi": "#9467bd",
           "oneccl": "#8c564b", "memory": "#7f7f7f", "tcp": "#7f7f7f"}


def unit(size, _=None):
    for name, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:g} {name}"
    return f"{size:g} B"


def lines_of(samples, limits, case):
    """{name: {size: µs}}, of each peer the best of its settings at each size."""
    times = {}
    for sample in samples:
        if (sample["collective"], sample["ranks"], sample["transport"]) == case:
            line = sample["contestant"] if sample["library"] == "rsccl" else sample["library"]
            times.setdefault(line, {}).setdefault(sample["bytes"], {}).setdefault(sample["contestant"], []).append(sample["us"])
    lines = {line: {size: min(map(statistics.median, by_name.values())) for size, by_name in sizes.items()}
             for line, sizes in times.items()}
    kind = {("all_reduce", 2, "shm"): "memory", ("send_recv", 2, "tcp"): "tcp"}.get(case)
    bound = {}
    for sample in limits:
        if sample["kind"] == kind:
            bound.setdefault(sample["bytes"], []).append(sample["us"])
    if bound:
        lines[kind] = {size: statistics.median(values) for size, values in bound.items()}
    return lines


def draw(case, lines, file):
    collective, ranks, transport = case
    figure, (latency, bandwidth) = pyplot.subplots(1, 2, figsize=(11, 4.2))
    for name, points in lines.items():
        sizes = sorted(points)
        style = dict(color=COLOURS.get(name, "#17becf"), marker="o", markersize=3, linestyle="--" if name in ("memory", "tcp") else "-",
                     linewidth=2.2 if name == "rsccl" else 1.3, label=f"limit: {name}" if name in ("memory", "tcp") else name)
        latency.plot(sizes, [points[size] for size in sizes], **style)
        bandwidth.plot(sizes, [size / points[size] / 1e3 for size in sizes], **style)
    for axes, label in ((latency, "µs a call"), (bandwidth, "GB/s (size / time)")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_ylabel(label)
        axes.xaxis.set_major_formatter(unit)
        axes.tick_params(axis="x", labelrotation=45)
        axes.grid(True, which="major", alpha=0.3)
    latency.legend(fontsize=8)
    figure.suptitle(f"{collective}, {ranks} ranks, {transport}")
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)


def main():
    data, prefix = sys.argv[1:]
    with open(data, encoding="utf-8") as text:
        result = json.load(text)
    limits = [sample for sample in result["samples"] if sample["part"] == "limit"]
    samples = [sample for sample in result["samples"] if sample["part"] in ("collective", "crowd")]
    for case in dict.fromkeys((sample["collective"], sample["ranks"], sample["transport"]) for sample in samples):
        collective, ranks, transport = case
        draw(case, lines_of(samples, limits, case), f"{prefix}-{collective}-{ranks}-{transport}.svg")


if __name__ == "__main__":
    main()
