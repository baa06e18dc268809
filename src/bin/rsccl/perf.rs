//! `rsccl perf`: times collectives and checks their results, with the options and the table of nccl-tests.

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
/// Each size is run out of place and in place: warm-up calls, a barrier, then --iters calls back to back. The time of a call is
/// the loop's time divided by the calls, the average over ranks (see -a), and with --repeat the median of several loops. Then come
/// the checks: inputs are made so that each result is exact, and are compared bit by bit, with the memory beside the buffers.
///
/// algbw is size / time, and busbw what each rank's link must carry: algbw · 2(n-1)/n for all_reduce, · 1 for broadcast, reduce and
/// sendrecv, · (n-1)/n for the others, whose size is that of all blocks together. GB is 10⁹ bytes.
///
/// The exit code is 0 where every call succeeded and every element was right.
#[derive(Debug, Clone, Args)]
pub(crate) struct Arguments {
    /// all_reduce, broadcast, reduce, all_gather, reduce_scatter, all_to_all, gather, scatter, sendrecv, barrier, all_gather_v,
    /// reduce_scatter_v, all_to_all_v, several with commas between, or all.
    #[arg(value_name = "COLLECTIVE")]
    collective: String,
    /// Ranks.
    #[arg(short = 'n', long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=MOST_RANKS))]
    ranks: u32,
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
    /// Timed calls in one loop.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    iters: u32,
    /// Calls before the timed ones.
    #[arg(short = 'w', long, default_value_t = 5)]
    warmup_iters: u32,
    /// Timed loops; the median counts.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=MOST_REPEATS))]
    repeat: u32,
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
    #[arg(short = 'R', long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1))]
    local_register: u8,
    /// Graph replays, for GPUs; host memory has none, so anything but 0 is an error.
    #[arg(short = 'G', long, default_value_t = 0)]
    graph: u32,
    /// The seed of the inputs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How ranks reach each other: threads of one process (local), processes over shared memory (shm), over sockets (net), or as
    /// the library chooses between processes (auto).
    #[arg(long, value_enum, default_value_t = Transport::Local)]
    transport: Transport,
    /// The algorithms to choose from, as NCCL_ALGO, which is stronger: Ring, Tree, Direct, PAT.
    #[arg(long)]
    algo: Option<String>,
    /// The protocols to choose from, as NCCL_PROTO, which is stronger: LL, LL128, Simple.
    #[arg(long)]
    proto: Option<String>,
    /// Writes the results as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draws bus bandwidth over size.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Seconds that a call may take before it is an error [default: RSCCL_TIMEOUT_MS].
    #[arg(short = 'T', long, value_parser = clap::value_parser!(u64).range(1..), value_name = "SECONDS")]
    timeout: Option<u64>,
    /// This process is one rank that mpirun, srun, torchrun or `rsccl run` has started, on one host or several: who it is stands in the
    /// environment. The transport is auto, unless shm or net is asked for.
    #[arg(long, conflicts_with = "ranks")]
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
    let right = if arguments.launched {
        launch::launched(arguments)?
    } else {
        launch::run(arguments, &job::Job::new(arguments)?)?
    };
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

const MOST_RANKS: i64 = 4096;
const MOST_REPEATS: i64 = 1000;
const MOST_SKEW: i64 = 4096;
