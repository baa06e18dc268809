//! The search for channels against what is possible: against an exhaustive search on random machines, against graphs
//! that stand beside machines, and against the cuts of each machine.

use std::path::{Path, PathBuf};

use rsccl::internals::topo::bandwidth::Bandwidth;
use rsccl::internals::topo::graphs;
use rsccl::internals::topo::paths::{self, Paths};
use rsccl::internals::topo::search::between::{self, CrossNic};
use rsccl::internals::topo::search::domain::{Domain, Ways};
use rsccl::internals::topo::search::packing::{FEW_CHANNELS, MOST_GPUS, Problem, STEPS};
use rsccl::internals::topo::search::{self, Inside};
use rsccl::internals::topo::system::{NodeId, System};
use rsccl::internals::topo::xml;

/// Machines that a push tries; all of a thousand with `RSCCL_EXHAUSTIVE=1`.
const SAMPLE: u64 = 60;
const ALL: u64 = 1000;
/// Sets of channels that the exhaustive search looks at for one machine, pattern and number of channels.
const MOST_SETS: u64 = 40_000;

/// MB/s that whole numbers cost: what each channel carries is rounded down, and there may be 64.
const ROUNDING: u64 = 64;

/// Numbers that follow from a seed (SplitMix64).
struct Luck(u64);

impl Luck {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to `most - 1`.
    fn below(&mut self, most: u64) -> u64 {
        self.next() % most
    }

    fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[usize::try_from(self.below(of.len() as u64)).expect("small")]
    }
}

