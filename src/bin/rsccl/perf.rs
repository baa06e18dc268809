//! `rsccl perf`: times collectives and checks their results, with the options and the table of nccl-tests.

mod absent;
mod device;
mod job;
mod launch;
mod load;
mod machine;
mod measure;
mod plot;
mod report;
mod session;
mod table;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
pub(crate) use job::parse_bytes;
use rsccl::Result;
pub(crate) use verify::Program;

/// Times collectives and checks their results, as nccl-tests does.
///
/// Each size is run out of place and in place: warm-up calls until the time of a call no longer falls, a barrier, then
/// a loop of calls back to back. The time of a call is the loop's time divided by the number of calls, averaged over
/// ranks (see -a); with --repeat it is the median of several loops. Then come the checks: the inputs are such that
/// every result is exact, and results are compared bit by bit, together with the memory around the buffers.
///
/// The ranks are --ranks threads of this process or processes (--transport). If mpirun, srun, torchrun or `rsccl run`
/// has started several of this command, each is one rank of one job, and --ranks is omitted.
///
/// algbw is size / time. busbw is what each rank's link must carry: algbw · 2(n-1)/n for all_reduce, · 1 for broadcast,
/// reduce and sendrecv, · (n-1)/n for the others, whose size is that of all blocks together. GB is 10⁹ bytes. N/A means
/// not measured.
///
/// The exit code is 0 if every call succeeded and every element was right, 1 if not, and 2 if the command line, or a
/// variable that it goes with, is wrong.
#[derive(Debug, Clone, Args)]
pub(crate) struct Arguments {
    #[arg(value_name = "COLLECTIVE", help = names())]
    collective: String,
    /// Ranks [default: 2, or those of the launcher].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=MOST_RANKS), value_name = "N")]
    ranks: Option<u32>,
    /// The smallest size in bytes; K, M and G mean 2¹⁰, 2²⁰ and 2³⁰.
    #[arg(short = 'b', long, default_value = "32M", value_parser = job::parse_bytes, value_name = "SIZE")]
    minbytes: u64,
    /// The largest size in bytes [default: the smallest].
    #[arg(short = 'e', long, value_parser = job::parse_bytes, value_name = "SIZE")]
    maxbytes: Option<u64>,
    /// The step between sizes, if no factor is given.
    #[arg(short = 'i', long, default_value = "1M", value_parser = job::parse_bytes, value_name = "SIZE")]
    stepbytes: u64,
    /// The factor between sizes.
    #[arg(short = 'f', long, value_parser = clap::value_parser!(u64).range(2..), value_name = "FACTOR")]
    stepfactor: Option<u64>,
    /// Timed iterations of one loop [default: as many as take 10 ms, at least 20].
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    iters: Option<u32>,
    /// Calls of one iteration, one after the other.
    #[arg(short = 'm', long, alias = "agg_iters", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=MOST_CALLS), value_name = "N")]
    agg_iters: u32,
    /// Calls before the timed ones [default: until the time of a call no longer falls, as long as --warmup-time
    /// allows].
    #[arg(short = 'w', long, alias = "warmup_iters", value_name = "N")]
    warmup_iters: Option<u32>,
    /// The most seconds for the warm-up of one size and placement, if -w does not give the number of calls.
    #[arg(long, default_value = "0.5", value_parser = seconds, value_name = "SECONDS")]
    warmup_time: f64,
    /// Timed loops; the result is their median.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=MOST_REPEATS))]
    repeat: u32,
    /// How often the whole table is run.
    #[arg(short = 'N', long, alias = "run_cycles", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=MOST_REPEATS))]
    run_cycles: u32,
    /// When ranks meet in a barrier between calls: 0 and 2 never, 1 after each call, 3 after each iteration. The
    /// barriers are timed.
    #[arg(short = 'z', long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=3))]
    blocking: u8,
    /// Accepted for compatibility with nccl-tests: ranks always initialise in parallel.
    #[arg(short = 'p', long, alias = "parallel_init", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    parallel_init: u8,
    /// Checked calls, each with new inputs; 0 disables checks.
    #[arg(short = 'c', long, default_value_t = 1)]
    check: u32,
    /// Checks without timing.
    #[arg(long)]
    check_only: bool,
    /// The operator: sum, prod, min, max, avg, mulsum, band, bor, bxor; several separated by commas, or all.
    #[arg(short = 'o', long, default_value = "sum")]
    op: String,
    /// The type: int8, uint8, int32, uint32, int64, uint64, half, bfloat16, float, double, f8e4m3, f8e5m2; several
    /// separated by commas, or all.
    #[arg(short = 'd', long, default_value = "float")]
    datatype: String,
    /// The root; -1 means each rank in turn.
    #[arg(short = 'r', long, default_value_t = 0, allow_hyphen_values = true)]
    root: i64,
    /// The time reported over ranks: 0 that of rank 0, 1 the average, 2 the minimum, 3 the maximum.
    #[arg(short = 'a', long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=3))]
    average: u8,
    /// The offset of buffers from their alignment of 64 bytes, in elements.
    #[arg(short = 'u', long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=MOST_SKEW))]
    unalign: u32,
    /// Registers the buffers (1), so that ranks of one host access them in place; at most 256 cases, because
    /// registrations last. With --device as windows (2), which all ranks register alike.
    #[arg(short = 'R', long, alias = "local_register", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    local_register: u8,
    /// The seed of the inputs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How ranks reach each other: threads of one process (local, the default), processes over shared memory (shm),
    /// over sockets (net), or processes as the library chooses (auto, the default for launched ranks).
    #[arg(long, value_enum)]
    transport: Option<Transport>,
    /// Runs on the memory of GPUs, in streams: `cuda` takes all GPUs of a process, `cuda:0,2` these. The ranks of a host,
    /// threads or processes, share them evenly: 8 ranks on 4 GPUs are two on each. A time is that of the calls and of the
    /// wait for the stream behind a loop.
    #[arg(long, value_parser = device::parse, value_name = "cuda[:LIST]")]
    device: Option<device::Devices>,
    /// The algorithms to choose from; NCCL_ALGO overrides this: Ring, Tree, Direct, PAT.
    #[arg(long)]
    algo: Option<String>,
    /// The protocols to choose from; NCCL_PROTO overrides this: LL, LL128, Simple.
    #[arg(long)]
    proto: Option<String>,
    /// Writes the results as JSON, with machine, commit, command, settings and date; - means standard output, and
    /// the table then goes to standard error.
    #[arg(short = 'J', long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Writes the results as CSV; - as with --json.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Draws time and bus bandwidth over size, as SVG or PNG depending on the file's name.
    #[arg(long, value_name = "FILE.svg|FILE.png")]
    plot: Option<PathBuf>,
    /// The most seconds that a call may take [default: RSCCL_TIMEOUT_MS].
    #[arg(short = 'T', long, value_parser = clap::value_parser!(u64).range(1..), value_name = "SECONDS")]
    timeout: Option<u64>,
    #[command(flatten)]
    absent: absent::Absent,
    /// This process is one rank of a launcher, even if the launcher's variables say that there is only one. If they say
    /// that there are several, this option is not needed.
    #[arg(long)]
    launched: bool,
    /// This process is this rank of several; the unique id arrives on standard input.
    #[arg(long, hide = true)]
    worker: Option<u32>,
}

