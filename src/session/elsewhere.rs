//! A thread that stands in a call of one communicator is missing in the others that it uses.
//!
//! Two ranks can wait for each other in two communicators, and neither communicator alone shows the cycle. So a thread
//! whose wait lasts tells in all other communicators that it has used last where it stands and for whom it waits there.
//! A rank of which it says so knows itself again by communicator and rank, where this very thread has begun the latest
//! operation of that rank.

use std::fmt;

use crate::session::stall::ElsewhereStall;
use crate::sync::primitive::{Arc, Weak};
use crate::sys::handed_down::HandedDown;
use crate::types::Rank;

/// A rank of this process in a communicator, which a thread uses.
pub(crate) trait OwnRank: fmt::Debug + Send + Sync {
    /// The number of the communicator, and the rank.
    fn place(&self) -> (u64, Rank);

    /// Whether this thread has begun the latest operation.
    fn is_used_here(&self) -> bool;

    /// Tells the other ranks that the thread is stuck in another communicator.
    fn tell_of(&self, stall: &ElsewhereStall);

    /// Tells them by `note` that it no longer is in the communicator of this number.
    fn tell_back(&self, communicator: u64, note: &[u8]);

    /// What it knows of the ranks on other hosts by now: it hears what they have told, and waits for nothing.
    fn remote_ranks(&self) -> Vec<RemoteRank>;
}

/// What a rank knows of one on another host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemoteRank {
    pub(crate) communicator: u64,
    pub(crate) rank: u32,
    /// Ranks of the communicator.
    pub(crate) size: u32,
    /// The number of its host, and the name.
    pub(crate) host: u64,
    pub(crate) host_name: String,
    /// Its process, as its host counts.
    pub(crate) pid: u32,
    pub(crate) standing: RemoteState,
}

/// What a rank has told the others of itself, or what they have noticed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RemoteState {
    /// It has ended without goodbye; how that was noticed.
    Dead(String),
    /// It has said goodbye.
    Left,
    /// It waits in this call.
    Waits(String),
    /// Nothing: it computes, its call has just begun, or it is stopped.
    Silent,
}

/// Those of this process that had not ended at the last look. A forked child has none: calls on its parent's are
/// refused.
static OWN_RANKS: HandedDown<Vec<Weak<dyn OwnRank>>> = HandedDown::new(Vec::new, |_| Vec::new());

/// Makes `rank` known to the others of this process.
pub(crate) fn enter(rank: Weak<dyn OwnRank>) {
    let mut ranks = OWN_RANKS.lock();
    ranks.retain(|known| known.strong_count() > 0);
    ranks.push(rank);
}

/// The ranks of this process.
pub(super) fn all() -> Vec<Arc<dyn OwnRank>> {
    // What ends with its last owner here ends after the lock.
    OWN_RANKS.lock().iter().filter_map(Weak::upgrade).collect()
}

/// The ranks that this thread uses.
pub(super) fn of_this_thread() -> Vec<Arc<dyn OwnRank>> {
    all().into_iter().filter(|rank| rank.is_used_here()).collect()
}

/// Whether this thread is `rank` in the communicator of this number.
pub(super) fn is_this_thread(communicator: u64, rank: Rank) -> bool {
    of_this_thread().iter().any(|own| own.place() == (communicator, rank))
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::sys::thread;

    /// A rank of one thread.
    #[derive(Debug)]
    struct Taken {
        rank: u32,
        thread: u64,
    }

    /// No other test has a communicator of this number.
    const COMMUNICATOR: u64 = 0x5ea7_5ea7;

    impl OwnRank for Taken {
        fn place(&self) -> (u64, Rank) {
            (COMMUNICATOR, Rank::new(self.rank))
        }

        fn is_used_here(&self) -> bool {
            self.thread == thread::number()
        }

        fn tell_of(&self, _: &ElsewhereStall) {}

        fn tell_back(&self, _: u64, _: &[u8]) {}

        fn remote_ranks(&self) -> Vec<RemoteRank> {
            Vec::new()
        }
    }

    #[test]
    fn a_thread_is_the_ranks_that_it_uses_as_long_as_they_live() {
        let take = |rank| {
            let rank: Arc<dyn OwnRank> = Arc::new(Taken { rank, thread: thread::number() });
            enter(Arc::downgrade(&rank));
            rank
        };
        let mine = take(0);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let theirs = take(1);
                assert!(!is_this_thread(COMMUNICATOR, Rank::new(0)) && is_this_thread(COMMUNICATOR, Rank::new(1)));
                theirs
            });
            let _theirs = other.join().expect("it does not panic");
            assert!(is_this_thread(COMMUNICATOR, Rank::new(0)) && !is_this_thread(COMMUNICATOR, Rank::new(1)));
        });
        assert!(!is_this_thread(COMMUNICATOR + 1, Rank::new(0)));
        drop(mine);
        assert!(!is_this_thread(COMMUNICATOR, Rank::new(0)));
    }
}
