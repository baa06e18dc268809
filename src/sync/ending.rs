//! Whether a thread of the process is through with something that another one waits for.

use crate::sync::primitive::{Condvar, Mutex};

/// Told once, by a thread that has dropped all that it had of something.
#[derive(Debug)]
pub(crate) struct Ending {
    has_ended: Mutex<bool>,
    changed: Condvar,
}

impl Ending {
    pub(crate) fn new() -> Ending {
        Ending { has_ended: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits until it is told.
    pub(crate) fn await_told(&self) {
        let mut has_ended = self.has_ended.lock();
        while !*has_ended {
            has_ended = self.changed.wait(has_ended);
        }
    }

    pub(crate) fn tell(&self) {
        *self.has_ended.lock() = true;
        self.changed.notify_one();
    }

    /// Whether it was told.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(crate) fn is_told(&self) -> bool {
        *self.has_ended.lock()
    }
}
