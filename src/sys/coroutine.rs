//! Work that stops where it would wait, and goes on where it stopped: on a stack of its own.
//!
//! A collective is a program of many waits, in functions that call each other. As a request it may wait for none: so
//! it runs as a [`Coroutine`], which hands the processor back to its driver in each turn of each wait, and lends the
//! driver what the work has in hand (the connections), so that other work goes on with it meanwhile. To suspend and to
//! resume it costs two switches of the stack, a few nanoseconds.
//!
//! On x86-64 and 64-bit Arm the switch is a few dozen instructions (`stack`). Elsewhere, under Miri and under
//! ThreadSanitizer, which know no stacks but those of threads, the work has a thread, of which one at a time runs
//! (`baton`): the same in all but speed.

#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri), not(sanitize_thread))))]
mod baton;
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri), not(sanitize_thread)))]
mod stack;

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::null_mut;

use crate::error::Result;

#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri), not(sanitize_thread))))]
pub use baton::OwnThread as Switch;
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri), not(sanitize_thread)))]
pub use stack::OwnStack as Switch;

/// Work on a stack of its own, which lends an `L` to its driver while it is suspended and ends with an `R`.
///
/// Dropping one that has not ended leaks its stack and all that lies there: somebody may still point there. Drivers
/// resume theirs until they have ended; only a forked child leaves them.
pub struct Coroutine<L, R> {
    /// `None` once it has ended and its switch was taken.
    switch: Option<Switch>,
    has_ended: bool,
    state: Box<State<L, R>>,
}

/// What the work and its driver share. Only one of them runs at a time.
struct State<L, R> {
    body: UnsafeCell<Option<Body<L, R>>>,
    result: UnsafeCell<Option<std::result::Result<R, Box<dyn Any + Send>>>>,
    /// What the suspended work lends; null while it runs.
    lent: Cell<*mut L>,
    switch: Cell<*const Switch>,
}

type Body<L, R> = Box<dyn FnOnce(&Suspender<L>) -> R + Send>;

/// What the work suspends itself by.
#[derive(Debug)]
pub struct Suspender<L> {
    lent: *const Cell<*mut L>,
    /// Written by each resume.
    switch: *const Cell<*const Switch>,
}

// SAFETY: the work may go on on any thread, by the contract of `new`, and what it lends and returns may be used there.
unsafe impl<L: Send, R: Send> Send for Coroutine<L, R> {}

impl<L, R> Coroutine<L, R> {
    /// Work that begins with the first [`Coroutine::resume`].
    ///
    /// # Safety
    /// Each resume may be on another thread. So what `body` has on its stack while it is suspended may be used on any
    /// thread (no guard of a lock that knows its thread), and no function that suspends keeps the address of a variable
    /// of its thread over that.
    pub unsafe fn new(switch: Switch, body: impl FnOnce(&Suspender<L>) -> R + Send + 'static) -> Coroutine<L, R>
    where
        L: 'static,
        R: 'static,
    {
        let (body, result) = (UnsafeCell::new(Some(Box::new(body) as Body<L, R>)), UnsafeCell::new(None));
        let state = Box::new(State { body, result, lent: Cell::new(null_mut()), switch: Cell::new(std::ptr::null()) });
        let mut coroutine = Coroutine { switch: Some(switch), has_ended: false, state };
        let argument: *const State<L, R> = &raw const *coroutine.state;
        if let Some(switch) = &mut coroutine.switch {
            // SAFETY: the state lives in its box until the work has ended: a coroutine that is dropped before leaks it.
            unsafe { switch.begin(run::<L, R>, argument.cast()) };
        }
        coroutine
    }

    /// Lets the work run until it suspends itself, or ends: then its result.
    ///
    /// # Panics
    /// With the panic of the work.
    pub fn resume(&mut self) -> Option<R> {
        let switch = self.switch.as_ref().filter(|_| !self.has_ended)?;
        self.state.lent.set(null_mut());
        self.state.switch.set(switch);
        switch.resume();
        // SAFETY: the work is suspended or has ended: nobody else has a reference.
        let result = unsafe { (*self.state.result.get()).take() }?;
        self.has_ended = true;
        match result {
            Ok(result) => Some(result),
            Err(panic) => resume_unwind(panic),
        }
    }

    /// What the suspended work lends. `None` before it was resumed first, and once it has ended.
    pub fn lent(&mut self) -> Option<&mut L> {
        // SAFETY: null, or the reference that the work gave to `Suspender::lend`, which does not return before the
        // next resume; that takes this coroutine mutably.
        unsafe { self.state.lent.get().as_mut() }
    }

    /// What it ran on, for the next one. The work has ended.
    pub fn into_switch(mut self) -> Option<Switch> {
        if self.is_suspended() { None } else { self.switch.take() }
    }

    /// Whether the work has ended, by a panic too.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    fn is_suspended(&self) -> bool {
        // SAFETY: as in `resume`.
        let is_begun = unsafe { (*self.state.body.get()).is_none() };
        is_begun && !self.state.lent.get().is_null()
    }
}