/// A machine of 2 to 6 GPUs: processors, PCI switches, links between GPUs of several patterns, NICs of several widths.
fn random_machine(luck: &mut Luck) -> String {
    let gpus = 2 + luck.below(5);
    let cpus = 1 + luck.below(3);
    let vendor = luck.pick(&[
        r#"vendor="AuthenticAMD" familyid="175" modelid="1""#,
        r#"vendor="GenuineIntel" familyid="6" modelid="85""#,
        r#"vendor="GenuineIntel" familyid="6" modelid="143""#,
    ]);
    let links = random_links(luck, gpus);
    let (tag, unit) = *luck.pick(&[&("xgmi", r#"gcn="908" arch="38911""#), &("nvlink", "")]);
    let speeds = ["8", "16", "32"];
    let mut below: Vec<Vec<String>> = vec![Vec::new(); usize::try_from(2 * cpus).expect("small")];
    for gpu in 0..gpus {
        let speed = luck.pick(&speeds);
        let lanes = luck.pick(&["8", "16"]);
        let direct = luck.below(4) > 0;
        let to = |(other, count): (u64, &u64)| match count {
            0 => String::new(),
            count => format!("<{tag} target=\"0000:{:02x}:00.0\" count=\"{count}\" tclass=\"0x030200\"/>", other + 16),
        };
        let row = &links[usize::try_from(gpu * gpus).expect("small")..][..usize::try_from(gpus).expect("small")];
        let all: String = (0..).zip(row).map(to).collect();
        let text = format!(
            "<pci busid=\"0000:{:02x}:00.0\" class=\"0x030200\" link_speed=\"{speed} GT/s\" link_width=\"{lanes}\">\
             <gpu dev=\"{gpu}\" sm=\"80\" {unit} rank=\"{gpu}\" gdr=\"{}\">{all}</gpu></pci>",
            gpu + 16,
            u8::from(direct)
        );
        below[usize::try_from(luck.below(2 * cpus)).expect("small")].push(text);
    }
    for nic in 0..luck.below(4) {
        let (speed, megabits) = (luck.pick(&speeds), luck.pick(&["25000", "100000", "200000", "400000"]));
        let text = format!(
            "<pci busid=\"0000:{:02x}:00.0\" class=\"0x020000\" link_speed=\"{speed} GT/s\" link_width=\"16\"><nic>\
             <net name=\"m{nic}\" dev=\"{nic}\" speed=\"{megabits}\" port=\"1\" guid=\"{}\" gdr=\"1\"/></nic></pci>",
            nic + 48,
            nic + 1
        );
        below[usize::try_from(luck.below(2 * cpus)).expect("small")].push(text);
    }
    let mut text = String::from("<system version=\"1\">");
    for (cpu, places) in below.chunks(2).enumerate() {
        text += &format!("<cpu numaid=\"{cpu}\" affinity=\"{:x}\" arch=\"x86_64\" {vendor}>", 1 << cpu);
        // What hangs on the processor, and what hangs on a switch of it.
        text += &places[0].concat();
        if !places[1].is_empty() {
            let (speed, switch) = (luck.pick(&speeds), 80 + cpu);
            text += &format!("<pci busid=\"0000:{switch:02x}:00.0\" class=\"0x060400\" link_speed=\"{speed} GT/s\" ");
            text += &format!("link_width=\"16\">{}</pci>", places[1].concat());
        }
        text += "</cpu>";
    }
    text + "</system>"
}

/// How many links lead from each GPU to each: none, a few anywhere, a cycle, or two hives.
fn random_links(luck: &mut Luck, gpus: u64) -> Vec<u64> {
    let kind = luck.below(5);
    let mut links = vec![0; usize::try_from(gpus * gpus).expect("small")];
    for one in 0..gpus {
        for two in one + 1..gpus {
            let count = match kind {
                0 => 0,
                1 => luck.below(3),
                2 => u64::from(two == one + 1 || (one == 0 && two == gpus - 1)),
                3 => u64::from((one < gpus / 2) == (two < gpus / 2)),
                _ => 1 + luck.below(4),
            };
            for at in [one * gpus + two, two * gpus + one] {
                links[usize::try_from(at).expect("small")] = count;
            }
        }
    }
    links
}

/// What a channel puts on each link, in tenths of its width, and what the links carry.
#[derive(Default)]
struct Table {
    links: Vec<(NodeId, NodeId)>,
    widths: Vec<u64>,
    channels: Vec<Vec<u64>>,
}

impl Table {
    /// A channel that passes these ways, each with so many halves; nothing where one of them is none.
    fn add(&mut self, system: &System, ways: &[(Vec<NodeId>, u64)]) {
        let mut loads = vec![0; self.links.len()];
        for (nodes, halves) in ways {
            if nodes.is_empty() {
                return;
            }
            for share in paths::share_of_links(system, nodes) {
                let at = self.links.iter().position(|link| *link == share.link).unwrap_or_else(|| {
                    self.links.push(share.link);
                    self.widths.push(share.bandwidth.0);
                    self.links.len() - 1
                });
                loads.resize(self.links.len(), 0);
                loads[at] += share.fifths * halves;
            }
        }
        if !self.channels.contains(&loads) {
            self.channels.push(loads);
        }
    }

    /// What each of the channels with these loads can carry.
    fn width(&self, loads: &[u64]) -> u64 {
        self.widths.iter().zip(loads).filter_map(|(width, load)| (width * 10).checked_div(*load)).min().unwrap_or(0)
    }

    /// Whether `count` channels carry more than `total`: every choice of them is tried, in the order of the table, as
    /// long as it may. `None` where these are too many to try.
    fn beats(&self, count: u64, total: u64) -> Option<bool> {
        let mut left = MOST_SETS;
        let mut loads = vec![0; self.links.len()];
        self.grow(&mut loads, (0, count), (count, total), &mut left)
    }

    fn grow(&self, loads: &mut [u64], (from, more): (usize, u64), goal: (u64, u64), left: &mut u64) -> Option<bool> {
        if more == 0 {
            return Some(true);
        }
        for (place, channel) in self.channels.iter().enumerate().skip(from) {
            *left = left.checked_sub(1)?;
            let add = |loads: &mut [u64]| channel.iter().zip(loads).for_each(|(more, load)| *load += more);
            add(loads);
            let found = self.width(loads) * goal.0 > goal.1 && self.grow(loads, (place, more - 1), goal, left)?;
            channel.iter().zip(&mut *loads).for_each(|(more, load)| *load -= more);
            if found {
                return Some(true);
            }
        }
        Some(false)
    }
}

fn orders(size: usize) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for _ in 0..size {
        let longer = |order: &Vec<usize>| {
            let free = (0..size).filter(|gpu| !order.contains(gpu));
            free.map(|gpu| [&order[..], &[gpu]].concat()).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(longer).collect();
    }
    all
}

/// Everything that channels of one pattern can be on a machine: rings and chains inside it; rings and trees between
/// machines like it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pattern {
    Ring,
    Chain,
    Between { crosses: bool },
    Tree,
}

fn table(system: &System, ways: &Ways<'_>, pattern: Pattern) -> Table {
    let paths: Vec<Paths> = ways.gpus.iter().map(|gpu| Paths::from(system, *gpu)).collect();
    let way = |from: usize, to: usize| paths[from].to(system, ways.gpus[to]).nodes;
    let out = |gpu: usize, port: usize| ways.to_port(gpu, port).to_vec();
    let inwards = |gpu: usize, port: usize| ways.to_port(gpu, port).iter().rev().copied().collect::<Vec<_>>();
    let mut table = Table::default();
    for order in orders(ways.gpus.len()) {
        let (first, last) = (order[0], order[order.len() - 1]);
        let both = |pair: &[usize]| [(way(pair[0], pair[1]), 1), (way(pair[1], pair[0]), 1)];
        let hops: Vec<_> = match pattern {
            Pattern::Ring | Pattern::Between { .. } => {
                order.windows(2).map(|pair| (way(pair[0], pair[1]), 2)).collect()
            }
            Pattern::Chain | Pattern::Tree => order.windows(2).flat_map(both).collect(),
        };
        let ports = 0..ways.ports.len();
        match pattern {
            Pattern::Ring if first != 0 => {}
            Pattern::Ring => table.add(system, &[hops, vec![(way(last, first), 2)]].concat()),
            Pattern::Chain => table.add(system, &hops),
            Pattern::Tree => ports.for_each(|port| {
                table.add(system, &[hops.clone(), vec![(inwards(first, port), 2), (out(first, port), 2)]].concat());
            }),
            Pattern::Between { crosses } => {
                for (enter, exit) in ports.clone().flat_map(|enter| ports.clone().map(move |exit| (enter, exit))) {
                    if crosses || enter == exit {
                        let ends = vec![(inwards(first, enter), 2), (out(last, exit), 2)];
                        table.add(system, &[hops.clone(), ends].concat());
                    }
                }
            }
        }
    }
    let links = table.links.len();
    table.channels.iter_mut().for_each(|loads| loads.resize(links, 0));
    table
}

/// What the search finds on one machine, or on two like it.
fn found(machine: &str, pattern: Pattern) -> u64 {
    let (machine, _) = xml::parse("random", machine).expect("a machine");
    let one = System::new(&machine).expect("a system");
    let total = |inside: Option<Inside>| inside.map(|inside| inside.total()).unwrap_or_default().0;
    let two = System::new(&machine.repeated(2)).expect("a system");
    let between = |cross: CrossNic| between::search(&two, &[0, 1], cross).expect("channels");
    match pattern {
        Pattern::Ring => total(search::rings(&one, &one.gpus())),
        Pattern::Chain => total(search::chains_inside(&one, &one.gpus())),
        Pattern::Tree => between(CrossNic::Never).tree.total().0,
        Pattern::Between { crosses: false } => between(CrossNic::Never).ring.total().0,
        Pattern::Between { crosses: true } => between(CrossNic::IfBetter).ring.total().0,
    }
}

fn variable(name: &str) -> Option<String> {
    #![expect(clippy::disallowed_methods, reason = "what a run of the tests shall do, as tests/README.md lists")]
    std::env::var(name).ok()
}

/// Each machine follows from its own seed, which a failure prints; `RSCCL_TEST_SEED` runs that one first.
#[test]
fn an_exhaustive_search_finds_no_more() {
    let all = variable("RSCCL_EXHAUSTIVE").is_some_and(|text| text == "1");
    let seed = match variable("RSCCL_TEST_SEED").and_then(|text| text.parse().ok()) {
        Some(seed) => seed,
        None => u64::from_le_bytes(rsccl::internals::sys::random::bytes().expect("the kernel has luck")) >> 16,
    };
    let (mut tried, mut proved) = (0, 0);
    println!("RSCCL_TEST_SEED={seed}");
    for seed in seed..seed + if all { ALL } else { SAMPLE } {
        let text = random_machine(&mut Luck(seed));
        let (machine, _) = xml::parse("random", &text).expect("a machine");
        let system = System::new(&machine).expect("a system");
        let ways = Ways::new(&system);
        let inside = [Pattern::Ring, Pattern::Chain];
        let between = [Pattern::Tree, Pattern::Between { crosses: false }, Pattern::Between { crosses: true }];
        let between = between.iter().filter(|_| !ways.ports.is_empty());
        for pattern in inside.iter().chain(between) {
            let total = found(&text, *pattern);
            let table = table(&system, &ways, *pattern);
            for count in 1..=FEW_CHANNELS as u64 {
                let beaten = table.beats(count, total + ROUNDING);
                assert_ne!(
                    beaten,
                    Some(true),
                    "RSCCL_TEST_SEED={seed}: {count} channels carry more than the {total} MB/s that were found: \
                     {pattern:?} on {text}"
                );
                tried += 1;
                proved += u64::from(beaten == Some(false));
            }
        }
    }
    println!("{proved} of {tried} numbers of channels were tried to the end");
    // That the exhaustive search is one: it ends for most.
    assert!(proved * 3 > tried, "{proved} of {tried}");
}

/// The machines of a folder, with their files.
fn machines(folder: &str) -> Vec<(String, PathBuf)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let files = std::fs::read_dir(&folder).expect("a folder").flatten().map(|entry| entry.path());
    let name = |path: PathBuf| {
        let name = path.file_name()?.to_str()?.strip_suffix(".xml")?.to_owned();
        (!name.ends_with("graph")).then_some((name, path))
    };
    let mut all: Vec<_> = files.filter_map(name).collect();
    all.sort();
    all
}

fn system(path: &Path, hosts: u32) -> System {
    let text = std::fs::read_to_string(path).expect("a file");
    let (machine, _) = xml::parse("machine", &text).expect("a machine");
    System::new(&machine.repeated(hosts)).expect("a system")
}

/// What the search finds on a machine, and the problem: rings, trees; and rings and trees between two of it.
fn searched(path: &Path) -> Vec<(&'static str, Bandwidth, Problem)> {
    let one = system(path, 1);
    let (gpus, ways) = (one.gpus(), Ways::new(&one));
    if gpus.len() > MOST_GPUS {
        return Vec::new();
    }
    let total = |inside: Option<Inside>| inside.map(|inside| inside.total()).unwrap_or_default();
    let size = gpus.len();
    let mut all = vec![
        ("rings", total(search::rings(&one, &gpus)), Problem::rings(&one, ways.peers(), size)),
        ("trees", total(search::chains_inside(&one, &gpus)), Problem::chains(&one, ways.peers(), size)),
    ];
    let two = system(path, 2);
    if Domain::all(&two).len() == 2 && !ways.ports.is_empty() {
        let found = between::search(&two, &[0, 1], CrossNic::IfBetter).expect("channels");
        all.push(("rings between", found.ring.total(), Problem::through(&ways, true)));
        all.push(("trees between", found.tree.total(), Problem::trees(&ways)));
    }
    all
}

/// What is known to fit, in MB/s, by graphs that were weighed, or the bound by hand: rings, trees, rings between, trees
/// between.
#[test]
fn channels_that_no_simple_pattern_finds_are_found() {
    let known = [
        // GPU 0 has five links of 20 GB/s left.
        ("cube-mesh-less-one", [100_000, 118_000, 48_000, 48_000]),
        // Of rings of one link of 36 each six fit, for none goes there and back between the GPUs of a package; narrower
        // ones share links and PCI Express better. Eight NICs of 24.
        ("eight-packages", [230_000, 267_000, 192_000, 192_000]),
        ("three-hives", [32_000, 48_000, 48_000, 48_000]),
        ("two-cycles", [72_000, 80_000, 0, 0]),
        // Two roots of 24 GB/s join a hive to the other one.
        ("two-meshes", [48_000, 96_000, 96_000, 90_000]),
        // Four NICs of 48, which two GPUs of 24 share.
        ("wide-nics", [240_000, 274_000, 192_000, 192_000]),
    ];
    let machines = machines("data/hives");
    assert_eq!(machines.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), known.map(|(name, _)| name));
    for ((name, path), (_, known)) in machines.iter().zip(known) {
        for ((pattern, found, problem), known) in searched(path).into_iter().zip(known) {
            assert!(found.0 >= known, "{name}: {pattern}: {found} found, {known} MB/s fit");
            let again = problem.pack(Bandwidth(0));
            assert!(again.steps <= STEPS, "{name}: {pattern}: {} steps", again.steps);
            assert_eq!(again, problem.pack(Bandwidth(0)), "{name}: {pattern}: the same again");
        }
    }
}

