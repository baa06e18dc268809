"""The report's tables of what programs do besides blocking calls on a quiet machine, and of the goals for that."""

from figures import figure, median, ratio, size_of, table

# The cells of a row, in the order in which they are read.
BUSY = ("mean_us", "us", "p99_us", "p999_us", "cpu_us")
PEERS = ("openmpi", "mpich", "impi")


def of(samples, part):
    return [sample for sample in samples if sample["part"] == part]


def pick(samples, field, **wanted):
    """The median of a field of the samples that have these values."""
    return median([sample[field] for sample in samples if all(sample.get(key) == value for key, value in wanted.items())])


def values(samples, field):
    """What there is of a field, in the order of the samples."""
    return list(dict.fromkeys(sample[field] for sample in samples if field in sample))


def places(samples):
    """All runs, and where rsccl and a peer both met a placement that not all runs had, the runs of it."""
    yield "all", samples
    for place in ("near", "far"):
        own = [sample for sample in samples if sample["place"] == place]
        if len(own) < len(samples) and {sample["library"] for sample in own} > {"rsccl"}:
            yield place, own


def best(found):
    """The least of (time, name), of those that have a time."""
    return min(((time, name) for time, name in found if time), default=(None, ""))


def best_peer(samples, field, **wanted):
    names = {sample["contestant"] for sample in samples if sample["library"] != "rsccl"}
    return best((pick(samples, field, contestant=name, **wanted), name) for name in sorted(names))


def ways_of(samples, what, compared):
    """A row for each way of each contestant: its time beside its own blocking call, and beside the best peer's `compared`."""
    rows = []
    for size in sorted(values(samples, "bytes")):
        here = [sample for sample in samples if sample["bytes"] == size]
        peer, _ = best_peer(here, "us", way=compared)
        for name in values(here, "contestant"):
            own = [sample for sample in here if sample["contestant"] == name]
            plain = pick(own, "us", way="blocking")
            for way in values(own, "way"):
                us = pick(own, "us", way=way)
                rows.append([size_of(size), name, way, figure(us), ratio(us, plain), ratio(us, peer)])
    return table(["size", what, "way", "µs", "/ its blocking", f"/ best peer, {compared}"], rows)


def requests(samples):
    lines = []
    titles = {"exchange": "A message to the partner and one from it", "all_reduce": "An all-reduce, begun and waited for"}
    for what, title in titles.items():
        for place, own in places([sample for sample in samples if sample["what"] == what]):
            if own:
                lines += ["", f"### {title}, 2 ranks, shm, processors {place}, µs", "", ways_of(own, "contestant", "requests")]
    rows = []
    for what in ("computing", "sleeping"):
        own = [sample for sample in samples if sample["what"] == what]
        peer = best(best_peer(own, field)[:1] + (field,) for field in ("us", "tested_us"))[0]
        for name in values(own, "contestant"):
            for way in values([sample for sample in own if sample["contestant"] == name], "way"):
                get = lambda field, what=what, name=name, way=way: pick(samples, field, what=what, contestant=name, way=way)
                call, alone, both, tested = (get(field) for field in ("call_us", "alone_us", "us", "tested_us"))
                rows.append([what, name, way, *map(figure, (call, alone, both, tested)), figure(get("hidden")), ratio(both, call + alone),
                             ratio(both, max(call, alone)), ratio(both, peer)])
    if rows:
        size = size_of(next(sample["bytes"] for sample in samples if sample["what"] == "computing"))
        lines += ["", f"### An all-reduce of {size} beside as long a computation, and beside as long a sleep, µs", "",
                  table(["beside", "contestant", "way", "the call", "the other work", "both", "both, with tests", "hidden", "/ sum", "/ longer",
                         "/ best peer's"], rows)]
    return lines


def persistent(samples):
    lines = []
    for place, own in places(samples):
        if own:
            lines += ["", f"### The same all-reduce again and again, 2 ranks, shm, processors {place}, µs", "",
                      ways_of(own, "contestant", "blocking")]
    return lines


