//! Results as values, and as JSON.

use std::fs;
use std::path::Path;

use rsccl::comm::Chosen;
use rsccl::{DataType, Error, Result};
use serde_json::{Value, json};

use super::job::Job;
use super::machine;
use super::measure::Measured;
use super::verify::{Op, Program};

/// One row of the table.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) program: Program,
    /// What the bandwidth counts.
    pub(crate) bytes: u64,
    /// Elements of one rank's block.
    pub(crate) count: u64,
    pub(crate) data_type: DataType,
    pub(crate) op: Option<Op>,
    pub(crate) root: Option<u32>,
    /// How it was run, where there was a choice.
    pub(crate) chosen: Option<Chosen>,
    pub(crate) out_of_place: Measured,
    pub(crate) in_place: Option<Measured>,
    /// Bus bandwidth over algorithm bandwidth.
    pub(crate) factor: f64,
}

impl Row {
    /// Wrong elements of both halves.
    pub(crate) fn wrong(&self) -> u64 {
        self.halves().filter_map(|(_, half)| half.wrong).sum()
    }

    /// Algorithm and bus bandwidth of one half, in GB/s; 0 where nothing was timed.
    pub(crate) fn bandwidth(&self, half: &Measured) -> (f64, f64) {
        if half.time_us == 0.0 {
            return (0.0, 0.0);
        }
        let algorithm = self.bytes as f64 / (half.time_us * 1e3);
        (algorithm, algorithm * self.factor)
    }

    /// The halves that were run, with whether they were in place.
    pub(crate) fn halves(&self) -> impl Iterator<Item = (bool, &Measured)> {
        std::iter::once((false, &self.out_of_place)).chain(self.in_place.iter().map(|half| (true, half)))
    }
}

/// Writes `rows` to `path`.
///
/// # Errors
/// [`rsccl::error::Kind::System`] where the file cannot be written.
pub(crate) fn write(path: &Path, job: &Job, rows: &[Row]) -> Result<()> {
    let results: Vec<Value> = rows.iter().flat_map(|row| row.halves().map(|half| result(job, row, half))).collect();
    let report = json!({
        "machine": machine::machine(),
        "commit": machine::commit(),
        "versions": machine::versions(),
        "results": results,
    });
    let text = format!("{report:#}\n");
    fs::write(path, text).map_err(|error| Error::system(format!("writing {}", path.display()), error))
}

fn result(job: &Job, row: &Row, (in_place, half): (bool, &Measured)) -> Value {
    let (algbw, busbw) = row.bandwidth(half);
    json!({
        "collective": row.program.name(),
        "ranks": job.ranks,
        "bytes": row.bytes,
        "count": row.count,
        "type": row.data_type.name(),
        "op": row.op.map(Op::name),
        "root": row.root,
        "in_place": in_place,
        "time_us": half.time_us,
        "algbw_gbps": algbw,
        "busbw_gbps": busbw,
        "wrong": half.wrong,
        "registered": job.registered,
        "transport": job.transport.name(),
        "algorithm": row.chosen.map(|chosen| chosen.algorithm.name()),
        "protocol": row.chosen.map(|chosen| chosen.protocol.name()),
    })
}
