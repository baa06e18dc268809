//! Who may touch a rank's user buffers while an operation runs.
//!
//! Peers that work in a rank's own buffers must be out of them before the rank returns from the operation, also when it
//! returns with an error while they are in the middle of it. The owner opens the lease for one operation; a peer enters
//! before its first access and leaves after its last; the owner closes it, which lets nobody in any more, and waits
//! until all have left.
//!
//! The word: operation number + 1 in the upper 48 bits (0: closed), peers inside in the lower 16. Beside it stands a
//! bit for each rank of the host, which a rank that is a process of its own sets before it enters, and clears when it
//! has left: so the owner knows whom it waits for, and need not wait for a process that has ended.

use std::ptr::NonNull;

use crate::sync::primitive::{AtomicU64, Ordering};

/// The words, one cache line in the owner's arena.
#[derive(Debug)]
#[repr(C)]
pub struct Lease {
    word: AtomicU64,
    visitors: [AtomicU64; VISITOR_WORDS],
}

/// A peer's stay; leaving is dropping.
#[derive(Debug)]
pub struct LeaseGuard<'a> {
    lease: &'a Lease,
    place: Option<usize>,
}

impl Lease {
    /// The lease at `place`.
    ///
    /// # Safety
    /// `place` is aligned to 8 and leads to 64 bytes, zeroed at first, that stay mapped for `'a` and are touched
    /// through `Lease` only.
    pub unsafe fn at<'a>(place: NonNull<u8>) -> &'a Lease {
        // SAFETY: the caller keeps alignment, size and life; any bit pattern is valid.
        unsafe { place.cast::<Lease>().as_ref() }
    }

    /// The owner lets peers in for `operation`. Peers that are about to leave the operation before stay counted.
    pub fn open(&self, operation: u64) {
        let open = |word| Some((word & COUNT_MASK) | (operation + 1) << COUNT_BITS);
        // Release: the buffers' addresses, written before, are seen by whoever enters. The closure never refuses.
        if self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, open).is_err() {
            debug_assert!(false, "opening a lease is unconditional");
        }
    }

    /// A peer enters for `operation`; `None` where the owner has closed it.
    pub fn enter(&self, operation: u64) -> Option<LeaseGuard<'_>> {
        self.count_in(operation).then(|| LeaseGuard { lease: self, place: None })
    }

    /// [`Lease::enter`] of the rank at `place` of the host, for which the owner can ask by [`Lease::is_out`].
    ///
    /// # Panics
    /// Where `place` is not below [`Lease::PLACES`].
    pub fn enter_as(&self, place: usize, operation: u64) -> Option<LeaseGuard<'_>> {
        // Relaxed: the release of the count publishes it. So an owner that has closed the lease, and finds no bit then,
        // knows that this rank is not inside and cannot come in.
        self.visitors[place / BITS].fetch_or(bit(place), Ordering::Relaxed);
        if self.count_in(operation) {
            return Some(LeaseGuard { lease: self, place: Some(place) });
        }
        self.clear(place);
        None
    }

    fn count_in(&self, operation: u64) -> bool {
        let wanted = operation + 1;
        let entered = |word: u64| (word >> COUNT_BITS == wanted).then(|| word + 1);
        // Acquire pairs with `open`; the owner's `drained` pairs with our leave.
        self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, entered).is_ok()
    }

    fn clear(&self, place: usize) {
        // Release: our accesses are over for the owner who sees no bit.
        self.visitors[place / BITS].fetch_and(!bit(place), Ordering::Release);
    }

    /// The owner lets nobody in any more.
    pub fn close(&self) {
        self.word.fetch_and(COUNT_MASK, Ordering::AcqRel);
    }

    /// Whether all peers have left. Acquires their last accesses.
    pub fn drained(&self) -> bool {
        self.word.load(Ordering::Acquire) & COUNT_MASK == 0
    }

    /// Whether the rank at `place`, which enters by [`Lease::enter_as`] only, is out of the lease that is closed.
    /// Acquires its last accesses.
    pub fn is_out(&self, place: usize) -> bool {
        self.visitors[place / BITS].load(Ordering::Acquire) & bit(place) == 0
    }

    /// Ranks of a host that have a bit.
    pub const PLACES: usize = VISITOR_WORDS * BITS;
}

