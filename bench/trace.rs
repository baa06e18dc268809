//! What the trace costs a call: `cargo bench --bench trace`. The calls are all-reduces of 8 bytes.
//!
//! - Of one rank, which cost next to nothing themselves, in rows after which the writer has time to write: what the record
//!   costs the thread that calls.
//! - Of two ranks in two processes, without a rest, each on a processor of its own with its thread that writes: what the
//!   trace costs a job that keeps its processors busy, where that thread takes its time from the rank, and a rank that is
//!   kept waiting keeps the other one waiting. Needs two processors and `taskset`.
//!
//! Each in processes without a trace and in processes with `RSCCL_TRACE`.

#![expect(clippy::print_stdout, reason = "a program that prints a figure")]
#![expect(clippy::disallowed_methods, reason = "a measurement reads the clock, and waits between two samples")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rsccl::{Communicator, ReduceOp, Result};

/// Says to this program that it is a rank: `one`, or `two`.
const ROLE: &str = "TRACE_BENCH_ROLE";
/// Calls in a row: as many as a thread's ring takes, with the writer asleep.
const CALLS: u32 = 12_000;
/// Rows, of which the middle one counts; between two of them the writer has time to write.
const ROWS: usize = 31;
/// Rows of two busy ranks, of which the middle one counts: not more than is copied before all has to be made text. A row
/// fills its thread's ring as far as wakes the writer.
const BUSY_ROWS: usize = 150;
const BUSY_CALLS: u32 = 20_000;
/// Pairs of jobs of busy ranks, without and with a trace; the middle one counts.
const PAIRS: usize = 7;

fn main() -> Result<()> {
    match std::env::var(ROLE).as_deref() {
        Ok("one") => of_one()?,
        Ok(_) => of_two()?,
        Err(_) => {
            let (without, with) = (figure("one", 1, false), figure("one", 1, true));
            let cost = with - without;
            println!(
                "one rank: a call without a trace {without:.1} ns, with one {with:.1} ns: {cost:.1} ns for its record"
            );
            let pairs = [(); PAIRS].map(|()| (figure("two", 2, false), figure("two", 2, true)));
            let mut costs = pairs.map(|(without, with)| with - without);
            costs.sort_by(f64::total_cmp);
            let middle = |mut figures: [f64; PAIRS]| {
                figures.sort_by(f64::total_cmp);
                figures[PAIRS / 2]
            };
            let (without, with) = (middle(pairs.map(|pair| pair.0)), middle(pairs.map(|pair| pair.1)));
            println!(
                "two busy ranks: a call without a trace {without:.1} ns, with one {with:.1} ns: {:.1} ns for it ({:.1} to {:.1} \
                 in {PAIRS} pairs of jobs)",
                costs[PAIRS / 2],
                costs[0],
                costs[PAIRS - 1]
            );
        }
    }
    Ok(())
}

/// Nanoseconds of a call in a job of so many processes.
fn figure(role: &str, size: usize, traced: bool) -> f64 {
    let folder = tempfile::tempdir().expect("a folder for the trace");
    let mut ranks: Vec<Child> = (0..size).map(|rank| start(role, (rank, size), folder.path(), traced)).collect();
    let mut slowest = 0.0f64;
    for rank in &mut ranks {
        let mut line = String::new();
        let output = rank.stdout.take().expect("it is a pipe");
        BufReader::new(output).read_line(&mut line).expect("a rank says its figure");
        slowest = slowest.max(line.trim().parse().unwrap_or_else(|_| panic!("no figure: {line}")));
    }
    // They would make text of all that they have recorded.
    for rank in &mut ranks {
        rank.kill().and_then(|()| rank.wait()).expect("it is a child of this process");
    }
    slowest
}

fn start(role: &str, (rank, size): (usize, usize), folder: &Path, traced: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("a program has a path"));
    command.env(ROLE, role).env("RSCCL_RANK", rank.to_string()).env("RSCCL_WORLD_SIZE", size.to_string());
    command.env("RSCCL_STORE", format!("file://{}", folder.join("store").display())).env("NCCL_SOCKET_IFNAME", "lo");
    if traced {
        command.env("RSCCL_TRACE", folder.join("trace.json"));
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts again")
}

/// Says what a call of one rank takes. The process lives on until it is killed.
fn of_one() -> Result<()> {
    let comm = Communicator::from_env()?;
    let mut rows = Vec::with_capacity(ROWS);
    for _ in 0..ROWS {
        rows.push(row(&comm, CALLS)?);
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    tell(&comm, rows)
}

/// The same of two ranks.
fn of_two() -> Result<()> {
    let comm = Communicator::from_env()?;
    comm.barrier()?;
    // Once the ranks know that each has a processor, which they would not know behind a `taskset`.
    let (rank, process) = (comm.rank().to_string(), std::process::id().to_string());
    let placed = Command::new("taskset").args(["--all-tasks", "--cpu-list", "--pid", &rank, &process]).output();
    assert!(placed.is_ok_and(|output| output.status.success()), "taskset places rank {rank}");
    let rows = (0..BUSY_ROWS).map(|_| row(&comm, BUSY_CALLS)).collect::<Result<Vec<f64>>>()?;
    tell(&comm, rows)
}

/// Nanoseconds of a call, of so many in a row.
fn row(comm: &Communicator, calls: u32) -> Result<f64> {
    let begin = Instant::now();
    for _ in 0..calls {
        comm.all_reduce_in_place(&mut [1u64], ReduceOp::Sum)?;
    }
    Ok(begin.elapsed().as_secs_f64() * 1e9 / f64::from(calls))
}

/// Says the middle row, and waits to be killed: the end of the communicator would wait for the trace's text.
fn tell(comm: &Communicator, mut rows: Vec<f64>) -> Result<()> {
    rows.sort_by(f64::total_cmp);
    println!("{:.1}", rows[rows.len() / 2]);
    comm.barrier()?;
    loop {
        std::thread::park();
    }
}
