//! Options of nccl-tests for what this command does not have. Each is known, so that its error can say what to do in
//! its place.

use clap::Args;
use rsccl::{Error, Result};

/// Options that take only the value that means "none".
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Options of nccl-tests that take one value here")]
pub(crate) struct Absent {
    /// Threads of a process; 1, for --ranks counts the ranks.
    #[arg(short = 't', long, default_value_t = 1)]
    nthreads: u32,
    /// GPUs of a thread; 1, for --ranks counts the ranks, and --device names the GPUs.
    #[arg(short = 'g', long, default_value_t = 1)]
    ngpus: u32,
    /// Replays of a GPU graph.
    #[arg(short = 'G', long, default_value_t = 0)]
    cudagraph: u32,
    /// The null stream.
    #[arg(short = 'y', long, alias = "stream_null", default_value_t = 0)]
    stream_null: u32,
    /// CPU time in place of latency.
    #[arg(short = 'C', long, alias = "report_cputime", default_value_t = 0)]
    report_cputime: u32,
    /// Timestamps.
    #[arg(short = 'S', long, alias = "report_timestamps", default_value_t = 0, hide = true)]
    report_timestamps: u32,
    #[arg(short = 'D', long, alias = "device_implementation", default_value_t = 0, hide = true)]
    device_implementation: u32,
    #[arg(short = 'V', long, alias = "device_cta_count", hide = true)]
    device_cta_count: Option<u32>,
    #[arg(short = 'x', long, alias = "cta_policy", hide = true)]
    cta_policy: Option<u32>,
    #[arg(short = 'M', long, default_value_t = 0, hide = true)]
    memory: u32,
    #[arg(short = 'I', long, default_value_t = 0, hide = true)]
    event_timing: u32,
    #[arg(short = 'K', long, default_value_t = 0, hide = true)]
    dropped_samples: u32,
}

impl Absent {
    /// Refuses what cannot be done.
    ///
    /// # Errors
    /// [`rsccl::error::Kind::InvalidArgument`] that names the option and what to use in its place.
    pub(crate) fn check(&self) -> Result<()> {
        let gpu = "this command does not do that on GPUs";
        let (threads, gpus) = (self.nthreads, self.ngpus);
        let asked = [
            (
                threads != 1,
                format!(
                    "-t {threads}: ranks are counted by --ranks alone; use --ranks {threads} (threads are the default)"
                ),
            ),
            (
                gpus != 1,
                format!(
                    "-g {gpus}: --ranks alone counts ranks, and --device names GPUs; use --ranks {gpus} --device cuda"
                ),
            ),
            (self.cudagraph != 0, format!("-G: graphs are recorded on a GPU, and {gpu}; leave it out")),
            (self.stream_null != 0, format!("-y: streams belong to a GPU, and {gpu}; leave it out")),
            (
                self.report_cputime != 0,
                "-C: a call returns when it is done, so its CPU time is the time shown; leave it out".to_owned(),
            ),
            (self.report_timestamps != 0, "-S: rows have no timestamps; --json has the date".to_owned()),
            (self.device_implementation != 0, format!("-D: kernels run on a GPU, and {gpu}; leave it out")),
            (self.device_cta_count.is_some(), format!("-V: kernels run on a GPU, and {gpu}; leave it out")),
            (self.cta_policy.is_some(), format!("-x: kernels run on a GPU, and {gpu}; leave it out")),
            (self.memory != 0, "-M: there is no report of memory; leave it out".to_owned()),
            (
                self.event_timing != 0,
                "-I: iterations are not timed one by one; use --repeat for several loops".to_owned(),
            ),
            (self.dropped_samples != 0, "-K: no samples are dropped; the warm-up (-w) takes their place".to_owned()),
        ];
        match asked.into_iter().find(|(is_asked, _)| *is_asked) {
            Some((_, reason)) => Err(Error::invalid_argument(reason)),
            None => Ok(()),
        }
    }
}
