//! Whether what a peer reads next is better written through the caches or past them.
//!
//! Who writes where a peer has just read takes the lines back from the peer's cache. Inside one cache that costs little; between
//! sockets, or dies with caches of their own, it costs many times the copy, while stores that pass the caches by cost the same
//! everywhere. Where ranks are cannot be known beforehand, and schedulers move them. So a rank watches what its own copies take.

use std::time::{Duration, Instant};

use crate::device::host::Store;
use crate::sys::clock;

/// What one rank has learnt of its copies into memory that peers read.
#[derive(Debug, Default)]
pub struct Staging {
    /// Nanoseconds for a KiB, of [`Store::Cached`] and of [`Store::Streaming`]; 0 where unknown.
    costs: [f32; 2],
    streams: bool,
    copies: u32,
}

/// How to do one copy, and since when it is timed.
#[derive(Debug)]
#[must_use = "what the copy took is to be learnt from"]
pub struct Turn {
    /// How to write.
    pub store: Store,
    timed: bool,
    began: Option<Instant>,
}

impl Staging {
    /// How to write `bytes` where that is all that a pass does. Now and then the other way is tried.
    #[inline]
    pub fn turn(&mut self, bytes: usize) -> Turn {
        if bytes < LEAST_BYTES {
            return Turn::cached();
        }
        self.copies = self.copies.wrapping_add(1);
        let place = self.copies % PERIOD;
        let tries = (FIRST_TRY..FIRST_TRY + TRIES).contains(&place);
        let store = if self.streams == tries { Store::Cached } else { Store::Streaming };
        Turn { store, timed: tries || place.is_multiple_of(TIMED), began: None }
    }

    /// What a rank has learnt whose peers are far.
    #[cfg(test)]
    pub fn far() -> Staging {
        Staging { costs: [1e6, 1.0], streams: true, copies: 0 }
    }

    /// How to write `bytes` in a pass that does more than copy, so that its time says nothing.
    #[inline]
    pub fn preferred(&self, bytes: usize) -> Store {
        if self.streams && bytes >= LEAST_BYTES { Store::Streaming } else { Store::Cached }
    }

    /// Learns from a copy of `bytes` that is done.
    #[inline]
    pub fn learn(&mut self, turn: &Turn, bytes: usize) {
        if let Some(began) = turn.began {
            self.learn_time(turn.store, bytes, clock::now().duration_since(began));
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
        self.streams = streamed > 0.0 && cached > streamed * bound;
    }
}

impl Turn {
    /// A copy that stays in this rank's caches, and teaches nothing.
    pub fn cached() -> Turn {
        Turn { store: Store::Cached, timed: false, began: None }
    }

    /// The copy begins now.
    #[inline]
    pub fn begin(&mut self) {
        self.began = self.timed.then(clock::now);
    }
}

/// Less is not worth a look at the clock.
const LEAST_BYTES: usize = 8 << 10;
/// Copies from one trial of the other way to the next.
const PERIOD: u32 = 1024;
/// Where in a period it is tried: not among the first copies, which touch their pages for the first time.
const FIRST_TRY: u32 = 64;
const TRIES: u32 = 3;
/// One copy in so many is timed.
const TIMED: u32 = 4;
/// One slow copy makes a way look so much slower at most.
const SLOWER: f32 = 1.25;
/// Streaming begins where caching costs more than so many times as much: what passed the caches by, the peer reads from memory.
const THERE: f32 = 1.6;
/// It ends where caching costs less than so many times as much.
const BACK: f32 = 1.3;

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 64 << 10;

    /// Makes so many copies that take `cached` or `streamed` microseconds. How many of them streamed.
    fn copies(staging: &mut Staging, number: u32, cached: u64, streamed: u64) -> u32 {
        let mut streams = 0;
        for _ in 0..number {
            let turn = staging.turn(BYTES);
            let streaming = turn.store == Store::Streaming;
            streams += u32::from(streaming);
            if turn.timed {
                let took = Duration::from_micros(if streaming { streamed } else { cached });
                staging.learn_time(turn.store, BYTES, took);
            }
        }
        streams
    }

    #[test]
    fn copies_stream_where_peers_are_far_and_only_there() {
        let mut staging = Staging::default();
        assert_eq!(copies(&mut staging, PERIOD, 2, 3), TRIES, "near");
        assert!(copies(&mut staging, PERIOD, 25, 3) > PERIOD - 100, "far: the next copies show it");
        assert_eq!(copies(&mut staging, PERIOD, 25, 3), PERIOD - TRIES, "still far");
        copies(&mut staging, 2 * PERIOD, 2, 3);
        assert_eq!(copies(&mut staging, PERIOD, 2, 3), TRIES, "near again, which trials show");
    }

    #[test]
    fn what_one_copy_takes_changes_nothing() {
        let mut staging = Staging::default();
        copies(&mut staging, PERIOD, 2, 3);
        staging.learn_time(Store::Cached, BYTES, Duration::from_millis(10));
        assert_eq!(staging.preferred(BYTES), Store::Cached);
        assert_eq!(copies(&mut staging, PERIOD, 2, 3), TRIES);
    }

    #[test]
    fn little_is_written_through_the_caches_and_not_timed() {
        let mut staging = Staging::default();
        copies(&mut staging, 2 * PERIOD, 25, 3);
        assert_eq!(staging.preferred(BYTES), Store::Streaming);
        assert_eq!(staging.preferred(LEAST_BYTES - 1), Store::Cached);
        let turn = staging.turn(LEAST_BYTES - 1);
        assert!(turn.store == Store::Cached && !turn.timed);
    }
}
