//! Whether what a peer reads next is better written through the caches or past them.
//!
//! Who writes where a peer has just read takes the lines back from the peer's cache. Inside one cache that costs little; between
//! sockets, or dies with caches of their own, it costs many times the copy, while stores that pass the caches by cost the same
//! everywhere. Where ranks are cannot be known beforehand, and schedulers move them. So a rank watches what its own copies take.

use std::time::{Duration, Instant};

use crate::device::host::Store;
use crate::sys::clock;

/// What one rank has learnt of its copies into memory that peers read.
#[derive(Debug)]
pub struct Staging {
    /// Nanoseconds for a KiB, of [`Store::Cached`] and of [`Store::Streaming`]; 0 where unknown.
    costs: [f32; 2],
    /// Which way is the better one, as far as is known.
    streams: bool,
    /// Which way is in use, and for how many bytes it has been.
    last: Option<Store>,
    settled: u64,
    /// Timed copies that the trial of the other way has still to make; 0 outside one.
    trying: u32,
    /// Bytes until the next trial, and from that to the one after.
    until: u64,
    gap: u64,
    copies: u32,
}

impl Default for Staging {
    fn default() -> Staging {
        Staging {
            costs: [0.0; 2],
            streams: false,
            last: None,
            settled: 0,
            trying: 0,
            until: FIRST_TRY,
            gap: LEAST_GAP,
            copies: 0,
        }
    }
}

/// How to do one copy, and what it took.
#[derive(Debug)]
#[must_use = "what the copy took is to be learnt from"]
pub struct Turn {
    /// How to write.
    pub store: Store,
    timed: bool,
    began: Option<Instant>,
    took: Option<Duration>,
}

impl Staging {
    /// How to write `bytes` where that is all that a pass does. Now and then the other way is tried.
    #[inline]
    pub fn turn(&mut self, bytes: usize) -> Turn {
        if bytes < LEAST_BYTES {
            return Turn::untimed(Store::Cached);
        }
        let size = u64::try_from(bytes).unwrap_or(MOST_GAP);
        self.until = self.until.saturating_sub(size);
        if self.until == 0 {
            (self.trying, self.until, self.gap) = (TRIES, self.gap, self.gap.saturating_mul(2).min(MOST_GAP));
        }
        let store = if self.streams == (self.trying > 0) { Store::Cached } else { Store::Streaming };
        if self.last.replace(store) != Some(store) {
            self.settled = 0;
        }
        // Lines that the other way has left elsewhere say nothing of this one.
        let settled = self.settled >= SETTLED_BYTES;
        let timed = settled && (self.trying > 0 || self.copies.is_multiple_of(TIMED));
        self.trying -= u32::from(settled && self.trying > 0);
        self.settled = self.settled.saturating_add(size);
        self.copies = self.copies.wrapping_add(1);
        Turn { store, timed, began: None, took: None }
    }

    /// What a rank has learnt whose peers are far.
    #[cfg(test)]
    pub fn far() -> Staging {
        Staging { costs: [1e6, 1.0], streams: true, ..Staging::default() }
    }

    /// Whether both ways have been timed.
    #[cfg(test)]
    pub fn knows_both(&self) -> bool {
        self.costs.iter().all(|cost| *cost > 0.0)
    }

    /// How to write `bytes` in a pass that does more than copy, so that its time says nothing.
    #[inline]
    pub fn preferred(&self, bytes: usize) -> Store {
        if self.streams && bytes >= LEAST_BYTES { Store::Streaming } else { Store::Cached }
    }

    /// Learns from a copy of `bytes` that is done.
    #[inline]
    pub fn learn(&mut self, turn: &Turn, bytes: usize) {
        if let Some(took) = turn.took {
            self.learn_time(turn.store, bytes, took);
        }
    }

    fn learn_time(&mut self, store: Store, bytes: usize, took: Duration) {
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let found = took.as_nanos() as f32 / (bytes as f32 / 1024.0);
        let known = &mut self.costs[usize::from(store == Store::Streaming)];
        *known = if *known == 0.0 {
            found
        } else if found < *known {
            // What was fast was not disturbed.
            f32::midpoint(found, *known)
        } else {
            // What was slow may have been: by another process, or a page that was touched for the first time.
            found.min(*known * SLOWER)
        };
        let [cached, streamed] = self.costs;
        let bound = if self.streams { BACK } else { THERE };
        let streams = streamed > 0.0 && cached > streamed * bound;
        if streams != self.streams {
            // It is looked at again soon, should it have been a mistake.
            (self.streams, self.trying, self.until, self.gap) = (streams, 0, LEAST_GAP, LEAST_GAP);
        }
    }
}