impl<L, R> Drop for Coroutine<L, R> {
    fn drop(&mut self) {
        if self.is_suspended()
            && let Some(switch) = self.switch.take()
        {
            std::mem::forget(switch);
            // The work points to it.
            let state = State {
                body: UnsafeCell::new(None),
                result: UnsafeCell::new(None),
                lent: Cell::new(null_mut()),
                switch: Cell::new(std::ptr::null()),
            };
            std::mem::forget(std::mem::replace(&mut self.state, Box::new(state)));
        }
    }
}

impl<L, R> fmt::Debug for Coroutine<L, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coroutine").field("is_suspended", &self.is_suspended()).finish_non_exhaustive()
    }
}

impl<L> Suspender<L> {
    /// Suspends the work until it is resumed; its driver has `lent` meanwhile.
    pub fn lend(&self, lent: &mut L) {
        // SAFETY: the state outlives the work.
        unsafe { (*self.lent).set(lent) };
        // SAFETY: as above.
        let switch = unsafe { (*self.switch).get() };
        // SAFETY: the work runs on this switch; its driver has set the pointer just before it resumed.
        unsafe { Switch::suspend(switch) };
    }
}

/// What a coroutine's stack begins with.
///
/// # Safety
/// `state` is a `State<L, R>` whose work has not begun, and lives until it has ended.
unsafe extern "C" fn run<L, R>(state: *const ()) {
    // SAFETY: the caller's promise.
    let state = unsafe { &*state.cast::<State<L, R>>() };
    let suspender = Suspender { lent: &raw const state.lent, switch: &raw const state.switch };
    // SAFETY: the driver looks at it only while the work is suspended.
    if let Some(body) = unsafe { (*state.body.get()).take() } {
        let result = catch_unwind(AssertUnwindSafe(|| body(&suspender)));
        // SAFETY: as above.
        unsafe { *state.result.get() = Some(result) };
    }
    state.lent.set(null_mut());
    // SAFETY: on this switch, as in `lend`; it runs nothing more.
    unsafe { Switch::finish(state.switch.get()) };
}

/// A stack, or what stands for one.
///
/// # Errors
/// [`crate::error::Kind::System`] where there is no memory, or no thread.
pub fn switch() -> Result<Switch> {
    Switch::new()
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    /// Adds what it is lent back, and lends its count each time.
    fn counts(rounds: u32) -> Coroutine<u32, u32> {
        // SAFETY: it has a number on its stack.
        unsafe {
            Coroutine::new(switch().unwrap(), move |suspender| {
                let mut count = 0;
                for _ in 0..rounds {
                    count += 1;
                    suspender.lend(&mut count);
                }
                count
            })
        }
    }

    #[test]
    fn work_goes_on_where_it_stopped_and_its_driver_has_what_it_lends() {
        let mut work = counts(3);
        assert!(work.lent().is_none());
        for _ in 0..3 {
            assert!(work.resume().is_none());
            *work.lent().unwrap() *= 10;
        }
        assert_eq!(work.resume(), Some(1110));
        assert!(work.lent().is_none() && work.resume().is_none());
        assert!(work.into_switch().is_some());
    }

    #[test]
    fn work_goes_on_on_another_thread_and_its_stack_is_used_again() {
        let mut switch = Some(switch().unwrap());
        for round in 0..100u64 {
            // SAFETY: it has numbers on its stack.
            let mut work: Coroutine<u64, f64> = unsafe {
                Coroutine::new(switch.take().unwrap(), move |suspender| {
                    let (mut sum, mut part) = (0.5, round);
                    for _ in 0..4 {
                        suspender.lend(&mut part);
                        sum += part as f64;
                    }
                    sum
                })
            };
            for _ in 0..4 {
                assert!(work.resume().is_none());
            }
            let (sum, back) = std::thread::scope(|threads| {
                threads.spawn(move || (work.resume(), work.into_switch())).join().unwrap()
            });
            assert_eq!(sum, Some(0.5 + 4.0 * round as f64));
            switch = back;
        }
    }

    #[test]
    fn a_panic_of_the_work_is_its_drivers() {
        // SAFETY: it has nothing on its stack.
        let mut work: Coroutine<u32, ()> = unsafe {
            Coroutine::new(switch().unwrap(), |suspender| {
                suspender.lend(&mut 1);
                panic!("on purpose")
            })
        };
        assert!(work.resume().is_none());
        let panic = catch_unwind(AssertUnwindSafe(|| work.resume())).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
        assert!(work.into_switch().is_some());
    }

    #[test]
    fn work_that_is_dropped_before_it_began_frees_what_it_has_and_later_leaks_it() {
        let told = std::sync::Arc::new(());
        let (kept, other) = (std::sync::Arc::clone(&told), std::sync::Arc::clone(&told));
        // SAFETY: any thread may have what it has.
        let never: Coroutine<u32, ()> = unsafe { Coroutine::new(switch().unwrap(), move |_| drop(kept)) };
        drop(never);
        assert_eq!(std::sync::Arc::strong_count(&told), 2);
        // SAFETY: as above.
        let mut begun: Coroutine<u32, ()> = unsafe {
            Coroutine::new(switch().unwrap(), move |suspender| {
                suspender.lend(&mut 1);
                drop(other);
            })
        };
        assert!(begun.resume().is_none() && begun.resume().is_some());
        assert_eq!(std::sync::Arc::strong_count(&told), 1);
    }
}
