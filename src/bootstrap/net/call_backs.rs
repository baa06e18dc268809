//! Which ranks this one has not reached, and when they are asked to connect.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::types::Rank;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct CallBacks {
    /// When to ask a rank to connect, if it has not been reached by then.
    pub(super) due: BTreeSet<(Instant, Rank)>,
    /// The ranks that this rank has not reached.
    pub(super) unreached: BTreeSet<Rank>,
    /// The ranks to which this rank connects because they have not reached it.
    pub(super) called: BTreeSet<Rank>,
}

/// How long a connection may take before the peer is asked to open it: a lost packet is sent again after one second.
const DIAL_PATIENCE: Duration = Duration::from_secs(2);

impl CallBacks {
    /// This rank begins to connect to `peer` at `now`; `instead` of that one, where it was to connect.
    pub(super) fn begin(&mut self, peer: Rank, instead: bool, now: Instant) {
        if instead {
            self.called.insert(peer);
        }
        if !self.unreached.contains(&peer) && !self.due.iter().any(|(_, planned)| *planned == peer) {
            self.due.insert((now + DIAL_PATIENCE, peer));
        }
    }

    /// `peer` is connected.
    pub(super) fn end(&mut self, peer: Rank) {
        self.due.retain(|(_, planned)| *planned != peer);
        self.unreached.remove(&peer);
    }

    /// When the next rank is to be asked.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Ends the patience with all dials.
    #[cfg(test)]
    pub(super) fn hurry(&mut self, now: Instant) {
        self.due = std::mem::take(&mut self.due).into_iter().map(|(_, peer)| (now, peer)).collect();
    }
}
