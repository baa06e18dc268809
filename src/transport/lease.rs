//! Who may touch a rank's user buffers while an operation runs.
//!
//! Peers that work in a rank's own buffers must be out of them before the rank returns from the operation, also when it
//! returns with an error while they are in the middle of it. The owner opens the lease for one operation; a peer enters before
//! its first access and leaves after its last; the owner closes it, which lets nobody in any more, and waits until all have left.
//!
//! The word: operation number + 1 in the upper 48 bits (0: closed), peers inside in the lower 16.

use std::ptr::NonNull;

use crate::sync::primitive::{AtomicU64, Ordering};

/// The word, in the owner's arena.
#[derive(Debug)]
#[repr(transparent)]
pub struct Lease(AtomicU64);

/// A peer's stay; leaving is dropping.
#[derive(Debug)]
pub struct LeaseGuard<'a>(&'a Lease);

impl Lease {
    /// The lease at `place`.
    ///
    /// # Safety
    /// `place` is aligned to 8 and leads to 8 bytes, zeroed at first, that stay mapped for `'a` and are touched through `Lease` only.
    pub unsafe fn at<'a>(place: NonNull<u8>) -> &'a Lease {
        // SAFETY: the caller keeps alignment, size and life; any bit pattern is valid.
        unsafe { place.cast::<Lease>().as_ref() }
    }

    /// The owner lets peers in for `operation`. Peers that are about to leave the operation before stay counted.
    pub fn open(&self, operation: u64) {
        let open = |word| Some((word & COUNT_MASK) | (operation + 1) << COUNT_BITS);
        // Release: the buffers' addresses, written before, are seen by whoever enters. The closure never refuses.
        if self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, open).is_err() {
            debug_assert!(false, "opening a lease is unconditional");
        }
    }

    /// A peer enters for `operation`; `None` where the owner has closed it.
    pub fn enter(&self, operation: u64) -> Option<LeaseGuard<'_>> {
        let wanted = operation + 1;
        // Acquire pairs with `open`; the owner's `drained` pairs with our leave.
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| (word >> COUNT_BITS == wanted).then(|| word + 1))
            .ok()
            .map(|_| LeaseGuard(self))
    }

    /// The owner lets nobody in any more.
    pub fn close(&self) {
        self.0.fetch_and(COUNT_MASK, Ordering::AcqRel);
    }

    /// Whether all peers have left. Acquires their last accesses.
    pub fn drained(&self) -> bool {
        self.0.load(Ordering::Acquire) & COUNT_MASK == 0
    }
}

impl Drop for LeaseGuard<'_> {
    fn drop(&mut self) {
        // Release: our accesses are over for the owner who sees the count fall.
        self.0.0.fetch_sub(1, Ordering::Release);
    }
}

const COUNT_BITS: u32 = 16;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_enters_a_closed_lease_and_the_owner_sees_who_is_inside() {
        let lease = Lease(AtomicU64::new(0));
        assert!(lease.enter(0).is_none());
        lease.open(7);
        assert!(lease.enter(6).is_none());
        let one = lease.enter(7).unwrap();
        let two = lease.enter(7).unwrap();
        lease.close();
        assert!(lease.enter(7).is_none());
        assert!(!lease.drained());
        drop(one);
        assert!(!lease.drained());
        // One who leaves late is still counted when the next operation is open.
        lease.open(8);
        assert!(!lease.drained());
        drop(two);
        assert!(lease.drained() && lease.enter(8).is_some());
    }
}
