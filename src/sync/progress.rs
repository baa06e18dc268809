//! The progress hook: work of the program that must go on while a call waits.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::sync::primitive::{Arc, Mutex, MutexGuard, Weak};
use crate::sys::clock;

/// A function that is called repeatedly while a call on a communicator waits. It is for another library (MPI) that
/// moves its messages only inside its own calls.
///
/// The waiting thread calls it, first after a short spin, then at least every few hundred microseconds: in calls on any
/// memory, and in [`DeviceStream::synchronize`](crate::comm::DeviceStream::synchronize) and copies of a stream that has
/// got calls of the communicator. It finds the CUDA context current that the program has made current. It is not called
/// while a stream is captured: what it calls of CUDA could spoil the capture. Threads of the library
/// call it too, in a group of several communicators and where they move requests that the program leaves alone, but
/// never two threads at a time. It must return soon, and must not call anything on the communicator
/// that waits. An error or a panic of the hook ends the wait and the communicator. Clones share the hook.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// let turns = Arc::new(AtomicU64::new(0));
/// let counted = Arc::clone(&turns);
/// let hook = rsccl::Progress::new(move || {
///     counted.fetch_add(1, Ordering::Relaxed);
///     Ok(())
/// });
/// rsccl::local::run(2, |comm| {
///     comm.set_progress(Some(hook.clone()))?;
///     comm.barrier()
/// })?;
/// println!("the hook was called {} times", turns.load(Ordering::Relaxed));
/// # Ok::<(), rsccl::Error>(())
/// ```
#[derive(Clone)]
pub struct Progress(Arc<Hook<dyn Fn() -> Result<()> + Send + Sync>>);

struct Hook<F: ?Sized> {
    /// Held by the thread that is in `call`.
    taken: Mutex<()>,
    call: F,
}

impl Progress {
    /// The longest sleep of a wait that has a hook: a message of another library may need several turns, one per round
    /// trip.
    pub const REST: Duration = Duration::from_micros(200);

    /// A hook that calls `turn`.
    pub fn new(turn: impl Fn() -> Result<()> + Send + Sync + 'static) -> Progress {
        Progress(Arc::new(Hook { taken: Mutex::new(()), call: turn }))
    }

    /// Calls the hook once, unless another thread is in it.
    ///
    /// # Errors
    /// [`crate::error::Kind::Aborted`] with the text of the hook's error, whatever its kind, because a call that has
    /// begun cannot be undone. A panic of the hook gives such an error too, so that it does not leave an operation half
    /// done.
    pub(crate) fn turn(&self) -> Result<()> {
        let Some(_taken) = self.0.taken.try_lock() else { return Ok(()) };
        let called = catch_unwind(AssertUnwindSafe(|| (self.0.call)()));
        // The program's own time is none in which this process stood still.
        clock::begin_wait();
        match called {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Error::aborted(format!("the progress hook failed: {error}"))),
            Err(_) => Err(Error::aborted("the progress hook panicked")),
        }
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").finish_non_exhaustive()
    }
}

/// The hook that a communicator has now, for waits that know the communicator's calls but do not have its engine.
#[derive(Debug, Clone, Default)]
pub(crate) struct HookSlot(Arc<Mutex<Option<Progress>>>);

/// A [`HookSlot`] that does not keep it: the communicator may end.
#[derive(Debug, Clone, Default)]
pub(crate) struct WeakHook(Weak<Mutex<Option<Progress>>>);

impl HookSlot {
    /// With this hook.
    pub(crate) fn new(hook: Option<Progress>) -> HookSlot {
        HookSlot(Arc::new(Mutex::new(hook)))
    }

    /// From now on it is this hook.
    pub(crate) fn set(&self, hook: Option<Progress>) {
        *self.lock() = hook;
    }

    /// Whether there is one.
    pub(crate) fn is_set(&self) -> bool {
        self.lock().is_some()
    }

    /// The same, for waits that may outlive the communicator.
    pub(crate) fn downgrade(&self) -> WeakHook {
        WeakHook(Arc::downgrade(&self.0))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Progress>> {
        self.0.lock()
    }
}

impl WeakHook {
    /// The hook, unless the communicator has ended or has none.
    pub(crate) fn get(&self) -> Option<Progress> {
        HookSlot(self.0.upgrade()?).lock().clone()
    }
}

/// Calls the hook, if there is one.
///
/// # Errors
/// As the hook's.
pub(crate) fn turn(hook: Option<&Progress>) -> Result<()> {
    hook.map_or(Ok(()), Progress::turn)
}

/// How long a wait with this hook may sleep if it would sleep for `rest` without it.
pub(crate) fn rest(hook: Option<&Progress>, rest: Duration) -> Duration {
    if hook.is_some() { rest.min(Progress::REST) } else { rest }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::sync::primitive::{AtomicU32, OnceLock, Ordering};

    #[test]
    fn nobody_enters_a_hook_that_somebody_is_in() {
        let turns = Arc::new(AtomicU32::new(0));
        let (counted, again) = (Arc::clone(&turns), Arc::<OnceLock<Progress>>::default());
        let inner = Arc::clone(&again);
        let hook = Progress::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            let hook = inner.get().expect("set below").clone();
            std::thread::scope(|scope| scope.spawn(move || hook.turn()).join().expect("no panic"))
        });
        again.set(hook.clone()).expect("set once");
        for expected in 1..3 {
            hook.turn().unwrap();
            assert_eq!(turns.load(Ordering::Relaxed), expected);
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::cell::UnsafeCell;

    use super::*;
    use crate::sys::futex::{Membarrier, model};

    /// Data that a hook works on without further locking.
    struct Own(UnsafeCell<u32>);

    // SAFETY: that only one thread at a time is in the hook is what the model proves; loom fails where it is not so.
    unsafe impl Sync for Own {}
    // SAFETY: as above.
    unsafe impl Send for Own {}

    #[test]
    fn never_two_threads_are_in_the_hook() {
        model(Membarrier::Works, || {
            let turns = Arc::new(Own(UnsafeCell::new(0)));
            let counted = Arc::clone(&turns);
            let hook = Progress::new(move || {
                counted.0.with_mut(|turns| {
                    // Gives other threads the chance to enter.
                    loom::thread::yield_now();
                    // SAFETY: the pointer is the cell's own, and loom watches who has it.
                    unsafe { *turns += 1 };
                });
                Ok(())
            });
            let threads = [(), ()].map(|()| {
                let hook = hook.clone();
                loom::thread::spawn(move || hook.turn().expect("the hook never fails"))
            });
            hook.turn().expect("the hook never fails");
            for thread in threads {
                thread.join().expect("loom ends the model before a panic comes here");
            }
            // SAFETY: as above.
            let turns = turns.0.with(|turns| unsafe { *turns });
            assert!((1..=3).contains(&turns), "{turns} turns of three calls");
        });
    }
}
