//! `rsccl sim`: a collective on a modelled system.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use rsccl::internals::plan::Windows;
use rsccl::internals::sys::text_file;
use rsccl::internals::topo::channels::SystemChannels;
use rsccl::internals::topo::description::{Function, Machine, Nic, walk};
use rsccl::internals::topo::search::between::CrossNic;
use rsccl::internals::topo::system::{NodeId, System};
use rsccl::internals::topo::transport_choice::described::NETWORK_AS_BUILT;
use rsccl::internals::tune::{
    Ask, Calibration, Choice, Costs, Fidelity, Filters, Folding, LinkLoad, Modelled, RingSizes, Simulated, Terrain,
};
use rsccl::internals::types::Filter;
use rsccl::types::{Algorithm, Collective, Rank};
use rsccl::{Config, Error, Result};
use serde_json::{Value, json};

use crate::perf::{Program, parse_bytes};
use crate::{print, topo};

/// Runs a collective's plans on the links of a modelled system, with a rank on each GPU, or on each processor of a
/// machine without GPUs.
///
/// The simulation runs the same plans as communicators do, step by step. Only time is modelled: links and GPU memory by
/// their bandwidth, messages and flags by the latencies of NCCL's tuner. The rings by which ranks send are those of
/// communicators (NCCL_BUFFSIZE), and long protocols (Simple) alone are simulated.
///
/// The algorithm is the quickest by the costs of the system's links; NCCL_ALGO and --algo filter the choice.
/// Communicators choose by usual costs, or those of RSCCL_TUNE_FILE: where that gives another algorithm, a line below
/// the row names it, and --algo plays it. GPUs of several hosts send as if each had its nearest NIC for itself;
/// communicators send by TCP over one interface of a host.
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
    let config = Config::default().resolve()?;
    let (machine, mut notes) = topo::described(arguments.topo.as_ref(), arguments.overlay.as_ref(), &config)?;
    let system = System::new(&machine)?;
    let (tuned, has_gpus) = (costs_of_file(&config)?, !system.gpus().is_empty());
    let costs = tuned.unwrap_or_default();
    let modelled = match has_gpus {
        false => Modelled::new(on_processors(arguments, &machine, (costs, tuned.is_some()))?),
        true => on_gpus(arguments, (&machine, &system), &config, &mut notes)?,
    };
    if has_gpus && modelled.terrain().domains().len() > 1 {
        notes.push(format!("between hosts: {}; {NETWORK_AS_BUILT}", topo::UNBUILT));
    }
    let usual = RingSizes::of_collectives(config.buffer_bytes);
    let ring = RingSizes { slot_bytes: arguments.slot.unwrap_or(usual.slot_bytes), ..usual };
    let algorithms = arguments.algo.as_deref().or(config.algo.as_deref()).unwrap_or_default();
    let filters = Filters {
        algorithms: Filter::parse(algorithms)?,
        protocols: Filter::parse(config.proto.as_deref().unwrap_or_default())?,
    };
    let channels = (config.min_channels.unwrap_or(1).max(1), config.max_channels.unwrap_or(MOST_CHANNELS));
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
        // A file's costs are those of processors: between GPUs of a host they count for nothing.
        let choosing = (&costs, tuned.is_some() && !has_gpus);
        runs.push(Run::simulate(&modelled, &ask, (bytes, arguments.exact), choosing)?);
    }
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

/// A rank on each GPU.
fn on_gpus(
    arguments: &Arguments,
    (machine, system): (&Machine, &System),
    config: &Config,
    notes: &mut Vec<String>,
) -> Result<Modelled> {
    for (option, given) in [("--ranks", arguments.ranks.is_some()), ("--network", arguments.network.is_some())] {
        if given {
            return Err(Error::invalid_argument(format!(
                "{option} is for machines without GPUs: here a rank stands on each GPU, and links are those of the file"
            )));
        }
    }
    let terrain = Terrain::of_gpus(system, arguments.hosts, topo::way_settings(config)?.0)?;
    let modelled = Modelled::new(terrain);
    if modelled.terrain().domains().len() > 1 && modelled.terrain().maps() {
        // Plans work inside domains and then between them.
        return Ok(modelled);
    }
    let machine = if arguments.hosts > 1 { machine.repeated(arguments.hosts) } else { machine.clone() };
    on_channels(modelled, &machine, config, notes)
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

/// The system with the channels of communicators, where rings and trees go over slots: inside a single domain, and
/// where GPUs of a domain do not reach each other's memory.
fn on_channels(modelled: Modelled, machine: &Machine, config: &Config, notes: &mut Vec<String>) -> Result<Modelled> {
    let system = System::new(machine)?;
    let mut found = SystemChannels::search(&system, CrossNic::of_number(config.cross_nic));
    if let Some(graphs) = topo::graphs_of_file((None, config), machine, notes)? {
        notes.extend(found.replace(&system, &graphs)?);
    }
    let gpus: Vec<NodeId> = found.domains.iter().flat_map(|domain| domain.gpus.iter().copied()).collect();
    match found.orders(&gpus)? {
        Some(orders) => modelled.with_channels(orders),
        None => Ok(modelled),
    }
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
    choice: Choice,
    /// What communicators choose.
    theirs: Algorithm,
    windows: Windows,
    fidelity: Fidelity,
    simulated: Simulated,
    algorithm_gbps: f64,
    bus_gbps: f64,
}

impl Run {
    /// Communicators choose by the costs of `choosing`, which may be measured.
    fn simulate(modelled: &Modelled, ask: &Ask, (bytes, exact): (u64, bool), choosing: (&Costs, bool)) -> Result<Run> {
        let choice = modelled.choose(ask)?;
        let theirs = modelled.chosen_by_communicators(ask, choosing)?;
        let fidelity = if exact { EXACT } else { modelled.fidelity(ask, choice) };
        let simulated = modelled.run(ask, choice, fidelity)?;
        let ranks = modelled.terrain().size();
        let factor = Program::of(ask.collective).map_or(1.0, |program| program.bus_factor(ranks));
        #[expect(clippy::cast_precision_loss, reason = "for people: three digits")]
        let gigabytes = bytes as f64 / 1e9;
        let seconds = simulated.time.as_secs_f64();
        let algorithm_gbps = if seconds > 0.0 { gigabytes / seconds } else { 0.0 };
        let windows = modelled.spec(ask, choice, Rank::new(0)).windows;
        Ok(Run {
            bytes,
            choice,
            theirs,
            windows,
            fidelity,
            simulated,
            algorithm_gbps,
            bus_gbps: algorithm_gbps * factor,
        })
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

    fn way(&self) -> String {
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
                run.choice.algorithm.name(),
                run.choice.channels,
                run.time_us(),
                run.algorithm_gbps,
                run.bus_gbps,
                run.way()
            ),
        );
        if run.theirs != run.choice.algorithm {
            let theirs = run.theirs.name();
            line(
                &mut text,
                format_args!("    communicators choose {theirs} here, by other costs: --algo {theirs} plays it"),
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
            "algorithm": run.choice.algorithm.name(),
            "communicators_choose": run.theirs.name(),
            "protocol": run.choice.protocol.name(),
            "channels": run.choice.channels,
            "windows": match run.windows {
                Windows::None => "none",
                Windows::Scratch => "scratch",
                Windows::User => "user",
                Windows::Symmetric => "symmetric",
            },
            "every_rank": run.fidelity == EXACT,
            "simulated": run.way(),
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
