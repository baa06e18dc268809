//! `rsccl sim`: a collective on a modelled system.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use rsccl::internals::engine::foreseen::{
    Foreseen, ForeseenCall, ForeseenGpus, ForeseenRanks, ForeseenWay, JoinedLinks, OnChannels,
};
use rsccl::internals::plan::Windows;
use rsccl::internals::sys::text_file;
use rsccl::internals::topo::channels::{self, SystemChannels};
use rsccl::internals::topo::description::{Function, Machine, Nic, walk};
use rsccl::internals::topo::layout::ChannelOrders;
use rsccl::internals::topo::search::between::CrossNic;
use rsccl::internals::topo::system::{NodeId, System};
use rsccl::internals::topo::transport_choice::described::{Described, NETWORK_AS_BUILT, no_driver};
use rsccl::internals::tune::{
    Ask, Calibration, Costs, Fidelity, Filters, Folding, LinkLoad, Modelled, RingSizes, Simulated, SpecOf, Terrain,
};
use rsccl::internals::types::Filter;
use rsccl::types::{Algorithm, Collective, Protocol, Rank};
use rsccl::{Config, Error, Result};
use serde_json::{Value, json};

use crate::perf::{Program, parse_bytes};
use crate::{print, topo};

/// Runs a collective on the links of a modelled system, with a rank on each GPU, or on each processor of a machine
/// without GPUs.
///
/// What is played is what communicators do there: the same functions choose algorithm, protocol, channels and memory,
/// by the same settings (NCCL_ALGO, NCCL_BUFFSIZE, RSCCL_TUNE_FILE, ...), and the same plans run, step by step. Ranks
/// are processes whose buffers are not registered, unless --registered. Only time is modelled: links and GPU memory by
/// their bandwidth, messages and flags by the latencies of NCCL's tuner. Lines below a row say what else is not as it
/// is there: flat slots for small calls on host memory, which are no plan; LL and LL128, whose latencies are not
/// modelled; memory of the host between GPUs that do not reach each other's; TCP between the ranks of a host, where
/// NCCL_SHM_DISABLE is set. GPUs of several hosts send as if each had its nearest NIC for itself; communicators send by
/// TCP over one interface of a host.
///
/// Communicators choose by usual costs, or those of RSCCL_TUNE_FILE. Where the costs of the system's links give another
/// algorithm, that one is played too, and where it takes less time, a line below the row says so.
///
/// Up to 512 ranks, each rank is simulated. With more, one host stands for all hosts if the hosts are equal and the
/// plan is a ring or an all-to-all exchange without a root. Trees of equal hosts are simulated on as many hosts as 512
/// ranks fill, rounded down to a power of two, and on half as many: each level that a tree gets deeper adds the same
/// time, by which the time on all hosts is told (within 6 % at 256 ranks). Everything else is simulated rank by rank.
///
/// Of hosts without GPUs the processors' copies, the shared memory and the network are modelled, by the usual constants
/// or those of RSCCL_TUNE_FILE (`rsccl tune`): `--hosts 16 --ranks 8 --network 25` are 128 ranks on 16 hosts of
/// 25 Gbit/s.
///
/// Rings and trees over slots, those of a single domain and of GPUs that do not reach each other's memory, follow the
/// channels that `rsccl topo` shows, on one host those of NCCL_GRAPH_FILE.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[arg(value_name = "COLLECTIVE", value_parser = collective, help = planned())]
    collective: Collective,
    /// A topology file in NCCL's or RCCL's format [default: NCCL_TOPO_FILE, or this machine]
    #[arg(long, visible_alias = "file", value_name = "FILE")]
    topo: Option<PathBuf>,
    /// What the file leaves out: GPUs, links, NICs
    #[arg(long, value_name = "FILE")]
    overlay: Option<PathBuf>,
    /// The number of hosts, each as the file says; if the file has several hosts, the number of copies of all of them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    hosts: u32,
    /// Ranks on each host of a machine without GPUs [default: one for each of its processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: Option<u32>,
    /// What each host of a machine without GPUs sends over the network, in Gbit/s [default: what its fastest NIC does]
    #[arg(long, value_name = "GBIT", value_parser = gigabits)]
    network: Option<f64>,
    /// Sizes in bytes, as `rsccl perf` counts them: of the whole buffer, or of all blocks together; K, M and G mean
    /// 2¹⁰, 2²⁰ and 2³⁰
    #[arg(short, long, value_name = "SIZE", value_delimiter = ',', default_value = "1G", value_parser = parse_bytes)]
    bytes: Vec<u64>,
    /// The algorithms to choose from, as NCCL_ALGO
    #[arg(long, value_name = "LIST")]
    algo: Option<String>,
    /// The most bytes of a message in a slot [default: an eighth of NCCL_BUFFSIZE, 128K]
    #[arg(long, value_name = "SIZE", value_parser = parse_slot)]
    slot: Option<u32>,
    /// Buffers are registered: ranks work in each other's, and not in scratch
    #[arg(long)]
    registered: bool,
    /// Simulate every rank, however many there are
    #[arg(long)]
    exact: bool,
    /// How many of the busiest links to show
    #[arg(long, value_name = "N", default_value_t = 3)]
    links: usize,
    /// Also print messages and bytes of each connection
    #[arg(long)]
    connections: bool,
    /// Print JSON: an object with `ranks`, `hosts`, `ring`, `runs` and `notes`
    #[arg(long)]
    json: bool,
}

