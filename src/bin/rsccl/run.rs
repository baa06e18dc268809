//! `rsccl run`: the ranks of one world as processes of this host.
//!
//! One thread serves everything: the ranks' exits, their output, the launcher's own signals and deadlines.

mod bind;
mod ends;
mod input;
mod job;
mod output;
pub(crate) mod words;

use std::ffi::OsString;
use std::fmt::Write;
use std::fs::File;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use rsccl::config::Environment;
use rsccl::internals::sys::limits::OpenFiles;
use rsccl::internals::sys::process::{Group, Signals};
use rsccl::internals::sys::random;
use rsccl::{Error, Result};

use crate::print;
use bind::Bind;
use ends::Ends;
use job::{Job, Wishes};
use output::Prefix;

/// Starts processes of this host as the ranks of one world
///
/// Output is passed on line by line, each line with its rank in front (not with --no-prefix). Rank 0 gets this command's standard input, the
/// other ranks get none. The exit code is that of the first rank that failed, or 128 + N for signal N; when one has
/// failed, the others are ended. A rank that was killed, or broke down by a signal such as SIGSEGV, counts as the first.
///
/// SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to the ranks, which then have 30 seconds to end; a second signal
/// kills them. SIGUSR1 and SIGUSR2 are passed on. A signal that this command ignored from its start stays ignored, here
/// and in the ranks: SIGHUP under nohup, SIGINT in a shell script's background job. SIGTERM ends the job there.
///
/// Options of mpirun, srun and torchrun that mean something on one host are taken too: -np, -n2, -x, -genv, --bind-to,
/// -H localhost. Those that do not are refused with what to use.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// How many ranks to start; also -np, --np, --nproc-per-node
    #[arg(short = 'n', long = "ranks", value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=MAX_RANKS))]
    ranks: u32,
    /// A variable for the ranks: NAME=VALUE; they have those of this command anyway. May be given several times
    #[arg(short = 'x', long = "env", value_name = "NAME=VALUE", value_parser = assignment)]
    variables: Vec<(String, Option<String>)>,
    /// The processors of each rank: a core of its own, those of a NUMA node, or all; also --bind-to
    #[arg(long, value_enum, default_value_t = Bind::None)]
    bind: Bind,
    /// Also writes each rank's output to rank-0.log, rank-1.log, .. in this folder, without prefixes
    #[arg(long, value_name = "FOLDER")]
    log_dir: Option<PathBuf>,
    /// Passes the ranks' lines on as they are, without the rank in front. Lines of several ranks are not mixed, but where one
    /// rests for a fifth of a second before its end, or is longer than 16 KiB
    #[arg(long)]
    no_prefix: bool,
    /// Ends the job after this many seconds, with exit code 124
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// What to write in place of a program that the search path lacks and the current folder has: some launchers look there.
fn hint(program: &Path, error: &std::io::Error) -> String {
    let is_name = program.components().count() == 1;
    if error.kind() == ErrorKind::NotFound && is_name && program.is_file() {
        format!("; this folder has it: write ./{}", program.display())
    } else {
        String::new()
    }
}

/// Starts the ranks and stays until all have ended. The exit code is that of the first rank that failed, or 128 + N for
/// signal N.
pub(crate) fn execute(arguments: &Arguments) -> Result<ExitCode> {
    let places = arguments.bind.places(Path::new("/"), arguments.ranks)?;
    // If the system allows fewer, starting one rank too many reports that. Ranks get the limit that this process found.
    let files_per_rank = FILES_PER_RANK + arguments.log_dir.as_ref().map_or(0, |_| FILES_PER_LOG);
    let _files = OpenFiles::need(u64::from(arguments.ranks) * files_per_rank + OWN_FILES);
    let logs = arguments.log_dir.as_deref().map(|folder| open_logs(folder, arguments.ranks)).transpose()?;
    let signals = Signals::take_over(job::TAKEN_SIGNALS)?;
    let meeting = Meeting::arrange()?;
    // Where an outer `rsccl run` has set it, it is nobody's wish.
    let environment = Environment::capture();
    if environment.has("RSCCL_STORE") && !environment.has("RSCCL_RUN") {
        print::complain("rsccl run: RSCCL_STORE is set, but these ranks meet at a store of their own");
    }
    let on = |rank: u32| usize::try_from(rank).ok().and_then(|rank| places.get(rank)).map_or(&[][..], Vec::as_slice);
    let (mut groups, mut ends) = (Vec::with_capacity(arguments.ranks as usize), Ends::new()?);
    for rank in 0..arguments.ranks {
        match Group::start_on(&mut command(arguments, &meeting, rank), on(rank)) {
            Ok(group) => groups.push(group),
            Err(error) => {
                let program = Path::new(&arguments.program[0]);
                let (name, hint) = (program.display(), hint(program, &error));
                print::complain(&format!("rsccl run: cannot start {name} as rank {rank}: {error}{hint}"));
                // Dropping the groups ends the ranks that have started.
                return Ok(ExitCode::from(match error.kind() {
                    ErrorKind::NotFound => EXIT_NOT_FOUND,
                    ErrorKind::PermissionDenied => EXIT_NOT_EXECUTABLE,
                    _ => 1,
                }));
            }
        }
    }
    // Behind all starts, which need the descriptors more.
    groups.iter().for_each(|group| ends.watch(group));
    let prefix = if arguments.no_prefix { Prefix::Nothing } else { Prefix::Rank };
    let wishes = Wishes { timeout: arguments.timeout, logs: logs.unwrap_or_default(), prefix };
    let code = Job::new((groups, ends), signals, wishes)?.serve()?;
    Ok(ExitCode::from(code))
}

