//! The alarm: a rank whose init failed wakes all others, so that none waits for it until the deadline.
//!
//! A rank that raises the alarm signals the ranks 1, 2, 4, … above it; every rank that receives a signal does the same,
//! once. So all ranks know in ⌈log₂ N⌉ hops, and each sends at most that many signals. Received signals stay in MPI
//! until all ranks know who has sent some ([`Alarm::clear`]): then each is taken, and none is left on the communicator.

use crate::error::Result;
use crate::over_mpi::calls::{PendingCall, Private};
use crate::over_mpi::waiting::finish;
use crate::sync::Wait;
use crate::types::Rank;

/// One rank's side of the alarm.
#[derive(Debug)]
pub(super) struct Alarm<'a> {
    comm: &'a Private,
    sent: Vec<PendingCall<()>>,
    rung: bool,
}

impl<'a> Alarm<'a> {
    /// An alarm that no rank has raised.
    pub(super) fn new(comm: &'a Private) -> Alarm<'a> {
        Alarm { comm, sent: Vec::new(), rung: false }
    }

    /// Whether this rank has raised the alarm.
    pub(super) fn has_rung(&self) -> bool {
        self.rung
    }

    /// Raises the alarm; later calls do nothing.
    pub(super) fn ring(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.rung, true) {
            return Ok(());
        }
        let world = self.comm.world();
        for distance in distances(world.size) {
            self.sent.push(self.comm.signal(world.rank.after(distance, world.size))?);
        }
        Ok(())
    }

    /// Whether a signal of another rank has arrived.
    pub(super) fn is_heard(&self) -> Result<bool> {
        self.comm.is_signalled()
    }

    /// Takes the signals of all ranks for which `rung` is true, and waits until this rank's own signals are taken.
    pub(super) fn clear(self, rung: impl Fn(Rank) -> bool, wait: &Wait) -> Result<()> {
        let world = self.comm.world();
        let before = distances(world.size).map(|distance| world.rank.before(distance, world.size));
        let mut open = self.sent;
        for peer in before.filter(|peer| rung(*peer)) {
            open.push(self.comm.take_signal(peer)?);
        }
        for pending in open {
            finish(pending, wait, "waited for the ranks to take each other's signals of failure")?;
        }
        Ok(())
    }
}

/// The distances to the ranks that a rank signals to.
fn distances(size: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(1u32), |distance| distance.checked_mul(2)).take_while(move |distance| *distance < size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_signal_reaches_all_ranks_each_from_ranks_that_know_they_are_asked() {
        for size in 1..40u32 {
            let (mut heard, mut news) = (BTreeSet::from([size / 2]), vec![size / 2]);
            while let Some(rank) = news.pop() {
                for distance in distances(size) {
                    let next = Rank::new(rank).after(distance, size);
                    assert_eq!(next.before(distance, size).get(), rank);
                    assert_ne!(next.get(), rank);
                    if heard.insert(next.get()) {
                        news.push(next.get());
                    }
                }
            }
            assert_eq!(heard.len(), size as usize);
        }
    }
}
