//! Results as values, and as JSON.

use std::path::Path;

use rsccl::comm::Chosen;
use rsccl::internals::sys::open;
use rsccl::{DataType, Error, Result};
use serde_json::{Value, json};

use crate::print;

use super::job::{Job, is_standard_output};
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

    /// Algorithm and bus bandwidth of one half, in GB/s; `None` where nothing was timed.
    pub(crate) fn bandwidth(&self, half: &Measured) -> Option<(f64, f64)> {
        let time_us = half.time_us.filter(|time_us| *time_us > 0.0)?;
        let algorithm = self.bytes as f64 / (time_us * 1e3);
        Some((algorithm, algorithm * self.factor))
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
        "date": machine::date(),
        "command": machine::command(),
        "settings": machine::settings()?,
        "machine": machine::machine(),
        "commit": machine::commit(),
        "versions": machine::versions(),
        "results": results,
    });
    write_text(path, &format!("{report:#}\n"))
}

/// Writes `rows` to `path`, one line for each half, numbers as in the table; N/A stands where nothing was measured.
///
/// # Errors
/// [`rsccl::error::Kind::System`] where the file cannot be written.
pub(crate) fn write_csv(path: &Path, job: &Job, rows: &[Row]) -> Result<()> {
    let mut text = format!("{}\n", CSV_COLUMNS.join(","));
    for row in rows {
        for (in_place, half) in row.halves() {
            let (algbw, busbw) = row.bandwidth(half).unzip();
            let number = |value: Option<f64>| value.map_or(NOT_MEASURED.to_owned(), |value| format!("{value:.6}"));
            let cells = [
                row.program.name().to_owned(),
                job.ranks.to_string(),
                row.bytes.to_string(),
                row.count.to_string(),
                row.data_type.name().to_owned(),
                row.op.map_or("none", Op::name).to_owned(),
                row.root.map_or("-1".to_owned(), |root| root.to_string()),
                if in_place { "in-place" } else { "out-of-place" }.to_owned(),
                number(half.time_us),
                number(algbw),
                number(busbw),
                half.wrong.map_or(NOT_MEASURED.to_owned(), |wrong| wrong.to_string()),
                job.transport.name().to_owned(),
                row.chosen.map_or(NOT_MEASURED, |chosen| chosen.algorithm.name()).to_owned(),
                row.chosen.map_or(NOT_MEASURED, |chosen| chosen.protocol.name()).to_owned(),
                half.calls.to_string(),
            ];
            text.push_str(&cells.join(","));
            text.push('\n');
        }
    }
    write_text(path, &text)
}

/// Writes a report to its file, or to standard output.
fn write_text(path: &Path, text: &str) -> Result<()> {
    if is_standard_output(path) {
        return print::out("the report", text);
    }
    open::write(path, text).map_err(|error| Error::system(format!("writing {}", path.display()), error))
}

/// What stands in tables where nothing was measured.
pub(crate) const NOT_MEASURED: &str = "N/A";
const CSV_COLUMNS: [&str; 16] = [
    "collective",
    "ranks",
    "size_bytes",
    "count",
    "type",
    "redop",
    "root",
    "placement",
    "time_us",
    "algbw_gbps",
    "busbw_gbps",
    "wrong",
    "transport",
    "algorithm",
    "protocol",
    "iters",
];

fn result(job: &Job, row: &Row, (in_place, half): (bool, &Measured)) -> Value {
    let (algbw, busbw) = row.bandwidth(half).unzip();
    json!({
        "collective": row.program.name(),
        "ranks": job.ranks,
        "bytes": row.bytes,
        "count": row.count,
        "type": row.data_type.name(),
        "op": row.op.map(Op::name),
        "root": row.root,
        "in_place": in_place,
        "iters": half.calls,
        "warmup_iters": half.warm_up,
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