/// Prints a row for each size.
pub(crate) fn execute(arguments: &Arguments) -> Result<ExitCode> {
    let mut config = Config::default().resolve()?;
    config.algo = arguments.algo.clone().or(config.algo);
    let (machine, mut notes) = topo::described(arguments.topo.as_ref(), arguments.overlay.as_ref(), &config)?;
    let system = System::new(&machine)?;
    let (tuned, has_gpus) = (costs_of_file(&config)?, !system.gpus().is_empty());
    let costs = tuned.unwrap_or_default();
    let terrain = match has_gpus {
        false => on_processors(arguments, &machine, (costs, tuned.is_some()))?,
        true => on_gpus(arguments, &system, &config)?,
    };
    let modelled = Modelled::new(terrain);
    let usual = RingSizes::of_collectives(config.buffer_bytes);
    let ring = RingSizes { slot_bytes: arguments.slot.unwrap_or(usual.slot_bytes), ..usual };
    let there = There { arguments, config: &config, ring, machine: &machine, system: &system };
    let modelled = there.with_channels(modelled, &mut notes)?;
    if has_gpus && modelled.terrain().domains().len() > 1 {
        notes.push(format!("between hosts: {}; {NETWORK_AS_BUILT}", topo::UNBUILT));
    }
    let filters = Filters {
        algorithms: Filter::parse(config.algo.as_deref().unwrap_or_default())?,
        protocols: Filter::default(),
    };
    let channels = (config.min_channels.unwrap_or(1).max(1), config.max_channels.unwrap_or(MOST_CHANNELS));
    let foreseen = there.foreseen(&modelled, modelled.terrain().domains().len())?;
    let mut runs = Vec::with_capacity(arguments.bytes.len());
    for bytes in &arguments.bytes {
        let ask = Ask {
            collective: arguments.collective,
            elements: elements(arguments.collective, *bytes, modelled.terrain().size()),
            element_bytes: ELEMENT_BYTES,
            channels,
            ring,
            scratch_bytes: config.scratch_bytes,
            filters: filters.clone(),
        };
        let bytes = if arguments.collective == Collective::Barrier { 0 } else { *bytes };
        runs.push(Run::simulate((&there, &foreseen), &modelled, &ask, bytes)?);
    }
    notes.extend(of_no_algorithm(arguments, &filters));
    let text = if arguments.json {
        let mut shown = as_json(&system, &modelled, &runs, arguments);
        shown["ring"] = json!({ "slots": ring.slots, "slot_bytes": ring.slot_bytes });
        shown["notes"] = json!(notes);
        format!("{shown:#}\n")
    } else {
        as_text(&system, &modelled, &runs, arguments)
    };
    print::out("what the simulation found", &text)?;
    for note in notes.iter().filter(|_| !arguments.json) {
        print::complain(&format!("rsccl: {note}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// That `--algo` says nothing of a collective which NCCL has no algorithms for, as NCCL_ALGO does not.
fn of_no_algorithm(arguments: &Arguments, filters: &Filters) -> Option<String> {
    let (asked, collective) =
        (arguments.algo.as_deref().filter(|asked| !asked.trim().is_empty())?, arguments.collective);
    let is_free = Algorithm::ALL.iter().all(|algorithm| filters.algorithms.allows(collective, *algorithm));
    is_free.then(|| {
        format!("--algo {asked} says nothing of {collective}, which has the usual choice: write {collective}:NAME")
    })
}

/// What communicators there are made from.
struct There<'a> {
    arguments: &'a Arguments,
    config: &'a Config,
    ring: RingSizes,
    machine: &'a Machine,
    system: &'a System,
}

impl There<'_> {
    /// The choices of communicators on the first so many domains.
    fn foreseen(&self, modelled: &Modelled, domains: usize) -> Result<Foreseen> {
        let all = modelled.terrain().domains();
        let ranks = &all[..domains];
        let registered = self.arguments.registered;
        let standing = |hosts, cores| ForeseenRanks { hosts, cores, config: self.config, ring: self.ring, registered };
        let cores = self.machine.hosts().iter().map(|host| processors(self.machine, *host)).min().unwrap_or(0);
        let most = ranks.iter().map(Vec::len).max().unwrap_or(1);
        let cores = if cores > 0 { cores } else { u32::try_from(most).unwrap_or(u32::MAX) };
        if self.system.gpus().is_empty() {
            let apart: Vec<Vec<Rank>> = ranks.iter().flatten().map(|rank| vec![*rank]).collect();
            return Foreseen::on_processors(standing(if self.config.shm_disable { &apart } else { ranks }, cores));
        }
        let copies = u32::try_from(domains.div_ceil((all.len() / self.arguments.hosts.max(1) as usize).max(1)));
        let system = System::new(&self.copied(copies.unwrap_or(u32::MAX).min(self.arguments.hosts)))?;
        let found = self.search(&system);
        let gpus = gpus_of(&found);
        let is_whole = gpus.len() == ranks.iter().map(Vec::len).sum::<usize>();
        let settings = topo::way_settings(self.config)?.0;
        let mut hosts: Vec<(u32, Vec<Rank>)> = Vec::new();
        for (gpu, rank) in gpus.iter().zip(ranks.iter().flatten()) {
            let host = system.node(*gpu).host;
            match hosts.iter_mut().rev().find(|(known, _)| *known == host && !settings.no_shm) {
                Some((_, own)) => own.push(*rank),
                None => hosts.push((host, vec![*rank])),
            }
        }
        let hosts: Vec<Vec<Rank>> = hosts.into_iter().map(|(_, ranks)| ranks).collect();
        let of_system: Vec<u32> = self.system.gpus().iter().map(|gpu| self.system.node(*gpu).host).collect();
        let reach = Described::of(self.system, (settings, &no_driver), &of_system).reach();
        let mut protocols = vec![Protocol::Simple];
        if hosts.len() == 1 {
            protocols.push(Protocol::LowLatency);
            protocols.extend(reach.is_linked.then_some(Protocol::LowLatency128));
        }
        let described = ForeseenGpus {
            links: JoinedLinks::of(&found, &system),
            orders: if is_whole { self.orders(found, (&system, &gpus), &mut Vec::new())? } else { None },
            rails: channels::rails(&system, &gpus),
            on_channels: match (reach.is_staged, reach.is_reached) {
                (true, true) => OnChannels::All,
                _ if reach.is_joined && all.len() == 1 => OnChannels::All,
                (true, false) => OnChannels::None,
                (false, _) => OnChannels::Reached,
            },
            protocols,
        };
        Foreseen::on_gpus(standing(&hosts, cores), described)
    }

    fn copied(&self, hosts: u32) -> Machine {
        if hosts > 1 { self.machine.repeated(hosts) } else { self.machine.clone() }
    }

    /// The channels of communicators: those that were found, and on one host those of the graph file.
    fn orders(
        &self,
        mut found: SystemChannels,
        (system, gpus): (&System, &[NodeId]),
        notes: &mut Vec<String>,
    ) -> Result<Option<ChannelOrders>> {
        let machine = self.copied(self.arguments.hosts);
        if let Some(graphs) = topo::graphs_of_file((None, self.config), &machine, notes)? {
            notes.extend(found.replace(system, &graphs)?);
        }
        found.orders(gpus)
    }

    /// The system with those channels, where rings and trees go over slots: inside a single domain, and where GPUs of a
    /// domain do not reach each other's memory. By its costs another algorithm may be quicker.
    fn with_channels(&self, modelled: Modelled, notes: &mut Vec<String>) -> Result<Modelled> {
        let plans_inside = modelled.terrain().domains().len() > 1 && modelled.terrain().maps();
        if self.system.gpus().is_empty() || plans_inside {
            return Ok(modelled);
        }
        let system = System::new(&self.copied(self.arguments.hosts))?;
        let found = self.search(&system);
        let gpus = gpus_of(&found);
        match self.orders(found, (&system, &gpus), notes)? {
            Some(orders) => modelled.with_channels(orders),
            None => Ok(modelled),
        }
    }

    fn search(&self, system: &System) -> SystemChannels {
        SystemChannels::search(system, CrossNic::of_number(self.config.cross_nic))
    }

    /// What is not played of `NCCL_SHM_DISABLE`, which decides the choice alone: the ranks of a host keep their links.
    fn unplayed(&self, terrain: &Terrain) -> Option<String> {
        if !self.config.shm_disable {
            return None;
        }
        let gpus = self.system.gpus();
        let (parts_hosts, links) = if gpus.is_empty() {
            (terrain.domains().iter().any(|ranks| ranks.len() > 1), "copies through their shared memory")
        } else {
            // By NVLinks of several hosts, GPUs of one reach each other without its memory.
            let hosts: BTreeSet<u32> = gpus.iter().map(|gpu| self.system.node(*gpu).host).collect();
            (hosts.len() < gpus.len() && !terrain.maps(), "the links between their GPUs")
        };
        let remark = || {
            format!(
                "communicators send by TCP between the ranks of a host here, because NCCL_SHM_DISABLE is set: it is \
                 modelled as {links}"
            )
        };
        parts_hosts.then(remark)
    }
}

/// In the order of ranks.
fn gpus_of(found: &SystemChannels) -> Vec<NodeId> {
    found.domains.iter().flat_map(|domain| domain.gpus.iter().copied()).collect()
}

/// A rank on each GPU.
fn on_gpus(arguments: &Arguments, system: &System, config: &Config) -> Result<Terrain> {
    for (option, given) in [("--ranks", arguments.ranks.is_some()), ("--network", arguments.network.is_some())] {
        if given {
            return Err(Error::invalid_argument(format!(
                "{option} is for machines without GPUs: here a rank stands on each GPU, and links are those of the file"
            )));
        }
    }
    Terrain::of_gpus(system, arguments.hosts, topo::way_settings(config)?.0)
}

/// The costs of the file that the environment names.
fn costs_of_file(config: &Config) -> Result<Option<Costs>> {
    let Some(path) = &config.tune_file else { return Ok(None) };
    let text = text_file::read(path, "the tuning file", "RSCCL_TUNE_FILE")?;
    Ok(Some(Calibration::parse(&path.display().to_string(), &text)?.costs))
}

/// Ranks on the processors of hosts, none of which has a GPU. The ranks of a host share its memory, and one NIC.
fn on_processors(arguments: &Arguments, machine: &Machine, (mut costs, measured): (Costs, bool)) -> Result<Terrain> {
    let of_machine = machine.hosts();
    let hosts = of_machine.len() * arguments.hosts as usize;
    if let Some(gigabits) = arguments.network.or_else(|| fastest_nic(machine)) {
        // A bit in a nanosecond is 125 bytes in a microsecond.
        costs.net.bytes_per_us = gigabits * 125.0;
    } else if hosts > 1 && !measured {
        return Err(Error::invalid_argument(
            "no NIC of the machine says how fast it is: give --network GBIT, what each host sends over the network",
        ));
    }
    let mut ranks = Vec::with_capacity(hosts);
    let mut next = 0u32;
    for host in of_machine.iter().cycle().take(hosts) {
        let count = arguments.ranks.unwrap_or_else(|| processors(machine, *host).max(1));
        let end = next.checked_add(count).filter(|end| *end <= MOST_RANKS).ok_or_else(|| {
            Error::invalid_argument(format!("{count} ranks on each host: at most {MOST_RANKS} ranks can be simulated"))
        })?;
        ranks.push((next..end).map(Rank::new).collect());
        next = end;
    }
    Ok(Terrain::of_processes(&ranks, &costs))
}

/// How many processors a host's NUMA nodes list in their masks.
fn processors(machine: &Machine, host: u64) -> u32 {
    let nodes = machine.cpus.iter().filter(|cpu| cpu.host == host);
    nodes.flat_map(|cpu| cpu.affinity.chars()).filter_map(|digit| digit.to_digit(16)).map(u32::count_ones).sum()
}

/// Gbit/s of the fastest port, in the host whose fastest is the slowest: communicators use one NIC.
fn fastest_nic(machine: &Machine) -> Option<f64> {
    let of_host = |host: &u64| {
        let mut megabits = 0;
        for cpu in machine.cpus.iter().filter(|cpu| cpu.host == *host) {
            let mut see = |nic: &Nic| nic.ports.iter().for_each(|port| megabits = megabits.max(port.megabits));
            cpu.nics.iter().for_each(&mut see);
            walk(&cpu.devices, &mut |device| {
                if let Function::Nic(nic) = &device.function {
                    see(nic);
                }
            });
        }
        megabits
    };
    #[expect(clippy::cast_precision_loss, reason = "megabits of a NIC need no more than 53 bits")]
    let gigabits = machine.hosts().iter().map(of_host).min().filter(|megabits| *megabits > 0)? as f64 / 1e3;
    Some(gigabits)
}

fn gigabits(text: &str) -> std::result::Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (LEAST_GIGABITS..=MOST_GIGABITS).contains(number));
    number.ok_or(format!("allowed: Gbit/s from {LEAST_GIGABITS} to {MOST_GIGABITS}"))
}

