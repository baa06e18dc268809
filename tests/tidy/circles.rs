//! No circles between files: of two files at most one names the other, also by way of further ones. The arrows that close
//! circles stand here, each with its reason; the lists only shrink.

use std::collections::{BTreeMap, BTreeSet};

use super::arrows::House;
use super::text::line_of;

type Arrows = &'static [(&'static str, &'static str)];

/// Circles to be opened: their files cannot be read one after the other. `src/` and `.rs` are left out.
pub(crate) const KNOTS: &[(&str, Arrows)] = &[
    (
        "the table lists what implements its trait; its policy, and the options of sockets, have no file of their own",
        &[
            ("transport/net/connector", "transport/net"),
            ("transport/net/listener", "transport/net"),
            ("transport/peer_reads", "transport/table"),
            ("transport/table", "transport/shm"),
            ("transport/table", "transport/net"),
            ("transport/table", "transport/local"),
        ],
    ),
    (
        "a launch under way is what all of them hold",
        &[
            ("device/cuda/active", "device/cuda/launch/polling"),
            ("device/cuda/active", "device/cuda"),
            ("device/cuda/launch/graphs", "device/cuda/active"),
            ("device/cuda/launch/tables", "device/cuda/active"),
        ],
    ),
    (
        "the layer that turns the driver's codes into errors also owns the table of pinned blocks",
        &[
            ("device/cuda/driver/context", "device/cuda/driver/stream"),
            ("device/cuda/driver/result", "device/cuda/memory/host_pins"),
        ],
    ),
    ("a site has sizes, and sizes are those of a site", &[("plan/site", "plan/sizes")]),
];

/// Circles that mislead nobody: one name stands in the wrong file, or a module's file and its parts know each other.
pub(crate) const INNOCENT: &[(&str, Arrows)] = &[
    (
        "the file of a module declares what its parts share, and puts them together",
        &[
            ("log", "log/printer"),
            ("log/spans", "log/trace_file"),
            ("topo/layout", "topo/layout/orders"),
            ("tune", "tune/cost"),
            ("device/host", "device/host/portable"),
            ("topo/search", "topo/search/rings_of_links"),
            ("topo/search", "topo/search/packing"),
            ("topo/search/packing/exact", "topo/search/packing"),
            ("config/launch", "config/launch/verdict"),
            ("config/launch", "config"),
            ("config/registry", "config"),
            ("topo/switches", "topo/switches/lines"),
            ("topo/switches", "topo/switches/slurm_yaml"),
            ("topo/switches/names", "topo/switches"),
            ("tune/simulation", "tune/simulation/events"),
            ("tune/simulation", "tune/simulation/script"),
            ("ffi/call", "ffi"),
            ("ffi/failure", "ffi"),
            ("ffi/foreign", "ffi"),
            ("ffi/memory", "ffi"),
            ("ffi/over_mpi", "ffi"),
            ("ffi/persistent", "ffi"),
            ("ffi/places", "ffi"),
            ("ffi/stores", "ffi"),
            ("ffi/windows", "ffi"),
            ("comm", "comm/status"),
            ("comm", "comm/placement"),
            ("comm", "comm/background_split"),
            ("comm", "comm/engine_home"),
            ("comm", "comm/group"),
            ("plan", "plan/sizes"),
            ("plan", "plan/build"),
            ("plan/check/fits", "plan/check"),
            ("plan/check/machine", "plan/check"),
            ("bootstrap", "bootstrap/net"),
            ("bootstrap", "bootstrap/net/children"),
            ("bootstrap/cause", "bootstrap"),
            ("bootstrap/collective", "bootstrap"),
            ("bootstrap/net", "bootstrap/net/control"),
            ("bootstrap/net", "bootstrap/net/join"),
            ("bootstrap/store", "bootstrap/store/file"),
            ("device", "device/cuda"),
            ("device", "device/host_memory"),
            ("device/cuda/memory/lent", "device/cuda"),
            ("device/cuda/launch/polling/image", "device/cuda/launch/polling"),
            ("device/cuda/driver/stream", "device/cuda"),
            ("device/status", "device"),
        ],
    ),
    ("forks are watched from the first descriptor on, and close them", &[("sys/inherited", "sys/fork")]),
    ("`Family` and `Rules`", &[("bootstrap/options", "bootstrap/interface")]),
    ("`wait_ready`", &[("sys/alive", "sys/process")]),
    ("`read`", &[("sys/numa", "sys/gpus")]),
    ("`may_open`", &[("sys/nvml", "sys/gpus")]),
    ("`await_peers_out`; what is lent has no file of its own", &[("exec/epoch", "exec/evict")]),
    ("`Epoch`; what is lent has no file of its own", &[("exec/pull", "exec/epoch")]),
    ("`Played`", &[("tune/simulation/script", "tune/simulation/events")]),
    ("buffers check a call's order, which stands beside the call", &[("exec/call", "exec/buffers")]),
    (
        "`DeviceStream` stands in the file of cohorts",
        &[("exec/cohort", "exec/rendezvous"), ("exec/device_buffer", "exec/lent"), ("exec/message", "exec/rendezvous")],
    ),
    ("`Work`", &[("ffi/stream", "ffi/call")]),
    (
        "`Submit` stands beside the list of those that submit",
        &[
            ("comm/collectives", "comm/scope"),
            ("comm/collectives", "comm/group"),
            ("comm/on_stream", "comm/collectives"),
        ],
    ),
    (
        "requests run the calls of groups, which are begun as requests",
        &[("comm/requests", "comm/group"), ("comm/queued", "comm/group"), ("comm/job", "comm/group")],
    ),
    ("the watcher visits the engines whose programs wake it", &[("comm/engine_home", "comm/watcher")]),
    ("`BARRIER_SCRATCH`", &[("plan/mesh", "plan/build")]),
    ("`Mesh`, which the inbox of threads is too", &[("bootstrap/collective", "bootstrap/inbox")]),
    ("`waited_for`", &[("bootstrap/collective", "bootstrap/local")]),
    ("making a unique id starts its root", &[("bootstrap/id", "bootstrap/root")]),
    ("`SharedId`", &[("bootstrap/store/record", "bootstrap/store/share")]),
    ("errors of memory, `Mapped`", &[("device/cuda/memory/chunks", "device/cuda/memory/allocation")]),
    ("`THREADS`, and the numbers of operators", &[("device/cuda/launch/arguments", "device/cuda/launch/kernels")]),
    ("`refused`, `foreign`", &[("device/cuda/memory/legacy", "device/cuda/memory/allocation")]),
    ("`refused`", &[("device/cuda/memory/physical", "device/cuda/memory/allocation")]),
    (
        "members of a launch are seats of a polling kernel",
        &[("device/cuda/launch/polling", "device/cuda/launch/members")],
    ),
    ("a status page lies in memory of the host", &[("device/status", "device/host_memory")]),
];

