//! What the trace costs a call: `cargo bench --bench trace`. The calls are all-reduces of a world of one rank, which cost
//! next to nothing themselves, in one process without a trace and in one with `RSCCL_TRACE`.

#![expect(clippy::print_stdout, reason = "a program that prints a figure")]
#![expect(clippy::disallowed_methods, reason = "a measurement reads the clock, and waits between two samples")]

use std::process::Command;
use std::time::Instant;

use rsccl::{ReduceOp, Result};

/// Says to this program that it is one of the two.
const ROLE: &str = "RSCCL_BENCH_TRACE";
/// Calls in a row: as many as a thread's ring takes, with the writer asleep.
const CALLS: u32 = 12_000;
/// Rows, of which the middle one counts; between two of them the writer has time to write.
const ROWS: usize = 31;

fn main() -> Result<()> {
    if std::env::var(ROLE).is_ok() {
        println!("{:.1}", nanoseconds()?);
        return Ok(());
    }
    let folder = tempfile::tempdir().expect("a folder for the trace");
    let run = |traced: bool| {
        let mut command = Command::new(std::env::current_exe().expect("a program has a path"));
        command.env(ROLE, "1");
        if traced {
            command.env("RSCCL_TRACE", folder.path().join("trace.json"));
        }
        let output = command.output().expect("it starts again");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.trim().parse::<f64>().unwrap_or_else(|_| panic!("{text} {}", String::from_utf8_lossy(&output.stderr)))
    };
    let (without, with) = (run(false), run(true));
    println!("a call without a trace {without:.1} ns, with one {with:.1} ns: {:.1} ns for its record", with - without);
    Ok(())
}

/// Of a call, in the middle of all rows.
fn nanoseconds() -> Result<f64> {
    let rows = rsccl::local::run(1, |comm| {
        let mut rows = Vec::with_capacity(ROWS);
        for _ in 0..ROWS {
            let begin = Instant::now();
            for _ in 0..CALLS {
                comm.all_reduce_in_place(&mut [1u64], ReduceOp::Sum)?;
            }
            rows.push(begin.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS));
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        rows.sort_by(f64::total_cmp);
        Ok(rows[ROWS / 2])
    })?;
    Ok(rows[0])
}