/// How ranks reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// Threads of this process.
    Local,
    /// Processes over shared memory.
    Shm,
    /// Processes over sockets.
    Net,
    /// Processes, as the library chooses.
    Auto,
}

impl Transport {
    fn name(self) -> &'static str {
        match self {
            Transport::Local => "local",
            Transport::Shm => "shm",
            Transport::Net => "net",
            Transport::Auto => "auto",
        }
    }
}

/// Runs the command.
///
/// # Errors
/// A bad option, or the error that ended the ranks. Wrong elements are not an error but set the exit code.
pub(crate) fn execute(arguments: &Arguments) -> Result<ExitCode> {
    arguments.absent.check()?;
    let right = launch::run(arguments)?;
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What the collective may be.
fn names() -> String {
    let names: Vec<&str> = Program::ALL.iter().map(|program| program.name()).collect();
    format!("{}; several separated by commas, or all", names.join(", "))
}

fn seconds(text: &str) -> std::result::Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.0..=MOST_SECONDS).contains(number));
    number.ok_or(format!("allowed: seconds from 0 to {MOST_SECONDS}"))
}

const MOST_RANKS: i64 = 4096;
const MOST_REPEATS: i64 = 1000;
const MOST_CALLS: i64 = 1000;
const MOST_SKEW: i64 = 4096;
const MOST_SECONDS: f64 = 3600.0;
