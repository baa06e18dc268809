//! The table of nccl-tests, and the progress bar.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rsccl::Result;

use crate::print;

use super::job::{Iterations, Job, WarmUp};
use super::load::Room;
use super::measure::Measured;
use super::report::{NOT_MEASURED, Row};
use super::verify::{Op, Program};

/// Prints rows as they come.
#[derive(Debug)]
pub(crate) struct Table<'a> {
    job: &'a Job,
    ranks: &'a [String],
    room: Room,
    bar: ProgressBar,
}

impl<'a> Table<'a> {
    /// A table of `rows` rows, on standard output; the bar is on standard error where that is a terminal.
    pub(crate) fn new(job: &'a Job, ranks: &'a [String], room: Room, rows: usize) -> Table<'a> {
        let target =
            if io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(rows as u64), target);
        if let Ok(style) = ProgressStyle::with_template("{bar:32} {pos}/{len} {msg} {elapsed}") {
            bar.set_style(style);
        }
        Table { job, ranks, room, bar }
    }

    /// What is run, by whom, and the columns' names.
    ///
    /// # Errors
    /// [`rsccl::error::Kind::System`] where standard output cannot be written, as for all methods here.
    pub(crate) fn head(&mut self) -> Result<()> {
        let Job { timing, sizes, transport, .. } = self.job;
        let names: Vec<&str> = self.job.programs.iter().map(|program| program.name()).collect();
        self.line(&format!("# rsccl perf {} {}", env!("CARGO_PKG_VERSION"), names.join(",")))?;
        let warm_up = match timing.warm_up {
            WarmUp::Exactly(count) => count.to_string(),
            WarmUp::UntilItStands(seconds) => format!("until the time stands, {seconds} s at most,"),
        };
        let iterations = match timing.iterations {
            Iterations::None => "0".to_owned(),
            Iterations::Exactly(count) => count.to_string(),
            Iterations::Enough => "auto".to_owned(),
        };
        self.line(&format!(
            "# ranks {} minbytes {} maxbytes {} warmup iters: {} iters: {} agg iters: {} repeats: {} validation: {} seed: {}",
            self.job.ranks,
            sizes.first().unwrap_or(&0),
            sizes.last().unwrap_or(&0),
            warm_up,
            iterations,
            timing.calls_each,
            timing.loops,
            self.job.checks,
            self.job.seed,
        ))?;
        let Job { algorithm, protocol, .. } = self.job;
        let registered = if self.job.registered { " buffers: registered" } else { "" };
        let transport = transport.name();
        self.line(&format!("# transport: {transport} algorithm: {algorithm} protocol: {protocol}{registered}"))?;
        if !self.job.left_out.is_empty() {
            let names: Vec<&str> = self.job.left_out.iter().map(|program| program.name()).collect();
            self.line(&format!("# left out, for they have no {algorithm}: {}", names.join(", ")))?;
        }
        for line in self.room.lines() {
            self.line(&line)?;
        }
        self.line("#")?;
        self.line("# Using ranks")?;
        for (rank, place) in self.ranks.iter().enumerate() {
            self.line(&format!("#  Rank {rank:>3} {place}"))?;
        }
        for line in COLUMNS {
            self.line(line)?;
        }
        Ok(())
    }

    /// The name of the collective whose rows follow.
    ///
    /// # Errors
    /// As [`Table::head`].
    pub(crate) fn title(&mut self, program: Program) -> Result<()> {
        self.line(&format!("# {}", program.name()))
    }

    /// Shows that `row` rows are done.
    pub(crate) fn progress(&self, row: usize) {
        self.bar.set_position(row as u64);
    }

    /// One row.
    ///
    /// # Errors
    /// As [`Table::head`].
    pub(crate) fn row(&mut self, row: &Row) -> Result<()> {
        let op = row.op.map_or("none", Op::name);
        let root = row.root.map_or_else(|| "-1".to_owned(), |root| root.to_string());
        let mut line = format!("{:>12}  {:>12}  {:>8}  {op:>6}  {root:>6}", row.bytes, row.count, row.data_type.name());
        line += &half(row, Some(&row.out_of_place));
        line += &half(row, row.in_place.as_ref());
        self.line(&line)
    }

    /// The sums.
    ///
    /// # Errors
    /// As [`Table::head`].
    pub(crate) fn foot(&mut self, rows: &[Row]) -> Result<()> {
        self.bar.finish_and_clear();
        let wrong: u64 = rows.iter().map(Row::wrong).sum();
        let verdict = match wrong {
            _ if self.job.checks == 0 => NOT_MEASURED.to_owned(),
            0 => "0 OK".to_owned(),
            _ => format!("{wrong} FAILED"),
        };
        self.line(&format!("# Out of bounds values : {verdict}"))?;
        let busbw = rows.iter().flat_map(|row| row.halves().filter_map(|(_, half)| Some(row.bandwidth(half)?.1)));
        let (sum, halves) = busbw.fold((0.0, 0u32), |(sum, halves), busbw| (sum + busbw, halves + 1));
        let average = if halves == 0 { NOT_MEASURED.to_owned() } else { format!("{:<7.6}", sum / f64::from(halves)) };
        self.line(&format!("# Avg bus bandwidth    : {average}"))?;
        self.line("#")
    }

    /// Prints a line on standard output, past the progress bar; on standard error where standard output is for a
    /// report.
    fn line(&self, line: &str) -> Result<()> {
        if self.job.reports_to_standard_output() {
            self.bar.suspend(|| complain(line));
            return Ok(());
        }
        self.bar.suspend(|| print::out("the table", &format!("{line}\n")))
    }
}

/// Prints a line on standard error.
pub(crate) fn complain(line: &str) {
    print::complain(line);
}

/// One half of a row; N/A where the collective has no such form, or nothing was measured.
fn half(row: &Row, half: Option<&Measured>) -> String {
    let missing = || NOT_MEASURED.to_owned();
    let time = half.and_then(|half| half.time_us).map_or_else(missing, microseconds);
    let bandwidth = half.and_then(|half| row.bandwidth(half));
    let [algbw, busbw] = [bandwidth.map(|both| both.0), bandwidth.map(|both| both.1)]
        .map(|value| value.map_or_else(missing, |value| format!("{value:.2}")));
    let wrong = half.and_then(|half| half.wrong).map_or_else(missing, |wrong| wrong.to_string());
    format!("  {time:>7}  {algbw:>6}  {busbw:>6}  {wrong:>5}")
}

/// A time in seven places.
fn microseconds(time: f64) -> String {
    match time {
        10_000.0.. => format!("{time:.0}"),
        100.0.. => format!("{time:.1}"),
        _ => format!("{time:.2}"),
    }
}

const COLUMNS: [&str; 4] = [
    "#",
    "#                                                              out-of-place                       in-place",
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)",
];
