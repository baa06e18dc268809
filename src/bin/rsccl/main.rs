//! The command line.

mod perf;

use std::process::ExitCode;

use clap::Parser;

/// Collective communication for host memory.
#[derive(Debug, Parser)]
#[command(name = "rsccl", version)]
enum Command {
    Perf(perf::PerfArgs),
}

fn main() -> ExitCode {
    let Command::Perf(args) = Command::parse();
    perf::run(&args)
}
