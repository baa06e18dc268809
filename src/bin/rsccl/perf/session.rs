//! All cases of a job, on one rank.

use rsccl::comm::DeviceStream;
use rsccl::internals::sys::open;
use rsccl::{Communicator, Result};

use super::device;
use super::job::Job;
use super::load::{Load, Room};
use super::machine;
use super::measure::{Case, Measured, Rank, measure};
use super::plot;
use super::report::{self, Row};
use super::table::{self, Table};
use super::verify::{Op, Placement, Program, Shape};

/// Runs `job` as one rank of `comm`; rank 0 prints and writes the files. Whether all was right on all ranks.
///
/// # Errors
/// Of the collectives, and of writing the files.
pub(crate) fn run(comm: &Communicator, job: &Job) -> Result<bool> {
    let place = comm.placement()?;
    let of_rank = || device::of_rank(&job.devices, place.local_rank, place.local_size);
    let device = (!job.devices.is_empty()).then(of_rank);
    let stream = device.map(DeviceStream::new).transpose()?;
    let this = Rank { comm, job, device, stream };
    let load = Load::now();
    let ranks = introduce(&this)?;
    let load = load.zip(Load::now()).map(|(before, behind)| before.least(behind));
    let cases = cases(job);
    let mut table = (comm.rank() == 0).then(|| {
        let rows = cases.len() * job.cycles as usize;
        Table::new(job, &ranks, Room::here(load, place.local_size), rows)
    });
    if let Some(table) = &mut table {
        table.head()?;
    }
    let mut rows = Vec::new();
    let mut program = None;
    let cycles = (0..job.cycles).flat_map(|_| &cases);
    for (number, plan) in cycles.enumerate() {
        if let Some(table) = &mut table {
            if program.replace(plan.program) != Some(plan.program) && job.programs.len() > 1 {
                table.title(plan.program)?;
            }
            table.progress(number);
        }
        let row = row(&this, plan, number as u64)?;
        if let Some(table) = &mut table {
            table.row(&row)?;
        }
        rows.push(row);
    }
    let wrong: u64 = rows.iter().map(Row::wrong).sum();
    if let Some(table) = &mut table {
        table.foot(&rows)?;
        write_files(job, &rows)?;
    }
    Ok(wrong == 0)
}

/// Writes what the user wants in files.
fn write_files(job: &Job, rows: &[Row]) -> Result<()> {
    if let Some(path) = &job.json {
        report::write(path, job, rows)?;
    }
    if let Some(path) = &job.csv {
        report::write_csv(path, job, rows)?;
    }
    if let Some((path, format)) = &job.plot {
        let drawing = plot::draw(*format, job, rows)?;
        let written = open::write(path, drawing);
        written.map_err(|error| rsccl::Error::system(format!("writing {}", path.display()), error))?;
    }
    Ok(())
}

/// One row of the table, to be run.
#[derive(Debug)]
struct Plan {
    program: Program,
    data_type: rsccl::DataType,
    op: Option<Op>,
    root: Option<u32>,
    bytes: u64,
}

fn cases(job: &Job) -> Vec<Plan> {
    let mut cases = Vec::new();
    for program in job.programs.iter().copied() {
        for data_type in job.types(program).iter().copied() {
            for op in job.ops(program, data_type) {
                for root in job.roots(program) {
                    let of = |bytes: &u64| Plan { program, data_type, op, root, bytes: *bytes };
                    cases.extend(job.sizes(program).iter().map(of));
                }
            }
        }
    }
    cases
}

fn row(rank: &Rank<'_>, plan: &Plan, number: u64) -> Result<Row> {
    let Rank { comm, job, .. } = *rank;
    let Plan { program, data_type, op, root, bytes } = *plan;
    let elements = usize::try_from(bytes / u64::from(data_type.size())).map_err(|_| {
        rsccl::Error::invalid_argument(format!(
            "{bytes} bytes do not fit this machine's addresses: choose a smaller -e"
        ))
    })?;
    let shape = Shape::new(program, (comm.rank(), comm.size()), root.unwrap_or_default(), elements)?;
    let run = |placement: Placement| -> Result<Measured> {
        let seed = job
            .seed
            .wrapping_add(SEEDS_OF_A_CASE.wrapping_mul(2 * number + u64::from(placement == Placement::InPlace)));
        let case = Case { shape: shape.clone(), data_type, op, placement, seed };
        let mut complain = |sentence: &str| {
            let op = op.map_or("", Op::name);
            table::complain(&format!("rsccl perf: {data_type} {op} {bytes} bytes, {}: {sentence}", placement.name()));
        };
        measure(rank, &case, &mut complain)
    };
    let out_of_place = run(Placement::OutOfPlace)?;
    // After a call: what devices can do is known once they have met.
    let chosen = match program.collective() {
        Some(collective) => comm.chosen(collective, data_type, &shape.call_count())?,
        None => None,
    };
    let in_place = if shape.in_place().is_some() { Some(run(Placement::InPlace)?) } else { None };
    let bytes = shape.elements() as u64 * u64::from(data_type.size());
    let factor = program.bus_factor(comm.size());
    let count = shape.count() as u64;
    Ok(Row { program, bytes, count, data_type, op, root, chosen, out_of_place, in_place, factor })
}

/// Who runs where, gathered from all ranks.
fn introduce(rank: &Rank<'_>) -> Result<Vec<String>> {
    let Rank { comm, .. } = *rank;
    let mut mine = [0u8; INTRODUCTION_BYTES];
    let memory = rank.device.map_or("host memory".to_owned(), |device| format!("device {device}"));
    let text = format!("Pid {:>6} on {} {memory}", machine::pid(), machine::hostname());
    // A character that is cut in two is shown as one that is unknown.
    let length = text.len().min(INTRODUCTION_BYTES);
    mine[..length].copy_from_slice(&text.as_bytes()[..length]);
    let mut all = vec![0; INTRODUCTION_BYTES * comm.size() as usize];
    comm.all_gather(&mine, &mut all)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
    Ok(all.chunks_exact(INTRODUCTION_BYTES).map(text).collect())
}

/// Room for a rank's host and process in the table's head.
const INTRODUCTION_BYTES: usize = 96;
/// Seeds that lie between two cases: more than any case checks.
const SEEDS_OF_A_CASE: u64 = 1 << 33;