/// Every rank is simulated.
const EXACT: Fidelity = Fidelity::Folded(Folding::Exact);

/// The bytes of a message: at least one element.
fn parse_slot(text: &str) -> std::result::Result<u32, String> {
    let bytes = u32::try_from(parse_bytes(text)?).map_err(|_| "a slot has less than 4 GiB".to_owned())?;
    match bytes >= ELEMENT_BYTES {
        true => Ok(bytes),
        false => Err(format!("a message has at least one element of {ELEMENT_BYTES} bytes")),
    }
}

/// One size, run.
struct Run {
    bytes: u64,
    /// What communicators do, which is what was played.
    way: ForeseenWay,
    /// What is not as it is there.
    remarks: Vec<String>,
    /// Another algorithm that takes less time here, and its time.
    quicker: Option<(Algorithm, Duration)>,
    fidelity: Fidelity,
    simulated: Simulated,
    algorithm_gbps: f64,
    bus_gbps: f64,
}

/// What communicators do, and what comes of it on these links.
fn played(
    (there, foreseen): (&There<'_>, &Foreseen),
    modelled: &Modelled,
    ask: &Ask,
) -> Result<(ForeseenWay, Fidelity, Simulated)> {
    let call = ForeseenCall::new(ask.collective, ask.elements);
    let way = foreseen.way(&call)?;
    let spec = foreseen.spec(&call, way, Rank::new(0));
    let fidelity = if there.arguments.exact { EXACT } else { modelled.fidelity(&spec) };
    let specs = |domains: usize| -> Result<SpecOf<'_>> {
        let call = call.clone();
        if domains == modelled.terrain().domains().len() {
            return Ok(Box::new(move |rank| foreseen.spec(&call, way, rank)));
        }
        let part = there.foreseen(modelled, domains)?;
        Ok(Box::new(move |rank| part.spec(&call, way, rank)))
    };
    let simulated = modelled.play(&specs, ask.element_bytes, fidelity)?;
    Ok((way, fidelity, simulated))
}

