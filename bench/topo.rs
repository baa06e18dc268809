//! Time of the search for channels, one core, cold: ring and tree inside each machine of `src/topo/machines` and
//! `tests/data/hives`, between two hosts of it, and between up to 1,024 hosts of eight GPUs; then of simulations.
//! `cargo bench --features internals --bench topo`; growth shows in the last rows of each table. Beside the figures stand their bounds; nothing is asserted, since a loaded machine takes longer.
//!
//! Inside, one host is searched, as one rank of a host does. Between, all hosts are, as every rank does once the hosts are known.
//! Layout is all that a rank of a communicator does once it has the descriptions: the graph, the channels inside each host and
//! between them, the order of its ranks. The memory is that of the whole process, with every sample's graph and the description's
//! text: more than a rank has.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]

use std::path::{Path, PathBuf};

use rsccl::internals::plan::Layout;
use rsccl::internals::sys::clock;
use rsccl::internals::topo::channels::{self, SystemChannels};
use rsccl::internals::topo::description::Machine;
use rsccl::internals::topo::search::between::{self, CrossNic};
use rsccl::internals::topo::search::domain::Domain;
use rsccl::internals::topo::search::{chains_inside, rings};
use rsccl::internals::topo::system::System;
use rsccl::internals::topo::transport_choice::ladder::WaySettings;
use rsccl::internals::topo::xml;
use rsccl::internals::tune::{Ask, Fidelity, Filters, Folding, Modelled, RingSizes, Terrain};
use rsccl::internals::types::Filter;
use rsccl::types::Collective;
use rsccl::{Error, Result};

const SAMPLES: usize = 5;
/// The hosts for which there is a bound.
const MOST_HOSTS: u32 = 1024;

fn main() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = root.join("src/topo/machines");
    let mut files = Vec::new();
    for folder in [&folder, &root.join("tests/data/hives")] {
        let entries = std::fs::read_dir(folder).map_err(|error| Error::system("reading the machines", error))?;
        let machine = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.ends_with(".xml") && !name.ends_with(".graph.xml")
        };
        let mut here: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(machine).collect();
        here.sort();
        files.extend(here);
    }
    println!(
        "| machine | hosts | inside, ms (median of {SAMPLES}) | bound | between, ms | layout, ms | bound | rings between |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for file in &files {
        row(file, 2)?;
    }
    for hosts in [64, 256, MOST_HOSTS] {
        row(&folder.join("h100x8.xml"), hosts)?;
    }
    println!("\nThe process has held {} MiB at most; the bound for a rank is 64 MiB.\n", most_held_mib());
    println!(
        "| all-reduce of 1 GiB | ranks | algorithm | simulated | took, s (bound 10 to 512 ranks) | time, us | bus, GB/s |"
    );
    println!("|---|---|---|---|---|---|---|");
    for hosts in [2, 16, 64, 1250] {
        simulation(&folder.join("h100x8.xml"), (hosts, "Ring"))?;
    }
    for hosts in [16, 64, 256, 1250] {
        simulation(&folder.join("h100x8.xml"), (hosts, "Tree"))?;
    }
    Ok(())
}

fn simulation(file: &Path, (hosts, algorithm): (u32, &str)) -> Result<()> {
    let system = System::new(&machine(file)?)?;
    let modelled = Modelled::new(Terrain::of_gpus(&system, hosts, WaySettings::default())?);
    let filters = Filters { algorithms: Filter::parse(algorithm)?, ..Filters::default() };
    let (elements, collective) = (1 << 28, Collective::AllReduce);
    let (ring, scratch_bytes) = (RingSizes::of_collectives(None), rsccl::Config::default().scratch_bytes);
    let ask = Ask { collective, elements, element_bytes: 4, channels: (1, 64), ring, scratch_bytes, filters };
    let begun = clock::now();
    let choice = modelled.choose(&ask)?;
    let fidelity = modelled.fidelity(&modelled.spec(&ask, choice, rsccl::types::Rank::new(0)));
    let simulated = modelled.run(&ask, choice, fidelity)?;
    let took = begun.elapsed().as_secs_f64();
    let (ranks, us) = (f64::from(modelled.terrain().size()), simulated.time.as_secs_f64() * 1e6);
    let bus = 2.0 * (ranks - 1.0) / ranks * f64::from(1 << 30) / us / 1e3;
    let way = match fidelity {
        Fidelity::Folded(Folding::Exact) => "every rank",
        Fidelity::Folded(Folding::Rotation) => "one host for all",
        Fidelity::ByDepth(_) => "by depth",
    };
    println!("| {hosts} x h100x8 | {ranks} | {algorithm} | {way} | {took:.2} | {us:.0} | {bus:.1} |");
    Ok(())
}

/// The most memory that this process has held so far, as the system counts it; 0 where it does not tell.
fn most_held_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or_default() / 1024
}

fn machine(file: &Path) -> Result<Machine> {
    let name = file.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    let text = std::fs::read_to_string(file).map_err(|error| Error::system(format!("reading {name}"), error))?;
    Ok(xml::parse(name, &text)?.0)
}

fn row(file: &Path, hosts: u32) -> Result<()> {
    let name = file.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    let machine = machine(file)?.repeated(hosts);
    let (mut inside, mut between, mut whole, mut found) = (Vec::new(), Vec::new(), Vec::new(), String::new());
    let mut gpus_of_a_domain = 0;
    for _ in 0..SAMPLES {
        // Cold: a graph of its own for each sample.
        let system = System::new(&machine)?;
        let domains = Domain::all(&system);
        let Some(domain) = domains.first() else { return Ok(()) };
        let begun = clock::now();
        let gpus = domain.part.gpus();
        gpus_of_a_domain = gpus.len();
        let channels = (rings(&domain.part, &gpus), chains_inside(&domain.part, &gpus));
        inside.push(begun.elapsed().as_secs_f64() * 1e3);
        std::hint::black_box(channels);
        let order: Vec<usize> = (0..domains.len()).collect();
        let begun = clock::now();
        let result = between::search(&system, &order, CrossNic::IfBetter);
        between.push(begun.elapsed().as_secs_f64() * 1e3);
        found = result.map_or_else(|reason| reason, |found| found.ring.total().to_string());
        drop((system, domains));
        let begun = clock::now();
        std::hint::black_box(layout(&machine)?);
        whole.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    let [inside, between, whole] = [inside, between, whole].map(|mut all| {
        all.sort_by(f64::total_cmp);
        all[SAMPLES / 2]
    });
    let inside_bound = match gpus_of_a_domain {
        0..=8 => "20",
        9..=16 => "50",
        17..=72 => "200",
        _ => "none",
    };
    let between_bound = match (hosts, gpus_of_a_domain) {
        (MOST_HOSTS, _) => "300",
        (2, ..=16) => "50",
        _ => "none",
    };
    println!(
        "| {name} | {hosts} | {inside:.1} | {inside_bound} | {between:.1} | {whole:.1} | {between_bound} | {found} |"
    );
    Ok(())
}

/// The layout of a rank on each GPU.
fn layout(machine: &Machine) -> Result<Layout> {
    let system = System::new(machine)?;
    let gpus = system.gpus();
    let layout = Layout::of_gpus(&system, &gpus).with_rails(&channels::rails(&system, &gpus));
    match SystemChannels::search(&system, CrossNic::IfBetter).orders(&gpus)? {
        Some(orders) => layout.with_channels(orders),
        None => Ok(layout),
    }
}