impl Drop for LeaseGuard<'_> {
    fn drop(&mut self) {
        // Release: our accesses are over for the owner who sees the count fall.
        self.lease.word.fetch_sub(1, Ordering::Release);
        if let Some(place) = self.place {
            self.lease.clear(place);
        }
    }
}

fn bit(place: usize) -> u64 {
    1 << (place % BITS)
}

const VISITOR_WORDS: usize = 7;
const BITS: usize = 64;
const COUNT_BITS: u32 = 16;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

#[cfg(not(all(loom, test)))]
const _: () = assert!(size_of::<Lease>() == 64, "one cache line");

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn closed() -> Lease {
        Lease { word: AtomicU64::new(0), visitors: [const { AtomicU64::new(0) }; VISITOR_WORDS] }
    }

    #[test]
    fn the_owner_knows_who_is_inside() {
        let (lease, last) = (closed(), Lease::PLACES - 1);
        lease.open(4);
        assert!(lease.enter_as(3, 5).is_none());
        let (one, two) = (lease.enter_as(3, 4).unwrap(), lease.enter_as(last, 4).unwrap());
        lease.close();
        assert!(lease.enter_as(70, 4).is_none());
        assert!(!lease.is_out(3) && !lease.is_out(last) && lease.is_out(70) && lease.is_out(4));
        drop(one);
        assert!(lease.is_out(3) && !lease.is_out(last) && !lease.drained());
        drop(two);
        assert!(lease.is_out(last) && lease.drained());
    }

    #[test]
    fn nobody_enters_a_closed_lease_and_the_owner_sees_who_is_inside() {
        let lease = closed();
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
    use crate::transport::windows::UserPointers;

    /// A rank's lease, where it says what its buffer is, and the buffer as loom sees it.
    struct Owner {
        lease: Lease,
        board: UserPointers,
        buffers: [UnsafeCell<()>; 2],
    }

    // SAFETY: that nobody is in a buffer beside its owner is what the model proves; loom fails where it is not so.
    unsafe impl Sync for Owner {}
    // SAFETY: as above.
    unsafe impl Send for Owner {}

    impl Owner {
        fn new() -> Owner {
            let visitors = std::array::from_fn(|_| AtomicU64::new(0));
            let (lease, board) = (Lease { word: AtomicU64::new(0), visitors }, UserPointers::default());
            Owner { lease, board, buffers: [UnsafeCell::new(()), UnsafeCell::new(())] }
        }

        /// Lets peers into the buffer of `operation`, then takes it back, once `out` says that all are out of it.
        fn offer(&self, operation: u64, out: impl Fn(&Lease) -> bool) {
            let own = || self.buffers[usize::try_from(operation).expect("0 or 1")].with_mut(|_| ());
            own();
            self.board.write(std::ptr::null(), std::ptr::without_provenance_mut(address(operation)));
            self.lease.open(operation);
            self.lease.close();
            while !out(&self.lease) {
                loom::thread::yield_now();
            }
            own();
        }

        /// Goes into the buffer of `operation`, where the owner is in it now; finds it as the owner has said.
        fn visit(&self, operation: u64) {
            self.look(operation, self.lease.enter(operation));
        }

        /// The same, of a rank that the owner knows by its place.
        fn visit_as(&self, place: usize, operation: u64) {
            self.look(operation, self.lease.enter_as(place, operation));
        }

        fn look(&self, operation: u64, guard: Option<LeaseGuard<'_>>) {
            if let Some(_guard) = guard {
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
            owner.offer(0, Lease::drained);
            for peer in peers {
                peer.join().expect("loom ends the model before a panic comes here");
            }
        });
    }

    #[test]
    fn a_rank_without_a_bit_is_out_and_stays_out() {
        model(Membarrier::Works, || {
            let owner = Arc::new(Owner::new());
            let peers = [0, 1].map(|place| {
                let owner = Arc::clone(&owner);
                loom::thread::spawn(move || owner.visit_as(place, 0))
            });
            owner.offer(0, |lease| lease.is_out(0) && lease.is_out(1));
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
            owner.offer(0, Lease::drained);
            owner.offer(1, Lease::drained);
            peer.join().expect("loom ends the model before a panic comes here");
        });
    }
}