type Graph<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Finds circles that are on no list, and arrows of the lists that close none.
pub(crate) fn check(house: &House<'_>, listed: &[(&str, &str)], findings: &mut Vec<String>) {
    let mut graph: Graph<'_> = BTreeMap::new();
    let mut lines = BTreeMap::new();
    for (path, code) in house.files() {
        for (to, offset) in house.named_by(path) {
            graph.entry(path).or_default().insert(to);
            lines.insert((path, to), line_of(code, offset));
        }
    }
    let is_listed = |from: &str, to: &str| {
        listed.iter().any(|(left, right)| {
            from.strip_prefix("src/") == Some(&format!("{left}.rs"))
                && to.strip_prefix("src/") == Some(&format!("{right}.rs"))
        })
    };
    let closing: Vec<(&str, &str)> = lines.keys().copied().filter(|(from, to)| is_listed(from, to)).collect();
    for (from, to) in &closing {
        graph.entry(from).or_default().remove(to);
    }
    let mut told = BTreeSet::new();
    for from in graph.keys().copied().collect::<Vec<_>>() {
        let Some(circle) = circle(&graph, from).filter(|_| !told.contains(from)) else { continue };
        let arrows = circle.iter().zip(circle.iter().cycle().skip(1));
        let arrows: Vec<String> =
            arrows.map(|(from, to)| format!("{from}:{} names {to}", lines[&(*from, *to)])).collect();
        findings.push(format!("{from}:1: a circle of files: {}; open it", arrows.join(", ")));
        told.extend(circle);
    }
    for (from, to) in listed {
        let (from, to) = (format!("src/{from}.rs"), format!("src/{to}.rs"));
        let is_needed = closing.iter().any(|arrow| *arrow == (&*from, &*to)) && leads(&graph, &to, &from);
        if !is_needed {
            findings.push(format!("{from}:1: closes no circle with {to} any more; take it off the list in tests/tidy"));
        }
    }
}

/// A circle of arrows through `from`, if there is one.
fn circle<'a>(graph: &Graph<'a>, from: &'a str) -> Option<Vec<&'a str>> {
    let came = reached(graph, from);
    let mut file = came.keys().copied().find(|file| graph.get(file).is_some_and(|named| named.contains(from)))?;
    let mut circle = vec![file];
    while file != from {
        file = came[file];
        circle.push(file);
    }
    circle.reverse();
    Some(circle)
}

fn leads(graph: &Graph<'_>, from: &str, to: &str) -> bool {
    reached(graph, from).contains_key(to)
}

/// The files to which arrows lead from `from`, each with the one before it.
fn reached<'a>(graph: &Graph<'a>, from: &'a str) -> BTreeMap<&'a str, &'a str> {
    let mut came = BTreeMap::new();
    let mut next = vec![from];
    while let Some(file) = next.pop() {
        for to in graph.get(file).into_iter().flatten().copied().filter(|to| *to != from) {
            came.entry(to).or_insert_with(|| {
                next.push(to);
                file
            });
        }
    }
    came
}
