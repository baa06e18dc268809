//! The command line of rsccl: one file for each command.

mod env;
mod files;
mod perf;
mod print;
mod run;
mod sim;
mod status;
mod topo;
mod trace;
mod tune;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use rsccl::Result;
use rsccl::error::Kind;
use rsccl::internals::sys::{limits, writing};

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
    /// Says what running jobs of this user do on this host, and who holds them up
    Status(status::Arguments),
    /// Shows a machine: PCI tree, GPUs, NICs, the ways between them, rings; this machine, or that of a topology file
    Topo(topo::Arguments),
    /// Makes one trace of those that ranks have written (RSCCL_TRACE)
    Trace(trace::Arguments),
    /// Measures what copies, flags and messages cost here, and writes the file for RSCCL_TUNE_FILE
    Tune(tune::Arguments),
}

fn main() -> ExitCode {
    writing::ignore_the_limit_of_files();
    let words = std::env::args_os().collect();
    let parsed = match run::words::translated(words).map(CommandLine::try_parse_from) {
        Ok(Ok(line)) => Ok(line.command),
        Ok(Err(told)) => return tell(&told),
        Err(error) => Err(error),
    };
    let outcome = parsed.and_then(execute);
    outcome.map_err(limits::with_remedy).unwrap_or_else(|error| {
        print::complain(&format!("rsccl: {error}"));
        // What the caller can mend has clap's code for a wrong command line.
        if error.kind() == Kind::InvalidArgument { ExitCode::from(EXIT_USAGE) } else { ExitCode::FAILURE }
    })
}

fn execute(command: Command) -> Result<ExitCode> {
    match command {
        Command::Env(arguments) => env::execute(&arguments),
        Command::Perf(arguments) => perf::execute(&arguments),
        Command::Run(arguments) => run::execute(&arguments),
        Command::Sim(arguments) => sim::execute(&arguments),
        Command::Status(arguments) => status::execute(&arguments),
        Command::Topo(arguments) => topo::execute(&arguments),
        Command::Trace(arguments) => trace::execute(&arguments),
        Command::Tune(arguments) => tune::execute(&arguments),
    }
}

/// Prints what clap says instead of running a command: help and version on standard output, what is wrong with the
/// command line on standard error.
fn tell(told: &clap::Error) -> ExitCode {
    let code = u8::try_from(told.exit_code()).unwrap_or(EXIT_USAGE);
    if told.use_stderr() || std::io::stdout().is_terminal() {
        // With clap's colours. If that cannot be written there is nobody left to tell, and the code stays.
        drop(told.print());
        return ExitCode::from(code);
    }
    match print::out("the help", &told.render().to_string()) {
        Ok(()) => ExitCode::from(code),
        Err(error) => {
            let error = limits::with_remedy(error);
            print::complain(&format!("rsccl: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// The code with which clap ends at a wrong command line; for wrong variables too.
const EXIT_USAGE: u8 = 2;