/// The variables by which the ranks find each other.
struct Meeting {
    place: SocketAddr,
    secret: String,
}

impl Meeting {
    fn arrange() -> Result<Meeting> {
        // The port is free now; rank 0's store takes it a moment later. Some machines have IPv6 alone.
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .or_else(|error| TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).map_err(|_| error));
        let place = listener.and_then(|listener| listener.local_addr());
        let place = place.map_err(|error| Error::system("looking for a free port on loopback", error))?;
        let bytes = random::bytes::<SECRET_BYTES>()?;
        let mut secret = String::with_capacity(2 * SECRET_BYTES);
        for byte in bytes {
            write!(secret, "{byte:02x}").map_err(|_| Error::internal("a String takes everything"))?;
        }
        Ok(Meeting { place, secret })
    }
}

fn command(arguments: &Arguments, meeting: &Meeting, rank: u32) -> Command {
    let mut command = Command::new(&arguments.program[0]);
    command.args(&arguments.program[1..]);
    // A background process that reads the terminal is stopped, so rank 0 gets a pipe that the launcher fills.
    let stdin = if rank == 0 { Stdio::piped() } else { Stdio::null() };
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.envs(arguments.variables.iter().filter_map(|(name, value)| Some((name, value.as_ref()?))));
    // Set torchrun's names, which other programs read, and our own, which override them.
    for name in RANK_NAMES {
        command.env(name, rank.to_string());
    }
    for name in SIZE_NAMES {
        command.env(name, arguments.ranks.to_string());
    }
    command.env("MASTER_ADDR", meeting.place.ip().to_string()).env("MASTER_PORT", meeting.place.port().to_string());
    // Set under the stronger name too: a configuration file may name a store for other jobs.
    command.env("RSCCL_STORE", format!("tcp://{}", meeting.place));
    command.env("RSCCL_SECRET", &meeting.secret);
    // Tells these numbers from those that people set by hand: a launcher that a rank starts must not take them for its own.
    command.env("RSCCL_RUN", std::process::id().to_string());
    // With an outer launcher's value the ranks would expect its agent's store on this port, and use the next port.
    command.env_remove("TORCHELASTIC_USE_AGENT_STORE");
    command
}

/// The files of `--log-dir`, in rank order.
fn open_logs(folder: &Path, ranks: u32) -> Result<Vec<File>> {
    let named = |path: &Path| format!("--log-dir: {}", path.display());
    std::fs::create_dir_all(folder).map_err(|error| Error::system(named(folder), error))?;
    let open = |rank: u32| {
        let path = folder.join(format!("rank-{rank}.log"));
        File::create(&path).map_err(|error| Error::system(named(&path), error))
    };
    (0..ranks).map(open).collect()
}

/// `NAME=VALUE`, or the `NAME` of a variable that is set here, which ranks inherit anyway.
fn assignment(text: &str) -> std::result::Result<(String, Option<String>), String> {
    let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value.to_owned())));
    let is_name = !name.is_empty() && !name.contains(|letter: char| letter.is_whitespace() || letter == '\0');
    let is_own = RANK_NAMES.iter().chain(&SIZE_NAMES).chain(&MEETING_NAMES).any(|own| *own == name);
    match (is_name, is_own) {
        (true, false) => Ok((name.to_owned(), value)),
        (true, true) => Err(format!("`rsccl run` gives {name} to each rank itself")),
        (false, _) => Err("allowed: NAME=VALUE, or NAME".to_owned()),
    }
}

fn seconds(text: &str) -> std::result::Result<Duration, String> {
    let number = text.parse::<f64>().ok().filter(|number| *number > 0.0 && *number <= MAX_TIMEOUT_SECONDS);
    number.map(Duration::from_secs_f64).ok_or(format!("allowed: seconds above 0, at most {MAX_TIMEOUT_SECONDS}"))
}

/// The variables that hold a rank's number,
const RANK_NAMES: [&str; 4] = ["RSCCL_RANK", "RSCCL_LOCAL_RANK", "RANK", "LOCAL_RANK"];
/// the number of ranks,
const SIZE_NAMES: [&str; 4] = ["RSCCL_WORLD_SIZE", "RSCCL_LOCAL_WORLD_SIZE", "WORLD_SIZE", "LOCAL_WORLD_SIZE"];
/// and where ranks meet.
const MEETING_NAMES: [&str; 5] = ["MASTER_ADDR", "MASTER_PORT", "RSCCL_STORE", "RSCCL_SECRET", "RSCCL_RUN"];
/// The most ranks on one host: the usual hard limit of open files allows two pipes for each.
const MAX_RANKS: i64 = 4096;
const MAX_TIMEOUT_SECONDS: f64 = 30.0 * 24.0 * 3600.0;
const SECRET_BYTES: usize = 32;
/// The two pipes that stay open, and the handle of the process.
const FILES_PER_RANK: u64 = 3;
/// The log file, once for each of the two streams that are written to it.
const FILES_PER_LOG: u64 = 2;
/// The launcher's own files, and the other ends of a rank's pipes while it starts.
const OWN_FILES: u64 = 32;
/// The code that shells use.
const EXIT_NOT_EXECUTABLE: u8 = 126;
/// The code that shells use.
const EXIT_NOT_FOUND: u8 = 127;
