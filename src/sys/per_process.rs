//! [`PerProcess`]: a value behind a lock, one for each process.

use std::sync::{PoisonError, TryLockError};

use crate::sync::primitive::Ordering;
use crate::sync::primitive::statics::{AtomicPtr, Mutex, MutexGuard};
use crate::sys::fork::Birthplace;

/// A value behind a lock. A forked child has a lock of its own: another thread of the parent may have held the parent's
/// when the child was made, and does not exist in the child to give it back.
#[derive(Debug)]
pub(crate) struct PerProcess<T> {
    /// Of the process that used it last. What a parent had stays where it is, in each of its children.
    here: AtomicPtr<Here<T>>,
    first: fn() -> T,
    inherit: fn(&T) -> T,
}

#[derive(Debug)]
struct Here<T> {
    place: Birthplace,
    value: Mutex<T>,
}

impl<T> PerProcess<T> {
    /// `first` makes the value of a process; `inherit` makes that of a forked child, where no thread was changing its
    /// parent's.
    pub(crate) const fn new(first: fn() -> T, inherit: fn(&T) -> T) -> PerProcess<T> {
        PerProcess { here: AtomicPtr::new(std::ptr::null_mut()), first, inherit }
    }

    /// The value of this process. Whoever holds it leaves it whole after every statement, so a panic elsewhere does not
    /// spoil it.
    pub(crate) fn lock(&'static self) -> MutexGuard<'static, T> {
        self.here().value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn here(&'static self) -> &'static Here<T> {
        // Acquire: pairs with the release below, so that what it points to is seen.
        let found = self.here.load(Ordering::Acquire);
        // SAFETY: null, or leaked below and never freed.
        let known = unsafe { found.as_ref() };
        if let Some(known) = known.filter(|known| known.place.is_here()) {
            return known;
        }
        let value = known.map_or_else(self.first, |parent| match parent.value.try_lock() {
            Ok(value) => (self.inherit)(&value),
            Err(TryLockError::Poisoned(value)) => (self.inherit)(&value.into_inner()),
            Err(TryLockError::WouldBlock) => (self.first)(),
        });
        let fresh = Box::into_raw(Box::new(Here { place: Birthplace::here(), value: Mutex::new(value) }));
        // Release: see above.
        let (release, acquire) = (Ordering::Release, Ordering::Acquire);
        let kept = match self.here.compare_exchange(found, fresh, release, acquire) {
            Ok(_) => fresh,
            Err(theirs) => {
                // SAFETY: it was made above, and nobody else knows it.
                drop(unsafe { Box::from_raw(fresh) });
                theirs
            }
        };
        // SAFETY: never null, leaked and never freed.
        unsafe { &*kept }
    }
}
