//! What a rank has called: the labels of its latest collectives, and a number that stands for all of them.
//!
//! Each label carries that number. The root of a broadcast waits for nobody, so two ranks may each believe to be the root and go on; from
//! then on their labels differ, and the next call in which one of them reads the other's label finds it.

use std::cell::Cell;

use crate::error::Error;
use crate::exec::operation::{SEQUENCE, describe, same_call, sequence};
use crate::sync::ring::Label;
use crate::types::Rank;

/// The collectives that a rank has begun.
#[derive(Debug)]
pub struct History {
    /// The latest ones; number n at n mod [`REMEMBERED`].
    labels: Box<[Label; REMEMBERED]>,
    hash: u64,
    /// Whether a mismatch was found that goes back to a call whose label of the peer is not at hand.
    is_unnamed: Cell<bool>,
}

impl Default for History {
    fn default() -> History {
        History { labels: Box::new([NO_CALL; REMEMBERED]), hash: 0, is_unnamed: Cell::new(false) }
    }
}

impl History {
    /// Stands for all collectives so far, in the label of the next one. Two ranks that called something else get the same number with
    /// one chance in 65,536, and again so at each call that follows.
    #[inline]
    pub fn past(&self) -> u64 {
        self.hash & !SEQUENCE
    }

    /// Remembers the collective that begins.
    #[inline]
    pub fn begin(&mut self, label: Label) {
        self.labels[place(sequence(label))] = label;
        let call = label[0] ^ label[1].rotate_left(32);
        self.hash = (self.hash.rotate_left(5) ^ call).wrapping_mul(SPREAD);
    }

    /// The label of the collective of this number, while it is remembered.
    pub fn at(&self, number: u64) -> Option<Label> {
        Some(self.labels[place(number)]).filter(|label| sequence(*label) == number)
    }

    /// The error for a peer whose label is not `mine`. Where it is of an earlier collective, that is the one that the two ranks called
    /// differently: the peer's message of it has been left over.
    #[cold]
    pub fn mismatch(&self, mine: Label, peer: Rank, theirs: Label) -> Error {
        let then = self.at(sequence(theirs)).filter(|mine| !same_call(*mine, theirs)).unwrap_or(mine);
        self.is_unnamed.set(same_call(then, theirs));
        mismatch(then, peer, theirs)
    }

    /// Whether [`History::mismatch`] could not name the calls that differ: a peer can, when it is told of [`History::latest`].
    pub fn is_unnamed(&self) -> bool {
        self.is_unnamed.get()
    }

    /// The labels of the latest `most` collectives, the oldest first.
    pub fn latest(&self, most: usize) -> Vec<Label> {
        let mut latest: Vec<Label> = self.labels.iter().copied().filter(|label| *label != NO_CALL).collect();
        latest.sort_unstable_by_key(|label| sequence(*label));
        latest.split_off(latest.len().saturating_sub(most))
    }
}

/// The error for a peer that called something else.
#[cold]
pub fn mismatch(mine: Label, peer: Rank, theirs: Label) -> Error {
    let (this, that) = (describe(mine), describe(theirs));
    let text = if same_call(mine, theirs) {
        format!("this rank and rank {peer} called different operations before {this}")
    } else {
        format!("this rank called {this}, rank {peer} called {that}")
    };
    Error::mismatch(text).about(peer)
}

fn place(number: u64) -> usize {
    usize::try_from(number % REMEMBERED as u64).expect("below a few hundred")
}

const NO_CALL: Label = [u64::MAX; 3];
/// Collectives that a rank can compare with a peer's.
const REMEMBERED: usize = 256;
/// An odd number whose bits have no pattern: 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::Operation;
    use crate::types::{Collective, DataType};

    fn call(root: u32, number: u64, history: &mut History) -> Label {
        let operation = Operation {
            collective: Collective::Broadcast,
            data_type: DataType::U8,
            op: None,
            root: Some(Rank::new(root)),
            count: 4,
            sequence: number,
            past: history.past(),
        };
        history.begin(operation.label());
        operation.label()
    }

    #[test]
    fn a_difference_stays_in_every_label_that_follows() {
        let (mut mine, mut theirs) = (History::default(), History::default());
        assert_eq!(call(0, 0, &mut mine), call(0, 0, &mut theirs));
        assert!(!same_call(call(0, 1, &mut mine), call(1, 1, &mut theirs)));
        for number in 2..1000 {
            let (mine, theirs) = (call(0, number, &mut mine), call(0, number, &mut theirs));
            assert!(same_call(mine, theirs));
            assert_ne!(mine, theirs, "call {number}");
        }
    }

    #[test]
    fn a_label_of_an_earlier_call_is_compared_with_that_call() {
        let mut mine = History::default();
        assert_eq!(mine.at(0), None);
        call(0, 0, &mut mine);
        let now = call(0, 1, &mut mine);
        let theirs = call(2, 0, &mut History::default());
        let error = mine.mismatch(now, Rank::new(2), theirs);
        assert_eq!(
            error.message(),
            "this rank called broadcast #0 (count 4, uint8, root 0), rank 2 called broadcast #0 (count 4, uint8, root 2)"
        );
        let mut before = History::default();
        call(1, 0, &mut before);
        let error = mine.mismatch(now, Rank::new(2), call(0, 1, &mut before));
        let text = "this rank and rank 2 called different operations before broadcast #1 (count 4, uint8, root 0)";
        assert_eq!(error.message(), text);
        assert!(mine.is_unnamed());
        assert_eq!(mine.latest(1), [now]);
        assert_eq!(mine.latest(9).len(), 2);
    }
}