/// Regression: one link that was much narrower than all others, and that no channel passed, made the search blind to how
/// full the others were, and hosts have NICs for their management.
#[test]
fn a_narrow_nic_beside_the_others_takes_no_channels_away() {
    const NIC: &str = "<pci busid=\"0000:fe:00.0\" class=\"0x020000\" link_speed=\"8.0 GT/s PCIe\" link_width=\"1\"><nic>\
                       <net name=\"mgmt\" dev=\"77\" speed=\"1000\" port=\"1\" guid=\"9999\" maxconn=\"1000\" gdr=\"0\"/>\
                       </nic></pci></cpu>";
    let folder = tempfile::tempdir().expect("a folder");
    for (name, path) in machines("data/hives") {
        let text = std::fs::read_to_string(&path).expect("a file").replacen("</cpu>", NIC, 1);
        let with = folder.path().join(&name);
        std::fs::write(&with, text).expect("a file");
        for ((pattern, found, _), (_, beside, _)) in searched(&path).into_iter().zip(searched(&with)) {
            assert!(beside >= found, "{name}: {pattern}: {found}, and {beside} beside the NIC");
        }
    }
}

/// Machines whose channels carry less than nine tenths of the bound, and why.
const SHORT: [(&str, &str, &str); 4] = [
    ("eight-packages", "rings", PACKAGE_RINGS),
    ("eight-packages", "trees", PACKAGE_TREES),
    ("three-hives", "trees", HIVES),
    ("three-hives", "trees between", HIVES),
];
// The values of linear programs, in which channels may be split, were found by generating columns with exact tours.
const PACKAGE_RINGS: &str = "channels are whole and of one width: 264 GB/s is the value of the linear program, 230 are \
                             found (48 of 4.8), and no more with a hundred times the steps; up to 16 rings carry 216 (6 \
                             of 36), and the halves of these leave no room for one more";
