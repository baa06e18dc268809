//! `rsccl perf`: times collectives and checks their results, with the options and the table of nccl-tests.

mod absent;
mod job;
mod launch;
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
use rsccl::Result;

/// Times collectives and checks their results, as nccl-tests does.
///
/// Each size is run out of place and in place: warm-up calls until the time of a call no longer falls, a barrier, then a loop of calls
/// back to back. The time of a call is the loop's time divided by the calls, the average over ranks (see -a), and with --repeat the
/// median of several loops. Then come the checks: inputs are made so that each result is exact, and are compared bit by bit, with the
/// memory beside the buffers.
///
/// The ranks are --ranks, as threads of this process or as processes (--transport). Where mpirun, srun, torchrun or `rsccl run` has
/// started several of this command, each is one rank of one job, and --ranks is left out.
///
/// algbw is size / time, and busbw what each rank's link must carry: algbw · 2(n-1)/n for all_reduce, · 1 for broadcast, reduce and
/// sendrecv, · (n-1)/n for the others, whose size is that of all blocks together. GB is 10⁹ bytes. N/A stands where nothing was measured.
///
/// The exit code is 0 where every call succeeded and every element was right.
#[derive(Debug, Clone, Args)]
pub(crate) struct Arguments {
    /// all_reduce, broadcast, reduce, all_gather, reduce_scatter, all_to_all, gather, scatter, sendrecv, barrier, all_gather_v,
    /// reduce_scatter_v, all_to_all_v, several with commas between, or all.
    #[arg(value_name = "COLLECTIVE")]
    collective: String,
    /// Ranks [default: 2, or those of the launcher].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=MOST_RANKS), value_name = "N")]
    ranks: Option<u32>,
    /// The least size in bytes; K, M and G stand for 2¹⁰, 2²⁰ and 2³⁰.
    #[arg(short = 'b', long, default_value = "32M", value_parser = job::parse_bytes, value_name = "SIZE")]
    minbytes: u64,
    /// The greatest size in bytes [default: the least].
    #[arg(short = 'e', long, value_parser = job::parse_bytes, value_name = "SIZE")]
    maxbytes: Option<u64>,
    /// The step between sizes, where no factor is given.
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
    /// Calls before the timed ones [default: until the time of a call no longer falls, as long as --warmup-time allows].
    #[arg(short = 'w', long, alias = "warmup_iters", value_name = "N")]
    warmup_iters: Option<u32>,
    /// The most seconds for the warm-up of one size and placement, where -w does not say how many calls.
    #[arg(long, default_value = "0.5", value_parser = seconds, value_name = "SECONDS")]
    warmup_time: f64,
    /// Timed loops; the median counts.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=MOST_REPEATS))]
    repeat: u32,
    /// Times that the whole table is run.
    #[arg(short = 'N', long, alias = "run_cycles", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=MOST_REPEATS))]
    run_cycles: u32,
    /// Whether ranks meet between calls: 0 and 2 never, 1 after each call, 3 after each iteration. The barriers are timed.
    #[arg(short = 'z', long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=3))]
    blocking: u8,
    /// Taken for nccl-tests' sake: ranks always initialise side by side.
    #[arg(short = 'p', long, alias = "parallel_init", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    parallel_init: u8,
    /// Checked calls, each with new inputs; 0 is no check.
    #[arg(short = 'c', long, default_value_t = 1)]
    check: u32,
    /// Checks and does not time.
    #[arg(long)]
    check_only: bool,
    /// The operator: sum, prod, min, max, avg, mulsum, band, bor, bxor, several with commas between, or all.
    #[arg(short = 'o', long, default_value = "sum")]
    op: String,
    /// The type: int8, uint8, int32, uint32, int64, uint64, half, bfloat16, float, double, f8e4m3, f8e5m2, several with commas
    /// between, or all.
    #[arg(short = 'd', long, default_value = "float")]
    datatype: String,
    /// The root; -1 is each rank in turn.
    #[arg(short = 'r', long, default_value_t = 0, allow_hyphen_values = true)]
    root: i64,
    /// The time over ranks: 0 that of rank 0, 1 the average, 2 the least, 3 the greatest.
    #[arg(short = 'a', long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=3))]
    average: u8,
    /// Elements by which buffers miss their alignment of 64 bytes.
    #[arg(short = 'u', long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=MOST_SKEW))]
    unalign: u32,
    /// Registers the buffers (1), so that ranks of one host work in them in place; at most 256 cases, since registrations last.
    #[arg(short = 'R', long, alias = "local_register", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1))]
    local_register: u8,
    /// The seed of the inputs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How ranks reach each other: threads of one process (local, the default), processes over shared memory (shm), over sockets (net),
    /// or as the library chooses between processes (auto, the default of launched ranks).
    #[arg(long, value_enum)]
    transport: Option<Transport>,
    /// The algorithms to choose from, as NCCL_ALGO, which is stronger: Ring, Tree, Direct, PAT.
    #[arg(long)]
    algo: Option<String>,
    /// The protocols to choose from, as NCCL_PROTO, which is stronger: LL, LL128, Simple.
    #[arg(long)]
    proto: Option<String>,
    /// Writes the results as JSON, with machine, commit, command, settings and date.
    #[arg(short = 'J', long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Writes the results as CSV.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Draws time and bus bandwidth over size, as SVG or PNG by the name.
    #[arg(long, value_name = "FILE.svg|FILE.png")]
    plot: Option<PathBuf>,
    /// Seconds that a call may take before it is an error [default: RSCCL_TIMEOUT_MS].
    #[arg(short = 'T', long, value_parser = clap::value_parser!(u64).range(1..), value_name = "SECONDS")]
    timeout: Option<u64>,
    #[command(flatten)]
    absent: absent::Absent,
    /// This process is one rank that a launcher has started, even where the launcher's variables tell of one rank alone. Where they tell
    /// of several, this need not be said.
    #[arg(long)]
    launched: bool,
    /// This process is this rank of several; the unique id comes on standard input.
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
/// A bad option, or what ended the ranks; wrong elements are no error here but the exit code.
pub(crate) fn execute(arguments: &Arguments) -> Result<ExitCode> {
    arguments.absent.check()?;
    let right = launch::run(arguments)?;
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
