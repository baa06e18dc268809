//! What a rank does not know yet of ranks that have gone, and when it looks again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use crate::types::Rank;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Absent {
    /// The ranks that are needed and cannot be reached, until when news of them are waited for, and why they are in
    /// doubt.
    doubts: BTreeMap<Rank, (Instant, String)>,
    /// The words of ranks that have left, of which a connection stands that has brought nothing yet.
    words_of_left: BTreeMap<Rank, u64>,
    /// The ranks that this one has given up without news of them.
    guessed: BTreeSet<Rank>,
    /// The ranks that were tried as new neighbours in vain.
    skipped: BTreeSet<Rank>,
    /// When to look for a new neighbour.
    mend_at: Option<Instant>,
}

impl Absent {
    /// Waits until `until` for news of how `rank` went.
    pub(super) fn doubt(&mut self, rank: Rank, until: Instant, why: String) {
        self.doubts.insert(rank, (until, why));
    }

    /// Looks for a new neighbour at `at`, or earlier if that is planned already.
    pub(super) fn mend_after(&mut self, at: Instant) {
        self.mend_at = Some(self.mend_at.map_or(at, |planned| planned.min(at)));
    }

    /// Passes over `rank` in the search for a new neighbour.
    pub(super) fn skip(&mut self, rank: Rank) {
        self.skipped.insert(rank);
    }

    pub(super) fn is_skipped(&self, rank: Rank) -> bool {
        self.skipped.contains(&rank)
    }

    /// `rank` is there.
    pub(super) fn found(&mut self, rank: Rank) {
        self.doubts.remove(&rank);
        self.skipped.remove(&rank);
    }

    /// `rank` has left with this word, but a connection with it stands, whose end counts.
    pub(super) fn note_left(&mut self, rank: Rank, word: u64) {
        self.words_of_left.insert(rank, word);
    }

    /// The word of a rank whose connection has ended, if it is known to have left.
    pub(super) fn take_left(&mut self, rank: Rank) -> Option<u64> {
        self.words_of_left.remove(&rank)
    }

    /// Takes a rank of which no news have come in time, with why it is in doubt.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<(Rank, String)> {
        let rank = self.doubts.iter().find(|(_, (until, _))| now >= *until).map(|(rank, _)| *rank)?;
        self.guessed.insert(rank);
        self.doubts.remove(&rank).map(|(_, why)| (rank, why))
    }

    /// Whether this rank only guesses how `rank` went, and must not tell others.
    pub(super) fn is_guessed(&self, rank: Rank) -> bool {
        self.guessed.contains(&rank)
    }

    /// Whether it is time to look for a new neighbour; from then on it is not.
    pub(super) fn take_mending(&mut self, now: Instant) -> bool {
        self.mend_at.take_if(|at| now >= *at).is_some()
    }

    /// When to look again.
    pub(super) fn next(&self) -> Option<Instant> {
        self.doubts.values().map(|(until, _)| *until).chain(self.mend_at).min()
    }

    /// A rank in doubt, in words.
    pub(super) fn words(&self) -> Option<String> {
        self.doubts.iter().next().map(|(rank, (_, why))| format!("of rank {rank} nothing is known but that {why}"))
    }

    /// Ends the patience with all that is in doubt, and with the search for a new neighbour.
    #[cfg(test)]
    pub(super) fn hurry(&mut self, now: Instant) {
        self.doubts.values_mut().for_each(|(until, _)| *until = now);
        self.mend_at.iter_mut().for_each(|at| *at = now);
    }

    #[cfg(test)]
    pub(super) fn is_doubted(&self, rank: Rank) -> bool {
        self.doubts.contains_key(&rank)
    }
}
