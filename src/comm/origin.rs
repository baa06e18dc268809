//! Where a communicator comes from, and what the log says of its beginning, in NCCL's words.
//!
//! ```text
//! init rank 1 nranks 4 commId 5f0c77e1d2f3a415 - Init START
//! init comm 8b0c77e1d2f3a415 rank 1 nranks 4 localRanks 4 nNodes 1 commId 5f0c77e1d2f3a415 - Init COMPLETE
//! Init timings - init: rank 1 nranks 4 total 0.012 (bootstrap 0.010, allgathers 0.001, topo 0.000, connections 0.001)
//! split comm 1d2f3a4158b0c77e rank 0 nranks 2 localRanks 2 nNodes 1 parent 8b0c77e1d2f3a415 color 1 key 0 - Init COMPLETE
//! ```
//!
//! `comm` is the number by which all lines of the communicator name it, the same on all ranks; `commId` is the number
//! of the unique id.

use std::fmt;

use crate::log;
use crate::types::World;

/// Where a communicator comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// `init` and its kin, with the number of the first unique id.
    UniqueId(u64),
    /// A launcher's variables: the unique id is not known before the ranks have met.
    Launcher {
        /// The number of the call, among those that this process has made.
        number: u64,
        /// What those who look from outside know the ranks of the call by; 0 where nothing is known.
        job: u64,
    },
    /// Threads of one process.
    Threads,
    /// A split of the communicator `parent`.
    Split {
        /// The parent's number.
        parent: u64,
        /// What this rank passed.
        color: u32,
        /// What this rank passed.
        key: i64,
    },
    /// A shrink of the communicator `parent`.
    Shrink {
        /// The parent's number.
        parent: u64,
    },
}

impl Origin {
    /// The call, as errors name it.
    pub(super) fn call(&self) -> &'static str {
        match self {
            Origin::UniqueId(_) => "init",
            Origin::Launcher { .. } => "from_env",
            Origin::Threads => "local",
            Origin::Split { .. } => "split",
            Origin::Shrink { .. } => "shrink",
        }
    }

    /// As a rank's page shows it: the call, the number of the unique id, the number of the parent; 0 for none.
    pub(super) fn shown(&self) -> (&'static str, u64, u64) {
        let (id, parent) = match self {
            Origin::UniqueId(number) | Origin::Launcher { job: number, .. } => (*number, 0),
            Origin::Threads => (0, 0),
            Origin::Split { parent, .. } | Origin::Shrink { parent } => (0, *parent),
        };
        (self.call(), id, parent)
    }

    /// Logs that the making begins. Rank 0 logs the version first.
    pub(super) fn log_start(&self, World { rank, size }: World) {
        if rank.get() == 0 {
            log::version();
        }
        log::info!(Init @ rank, "{} rank {rank} nranks {size}{self} - Init START", self.call());
    }

    /// Logs that the communicator is made: which ranks are where, and how long the parts took.
    pub(super) fn log_complete(&self, made: &Made<'_>) {
        let (World { rank, size }, call) = (made.world, self.call());
        let Made { id, local_ranks, hosts, times, .. } = made;
        let name = if made.name.is_empty() { String::new() } else { format!(" commName {}", made.name) };
        log::info!(
            Init @ rank,
            "{call} comm {id:016x}{name} rank {rank} nranks {size} localRanks {local_ranks} nNodes {hosts}{self} - Init COMPLETE"
        );
        log::info!(Init @ rank, "Init timings - {call}: rank {rank} nranks {size} {times}");
        if let Origin::UniqueId(_) | Origin::Launcher { .. } | Origin::Threads = self {
            log::trace!(Call @ rank, "CommInitRank({id:016x},{size},{rank})");
        }
    }
}

/// The words that only this kind of origin has, after a space.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::UniqueId(number) => write!(f, " commId {number:016x}"),
            Origin::Launcher { .. } | Origin::Threads => Ok(()),
            Origin::Split { parent, color, key } => write!(f, " parent {parent:016x} color {color} key {key}"),
            Origin::Shrink { parent } => write!(f, " parent {parent:016x}"),
        }
    }
}

/// A communicator that has just been made.
pub(super) struct Made<'a> {
    pub(super) world: World,
    /// Its number.
    pub(super) id: u64,
    /// The name that the program gave it; may be empty.
    pub(super) name: &'a str,
    pub(super) local_ranks: usize,
    pub(super) hosts: usize,
    pub(super) times: &'a dyn fmt::Display,
}
