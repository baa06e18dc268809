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
#[cfg(not(loom))]
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

#[cfg(all(test, loom))]
mod models {
    use loom::cell::UnsafeCell;

    use super::*;
    use crate::sync::primitive::Arc;
    use crate::sys::futex::{Membarrier, model};
    use crate::transport::Board;

    /// A rank's lease, where it says what its buffer is, and the buffer as loom sees it.
    struct Owner {
        lease: Lease,
        board: Board,
        buffers: [UnsafeCell<()>; 2],
    }

    // SAFETY: that nobody is in a buffer beside its owner is what the model proves; loom fails where it is not so.
    unsafe impl Sync for Owner {}
    // SAFETY: as above.
    unsafe impl Send for Owner {}

    impl Owner {
        fn new() -> Owner {
            let (lease, board) = (Lease(AtomicU64::new(0)), Board::default());
            Owner { lease, board, buffers: [UnsafeCell::new(()), UnsafeCell::new(())] }
        }

        /// Lets peers into the buffer of `operation`, then takes it back.
        fn offer(&self, operation: u64) {
            let own = || self.buffers[usize::try_from(operation).expect("0 or 1")].with_mut(|_| ());
            own();
            self.board.write(std::ptr::null(), std::ptr::without_provenance_mut(address(operation)));
            self.lease.open(operation);
            self.lease.close();
            while !self.lease.drained() {
                loom::thread::yield_now();
            }
            own();
        }

        /// Goes into the buffer of `operation`, where the owner is in it now; finds it as the owner has said.
        fn visit(&self, operation: u64) {
            if let Some(_guard) = self.lease.enter(operation) {
                assert_eq!(self.board.read().1.addr(), address(operation));
                self.buffers[usize::try_from(operation).expect("0 or 1")].with(|_| ());
            }
        }
    }

    fn address(operation: u64) -> usize {
        usize::try_from(operation).expect("0 or 1") + 1
    }

    #[test]
    fn the_owner_has_its_buffer_back_only_when_all_are_out() {
        model(Membarrier::Works, || {
            let owner = Arc::new(Owner::new());
            let peers = [0, 0].map(|operation| {
                let owner = Arc::clone(&owner);
                loom::thread::spawn(move || owner.visit(operation))
            });
            owner.offer(0);
            for peer in peers {
                peer.join().expect("loom ends the model before a panic comes here");
            }
        });
    }

    #[test]
    fn who_comes_for_an_operation_finds_its_buffer_or_a_closed_door() {
        model(Membarrier::Works, || {
            let owner = Arc::new(Owner::new());
            let visited = Arc::clone(&owner);
            let peer = loom::thread::spawn(move || {
                visited.visit(0);
                visited.visit(1);
            });
            owner.offer(0);
            owner.offer(1);
            peer.join().expect("loom ends the model before a panic comes here");
        });
    }
}
