//! Processes that stand in the place of a rank which is there already: a program that a rank has started inherits the
//! variables by which the rank was numbered. It waits for processes like itself of all other ranks, which seldom come.
//!
//! A rank marks its place by a Unix socket on an abstract name, made of its process and of what its launcher says. A
//! process that joins looks whether one of the processes above it holds the mark of the place that it was given itself.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use crate::bootstrap::Options;
use crate::config::Environment;
use crate::config::ancestors::Ancestor;
use crate::config::launch::Launch;
use crate::error::{Error, Kind};
use crate::log;
use crate::sys::descriptor::{HandoverStream, Listener, NameHolder};
use crate::sys::thread;

/// The mark of a rank that has, or is making, a communicator of its launcher's ranks. Dropping it takes the mark away.
#[derive(Debug)]
pub(super) struct RankMark {
    _listener: Listener,
}

impl RankMark {
    /// Marks the place of this process. `None` where that is not possible: then nobody is warned.
    pub(super) fn set(launch: &Launch, options: &Options, environment: &Environment) -> Option<RankMark> {
        // A rank alone keeps nobody waiting.
        let me = environment.this_process().filter(|_| launch.world.size > 1)?;
        let listener = names(&me, launch, options).find_map(|name| Listener::bind(&name).ok())?;
        Some(RankMark { _listener: listener })
    }
}

/// What is to be told of a process that stands in a rank's place.
#[derive(Debug)]
pub(super) struct StandIn {
    words: String,
}

impl StandIn {
    /// Whether a process above this one has the communicator of which this process is to become a rank.
    pub(super) fn find(launch: &Launch, options: &Options, environment: &Environment) -> Option<StandIn> {
        if launch.world.size == 1 {
            return None;
        }
        let holds = |ancestor: &Ancestor, name: &str| match HandoverStream::look_for(name) {
            // Anybody may take a name, so the system is asked which process it is.
            Ok(NameHolder::Own(stream)) => {
                let process = stream.process().and_then(|process| u32::try_from(process.number()).ok());
                process == Some(ancestor.process)
            }
            Ok(NameHolder::Busy) => true,
            Ok(NameHolder::Nobody | NameHolder::OtherUsers(_)) | Err(_) => false,
        };
        let ancestors = environment.ancestors();
        let is_rank = |ancestor: &&Ancestor| names(ancestor, launch, options).any(|name| holds(ancestor, &name));
        let (rank, process) = (launch.world.rank.get(), ancestors.iter().find(is_rank)?.process);
        Some(StandIn {
            words: format!(
                "process {process} is rank {rank} of this job already and has started this process, which takes the \
                 same place by the variables that it inherits, and waits for such processes of all other ranks; a \
                 program that works for rank {rank} alone is started with RSCCL_RANK=0 RSCCL_WORLD_SIZE=1"
            ),
        })
    }

    /// Tells it on standard error, unless the ranks meet within a moment: where each rank has started such a process
    /// these are one world, and nothing is wrong. The watch ends when it is dropped.
    pub(super) fn watch(&self) -> Option<Sender<()>> {
        let (held, dropped) = channel::<()>();
        let words = self.words.clone();
        let body = move || {
            if dropped.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                log::tell(&words);
            }
        };
        // Where no thread can be started, the error at the deadline says it.
        thread::spawn("rsccl stand-in", body).ok().map(|_thread| held)
    }

    /// Adds it to the error of ranks that have not met.
    pub(super) fn explain(&self, error: Error) -> Error {
        if error.kind() == Kind::Timeout { error.advising(&self.words) } else { error }
    }
}

/// The names of the marks of `process` in the place that `launch` gives. A process may have several communicators.
fn names(process: &Ancestor, launch: &Launch, options: &Options) -> impl Iterator<Item = String> {
    let (number, started, world) = (process.process, process.started, launch.world);
    let place = (&launch.store, &launch.lobby, launch.job.as_ref().map(|job| &job.key), &options.comm_id);
    let place = format!("rsccl rank {} of {} in {number} since {started} at {place:?}", world.rank, world.size);
    let hash = blake3::hash(place.as_bytes());
    (0..MARKS).map(move |turn| format!("rsccl-rank-{}-{turn}", &hash.to_hex()[..32]))
}

/// How long ranks may take to meet before this process is told in whose place it stands.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many communicators of one process have marks.
const MARKS: u32 = 4;
