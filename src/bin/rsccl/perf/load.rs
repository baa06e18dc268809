//! What the head of the table says of the machine's other work, without which times cannot be read.

use rsccl::internals::sys::cpu;
use rsccl::internals::sys::quota::Quota;

/// The work on this machine at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Load {
    /// How many threads ran or waited for a processor in the last minute, on the average.
    average: f64,
    /// How many do now.
    running: u32,
}

impl Load {
    /// `None` where the system does not tell.
    pub(crate) fn now() -> Option<Load> {
        Load::parse(&std::fs::read_to_string("/proc/loadavg").ok()?)
    }

    /// The text of `/proc/loadavg`: three averages, and how many of all threads run.
    fn parse(text: &str) -> Option<Load> {
        let mut words = text.split_ascii_whitespace();
        let average = words.next()?.parse().ok().filter(|average: &f64| average.is_finite())?;
        let (running, _) = words.nth(2)?.split_once('/')?;
        Some(Load { average, running: running.parse().ok()? })
    }

    /// Of two moments: a thread that ran in one of them only is no load.
    pub(crate) fn least(self, other: Load) -> Load {
        Load { average: self.average.min(other.average), running: self.running.min(other.running) }
    }
}

/// What the ranks of this host have to share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    /// The work that was there when the ranks began.
    pub(crate) load: Option<Load>,
    /// The ranks of this host.
    pub(crate) ranks: u32,
    /// The processors on which this rank may run.
    processors: usize,
    /// How much of their time control groups leave it.
    quota: Option<Quota>,
}

impl Room {
    /// Here and now, for the `ranks` of this host; `load` was there when they began.
    pub(crate) fn here(load: Option<Load>, ranks: u32) -> Room {
        let (processors, quota) = (cpu::in_mask(), Quota::of_process(std::path::Path::new("/")));
        Room { load, ranks, processors, quota }
    }

    /// A line with the figures, then a warning for each of them that makes times depend on more than the library.
    pub(crate) fn lines(&self) -> Vec<String> {
        let Room { load, ranks, processors, quota } = *self;
        let shown = load.map_or_else(|| "unknown".to_owned(), |load| format!("{:.2}", load.average));
        let running = load.map_or_else(String::new, |load| format!(" running: {}", load.running));
        let limit = quota.map_or_else(|| "none".to_owned(), |quota| quota.to_string());
        let mut lines = vec![format!("# load: {shown}{running} processors: {processors} quota: {limit}")];
        let mut warn = |text: String| lines.push(format!("# Warning: {text}"));
        if let Some(Load { average, running }) = load {
            if average > f64::from(ranks) + LOAD_OF_OTHERS {
                warn(format!("the machine is busy: its load is {average:.2}, of which {ranks} ranks make {ranks}"));
            } else if running > ranks {
                let others = running - ranks;
                warn(format!("the machine is busy: threads that run beside the {ranks} ranks: {others}"));
            }
        }
        if (ranks as usize) > processors {
            warn(format!("{ranks} ranks share {processors} processors: they take turns"));
        }
        if let Some(quota) = quota.filter(|quota| (quota.thousandths() as usize) < 1000 * processors) {
            warn(format!(
                "a quota leaves this job the time of {quota} of its {processors} processors: once it is used up all \
                 ranks stand still until the next period"
            ));
        }
        lines
    }
}

/// What a machine does by itself.
const LOAD_OF_OTHERS: f64 = 0.5;

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of `ranks` ranks with this text of `/proc/loadavg`.
    fn lines(loadavg: &str, (ranks, processors): (u32, usize), quota: Option<Quota>) -> String {
        Room { load: Load::parse(loadavg), ranks, processors, quota }.lines().join("\n")
    }

    #[test]
    fn a_quiet_machine_is_one_line() {
        assert_eq!(
            lines("0.52 0.58 0.59 2/389 7017\n", (2, 4), None),
            "# load: 0.52 running: 2 processors: 4 quota: none"
        );
        // What other text says is not known.
        for text in ["", "0.5", "nan 1 1 1/2 3", "0.5 0.5 0.5 x/3 1", "0.5 0.5 0.5 3 1"] {
            assert_eq!(lines(text, (2, 4), None), "# load: unknown processors: 4 quota: none", "{text}");
        }
    }

    #[test]
    fn a_busy_machine_is_a_warning() {
        assert_eq!(
            lines("3.10 2.00 1.00 6/400 1\n", (2, 4), None),
            "# load: 3.10 running: 6 processors: 4 quota: none\n\
             # Warning: the machine is busy: its load is 3.10, of which 2 ranks make 2"
        );
        assert_eq!(
            lines("1.00 1.00 1.00 3/400 1\n", (2, 2), None),
            "# load: 1.00 running: 3 processors: 2 quota: none\n\
             # Warning: the machine is busy: threads that run beside the 2 ranks: 1"
        );
    }

    #[test]
    fn fewer_processors_than_ranks_and_a_quota_are_warnings() {
        assert_eq!(
            lines("0.00 0.00 0.00 1/80 1\n", (4, 2), None),
            "# load: 0.00 running: 1 processors: 2 quota: none\n\
             # Warning: 4 ranks share 2 processors: they take turns"
        );
        let quota = Quota::from_thousandths(1500);
        assert_eq!(
            lines("0.00 0.00 0.00 1/80 1\n", (2, 2), quota),
            "# load: 0.00 running: 1 processors: 2 quota: 1.5\n\
             # Warning: a quota leaves this job the time of 1.5 of its 2 processors: once it is used up all ranks \
             stand still until the next period"
        );
        assert!(!lines("0.00 0.00 0.00 1/80 1\n", (2, 2), Quota::from_thousandths(2000)).contains("Warning"));
    }

    #[test]
    fn a_thread_that_runs_for_a_moment_is_no_load() {
        let [first, second] = ["0.10 0 0 5/80 1", "0.20 0 0 2/80 1"].map(|text| Load::parse(text).unwrap());
        assert_eq!(first.least(second), Load { average: 0.10, running: 2 });
    }
}
