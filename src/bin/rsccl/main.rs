//! The command line of rsccl: one file for each command.

mod env;
mod perf;
mod run;
mod sim;
mod topo;
mod tune;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use rsccl::error::Kind;

/// Collective communication for host and GPU memory.
#[derive(Debug, Parser)]
#[command(name = "rsccl", version, arg_required_else_help = true)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Prints every variable with its type, default, value and where the value comes from
    Env(env::Arguments),
    /// Times collectives and checks their results, as nccl-tests does
    Perf(Box<perf::Arguments>),
    /// Starts processes of this host as the ranks of one world
    Run(run::Arguments),
    /// Runs a collective's plans on the links of a modelled system: time, bandwidth, busiest links, traffic of each
    /// connection
    Sim(sim::Arguments),
    /// Shows a machine: PCI tree, GPUs, NICs, the ways between them, rings; this machine, or that of a topology file
    Topo(topo::Arguments),
    /// Measures what copies, flags and messages cost here, and writes the file for RSCCL_TUNE_FILE
    Tune(tune::Arguments),
}

fn main() -> ExitCode {
    let outcome = match CommandLine::parse_from(run::with_long_names(std::env::args_os().collect())).command {
        Command::Env(arguments) => env::execute(&arguments),
        Command::Perf(arguments) => perf::execute(&arguments),
        Command::Run(arguments) => run::execute(&arguments),
        Command::Sim(arguments) => sim::execute(&arguments),
        Command::Topo(arguments) => topo::execute(&arguments),
        Command::Tune(arguments) => tune::execute(&arguments),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("rsccl: {error}");
        // What the caller can mend has clap's code for a wrong command line.
        if error.kind() == Kind::InvalidArgument { ExitCode::from(EXIT_USAGE) } else { ExitCode::FAILURE }
    })
}

/// The code with which clap ends at a wrong command line; for wrong variables too.
const EXIT_USAGE: u8 = 2;
