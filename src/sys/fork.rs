//! What a forked child inherits: its parent's memory and descriptors, but none of its threads.
//!
//! The library watches forks from the first [`Birthplace`] or socket on. In the child, before it runs anything else:
//!
//! - its [`Birthplace`] changes, so that what its parent has made is refused;
//! - the library's sockets become dead ends ([`inherited`]), so that peers see the end of the parent when it ends;
//! - memory of the program that is registered where it lies becomes the child's own ([`own_copies`]).
//!
//! What the library keeps for a whole process is [`PerProcess`]: a child makes it anew. The parent's may be locked by a
//! thread that the child does not have, or half made.
//!
//! The C library calls the handlers in `fork`. A child that was made without it (`_Fork`, a bare `clone`) looks like
//! its parent to the library, and must run another program at once.

use std::marker::PhantomData;

use crate::sync::primitive::{Ordering, statics};
use crate::sys::{inherited, own_copies};

/// The process in which a value was made. Checking it costs one load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Birthplace(u64);

impl Birthplace {
    /// The current process.
    pub fn here() -> Birthplace {
        watch();
        // Relaxed: a forked child counts before it runs anything else.
        Birthplace(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this is the process that called [`Birthplace::here`], and not a forked child of it.
    #[inline]
    pub fn is_here(self) -> bool {
        // Relaxed: see `here`.
        FORKS.load(Ordering::Relaxed) == self.0
    }
}

/// Watches forks of this process from now on.
pub(super) fn watch() {
    // Acquire, here and below: pairs with the release, though nothing but the word is read.
    if WATCHED.load(Ordering::Acquire) != DONE {
        begin_to_watch();
    }
}

/// Registers the handlers once. No lock that a forked child may find taken: the word is the number of the process in
/// which a thread does it, and the C library forks before or after a registration, never in the middle.
#[cold]
fn begin_to_watch() {
    let me = u64::from(std::process::id());
    loop {
        let found = WATCHED.load(Ordering::Acquire);
        if found == DONE {
            return;
        }
        if found == me {
            // Another thread of this process is about to have done it.
            std::hint::spin_loop();
            continue;
        }
        // Relaxed: a claim; what matters is published by the store below.
        if WATCHED.compare_exchange(found, me, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            // This fails only without memory. Then calls in forked children are not refused, and a child keeps copies
            // of the library's sockets; nothing else is lost.
            // SAFETY: the handlers are functions of this library. That of the child makes atomic accesses and system
            // calls only, as a forked child may.
            let _refused = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_forked)) };
            WATCHED.store(DONE, Ordering::Release);
            return;
        }
    }
}

/// [`DONE`], or 0, or the process of which a thread registers the handlers.
static WATCHED: statics::AtomicU64 = statics::AtomicU64::new(0);
const DONE: u64 = u64::MAX;

/// How many forks lie between this process and its first ancestor that loaded the library.
static FORKS: statics::AtomicU64 = statics::AtomicU64::new(0);

extern "C" fn before() {
    inherited::hold();
    own_copies::copy();
}

extern "C" fn in_parent() {
    own_copies::forget_copies();
    inherited::release();
}

extern "C" fn in_forked() {
    // Relaxed: a child begins with one thread. A thread of the parent may have been about to say that it watches.
    FORKS.fetch_add(1, Ordering::Relaxed);
    WATCHED.store(DONE, Ordering::Relaxed);
    own_copies::take_copies();
    inherited::silence();
    inherited::release();
}

/// A value of the whole process, which a forked child makes anew.
///
/// The child leaves its parent's value alone: a thread that does not exist there may have held its locks, or have been
/// about to change it.
#[derive(Debug)]
pub struct PerProcess<T> {
    owned: statics::AtomicPtr<Owned<T>>,
    /// Shared by threads only where `T` may be.
    _holds: PhantomData<T>,
}

#[derive(Debug)]
struct Owned<T> {
    birthplace: Birthplace,
    /// That of the parent, which a child keeps as it is.
    _inherited: *mut Owned<T>,
    value: T,
}

impl<T: Send> PerProcess<T> {
    /// No value yet.
    pub const fn new() -> PerProcess<T> {
        PerProcess { owned: statics::AtomicPtr::new(std::ptr::null_mut()), _holds: PhantomData }
    }

    /// The value, if this process has made one.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        // Acquire: pairs with the release in `get_or_try_init`, so that the whole value is seen.
        let owned = self.owned.load(Ordering::Acquire);
        // SAFETY: null, or a box that lives as long as `self`: one that is replaced is not freed.
        let owned = unsafe { owned.as_ref() }?;
        owned.birthplace.is_here().then_some(&owned.value)
    }

    /// The value; the first call in a process makes it. Of two threads that make one at the same time, both get the
    /// first one's. No thread waits for another, since a fork may come meanwhile.
    ///
    /// # Errors
    /// Of `make`. A later call tries again.
    pub fn get_or_try_init<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        if let Some(value) = self.get() {
            return Ok(value);
        }
        let value = make()?;
        let birthplace = Birthplace::here();
        // Relaxed: if it is not null it is the parent's, and not followed.
        let mut found = self.owned.load(Ordering::Relaxed);
        let mut fresh = Box::new(Owned { birthplace, _inherited: std::ptr::null_mut(), value });
        loop {
            if let Some(value) = self.get() {
                return Ok(value);
            }
            fresh._inherited = found;
            let raw = Box::into_raw(fresh);
            // Release: see `get`.
            match self.owned.compare_exchange(found, raw, Ordering::Release, Ordering::Relaxed) {
                // SAFETY: it was just boxed, and lives as long as `self` from now on.
                Ok(_) => return Ok(unsafe { &(*raw).value }),
                Err(other) => {
                    found = other;
                    // SAFETY: nobody else has got the pointer.
                    fresh = unsafe { Box::from_raw(raw) };
                }
            }
        }
    }

    /// As [`PerProcess::get_or_try_init`], of a `make` that cannot fail.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        let made: Result<&T, std::convert::Infallible> = self.get_or_try_init(|| Ok(make()));
        match made {
            Ok(value) => value,
            Err(never) => match never {},
        }
    }
}

