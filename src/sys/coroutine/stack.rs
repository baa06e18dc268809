//! A stack of its own, in mapped memory.
//!
//! The switch saves what the calling convention says that a called function keeps, on the stack that it leaves. The
//! modes of the floating-point units stay the thread's, as in any call.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use std::cell::Cell;
use std::ptr::{NonNull, null_mut};

#[cfg(target_arch = "aarch64")]
use aarch64::{first, switch};
#[cfg(target_arch = "x86_64")]
use x86_64::{first, switch};

use crate::error::{Error, Result};

/// A stack, and where the two sides stopped.
#[derive(Debug)]
pub struct OwnStack {
    /// Of the mapping, the lowest page of which nobody may touch.
    base: NonNull<u8>,
    /// The stack pointer of the side that does not run.
    stopped: Cell<*mut u8>,
}

// SAFETY: memory that it owns.
unsafe impl Send for OwnStack {}

impl OwnStack {
    pub(super) fn new() -> Result<OwnStack> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
        // SAFETY: a new mapping, at a place that the system chooses.
        let base = unsafe { libc::mmap(null_mut(), BYTES, protection, flags | libc::MAP_STACK, -1, 0) };
        let refused = || Error::system("mapping the stack of a request", std::io::Error::last_os_error());
        if base == libc::MAP_FAILED {
            return Err(refused());
        }
        let base = NonNull::new(base.cast()).ok_or_else(refused)?;
        let switch = OwnStack { base, stopped: Cell::new(null_mut()) };
        // An overflow ends the process, as on any thread's stack.
        // SAFETY: the lowest page of our mapping, which nothing uses.
        if unsafe { libc::mprotect(base.as_ptr().cast(), GUARD_BYTES, libc::PROT_NONE) } != 0 {
            return Err(refused());
        }
        Ok(switch)
    }

    /// Lets the next resume call `entry`.
    ///
    /// # Safety
    /// Nothing on the stack is in use. `entry` may be called with `argument` then, and once.
    pub(super) unsafe fn begin(&mut self, entry: unsafe extern "C" fn(*const ()), argument: *const ()) {
        // SAFETY: one past the end of the mapping.
        let top = unsafe { self.base.as_ptr().add(BYTES) };
        // SAFETY: the top of the stack, of which nothing is in use, aligned as the mapping's pages are.
        let place = unsafe { first(top, entry, argument) };
        self.stopped.set(place);
    }

    /// Runs the other side until it suspends itself or ends.
    pub(super) fn resume(&self) {
        let to = self.stopped.get();
        // SAFETY: `begin` or `suspend` has stored it, and that side does not run.
        unsafe { switch(self.stopped.as_ptr(), to) };
    }

    /// Goes back to where [`OwnStack::resume`] was called.
    ///
    /// # Safety
    /// Called on the stack of `this`, which has been resumed.
    #[inline(never)]
    pub(super) unsafe fn suspend(this: *const OwnStack) {
        // SAFETY: the driver has it in `resume`, which waits for us.
        let stopped = unsafe { &(*this).stopped };
        let to = stopped.get();
        // SAFETY: `resume` has stored it, and waits.
        unsafe { switch(stopped.as_ptr(), to) };
    }
}

impl OwnStack {
    /// Goes back for good, at the end of what `begin` was given.
    ///
    /// # Safety
    /// As [`OwnStack::suspend`].
    pub(super) unsafe fn finish(this: *const OwnStack) {
        // SAFETY: the caller's promise. Nobody resumes it: the next `begin` writes a new frame.
        unsafe { OwnStack::suspend(this) };
    }
}

impl Drop for OwnStack {
    fn drop(&mut self) {
        // SAFETY: our mapping, on which nothing runs: a coroutine that is suspended forgets it.
        let unmapped = unsafe { libc::munmap(self.base.as_ptr().cast(), BYTES) };
        debug_assert_eq!(unmapped, 0);
    }
}

/// The bytes of a stack, as much as a thread's. The system gives memory to the pages that are used.
const BYTES: usize = 2 << 20;
const GUARD_BYTES: usize = 4096;
const _: () = assert!(BYTES.is_multiple_of(16));
