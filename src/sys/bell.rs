//! A descriptor that one thread makes readable for another, which sleeps on it together with sockets.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::error::{Error, Result};
use crate::sys::open;

/// Readable from the first [`Bell::ring`] until [`Bell::hush`].
#[derive(Debug)]
pub struct Bell {
    event: OwnedFd,
}

impl Bell {
    /// A bell that has not rung.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where no descriptor is left.
    pub fn new() -> Result<Bell> {
        // SAFETY: no pointer is passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        // SAFETY: it is what the call has just returned.
        let event = unsafe { open::own(fd) }.map_err(|error| Error::system("eventfd", error))?;
        Ok(Bell { event })
    }

    /// Wakes who sleeps on the bell, now or later. From any thread.
    pub fn ring(&self) {
        let one = 1u64;
        // SAFETY: reads 8 bytes, which `one` has. It fails only where the count is full: it is readable then.
        unsafe { libc::write(self.event.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
    }

    /// Makes it unreadable, until it rings again.
    pub fn hush(&self) {
        let mut count = 0u64;
        // SAFETY: writes 8 bytes, for which `count` has room. It fails only where it has not rung.
        unsafe { libc::read(self.event.as_raw_fd(), (&raw mut count).cast(), size_of::<u64>()) };
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sys::poller::{Interest, Poller, Ready};

    #[test]
    fn it_is_readable_from_a_ring_to_a_hush() {
        let (bell, poller, mut ready) = (Bell::new().unwrap(), Poller::new().unwrap(), Ready::default());
        poller.add(bell.as_fd(), 1, Interest::Read).unwrap();
        let mut is_readable = || {
            poller.wait(&mut ready, Duration::ZERO).unwrap();
            ready.iter().count() == 1
        };
        assert!(!is_readable());
        bell.hush();
        (0..3).for_each(|_| bell.ring());
        assert!(is_readable() && is_readable());
        bell.hush();
        assert!(!is_readable());
    }
}