const PACKAGE_TREES: &str = "311 GB/s is the value of the linear program, 268 are found: 288 with four times the steps, \
                             which take more than 50 ms";
const HIVES: &str = "a tree passes from hive to hive twice, and the three links between roots carry 32 GB/s of it \
                     each: 48, which is the value of the linear program too";

/// Each machine's channels carry nine tenths of what its cuts and prices allow, or the table says why not.
#[test]
fn channels_carry_nine_tenths_of_the_bound() {
    let mut short = Vec::new();
    for (name, path) in machines("../src/topo/machines").into_iter().chain(machines("data/hives")) {
        for (pattern, found, problem) in searched(&path) {
            let bound = problem.pack(found).bound;
            println!("{name}: {pattern}: {found} of {bound}");
            assert!(found <= bound, "{name}: {pattern}: {found} of {bound}: the bound is none");
            if found.0 * 10 < bound.0 * 9 {
                short.push((name.clone(), pattern));
            }
        }
    }
    let told: Vec<_> = SHORT.iter().map(|(name, pattern, _)| ((*name).to_owned(), *pattern)).collect();
    assert_eq!(short, told);
}

/// Graphs that stand beside machines: ours, and a cloud's, which is not ours to ship.
#[test]
fn the_search_carries_what_a_graph_beside_the_machine_does() {
    use std::io::Write as _;
    let mut seen = Vec::new();
    let mut pairs: Vec<(PathBuf, PathBuf)> = machines("data/hives")
        .into_iter()
        .map(|(_, path)| (path.with_extension("graph.xml"), path))
        .filter(|(graph, _)| graph.exists())
        .collect();
    let ours = pairs.len();
    let cloud = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/topologies");
    let cloud = ["azure-ncv4-graph.xml", "azure-ncv4-topo.xml"].map(|name| cloud.join(name));
    if let [Some(graph), Some(machine)] = cloud.map(|path| path.exists().then_some(path)) {
        pairs.push((graph, machine));
    } else {
        writeln!(std::io::stderr(), "skipped: no reference files beside the project: a cloud's graph").expect("stderr");
    }
    for (graph, machine) in pairs {
        let one = system(&machine, 1);
        let text = std::fs::read_to_string(&graph).expect("a file");
        let rings = search::rings(&one, &one.gpus()).expect("rings").total();
        let chains = search::chains_inside(&one, &one.gpus()).expect("chains").total();
        for beside in graphs::parse("graph", &text).expect("graphs") {
            let Some(carries) = beside.carries(&one, &one.gpus()).expect("its GPUs") else { continue };
            let carries = carries * beside.channels.len() as u64;
            let found = if beside.pattern == graphs::GraphPattern::Ring { rings } else { chains };
            assert!(found >= carries, "{}: {found} found, the graph carries {carries}", graph.display());
            seen.push(carries.0);
        }
    }
    assert_eq!((ours, &seen[..2]), (2, &[64_000, 48_000][..]));
}