impl<T: Send + Sync> PerProcess<T> {
    /// As [`PerProcess::get_or_init`]; `make` gets the parent's value as the fork has left it: a lock may be held for
    /// ever, by a thread that this process does not have.
    pub fn get_or_inherit(&self, make: impl FnOnce(Option<&T>) -> T) -> &T {
        // Acquire: see `get`.
        let found = self.owned.load(Ordering::Acquire);
        // SAFETY: null, or a box that lives as long as `self`.
        let found = unsafe { found.as_ref() };
        let parent = found.filter(|found| !found.birthplace.is_here()).map(|found| &found.value);
        self.get_or_init(|| make(parent))
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let owned = *self.owned.get_mut();
        // SAFETY: null, or a box of ours.
        if unsafe { owned.as_ref() }.is_some_and(|owned| owned.birthplace.is_here()) {
            // SAFETY: nobody has a reference any more, since `self` ends. What was inherited stays.
            drop(unsafe { Box::from_raw(owned) });
        }
    }
}

/// Runs `body` in a forked child; yields whether it returned true within a time limit. `body` must not print or wait
/// for another thread.
#[cfg(test)]
#[cfg(not(loom))]
pub(crate) fn in_child(body: impl FnOnce() -> bool) -> bool {
    use std::time::Duration;

    use crate::sync::Deadline;
    use crate::sys::{clock, futex};

    // SAFETY: the child runs `body` alone and ends without returning; the C library keeps its allocator usable there.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        let is_fine = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(false);
        // SAFETY: ends the process; destructors and buffers are the parent's.
        unsafe { libc::_exit(i32::from(!is_fine)) };
    }
    let (mut status, deadline) = (0, Deadline::after(Duration::from_secs(20)));
    loop {
        // SAFETY: `status` is ours; the child is ours and is waited for here only.
        let ended = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
        if ended == child {
            return libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
        }
        if deadline.passed(clock::now()) {
            // SAFETY: the child is ours and unreaped, so the number is its.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        futex::nap(Duration::from_millis(1));
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn a_child_knows_that_it_is_one_and_has_a_birthplace_of_its_own() {
        let mine = Birthplace::here();
        assert!(mine.is_here());
        assert!(in_child(|| {
            let own = Birthplace::here();
            !mine.is_here() && own.is_here() && in_child(|| !own.is_here() && !mine.is_here())
        }));
        assert!(mine.is_here());
    }

    #[test]
    fn a_value_of_the_process_is_made_once_in_each() {
        static VALUE: PerProcess<Mutex<u32>> = PerProcess::new();
        assert!(VALUE.get().is_none());
        assert_eq!(VALUE.get_or_try_init(|| Err(7)).unwrap_err(), 7);
        // The lock is taken at the fork, as by a thread that the child does not have.
        let mut held = VALUE.get_or_init(|| Mutex::new(1)).lock().unwrap();
        let again = || *VALUE.get_or_init(|| Mutex::new(2)).lock().unwrap();
        assert!(in_child(|| VALUE.get().is_none()
            && again() == 2
            && in_child(|| VALUE.get().is_none() && again() == 2)));
        *held += 4;
        drop(held);
        assert_eq!(again(), 5);
    }

    #[test]
    fn threads_that_make_it_at_the_same_time_get_one() {
        for _ in 0..100 {
            let (value, made) = (PerProcess::new(), std::sync::Barrier::new(4));
            let of = |number: usize| {
                let make = || {
                    made.wait();
                    number
                };
                *value.get_or_init(make)
            };
            let all = crate::sys::thread::side_by_side("maker", vec![0, 1, 2, 3], of, || ()).unwrap();
            assert!(all.iter().all(|one| *one == all[0]), "{all:?}");
        }
    }

    /// A child drops what it has made, and not what it has inherited.
    #[test]
    fn what_is_dropped_in_a_child_is_its_own() {
        let (mine, count) = (PerProcess::new(), Arc::new(()));
        let mut kept = Some(mine);
        kept.as_ref().unwrap().get_or_init(|| Arc::clone(&count));
        assert!(in_child(|| {
            let own = Arc::new(());
            let inherited = kept.take().expect("it is there");
            inherited.get_or_init(|| Arc::clone(&own));
            let before = (Arc::strong_count(&own), Arc::strong_count(&count));
            drop(inherited);
            before == (2, 2) && Arc::strong_count(&own) == 1 && Arc::strong_count(&count) == 2
        }));
        drop(kept);
        assert_eq!(Arc::strong_count(&count), 1);
    }
}
