//! Time of the search for channels, one core: ring and tree inside each machine of `tests/data/machines`, between two hosts of it, and
//! between 1,024 hosts of eight GPUs. `cargo bench --bench topo`; growth shows in the last rows.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]

use std::path::Path;

use rsccl::internals::sys::clock;
use rsccl::internals::topo::search::between::{self, CrossNic};
use rsccl::internals::topo::search::domain::Domain;
use rsccl::internals::topo::search::{chains_inside, rings};
use rsccl::internals::topo::system::System;
use rsccl::internals::topo::xml;
use rsccl::{Error, Result};

const SAMPLES: usize = 5;

fn main() -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/machines");
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .map_err(|error| Error::system("reading tests/data/machines", error))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "xml"))
        .collect();
    files.sort();
    println!("| machine | hosts | inside, ms (median of {SAMPLES}) | between, ms | rings between |");
    println!("|---|---|---|---|---|");
    for file in &files {
        row(file, 2)?;
    }
    for hosts in [64, 256, 1024] {
        row(&folder.join("h100x8.xml"), hosts)?;
    }
    Ok(())
}

fn row(file: &Path, hosts: u32) -> Result<()> {
    let name = file.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    let text = std::fs::read_to_string(file).map_err(|error| Error::system(format!("reading {name}"), error))?;
    let (machine, _) = xml::parse(name, &text)?;
    let machine = machine.repeated(hosts);
    let (mut inside, mut between, mut found) = (Vec::new(), Vec::new(), String::new());
    for _ in 0..SAMPLES {
        // Cold: a graph of its own for each sample.
        let system = System::new(&machine)?;
        let domains = Domain::all(&system);
        let Some(domain) = domains.first() else { return Ok(()) };
        let begun = clock::now();
        let gpus = domain.part.gpus();
        let channels = (rings(&domain.part, &gpus), chains_inside(&domain.part, &gpus));
        inside.push(begun.elapsed().as_secs_f64() * 1e3);
        std::hint::black_box(channels);
        let order: Vec<usize> = (0..domains.len()).collect();
        let begun = clock::now();
        let result = between::search(&system, &order, CrossNic::IfBetter);
        between.push(begun.elapsed().as_secs_f64() * 1e3);
        found = result.map_or_else(|reason| reason, |found| found.ring.total().to_string());
    }
    inside.sort_by(f64::total_cmp);
    between.sort_by(f64::total_cmp);
    println!("| {name} | {hosts} | {:.1} | {:.1} | {found} |", inside[SAMPLES / 2], between[SAMPLES / 2]);
    Ok(())
}