/// The algorithm that the costs of the links give, and its time, where it is another one and takes less.
fn quicker(
    there: &There<'_>,
    modelled: &Modelled,
    ask: &Ask,
    (chosen, time): (Algorithm, Duration),
) -> Result<Option<(Algorithm, Duration)>> {
    // Filters may leave the model nothing where communicators open them.
    let Some(other) = modelled.choose(ask).ok().map(|choice| choice.algorithm).filter(|other| *other != chosen) else {
        return Ok(None);
    };
    let mut config = there.config.clone();
    config.algo = Some(other.name().to_owned());
    let there = There { config: &config, ..*there };
    let foreseen = there.foreseen(modelled, modelled.terrain().domains().len())?;
    let (way, _, simulated) = played((&there, &foreseen), modelled, ask)?;
    Ok((way.choice.algorithm == other && simulated.time < time).then_some((other, simulated.time)))
}

/// What of a way is not simulated as it is.
fn remarks(way: ForeseenWay, maps: bool) -> Vec<String> {
    let mut remarks = Vec::new();
    if way.is_flat {
        remarks.push("communicators do this by flat slots, which are no plan: a direct plan is played".to_owned());
    }
    let protocol = way.choice.protocol;
    if protocol != Protocol::Simple {
        remarks
            .push(format!("communicators send by {protocol} here: its latencies are not modelled, those are Simple's"));
    }
    if way.windows != Windows::None && !maps {
        remarks.push(
            "communicators work in the host's memory here, because GPUs do not reach each other's: it is modelled as \
             the links between the GPUs"
                .to_owned(),
        );
    }
    remarks
}

