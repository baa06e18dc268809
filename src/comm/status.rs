//! What any thread may ask of a communicator, also while another thread is in a call on it.

use crate::comm::{away, starting};
use crate::error::Error;
use crate::sync::AbortFlag;
use crate::sync::primitive::{Arc, AtomicBool, OnceLock, Ordering};
use crate::types::World;

/// What any thread may ask of a communicator. Nothing here waits for a call, and no call waits for what is asked here.
#[derive(Debug)]
pub(super) struct Status {
    /// Not set while a split is still to say which ranks the child has; `None` where it has failed.
    world: OnceLock<Option<World>>,
    /// Raised with the error that ends the communicator, whatever that is.
    pub(super) abort: AbortFlag,
    /// Whether a thread still makes the communicator.
    is_starting: AtomicBool,
    /// Whether a thread has the engine to make a child of it.
    makes_child: AtomicBool,
    /// Whether the communicator was finalized.
    is_closed: AtomicBool,
}

impl Status {
    /// Of a communicator that is made.
    pub(super) fn ready(world: World, abort: AbortFlag) -> Status {
        Status {
            world: OnceLock::from(Some(world)),
            abort,
            is_starting: AtomicBool::new(false),
            makes_child: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Of a communicator that a thread is to make; its `world` where that is known.
    pub(super) fn starting(world: Option<World>, abort: AbortFlag) -> Status {
        Status {
            world: world.map_or_else(OnceLock::new, |world| OnceLock::from(Some(world))),
            abort,
            is_starting: AtomicBool::new(true),
            makes_child: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        }
    }

    /// The world, where it is known.
    #[inline]
    pub(super) fn world(&self) -> Option<World> {
        self.world.get().copied().flatten()
    }

    /// Waits until the communicator is made; the deadline of that bounds it. `None` where it could not be made.
    pub(super) fn await_world(&self) -> Option<World> {
        *self.world.wait()
    }

    // Acquire in both: pairs with the release where a thread ends, so that its error, if it has one, is seen.
    pub(super) fn is_starting(&self) -> bool {
        self.is_starting.load(Ordering::Acquire)
    }

    pub(super) fn makes_child(&self) -> bool {
        self.makes_child.load(Ordering::Acquire)
    }

    /// Says that the communicator was finalized.
    pub(super) fn close(&self) {
        // Relaxed, here and below: nothing is read because of it.
        self.is_closed.store(true, Ordering::Relaxed);
    }

    #[cfg(feature = "cpp")]
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// What ended the communicator; `InProgress` while a thread makes it, or a child of it.
    pub(super) fn error(&self) -> Option<Error> {
        // Before the flag: a thread raises that first, then ends.
        let (is_starting, makes_child) = (self.is_starting(), self.makes_child());
        match self.abort.check() {
            // Also after a failure: until the thread has given the engine back, the communicator cannot be shrunk.
            _ if makes_child => Some(away()),
            Err(error) => Some(error),
            Ok(()) if is_starting => Some(starting()),
            Ok(()) => None,
        }
    }
}

/// The duty of a thread to say how the making of a communicator has ended. A panic says it too.
#[derive(Debug)]
pub(super) struct Making {
    status: Arc<Status>,
    world: Option<World>,
}

impl Making {
    pub(super) fn of(status: &Arc<Status>) -> Making {
        Making { status: Arc::clone(status), world: None }
    }

    /// The communicator is made and has this `world`, or could not be made.
    pub(super) fn end(mut self, made: Result<World, Error>) {
        match made {
            Ok(world) => self.world = Some(world),
            Err(error) => self.status.abort.raise(error),
        }
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        let Making { status, world } = self;
        if std::thread::panicking() {
            status.abort.raise(Error::internal("the thread of an init panicked"));
        }
        // Pairs with the acquire in `is_starting`. Before the world: a program that has asked for its rank finds the
        // communicator made.
        status.is_starting.store(false, Ordering::Release);
        // Fails where it was known before.
        let _known = status.world.set(*world);
    }
}

/// The duty of a thread that makes a child to say when it has given the engine back. A panic says it too.
#[derive(Debug)]
pub(super) struct Borrowing(Arc<Status>);

impl Borrowing {
    pub(super) fn begin(status: &Arc<Status>) -> Borrowing {
        // Relaxed: the thread that begins is in a call, which no other can be meanwhile.
        status.makes_child.store(true, Ordering::Relaxed);
        Borrowing(Arc::clone(status))
    }
}

impl Drop for Borrowing {
    fn drop(&mut self) {
        let Borrowing(status) = self;
        if std::thread::panicking() {
            status.abort.raise(Error::internal("the thread that made a child has panicked"));
        }
        // Pairs with the acquire in `makes_child`.
        status.makes_child.store(false, Ordering::Release);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::comm::{Communicator, local};
    use crate::config::Config;
    use crate::error::Kind;
    use crate::session::Session;
    use crate::sync::{Deadline, Progress};
    use crate::sys::clock;
    use crate::types::ReduceOp;

    const _: () = {
        const fn is_shared<T: Send + Sync>() {}
        is_shared::<Communicator>();
        is_shared::<Session>();
    };

    fn patient() -> Config {
        Config::default().with_timeout(Duration::from_secs(60))
    }

    /// Rank 0 hangs in a collective to which rank 1 never comes. Its hook shows the watchdog that the call waits.
    #[test]
    fn a_watchdog_looks_and_aborts_while_a_call_hangs() {
        local::run_with(2, &patient(), |comm| {
            if comm.rank() == 1 {
                let error = comm.recv(&mut [0u8], 0).expect_err("rank 0 sends nothing");
                assert!(error.message().contains("it hangs"), "{error}");
                return Ok(());
            }
            let hangs = Arc::new(AtomicBool::new(false));
            let seen = Arc::clone(&hangs);
            comm.set_progress(Some(Progress::new(move || {
                seen.store(true, Ordering::Relaxed);
                Ok(())
            })))?;
            let error = std::thread::scope(|threads| {
                let watchdog = threads.spawn(|| {
                    let deadline = Deadline::after(Duration::from_secs(30));
                    while !hangs.load(Ordering::Relaxed) && !deadline.passed(clock::now()) {
                        std::thread::yield_now();
                    }
                    let seen = (comm.rank(), comm.size(), comm.async_error().is_none(), format!("{comm:?}"));
                    let refused = comm.barrier().expect_err("another thread is in a call");
                    comm.abort("it hangs");
                    (seen, refused, comm.async_error())
                });
                let error = comm.all_reduce_in_place(&mut [1u32], ReduceOp::Sum).expect_err("rank 1 does not come");
                watchdog.join().map(|found| (error, found)).expect("it does not panic")
            });
            let (error, (seen, refused, ended)) = error;
            assert_eq!(error.kind(), Kind::Aborted, "{error}");
            assert!(error.message().contains("it hangs"), "{error}");
            let shown = "Communicator { rank: 0, size: 2, state: \"ready\", .. }";
            assert_eq!(seen, (0, 2, true, shown.to_owned()));
            assert_eq!(refused.kind(), Kind::InvalidUsage, "{refused}");
            assert!(refused.message().contains("one thread uses it at a time"), "{refused}");
            assert_eq!(ended.map(|error| error.kind()), Some(Kind::Aborted));
            assert_eq!(comm.barrier().expect_err("it was aborted").kind(), Kind::Aborted);
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn threads_take_turns_on_one_communicator() {
        const CALLS: u32 = 20;
        let turns = local::run_with(2, &patient(), |comm| {
            let mut sums = Vec::new();
            for call in 0..CALLS {
                let sum = std::thread::scope(|threads| {
                    let other = threads.spawn(|| {
                        let mut sum = [call + comm.rank()];
                        comm.all_reduce_in_place(&mut sum, ReduceOp::Sum).map(|()| sum[0])
                    });
                    other.join().expect("it does not panic")
                });
                sums.push(sum?);
            }
            Ok(sums)
        });
        assert_eq!(turns.unwrap(), vec![(0..CALLS).map(|call| 2 * call + 1).collect::<Vec<_>>(); 2]);
    }

    #[test]
    fn a_thread_that_panics_says_that_nothing_was_made() {
        let status = Arc::new(Status::starting(None, AbortFlag::new()));
        assert_eq!(status.error().map(|error| error.kind()), Some(Kind::InProgress));
        let making = Making::of(&status);
        let thread = std::thread::scope(|threads| {
            let panics = move || {
                let _making = making;
                panic!("on purpose")
            };
            threads.spawn(panics).join()
        });
        assert!(thread.is_err());
        assert_eq!(status.await_world(), None);
        assert_eq!(status.error().map(|error| error.kind()), Some(Kind::Internal));
    }
}
