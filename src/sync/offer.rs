//! The word by which the two ends of a message agree who copies it: the sender into slots, or the receiver directly
//! from the sender's memory.
//!
//! ```text
//! POSTED ── take ──► TAKEN ── leave ──► LEFT, with the bytes that the receiver has copied
//!    │             ▲ │ └──── stop ───► STOPPED ── leave ──► LEFT, with no bytes
//!    │      resume │ ▼ pause
//!    │            PAUSED ─── stop ───► WITHDRAWN
//!    └── withdraw ───────────────────► WITHDRAWN
//! ```
//! The sender posts the word with its address beside it, and withdraws it where the receiver does not come soon. A
//! receiver that has taken it reads the sender's memory until it leaves, so the sender keeps its memory until then. A
//! sender whose call has failed asks the receiver to stop. Whatever the receiver has copied is void then: the sender
//! may have stopped to wait for it, and have written its memory again. A receiver that does other things in between
//! pauses: then the sender does not wait for it.

use crate::sync::primitive::{AtomicU64, Ordering};

/// The word of one offer, where both ends see it.
#[derive(Debug, Clone, Copy)]
pub struct Offer<'a>(pub &'a AtomicU64);

impl Offer<'_> {
    /// The sender begins. The flag of the slot publishes the word.
    pub fn post(self) {
        self.0.store(POSTED, Ordering::Relaxed);
    }

    /// The sender takes its offer back. False where the receiver has taken it: then it reads until it [leaves].
    ///
    /// [leaves]: Offer::left
    pub fn withdraw(self) -> bool {
        // Relaxed: nothing has been read that this end would have to acquire, and the flag of the slot publishes what
        // the sender writes next.
        self.0.compare_exchange(POSTED, WITHDRAWN, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Whether the receiver may be reading.
    pub fn is_taken(self) -> bool {
        matches!(self.0.load(Ordering::Relaxed) & STATE_MASK, TAKEN | PAUSED | STOPPED)
    }

    /// The receiver begins to read. False where the sender has withdrawn the offer.
    pub fn take(self) -> bool {
        // Relaxed: the flag of the slot, which the receiver has acquired, has published address and data.
        self.0.compare_exchange(POSTED, TAKEN, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// The receiver reads no more for now. A receiver that was asked to leave does so when it
    /// [resumes](Offer::resume).
    pub fn pause(self) {
        // Release: as in `leave`. Where the exchange fails, the sender waits on until this end leaves.
        let _stopped = self.0.compare_exchange(TAKEN, PAUSED, Ordering::Release, Ordering::Relaxed);
    }

    /// The receiver goes on, be it only to leave. False where the sender has taken the offer back meanwhile.
    pub fn resume(self) -> bool {
        let resumed = self.0.compare_exchange(PAUSED, TAKEN, Ordering::Relaxed, Ordering::Relaxed);
        resumed.is_ok() || self.is_stopped()
    }

    /// Whether the sender asks the receiver to leave.
    pub fn is_stopped(self) -> bool {
        self.0.load(Ordering::Relaxed) == STOPPED
    }

    /// The receiver has copied `bytes` and reads no more. False where the sender had asked it to leave: then what it
    /// has copied is void.
    #[must_use]
    pub fn leave(self, bytes: u64) -> bool {
        // Release: the reads are over for the sender, which acquires the word before its memory changes. Relaxed where
        // it fails: nothing of the sender's is read afterwards.
        let left = LEFT | bytes << STATE_BITS;
        let is_whole = self.0.compare_exchange(TAKEN, left, Ordering::Release, Ordering::Relaxed).is_ok();
        if !is_whole {
            self.0.store(LEFT, Ordering::Release);
        }
        is_whole
    }

    /// The sender asks a receiver that has taken the offer to leave early. True where that one has paused: the offer is
    /// withdrawn then.
    pub fn stop(self) -> bool {
        // Relaxed: it asks only. Where the exchange fails, the receiver has left already, or has paused.
        let _asked = self.0.compare_exchange(TAKEN, STOPPED, Ordering::Relaxed, Ordering::Relaxed);
        // Acquire pairs with `pause`.
        self.0.compare_exchange(PAUSED, WITHDRAWN, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// The bytes that the receiver has copied, once it reads no more.
    pub fn left(self) -> Option<u64> {
        // Acquire pairs with `leave`.
        let word = self.0.load(Ordering::Acquire);
        (word & STATE_MASK == LEFT).then_some(word >> STATE_BITS)
    }
}

const STATE_BITS: u32 = 3;
const STATE_MASK: u64 = (1 << STATE_BITS) - 1;
const POSTED: u64 = 1;
const TAKEN: u64 = 2;
const WITHDRAWN: u64 = 3;
const STOPPED: u64 = 4;
const LEFT: u64 = 5;
const PAUSED: u64 = 6;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn either_the_sender_withdraws_or_the_receiver_takes() {
        let word = AtomicU64::new(0);
        let offer = Offer(&word);
        assert!(!offer.take(), "nothing was posted");
        offer.post();
        assert!(offer.withdraw() && !offer.take() && !offer.withdraw());
        offer.post();
        assert!(offer.take() && !offer.withdraw() && !offer.is_stopped() && offer.left().is_none());
        offer.pause();
        assert!(offer.is_taken() && !offer.withdraw() && !offer.take() && offer.resume());
        assert!(!offer.stop());
        offer.pause();
        assert!(offer.is_stopped() && offer.left().is_none() && offer.resume());
        // Regression: a receiver that stood still in its last piece kept what the sender had written over.
        assert!(!offer.leave(1 << 40), "the sender may not have waited");
        assert_eq!(offer.left(), Some(0));
        offer.post();
        assert!(offer.take() && offer.leave(1 << 40) && !offer.stop());
        assert_eq!(offer.left(), Some(1 << 40));
        offer.post();
        assert!(offer.take());
        offer.pause();
        assert!(offer.stop() && !offer.is_taken() && !offer.resume(), "nobody waits for one that pauses");
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::cell::UnsafeCell;

    use super::*;
    use crate::sync::primitive::Arc;
    use crate::sys::futex::{Membarrier, model};

    struct Shared {
        word: AtomicU64,
        buffer: UnsafeCell<()>,
    }

    // SAFETY: that nobody reads the buffer beside its owner is what the model proves; loom fails where it is not so.
    unsafe impl Sync for Shared {}
    // SAFETY: as above.
    unsafe impl Send for Shared {}

    /// The sender writes its memory again where it has withdrawn the offer, or finds that the receiver has left.
    fn memory_is_the_senders_again(stops: bool, pauses: bool) {
        model(Membarrier::Works, move || {
            let shared = Arc::new(Shared { word: AtomicU64::new(0), buffer: UnsafeCell::new(()) });
            shared.buffer.with_mut(|_| ());
            Offer(&shared.word).post();
            // Spawning publishes, as the flag of the slot does.
            let theirs = Arc::clone(&shared);
            let receiver = loom::thread::spawn(move || {
                let offer = Offer(&theirs.word);
                if offer.take() {
                    if !offer.is_stopped() {
                        theirs.buffer.with(|_| ());
                    }
                    if pauses {
                        offer.pause();
                    }
                    if !pauses || offer.resume() {
                        if !offer.is_stopped() {
                            theirs.buffer.with(|_| ());
                        }
                        let _is_whole = offer.leave(8);
                    }
                }
            });
            let offer = Offer(&shared.word);
            let withdrawn = offer.withdraw();
            let is_out = stops && !withdrawn && offer.stop();
            if withdrawn || is_out || offer.left().is_some() {
                shared.buffer.with_mut(|_| ());
            }
            receiver.join().expect("loom ends the model before a panic comes here");
        });
    }

    #[test]
    fn a_sender_has_its_memory_back_when_the_receiver_has_left() {
        memory_is_the_senders_again(false, false);
    }

    #[test]
    fn a_sender_that_fails_waits_for_the_receiver() {
        memory_is_the_senders_again(true, false);
    }

    #[test]
    fn a_sender_that_fails_has_its_memory_back_from_a_receiver_that_pauses() {
        memory_is_the_senders_again(true, true);
    }
}
