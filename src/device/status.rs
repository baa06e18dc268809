//! The page by which a launch and its host hear from each other while it runs: host memory that the device reads and
//! writes.

use std::any::Any;

use crate::device::{HostMemory, HostRegion, Sharing};
use crate::error::Result;
use crate::sync::Mirror;
use crate::sync::primitive::{AtomicU32, AtomicU64, Ordering};
use crate::sync::ring::Label;

/// One page of host memory, zero at first:
///
/// | offset | words | what | written by |
/// |---|---|---|---|
/// | 0 | u32 | abort: a launch that waits and sees another value than 0 ends | the host |
/// | 64 | u32 | fault: [`StatusPage::CLAIMED`] while it is written, then a code | the device |
/// | 72 | u64 × 7 | the peer, the label of this rank, the peer's | the device |
#[derive(Debug)]
pub struct StatusPage {
    /// What the device has for the rank whose page it is.
    place: Option<Box<dyn Any + Send + Sync>>,
    page: HostRegion,
}

/// Why a launch ended before its programs had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchFault {
    /// The host asked for it.
    Aborted,
    /// A peer called something else.
    Mismatch {
        /// Which.
        peer: u32,
        /// What this rank called.
        mine: Label,
        /// What the peer called.
        theirs: Label,
    },
}

impl StatusPage {
    /// Bytes of the page.
    pub const BYTES: usize = 4096;
    /// The fault is being written.
    pub const CLAIMED: u32 = 1;
    /// The code of [`LaunchFault::Aborted`].
    pub const ABORTED: u32 = 2;
    /// The code of [`LaunchFault::Mismatch`].
    pub const MISMATCH: u32 = 3;

    /// A page without fault.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where there is no memory.
    pub fn new() -> Result<StatusPage> {
        Ok(StatusPage { place: None, page: HostMemory.allocate_host(StatusPage::BYTES, Sharing::Threads)? })
    }

    /// A page of [`StatusPage::BYTES`] zeroed bytes that a device reaches, with what else the device has for the rank.
    pub fn on(page: HostRegion, place: Box<dyn Any + Send + Sync>) -> StatusPage {
        assert!(page.bytes() == StatusPage::BYTES, "a whole page");
        StatusPage { place: Some(place), page }
    }

    /// What the device has for the rank, if it is a `T`.
    pub fn place<T: Any>(&self) -> Option<&T> {
        self.place.as_ref()?.downcast_ref()
    }

    /// The page itself, for devices that have to be told of memory before they reach it.
    pub fn region(&self) -> &HostRegion {
        &self.page
    }

    /// Whether launches shall end.
    pub fn is_aborted(&self) -> bool {
        // Relaxed: the word stands alone.
        self.word(ABORT).load(Ordering::Relaxed) != 0
    }

    /// Says why a launch ended; the first fault stays. For devices that are part of the host.
    pub fn report(&self, fault: LaunchFault) {
        let code = self.word(FAULT);
        // Relaxed: it only tells who writes.
        if code.compare_exchange(0, StatusPage::CLAIMED, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        let (number, peer, mine, theirs) = match fault {
            LaunchFault::Aborted => (StatusPage::ABORTED, 0, [0; 3], [0; 3]),
            LaunchFault::Mismatch { peer, mine, theirs } => (StatusPage::MISMATCH, peer, mine, theirs),
        };
        let words = [u64::from(peer)].into_iter().chain(mine).chain(theirs);
        // Relaxed: the code publishes them.
        words.enumerate().for_each(|(place, word)| self.detail(place).store(word, Ordering::Relaxed));
        // Pairs with the acquire in `fault`.
        code.store(number, Ordering::Release);
    }

    /// Why a launch ended, where one did before its programs had.
    pub fn fault(&self) -> Option<LaunchFault> {
        // Relaxed: the code was read with acquire before.
        let label = |first: usize| std::array::from_fn(|place| self.detail(first + place).load(Ordering::Relaxed));
        // Pairs with the release in `report`, and with a device's fence before its store.
        match self.word(FAULT).load(Ordering::Acquire) {
            StatusPage::ABORTED => Some(LaunchFault::Aborted),
            StatusPage::MISMATCH => Some(LaunchFault::Mismatch {
                peer: u32::try_from(self.detail(0).load(Ordering::Relaxed)).unwrap_or(u32::MAX),
                mine: label(1),
                theirs: label(4),
            }),
            _ => None,
        }
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: inside the page, aligned, zeroed at first, and only used as an atomic word while the page lives.
        unsafe { self.page.at(offset, size_of::<AtomicU32>()).cast().as_ref() }
    }

    fn detail(&self, place: usize) -> &AtomicU64 {
        let offset = DETAILS + place * size_of::<AtomicU64>();
        // SAFETY: as in `word`.
        unsafe { self.page.at(offset, size_of::<AtomicU64>()).cast().as_ref() }
    }
}

impl Mirror for StatusPage {
    fn raise(&self) {
        // Relaxed: the word stands alone; the reason is kept with the flag.
        self.word(ABORT).store(1, Ordering::Relaxed);
    }
}

const ABORT: usize = 0;
const FAULT: usize = 64;
const DETAILS: usize = 72;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::sync::AbortFlag;
    use crate::sync::primitive::Arc;

    #[test]
    fn the_first_fault_stays_and_the_abort_flag_is_seen() {
        let page = Arc::new(StatusPage::new().unwrap());
        assert_eq!((page.fault(), page.is_aborted()), (None, false));
        let fault = LaunchFault::Mismatch { peer: 7, mine: [1, 2, 3], theirs: [4, 5, 6] };
        page.report(fault);
        page.report(LaunchFault::Aborted);
        assert_eq!(page.fault(), Some(fault));
        let flag = AbortFlag::new();
        flag.mirror(&page);
        flag.raise(crate::error::Error::aborted("enough"));
        assert!(page.is_aborted());
    }
}
