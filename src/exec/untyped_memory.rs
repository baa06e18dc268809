//! Memory of a program that says no more of it than where it is: that of C++.

use std::ptr::NonNull;

use crate::error::Result;
use crate::exec::in_place::{InPlacePages, Registrable, private};
use crate::log;
use crate::sys::in_place::PinnedPages;
use crate::transport::KnownBuffer;

/// Memory that is registered where it lies and that somebody else owns, who has promised to leave it there.
#[derive(Debug)]
pub(crate) struct UntypedMemory(InPlacePages);

impl UntypedMemory {
    /// Moves the pages, or has a sentence that says why not.
    ///
    /// # Safety
    /// The memory is allocated until this is dropped; nobody else reads or writes it while this is made or dropped, and
    /// no call is at work in it then. If `is_unpinned`, no page of it is pinned meanwhile.
    pub(crate) unsafe fn new(start: NonNull<u8>, bytes: usize, is_unpinned: bool) -> UntypedMemory {
        let pins = if is_unpinned { PinnedPages::NoneHere } else { PinnedPages::Unknown };
        // SAFETY: the caller's promise.
        UntypedMemory(unsafe { InPlacePages::new(start, bytes, pins) }.promised())
    }

    /// As [`Registered::refusal`](crate::comm::Registered::refusal).
    pub(crate) fn refusal(&self) -> Option<&str> {
        self.0.refusal.as_deref()
    }
}

impl Drop for UntypedMemory {
    fn drop(&mut self) {
        if !self.0.is_there() {
            // A mapping over it would take memory away that is somebody else's by now.
            log::warn!(
                Reg,
                "memory that was registered where it lies is no longer there: it was freed or resized while it was \
                 registered, and nothing is given back"
            );
            return self.0.forget();
        }
        // SAFETY: the promise of `new`.
        let _told = unsafe { self.0.give_back() };
    }
}

impl Registrable for UntypedMemory {}

impl private::KnownToPeers for UntypedMemory {
    fn known(&self) -> Result<KnownBuffer> {
        self.0.known()
    }
}