def busy(samples):
    """A table for each load."""
    if not samples:
        return []
    tick, overhead = (pick(samples, field) for field in ("tick_ns", "overhead_ns"))
    lines = ["", "### Calls beside other work, each timed alone", "",
             f"Cells: mean · median · p99 · p99.9 of a call · processor time of all ranks a call, µs, of the worse rank. The clock is the processor's "
             f"counter: a tick is {tick:.3f} ns, two reads are {overhead:.0f} ns apart, which is part of each time. Sessions: 2 where the launcher "
             "gives each rank a session of its own."]
    for load in values(samples, "load"):
        own = [sample for sample in samples if sample["load"] == load]
        names = values(own, "contestant")
        rows = []
        for collective, size in sorted({(sample["of"], sample["bytes"]) for sample in own}):
            here = [sample for sample in own if (sample["of"], sample["bytes"]) == (collective, size)]
            cells = [" · ".join(figure(pick(here, field, contestant=name)) for field in BUSY) for name in names]
            beside = [ratio(pick(here, field, contestant="rsccl"), best_peer(here, field)[0]) for field in ("mean_us", "p99_us", "cpu_us")]
            rows.append([collective, size_of(size), *beside, *cells])
        heads = [f"{name} ({pick(own, 'sessions', contestant=name):.0f})" for name in names]
        lines += ["", f"#### {load}; in brackets sessions", "",
                  table(["call", "size", "mean / best", "p99 / best", "processor / best", *heads], rows)]
    return lines


def readme_rows(samples):
    """Sizes, and a row for each thing that programs do: a ratio to the best peer's for each size, empty where there is none."""
    rows = []

    def add(words, own, found):
        rows.append((words, {size: found(size) for size in values(own, "bytes")}))

    exchange, reduced = ([sample for sample in of(samples, "requests") if sample["what"] == what] for what in ("exchange", "all_reduce"))
    for words, own in (("Irecv, Isend, Waitall as a scope", exchange), ("Iallreduce, Wait as a scope", reduced)):
        add(words, own, lambda size, own=own: ratio(pick(own, "us", bytes=size, contestant="rsccl", way="scope"),
                                                    best_peer(own, "us", bytes=size, way="requests")[0]))
    prepared = of(samples, "persistent")
    add("Allreduce prepared once / best plain or persistent", prepared, lambda size: ratio(
        pick(prepared, "us", bytes=size, contestant="rsccl", way="persistent"),
        best(best_peer(prepared, "us", bytes=size, way=way) for way in ("blocking", "persistent"))[0]))
    for load in values(of(samples, "busy"), "load"):
        own = [sample for sample in of(samples, "busy") if sample["load"] == load]
        for collective in sorted(values(own, "of")):
            here = [sample for sample in own if sample["of"] == collective]
            add(f"{collective} beside {load}, mean" if "burner" in load else f"{collective} under {load}, mean", here,
                lambda size, here=here: ratio(pick(here, "mean_us", bytes=size, contestant="rsccl"), best_peer(here, "mean_us", bytes=size)[0]))
    rows = [(words, cells) for words, cells in rows if any(cells.values())]
    sizes = sorted({size for _, cells in rows for size in cells})
    return sizes, [[words, *(cells.get(size, "") for size in sizes)] for words, cells in rows]


def gradients(samples):
    """A row for each number of ranks and size: each MPI, and rsccl in the same job."""
    rows = []
    peers = [peer for peer in PEERS if any(sample["contestant"] == peer for sample in samples)]
    for ranks in sorted(values(samples, "ranks")):
        for side in sorted(values(samples, "side")):
            get = lambda field, peer, way, ranks=ranks, side=side: pick(samples, field, ranks=ranks, side=side, contestant=peer, way=way)
            fastest = best((get("us", peer, "MPI"), peer) for peer in peers)
            cells = [f"{figure(get('us', peer, way))}, {get('percent', peer, way) or 0:.0f} %" for peer in peers
                     for way in ("MPI", "rsccl", "rsccl, scope")]
            rows.append([ranks, side, f"{figure(fastest[0])} {fastest[1]}", ratio(get("us", fastest[1], "rsccl"), fastest[0]), *cells])
    if not rows:
        return []
    heads = [word for peer in peers for word in (peer, f"rsccl under {peer}", f"the same by scopes under {peer}")]
    return ["", "### Conjugate gradients: µs a step, and the share of communication", "",
            "The halo is swapped by Irecv, Isend and Wait, by a group of rsccl, by a scope; all three end at the same residual.", "",
            table(["ranks", "side", "fastest MPI", "rsccl / fastest", *heads], rows)]


class Goals:
    """Each goal as a row: what, at most, what it is here."""

    def __init__(self):
        self.rows = []

    def add(self, words, most, ours, theirs):
        if ours is not None and theirs:
            value = ours / theirs
            self.rows.append([words, f"{most:.2f}", f"{value:.2f}", "" if value <= most else "missed"])