impl Run {
    fn simulate((there, foreseen): (&There<'_>, &Foreseen), modelled: &Modelled, ask: &Ask, bytes: u64) -> Result<Run> {
        let (way, fidelity, simulated) = played((there, foreseen), modelled, ask)?;
        let factor = Program::of(ask.collective).map_or(1.0, |program| program.bus_factor(modelled.terrain().size()));
        #[expect(clippy::cast_precision_loss, reason = "for people: three digits")]
        let gigabytes = bytes as f64 / 1e9;
        let seconds = simulated.time.as_secs_f64();
        let algorithm_gbps = if seconds > 0.0 { gigabytes / seconds } else { 0.0 };
        let quicker = quicker(there, modelled, ask, (way.choice.algorithm, simulated.time))?;
        let mut remarks = remarks(way, modelled.terrain().maps());
        remarks.extend(there.unplayed(modelled.terrain()));
        let bus_gbps = algorithm_gbps * factor;
        Ok(Run { bytes, way, remarks, quicker, fidelity, simulated, algorithm_gbps, bus_gbps })
    }

    fn time_us(&self) -> f64 {
        self.simulated.time.as_secs_f64() * 1e6
    }

    /// The busiest links, the first of them first.
    fn busiest(&self, count: usize) -> Vec<LinkLoad> {
        let mut loads = self.simulated.loads.clone();
        loads.sort_by(|one, other| other.busy.total_cmp(&one.busy));
        loads.truncate(count);
        loads
    }

    fn simulated_as(&self) -> String {
        match self.fidelity {
            EXACT => "every rank".to_owned(),
            Fidelity::Folded(Folding::Rotation) => "one host for all".to_owned(),
            Fidelity::ByDepth(domains) => format!("trees of {domains} and {} hosts for all", domains / 2),
        }
    }
}

fn as_text(system: &System, modelled: &Modelled, runs: &[Run], arguments: &Arguments) -> String {
    let mut text = String::new();
    let (ranks, domains) = (modelled.terrain().size(), modelled.terrain().domains().len());
    let on = if system.gpus().is_empty() {
        let noun = if domains == 1 { "host" } else { "hosts" };
        format!("{ranks} ranks of {domains} {noun} without GPUs")
    } else {
        format!("{ranks} GPUs in {}", standing(domains))
    };
    line(&mut text, format_args!("{} on {on}", arguments.collective));
    line(
        &mut text,
        format_args!(
            "{:>12} {:>9} {:>8} {:>12} {:>11} {:>11}  simulated",
            "bytes", "algorithm", "channels", "time (us)", "algbw GB/s", "busbw GB/s"
        ),
    );
    for run in runs {
        line(
            &mut text,
            format_args!(
                "{:>12} {:>9} {:>8} {:>12.1} {:>11.2} {:>11.2}  {}",
                run.bytes,
                run.way.choice.algorithm.name(),
                run.way.choice.channels,
                run.time_us(),
                run.algorithm_gbps,
                run.bus_gbps,
                run.simulated_as()
            ),
        );
        for remark in &run.remarks {
            line(&mut text, format_args!("    {remark}"));
        }
        if let Some((quicker, time)) = run.quicker {
            let time_us = time.as_secs_f64() * 1e6;
            line(
                &mut text,
                format_args!("    {quicker} takes {time_us:.1} us over these links: --algo {quicker} plays it"),
            );
        }
        for load in run.busiest(arguments.links) {
            let (from, to) = ends(system, modelled, load);
            line(&mut text, format_args!("    {:>3.0} % busy: {from} -> {to}", load.busy * 100.0));
        }
        for traffic in run.simulated.traffic.iter().filter(|_| arguments.connections) {
            line(
                &mut text,
                format_args!(
                    "    {} -> {} channel {}: {} messages, {} bytes",
                    traffic.from, traffic.to, traffic.channel, traffic.messages, traffic.bytes
                ),
            );
        }
    }
    let bound = modelled.all_reduce_bound() / 1e3;
    if arguments.collective == Collective::AllReduce && bound.is_finite() {
        let what = if system.gpus().is_empty() { "" } else { ", and GPUs by links" };
        line(&mut text, format_args!("busbw can be at most {bound:.2} GB/s: what leaves hosts by NICs{what}"));
    }
    text
}

fn as_json(system: &System, modelled: &Modelled, runs: &[Run], arguments: &Arguments) -> Value {
    let run = |run: &Run| {
        let link = |load: LinkLoad| {
            let (from, to) = ends(system, modelled, load);
            json!({ "domain": load.domain, "from": from, "to": to, "busy": load.busy })
        };
        let connections = run.simulated.traffic.iter().filter(|_| arguments.connections).map(|traffic| {
            json!({
                "from": traffic.from.get(), "to": traffic.to.get(), "channel": traffic.channel,
                "messages": traffic.messages, "bytes": traffic.bytes,
            })
        });
        json!({
            "bytes": run.bytes,
            "algorithm": run.way.choice.algorithm.name(),
            "quicker": run.quicker.map(|(algorithm, time)| {
                json!({ "algorithm": algorithm.name(), "time_us": time.as_secs_f64() * 1e6 })
            }),
            "protocol": run.way.choice.protocol.name(),
            "channels": run.way.choice.channels,
            "windows": match run.way.windows {
                Windows::None => "none",
                Windows::Scratch => "scratch",
                Windows::User => "user",
                Windows::Symmetric => "symmetric",
            },
            "remarks": run.remarks,
            "every_rank": run.fidelity == EXACT,
            "simulated": run.simulated_as(),
            "time_us": run.time_us(),
            "algbw_gbps": run.algorithm_gbps,
            "busbw_gbps": run.bus_gbps,
            "links": run.busiest(arguments.links).into_iter().map(link).collect::<Vec<_>>(),
            "connections": connections.collect::<Vec<_>>(),
        })
    };
    json!({
        "collective": arguments.collective.name(),
        "ranks": modelled.terrain().size(),
        "hosts": arguments.hosts,
        "domains": modelled.terrain().domains().len(),
        // Nothing bounds it where neither network nor links are passed; JSON has no infinity.
        "all_reduce_bound_gbps": Some(modelled.all_reduce_bound() / 1e3).filter(|bound| bound.is_finite()),
        "runs": runs.iter().map(run).collect::<Vec<_>>(),
    })
}

fn standing(domains: usize) -> String {
    if domains == 1 { "one domain".to_owned() } else { format!("{domains} domains, which the network joins") }
}

/// What people call both ends of a link.
fn ends(system: &System, modelled: &Modelled, load: LinkLoad) -> (String, String) {
    match modelled.terrain().ends(load.domain, load.link) {
        Some((from, to)) => (format!("domain {} {}", load.domain, system.name(from)), system.name(to)),
        None => (format!("host {}", load.domain), "network".to_owned()),
    }
}

fn line(text: &mut String, what: std::fmt::Arguments<'_>) {
    writeln!(text, "{what}").expect("a string takes any text");
}

/// The plan's count for a size as `rsccl perf` counts it.
fn elements(collective: Collective, bytes: u64, ranks: u32) -> u64 {
    let whole = bytes / u64::from(ELEMENT_BYTES);
    match Program::of(collective) {
        Some(Program::Barrier) => 0,
        Some(program) if program.has_blocks() => whole / u64::from(ranks.max(1)),
        Some(_) | None => whole,
    }
}

fn collective(text: &str) -> std::result::Result<Collective, String> {
    // As `rsccl perf` reads it: nccl-tests' spellings too.
    let known = Program::from_name(text).filter(|known| !known.is_vector()).and_then(Program::collective);
    known.ok_or_else(|| format!("allowed are {}", planned()))
}

/// The names of the collectives of equal counts that are done by plans.
fn planned() -> String {
    let planned = Program::ALL.iter().filter(|program| !program.is_vector() && program.collective().is_some());
    planned.map(|program| program.name()).collect::<Vec<_>>().join(", ")
}

/// float32, the usual type of gradients.
const ELEMENT_BYTES: u32 = 4;
#[expect(clippy::cast_possible_truncation, reason = "NCCL's maximum is 64")]
const MOST_CHANNELS: u32 = rsccl::config::MAX_CHANNELS as u32;
/// A world's most, as in communicators.
const MOST_RANKS: u32 = 65_536;
const LEAST_GIGABITS: f64 = 0.001;
const MOST_GIGABITS: f64 = 100_000.0;
