//! [`HandedDown`]: a value behind a lock, of which a forked child begins with a copy.

use crate::sync::primitive::statics::{Mutex, MutexGuard};
use crate::sys::fork::PerProcess;

/// A value behind a lock. A forked child has a lock of its own: another thread of the parent may have held the parent's
/// when the child was made, and does not exist in the child to give it back.
#[derive(Debug)]
pub(crate) struct HandedDown<T> {
    value: PerProcess<Mutex<T>>,
    first: fn() -> T,
    copy: fn(&T) -> T,
}

impl<T: Send> HandedDown<T> {
    /// `first` makes the value of a process; `copy` makes that of a forked child, where no thread was changing its
    /// parent's.
    pub(crate) const fn new(first: fn() -> T, copy: fn(&T) -> T) -> HandedDown<T> {
        HandedDown { value: PerProcess::new(), first, copy }
    }

    /// The value of this process. Whoever holds it leaves it whole after every statement, so a panic elsewhere does not
    /// spoil it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let value =
            self.value.get_or_inherit(|parent| Mutex::new(parent.map_or_else(self.first, |parent| self.of(parent))));
        value.lock()
    }

    fn of(&self, parent: &Mutex<T>) -> T {
        parent.try_lock().map_or_else(self.first, |value| (self.copy)(&value))
    }
}