impl Turn {
    /// A copy that teaches nothing.
    pub fn untimed(store: Store) -> Turn {
        Turn { store, timed: false, began: None, took: None }
    }

    /// Whether there is something to learn from the copy.
    #[inline]
    pub fn is_timed(&self) -> bool {
        self.timed
    }

    /// The copy begins now.
    #[inline]
    pub fn begin(&mut self) {
        self.began = self.timed.then(clock::now);
    }

    /// The copy is done.
    #[inline]
    pub fn end(&mut self) {
        self.took = self.began.map(|began| clock::now().duration_since(began));
    }
}

/// Less is not worth a look at the clock.
const LEAST_BYTES: usize = 8 << 10;
/// Bytes before the other way is tried for the first time.
const FIRST_TRY: u64 = 8 << 20;
/// Bytes from the first trial to the next; from there on twice as many from each to the next.
const LEAST_GAP: u64 = 32 << 20;
const MOST_GAP: u64 = 2 << 30;
/// Timed copies of a trial.
const TRIES: u32 = 8;
/// After so many bytes the memory that copies go round in is as this way leaves it.
const SETTLED_BYTES: u64 = 2 << 20;
/// One copy in so many is timed.
const TIMED: u32 = 4;
/// One slow copy makes a way look so much slower at most.
const SLOWER: f32 = 1.25;
/// Streaming begins where caching costs more than so many times as much. The peer pays too: it reads from memory what has passed the
/// caches by. Measured: between near processors caching costs 0.4 to 1.5 times as much, between far ones 3 to 10 times.
const THERE: f32 = 2.0;
/// It ends where caching costs less than so many times as much.
const BACK: f32 = 1.7;

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 64 << 10;

    /// Makes so many copies that take `cached` or `streamed` microseconds once the other way's traces are gone, 8 otherwise. How many of
    /// them streamed.
    fn copies(staging: &mut Staging, number: u64, cached: u64, streamed: u64) -> u64 {
        let mut streams = 0;
        for _ in 0..number {
            let settled = staging.settled >= SETTLED_BYTES;
            let turn = staging.turn(BYTES);
            let streaming = turn.store == Store::Streaming;
            streams += u64::from(streaming);
            if turn.timed {
                let took = if streaming { streamed } else { cached };
                staging.learn_time(turn.store, BYTES, Duration::from_micros(if settled { took } else { 8 }));
            }
        }
        streams
    }

    /// Copies of a trial, and of all between the rarest.
    const TRIAL: u64 = SETTLED_BYTES / BYTES as u64 + TRIES as u64;
    const LONG: u64 = MOST_GAP / BYTES as u64;

    #[test]
    fn copies_stream_where_peers_are_far_and_only_there() {
        let mut staging = Staging::default();
        let trials = copies(&mut staging, LONG, 2, 3) / TRIAL;
        assert!((4..=8).contains(&trials), "near: ever rarer trials: {trials}");
        let streams = copies(&mut staging, LONG, 25, 3);
        assert!(streams > LONG - 10 * TRIAL, "far, which the next copies show: {streams} of {LONG}");
        let streams = copies(&mut staging, LONG, 25, 3);
        assert!(streams >= LONG - 2 * TRIAL, "still far: {streams} of {LONG}");
        copies(&mut staging, LONG, 2, 3);
        let streams = copies(&mut staging, LONG, 2, 3);
        assert!(streams <= 8 * TRIAL, "near again, which a trial showed: {streams} of {LONG}");
    }

    #[test]
    fn what_one_copy_takes_changes_nothing() {
        let mut staging = Staging::default();
        copies(&mut staging, LONG, 2, 3);
        staging.learn_time(Store::Cached, BYTES, Duration::from_millis(10));
        assert_eq!(staging.preferred(BYTES), Store::Cached);
    }

    #[test]
    fn a_mistake_is_found_soon() {
        let mut staging = Staging::default();
        // Pages that are touched for the first time.
        let streams = copies(&mut staging, 10 * SETTLED_BYTES / BYTES as u64, 20, 3);
        assert!(streams > 0 && staging.preferred(BYTES) == Store::Streaming);
        copies(&mut staging, 2 * LEAST_GAP / BYTES as u64, 2, 3);
        assert_eq!(staging.preferred(BYTES), Store::Cached);
    }

    #[test]
    fn little_is_written_through_the_caches_and_not_timed() {
        let mut staging = Staging::default();
        copies(&mut staging, LONG, 25, 3);
        assert_eq!(staging.preferred(BYTES), Store::Streaming);
        assert_eq!(staging.preferred(LEAST_BYTES - 1), Store::Cached);
        let turn = staging.turn(LEAST_BYTES - 1);
        assert!(turn.store == Store::Cached && !turn.timed);
    }
}
