//! Decides whether data that a peer reads next is written through the caches or past them.
//!
//! A rank that writes where a peer has just read must take the cache lines back from the peer's cache. Inside one cache
//! that costs little. Between sockets, or dies with separate caches, it costs many times the copy, while stores past
//! the caches cost the same everywhere. The positions of ranks are not known beforehand, and schedulers move them. So a
//! rank measures the time of its own copies.

use std::time::{Duration, Instant};

use crate::device::host::Store;
use crate::sys::clock;

/// Measurements of one rank's copies into memory that peers read, and the policy that follows from them.
#[derive(Debug)]
pub struct StorePolicy {
    /// Nanoseconds per KiB of [`Store::Cached`] and of [`Store::Streaming`]; 0 if unknown.
    costs: [f32; 2],
    /// Whether streaming is the faster way, as far as is known.
    streams: bool,
    /// The way in use, and the number of bytes since it came into use.
    last: Option<Store>,
    settled: u64,
    /// The timed copies that remain in a trial of the other way; 0 outside a trial.
    trying: u32,
    /// The bytes until the next trial, and from that to the one after.
    until: u64,
    gap: u64,
    copies: u32,
}

impl Default for StorePolicy {
    fn default() -> StorePolicy {
        StorePolicy {
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

/// The store to use for one copy, and the time that the copy took.
#[derive(Debug)]
#[must_use = "what the copy took is to be learnt from"]
pub struct TimedCopy {
    /// The store to use.
    pub store: Store,
    timed: bool,
    began: Option<Instant>,
    took: Option<Duration>,
}

impl StorePolicy {
    /// The store for `bytes` in a pass that only copies. From time to time this tries the other way.
    #[inline]
    pub fn turn(&mut self, bytes: usize) -> TimedCopy {
        if bytes < LEAST_BYTES {
            return TimedCopy::untimed(Store::Cached);
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
        // Cache lines that the other way has left behind would distort the time.
        let settled = self.settled >= SETTLED_BYTES;
        let timed = settled && (self.trying > 0 || self.copies.is_multiple_of(TIMED));
        self.trying -= u32::from(settled && self.trying > 0);
        self.settled = self.settled.saturating_add(size);
        self.copies = self.copies.wrapping_add(1);
        TimedCopy { store, timed, began: None, took: None }
    }

    /// The state of a rank whose peers are far.
    #[cfg(test)]
    pub fn far() -> StorePolicy {
        StorePolicy { costs: [1e6, 1.0], streams: true, ..StorePolicy::default() }
    }

    /// Whether both ways have been timed.
    #[cfg(test)]
    pub fn knows_both(&self) -> bool {
        self.costs.iter().all(|cost| *cost > 0.0)
    }

    /// The store for `bytes` in a pass that does more than copy, so that its time tells nothing.
    #[inline]
    pub fn preferred(&self, bytes: usize) -> Store {
        if self.streams && bytes >= LEAST_BYTES { Store::Streaming } else { Store::Cached }
    }

    /// Learns from a finished copy of `bytes`.
    #[inline]
    pub fn learn(&mut self, copy: &TimedCopy, bytes: usize) {
        if let Some(took) = copy.took {
            self.learn_time(copy.store, bytes, took);
        }
    }

    fn learn_time(&mut self, store: Store, bytes: usize, took: Duration) {
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let found = took.as_nanos() as f32 / (bytes as f32 / 1024.0);
        let known = &mut self.costs[usize::from(store == Store::Streaming)];
        *known = if *known == 0.0 {
            found
        } else if found < *known {
            // A fast copy was not disturbed.
            f32::midpoint(found, *known)
        } else {
            // A slow copy may have been disturbed: by another process, or by the first touch of a page.
            found.min(*known * SLOWER)
        };
        let [cached, streamed] = self.costs;
        let bound = if self.streams { CACHE_BELOW } else { STREAM_ABOVE };
        let streams = streamed > 0.0 && cached > streamed * bound;
        if streams != self.streams {
            // Tried again soon, in case this was a mistake.
            (self.streams, self.trying, self.until, self.gap) = (streams, 0, LEAST_GAP, LEAST_GAP);
        }
    }
}

impl TimedCopy {
    /// A copy that is not timed.
    pub fn untimed(store: Store) -> TimedCopy {
        TimedCopy { store, timed: false, began: None, took: None }
    }

    /// Whether the copy is to be timed.
    #[inline]
    pub fn is_timed(&self) -> bool {
        self.timed
    }

    /// Records the start of the copy.
    #[inline]
    pub fn begin(&mut self) {
        self.began = self.timed.then(clock::now);
    }

    /// Records the end of the copy.
    #[inline]
    pub fn end(&mut self) {
        self.took = self.began.map(|began| clock::now().duration_since(began));
    }
}

/// Copies below this are too short to time.
const LEAST_BYTES: usize = 8 << 10;
/// The bytes before the first trial of the other way.
const FIRST_TRY: u64 = 8 << 20;
/// The bytes from the first trial to the second; each later distance is twice the one before, up to [`MOST_GAP`].
const LEAST_GAP: u64 = 32 << 20;
const MOST_GAP: u64 = 2 << 30;
/// The timed copies of a trial.
const TRIES: u32 = 8;
/// The bytes to copy before a way is timed: after them the caches reflect this way.
const SETTLED_BYTES: u64 = 2 << 20;
/// One copy in this many is timed.
const TIMED: u32 = 4;
/// The largest factor by which one slow copy can raise an estimate.
const SLOWER: f32 = 1.25;
/// Streaming begins if caching costs more than this many times as much. The margin is for the peer, which reads
/// streamed data from memory. Measured: caching costs 0.4 to 1.5 times as much as streaming between near processors, 3
/// to 10 times between far ones.
const STREAM_ABOVE: f32 = 2.0;
/// Streaming ends if caching costs less than this many times as much.
const CACHE_BELOW: f32 = 1.7;

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 64 << 10;

    /// Makes `number` copies. They take `cached` or `streamed` microseconds once the other way's traces are gone, 8
    /// before. Yields how many of them streamed.
    fn copies(policy: &mut StorePolicy, number: u64, cached: u64, streamed: u64) -> u64 {
        let mut streams = 0;
        for _ in 0..number {
            let settled = policy.settled >= SETTLED_BYTES;
            let turn = policy.turn(BYTES);
            let streaming = turn.store == Store::Streaming;
            streams += u64::from(streaming);
            if turn.timed {
                let took = if streaming { streamed } else { cached };
                policy.learn_time(turn.store, BYTES, Duration::from_micros(if settled { took } else { 8 }));
            }
        }
        streams
    }

    /// The copies of a trial, and of the longest gap.
    const TRIAL: u64 = SETTLED_BYTES / BYTES as u64 + TRIES as u64;
    const LONG: u64 = MOST_GAP / BYTES as u64;

    #[test]
    fn copies_stream_where_peers_are_far_and_only_there() {
        let mut policy = StorePolicy::default();
        let trials = copies(&mut policy, LONG, 2, 3) / TRIAL;
        assert!((4..=8).contains(&trials), "near: ever rarer trials: {trials}");
        let streams = copies(&mut policy, LONG, 25, 3);
        assert!(streams > LONG - 10 * TRIAL, "far, which the next copies show: {streams} of {LONG}");
        let streams = copies(&mut policy, LONG, 25, 3);
        assert!(streams >= LONG - 2 * TRIAL, "still far: {streams} of {LONG}");
        copies(&mut policy, LONG, 2, 3);
        let streams = copies(&mut policy, LONG, 2, 3);
        assert!(streams <= 8 * TRIAL, "near again, which a trial showed: {streams} of {LONG}");
    }

    #[test]
    fn what_one_copy_takes_changes_nothing() {
        let mut policy = StorePolicy::default();
        copies(&mut policy, LONG, 2, 3);
        policy.learn_time(Store::Cached, BYTES, Duration::from_millis(10));
        assert_eq!(policy.preferred(BYTES), Store::Cached);
    }

    #[test]
    fn a_mistake_is_found_soon() {
        let mut policy = StorePolicy::default();
        // The first copies touch pages for the first time.
        let streams = copies(&mut policy, 10 * SETTLED_BYTES / BYTES as u64, 20, 3);
        assert!(streams > 0 && policy.preferred(BYTES) == Store::Streaming);
        copies(&mut policy, 2 * LEAST_GAP / BYTES as u64, 2, 3);
        assert_eq!(policy.preferred(BYTES), Store::Cached);
    }

    #[test]
    fn little_is_written_through_the_caches_and_not_timed() {
        let mut policy = StorePolicy::default();
        copies(&mut policy, LONG, 25, 3);
        assert_eq!(policy.preferred(BYTES), Store::Streaming);
        assert_eq!(policy.preferred(LEAST_BYTES - 1), Store::Cached);
        let turn = policy.turn(LEAST_BYTES - 1);
        assert!(turn.store == Store::Cached && !turn.timed);
    }
}
