//! `rsccl run`: the ranks of one world as processes of this host.
//!
//! One thread serves everything: the ranks' ends, their output, the launcher's own signals and deadlines.

mod job;
mod output;

use std::ffi::OsString;
use std::fmt::Write;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use rsccl::internals::sys::process::{Group, Signals};
use rsccl::internals::sys::{limits, random};
use rsccl::{Error, Result};

use job::Job;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// How many ranks to start
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_RANKS))]
    ranks: u32,
    /// End the job after so many seconds, with exit code 124
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Starts the ranks and stays until all have ended. The exit code is that of the first rank that failed, 128 + N for signal N.
pub(crate) fn execute(arguments: &Arguments) -> Result<ExitCode> {
    let signals = Signals::take_over(job::TAKEN_SIGNALS)?;
    let meeting = Meeting::arrange()?;
    // Where the system allows less, starting the rank that is one too many says so. Ranks inherit the limit.
    limits::raise_open_files(u64::from(arguments.ranks) * FILES_PER_RANK + OWN_FILES)?;
    let mut groups = Vec::with_capacity(arguments.ranks as usize);
    for rank in 0..arguments.ranks {
        match Group::start(&mut command(arguments, &meeting, rank)) {
            Ok(group) => groups.push(group),
            Err(error) => {
                let name = arguments.program[0].to_string_lossy();
                eprintln!("rsccl run: cannot start {name} as rank {rank}: {error}");
                // Dropping the groups ends the ranks that have started.
                return Ok(ExitCode::from(match error.kind() {
                    ErrorKind::NotFound => EXIT_NOT_FOUND,
                    ErrorKind::PermissionDenied => EXIT_NOT_EXECUTABLE,
                    _ => 1,
                }));
            }
        }
    }
    let code = Job::new(groups, signals, arguments.timeout)?.serve()?;
    Ok(ExitCode::from(code))
}

/// What the ranks need to find each other.
struct Meeting {
    port: u16,
    secret: String,
}

impl Meeting {
    fn arrange() -> Result<Meeting> {
        let system = |call: &'static str| move |error| Error::system(call, error);
        // Free now; the store of rank 0 takes it a moment later.
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(system("looking for a free port"))?;
        let port = listener.local_addr().map_err(system("looking for a free port"))?.port();
        let bytes = random::bytes::<SECRET_BYTES>()?;
        let mut secret = String::with_capacity(2 * SECRET_BYTES);
        for byte in bytes {
            write!(secret, "{byte:02x}").map_err(|_| Error::internal("a String takes everything"))?;
        }
        Ok(Meeting { port, secret })
    }
}

fn command(arguments: &Arguments, meeting: &Meeting, rank: u32) -> Command {
    let mut command = Command::new(&arguments.program[0]);
    command.args(&arguments.program[1..]);
    // A process of a background group that reads the terminal is stopped, so nobody gets it.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (name, value) in [("RANK", rank), ("LOCAL_RANK", rank)] {
        command.env(name, value.to_string());
    }
    for name in ["WORLD_SIZE", "LOCAL_WORLD_SIZE"] {
        command.env(name, arguments.ranks.to_string());
    }
    command.env("MASTER_ADDR", Ipv4Addr::LOCALHOST.to_string()).env("MASTER_PORT", meeting.port.to_string());
    // The stronger name too: a configuration file may give a store for other jobs.
    command.env("RSCCL_STORE", format!("tcp://{}:{}", Ipv4Addr::LOCALHOST, meeting.port));
    command.env("RSCCL_SECRET", &meeting.secret);
    // What an outer launcher has set would be stronger than ours, or would move our port.
    for name in
        ["RSCCL_RANK", "RSCCL_WORLD_SIZE", "RSCCL_LOCAL_RANK", "RSCCL_LOCAL_WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE"]
    {
        command.env_remove(name);
    }
    command
}

fn seconds(text: &str) -> std::result::Result<Duration, String> {
    let number = text.parse::<f64>().ok().filter(|number| *number > 0.0 && *number <= MAX_TIMEOUT_SECONDS);
    number.map(Duration::from_secs_f64).ok_or(format!("allowed: seconds above 0, at most {MAX_TIMEOUT_SECONDS}"))
}

/// The most ranks on one host: with two pipes each, what the usual hard limit of open files allows.
const MAX_RANKS: i64 = 4096;
const MAX_TIMEOUT_SECONDS: f64 = 30.0 * 24.0 * 3600.0;
const SECRET_BYTES: usize = 32;
/// The two pipes that stay.
const FILES_PER_RANK: u64 = 2;
/// The launcher's own, and the other ends of a rank's pipes while it starts.
const OWN_FILES: u64 = 32;
/// As shells have it.
const EXIT_NOT_EXECUTABLE: u8 = 126;
/// As shells have it.
const EXIT_NOT_FOUND: u8 = 127;
