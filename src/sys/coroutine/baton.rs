//! A thread in place of a stack: it and its driver hand a baton to and fro.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::error::Result;
use crate::sys::fork::Birthplace;
use crate::sys::thread;

/// A thread, and whose turn it is.
#[derive(Debug)]
pub struct OwnThread {
    baton: Arc<Baton>,
    birthplace: Birthplace,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Baton {
    state: Mutex<Held>,
    passed: Condvar,
}

#[derive(Debug, Default)]
struct Held {
    /// Whether the thread has the baton.
    by_thread: bool,
    /// What it begins next.
    next: Option<Work>,
    ends: bool,
}

/// A function, and its argument.
#[derive(Debug)]
struct Work(unsafe extern "C" fn(*const ()), *const ());

// SAFETY: `begin` asks that the function may be called there.
unsafe impl Send for Work {}

impl OwnThread {
    pub(super) fn new() -> Result<OwnThread> {
        let baton = Arc::<Baton>::default();
        let held = Arc::clone(&baton);
        let thread = thread::spawn("rsccl request", move || held.serve())?;
        Ok(OwnThread { baton, birthplace: Birthplace::here(), thread: Some(thread) })
    }

    /// Lets the next resume call `entry`.
    ///
    /// # Safety
    /// `entry` may be called with `argument` on another thread then, and once.
    pub(super) unsafe fn begin(&mut self, entry: unsafe extern "C" fn(*const ()), argument: *const ()) {
        self.baton.lock().next = Some(Work(entry, argument));
    }

    /// Runs the other side until it suspends itself or ends.
    pub(super) fn resume(&self) {
        let mut held = self.baton.lock();
        held.by_thread = true;
        self.baton.passed.notify_all();
        drop(self.baton.until(held, false));
    }

    /// Goes back to where [`OwnThread::resume`] was called.
    ///
    /// # Safety
    /// Called on the thread of `this`, which has been resumed.
    pub(super) unsafe fn suspend(this: *const OwnThread) {
        // The switch may move while the thread is suspended; what the baton lies in does not.
        // SAFETY: the driver has it in `resume`, which waits for us.
        let baton = Arc::clone(unsafe { &(*this).baton });
        let mut held = baton.lock();
        held.by_thread = false;
        baton.passed.notify_all();
        drop(baton.until(held, true));
    }

    /// The end of what `begin` was given: the thread itself hands the baton back.
    ///
    /// # Safety
    /// As [`OwnThread::suspend`].
    pub(super) unsafe fn finish(_this: *const OwnThread) {}
}

impl Baton {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the thread has the baton, or has it no more.
    fn until<'a>(&self, mut held: MutexGuard<'a, Held>, by_thread: bool) -> MutexGuard<'a, Held> {
        while held.by_thread != by_thread && !held.ends {
            held = self.passed.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
        held
    }

    fn serve(&self) {
        loop {
            let mut held = self.until(self.lock(), true);
            if held.ends {
                return;
            }
            let next = held.next.take();
            drop(held);
            if let Some(Work(entry, argument)) = next {
                // SAFETY: the promise of `begin`.
                unsafe { entry(argument) };
            }
            self.lock().by_thread = false;
            self.passed.notify_all();
        }
    }
}

impl Drop for OwnThread {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !self.birthplace.is_here() {
            // A forked child does not have the thread, which may have had the lock.
            return std::mem::forget((thread, Arc::clone(&self.baton)));
        }
        self.baton.lock().ends = true;
        self.baton.passed.notify_all();
        // What it runs catches panics.
        drop(thread.join());
    }
}