def goals(result):
    """The goals that the samples can tell of. A way of rsccl's counts by its own row: which one programs use is the documents' matter."""
    samples, found = result["samples"], Goals()
    for place, own in places(of(samples, "requests")):
        where = "" if place == "all" else f", {place}"
        for name, way in (("rsccl", "group"), ("rsccl", "scope"), ("rsccl", "owned"), ("rsccl, C++", "requests")):
            get = lambda what, size, way, own=own, name=name: pick(own, "us", what=what, bytes=size, contestant=name, way=way)
            ours = get("exchange", 800, way)
            found.add(f"messages both ways, 800 B, {name}, {way} / own blocking{where}", 1.15, ours, get("exchange", 800, "blocking"))
            found.add(f"messages both ways, 800 B, {name}, {way} / best peer's requests{where}", 0.90, ours,
                      best_peer(own, "us", what="exchange", bytes=800, way="requests")[0])
            found.add(f"all-reduce of 8 B begun and waited for, {name}, {way} / own blocking{where}", 1.30,
                      get("all_reduce", 8, way), get("all_reduce", 8, "blocking"))
        for size in values([sample for sample in own if sample["what"] == "exchange"], "bytes"):
            peer = best(best_peer(own, "us", what="exchange", bytes=size, way=way) for way in ("blocking", "requests"))[0]
            found.add(f"messages both ways, {size_of(size)}, blocking / best peer's best way{where}", 0.95,
                      pick(own, "us", what="exchange", bytes=size, contestant="rsccl", way="blocking"), peer)
    overlaps(of(samples, "requests"), found)
    for load in values(of(samples, "busy"), "load"):
        beside_load(load, [sample for sample in of(samples, "busy") if sample["load"] == load], found)
    for place, own in places(of(samples, "persistent")):
        for size in values(own, "bytes"):
            for name in ("rsccl", "rsccl, C++"):
                ours, plain = (pick(own, "us", bytes=size, contestant=name, way=way) for way in ("persistent", "blocking"))
                words = f"{size_of(size)} prepared once, {name}{'' if place == 'all' else ', ' + place}"
                found.add(f"{words} / own plain call", 0.85 if place == "far" else 0.75, ours, plain)
                found.add(f"{words} / best peer's plain call", 0.85 if place == "far" else 0.70, ours,
                          best_peer(own, "us", bytes=size, way="blocking")[0])
    for ranks, sides, most in ((2, (32, 64), 0.80), (4, (64, 100, 200), 0.70)):
        for side in sides:
            own = [sample for sample in of(samples, "cg") if (sample["ranks"], sample["side"]) == (ranks, side)]
            time, peer = best((pick(own, "us", contestant=peer, way="MPI"), peer) for peer in PEERS)
            found.add(f"conjugate gradients, {side} x {side}, {ranks} ranks / fastest MPI ({peer})", most,
                      pick(own, "us", contestant=peer, way="rsccl"), time)
    if not found.rows:
        return []
    return ["", "## Goals", "", table(["what", "at most", "here", ""], found.rows)]


def overlaps(samples, found):
    for name, way in (("rsccl", "scope"), ("rsccl", "owned"), ("rsccl, C++", "requests")):
        for what, most_of in (("computing", sum), ("sleeping", max)):
            own = [sample for sample in samples if sample["what"] == what]
            both, call, alone = (pick(own, field, contestant=name, way=way) for field in ("us", "call_us", "alone_us"))
            if both is None:
                continue
            bound = "call and work" if most_of is sum else "the longer of call and work"
            found.add(f"large all-reduce beside {what}, {name}, {way} / {bound}", 1.05, both, most_of((call, alone)))
            peer = best(best_peer(own, field) for field in ("us", "tested_us"))[0]
            found.add(f"large all-reduce beside {what}, {name}, {way} / best peer's program", 0.60, both, peer)


def beside_load(load, samples, found):
    for collective, size in sorted({(sample["of"], sample["bytes"]) for sample in samples}):
        own = [sample for sample in samples if (sample["of"], sample["bytes"]) == (collective, size)]
        words = f"{load}: {collective} of {size_of(size)}"
        found.add(f"{words}, mean / best peer's", 1.0 if size >= 16 << 10 else 1.5, pick(own, "mean_us", contestant="rsccl"),
                  best_peer(own, "mean_us")[0])
        if size >= 1 << 20:
            found.add(f"{words}, p99 / best peer's", 1.0, pick(own, "p99_us", contestant="rsccl"), best_peer(own, "p99_us")[0])


def tables(result):
    samples = result["samples"]
    return [*requests(of(samples, "requests")), *persistent(of(samples, "persistent")), *busy(of(samples, "busy")),
            *gradients(of(samples, "cg"))]
