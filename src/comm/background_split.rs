//! Splits and shrinks of a communicator that does not block: a thread makes the child.
//!
//! The thread has the parent's engine until the parent's ranks have agreed that the child is made, or that it cannot be
//! made. Until then calls on both are `InProgress`.

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::JoinHandle;

use crate::comm::status::Borrowing;
use crate::comm::{Communicator, Home};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::sync::AbortFlag;
use crate::sys::thread;
use crate::types::World;

/// An engine that is with a thread, which makes a child.
#[derive(Debug)]
pub(super) struct Away {
    back: Receiver<Back>,
    /// The thread, where there will be no child that has it.
    thread: Option<JoinHandle<Result<Engine>>>,
}

/// The engine, and what has ended its communicator.
type Back = (Box<Engine>, Option<Error>);

/// What came of a split: the child's engine, none for a rank without a color; and the error that has ended the parent,
/// if one has.
pub(super) type SplitOutcome = (Result<Option<Engine>>, Option<Error>);

impl Away {
    /// The engine, if its thread is through with it.
    pub(super) fn poll(self) -> std::result::Result<Home, Away> {
        match self.back.try_recv() {
            Ok(back) => Ok(self.come_home(back)),
            Err(TryRecvError::Empty) => Err(self),
            Err(TryRecvError::Disconnected) => Ok(lost()),
        }
    }

    /// Waits for the engine; its deadline bounds that.
    pub(super) fn wait(self) -> Home {
        match self.back.recv() {
            Ok(back) => self.come_home(back),
            Err(_) => lost(),
        }
    }

    fn come_home(self, (engine, end): Back) -> Home {
        if let Some(thread) = self.thread {
            // It has nothing more to do; what it returns is that there is no child.
            drop(thread.join());
        }
        match end {
            None => Home::Ready(engine),
            Some(error) => Home::Failed(Some(engine), error),
        }
    }
}

fn lost() -> Home {
    Home::Failed(None, Error::internal("the thread that made a child has panicked"))
}

impl Communicator {
    /// Gives the engine to a thread that makes a child by `make`, with the flag that ends the child. `world` is the
    /// child's where it is known; `goes_somewhere` says whether this rank will be in one.
    ///
    /// Where no thread can be started, this rank calls `make` with the error, which tells the other ranks: then this
    /// call waits for them.
    pub(super) fn make_aside(
        &self,
        engine: Box<Engine>,
        (world, goes_somewhere): (Option<World>, bool),
        make: impl FnOnce(&mut Engine, Result<&AbortFlag>) -> SplitOutcome + Send + 'static,
    ) -> Result<Option<Communicator>> {
        let (hand_over, work) = channel::<Work>();
        let (sender, back) = channel();
        let run = move |abort: &AbortFlag| {
            // Nothing comes where the call that has started this thread has panicked.
            let (mut engine, make, borrowing) = work.recv().map_err(|_| abandoned())?;
            let (made, end) = make(&mut engine, Ok(abort));
            // A parent that has been dropped waits for its engine, so there is always somebody to take it.
            drop(sender.send((engine, end)));
            drop(borrowing);
            made?.ok_or_else(|| Error::internal("a rank with no color has no child"))
        };
        let started = if goes_somewhere {
            Communicator::start_thread("rsccl child", world, run).map(|child| (Some(child), None))
        } else {
            thread::spawn("rsccl child", move || run(&AbortFlag::new())).map(|thread| (None, Some(thread)))
        };
        match started {
            Ok((child, thread)) => {
                let borrowing = Borrowing::begin(&self.shared.status);
                // The thread is there: it takes it.
                drop(hand_over.send((engine, Box::new(make), borrowing)));
                *self.home() = Home::Away(Away { back, thread });
                Ok(child)
            }
            Err(error) => {
                let mut engine = engine;
                let (made, end) = make(&mut engine, Err(error));
                *self.home() = match end {
                    None => Home::Ready(engine),
                    Some(error) => Home::Failed(Some(engine), error),
                };
                made.map(|_| None).map_err(|error| self.at(error))
            }
        }
    }
}

/// What a thread gets that makes a child.
type Work = (Box<Engine>, Box<dyn FnOnce(&mut Engine, Result<&AbortFlag>) -> SplitOutcome + Send>, Borrowing);

fn abandoned() -> Error {
    Error::internal("the call that makes a child has panicked")
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::sync::Barrier;
    use std::time::Duration;

    use super::*;
    use crate::config::Config;
    use crate::error::Kind;
    use crate::sync::Deadline;
    use crate::sys::{clock, fork};
    use crate::types::ReduceOp;

    fn config() -> Config {
        let long = Duration::from_secs(60);
        Config::default().with_blocking(false).with_timeout(long).with_init_timeout(long)
    }

    /// Each of two ranks on a thread of its own.
    fn ranks(body: impl Fn(Communicator) -> Result<()> + Sync) {
        let comms = Communicator::init_all(2, &config()).unwrap();
        thread::side_by_side("rank", comms, |comm| body(comm).unwrap(), || ()).unwrap();
    }

    /// Waits until `comm` is no longer in progress; what it is then.
    fn settled(comm: &Communicator) -> Option<Error> {
        let deadline = Deadline::after(Duration::from_secs(30));
        loop {
            match comm.async_error() {
                Some(error) if error.kind() == Kind::InProgress => {
                    assert!(!deadline.passed(clock::now()), "still in progress");
                    std::thread::yield_now();
                }
                state => return state,
            }
        }
    }

    fn is_in_progress(comm: &Communicator) -> bool {
        comm.async_error().is_some_and(|error| error.kind() == Kind::InProgress)
    }

    fn sum(comm: &Communicator) -> Result<u32> {
        let mut sum = [1u32];
        comm.all_reduce_in_place(&mut sum, ReduceOp::Sum).map(|()| sum[0])
    }

    /// Rank 1 comes to the split only after rank 0 has aborted its communicator.
    #[test]
    fn an_abort_of_the_parent_ends_a_split_that_is_under_way() {
        let aborted = Barrier::new(2);
        ranks(|comm| {
            let is_first = comm.rank() == 0;
            if !is_first {
                aborted.wait();
            }
            let child = comm.split(Some(0), 0);
            if is_first {
                let child = child.as_ref().ok().and_then(Option::as_ref).expect("it returns at once");
                assert!(is_in_progress(child) && is_in_progress(&comm));
                comm.abort("enough of this");
                for ended in [child, &comm] {
                    let error = settled(ended).expect("it was aborted");
                    assert_eq!(error.kind(), Kind::Aborted, "{error}");
                    assert!(error.message().contains("enough of this"), "{error}");
                }
                assert_eq!((child.rank(), child.size()), (0, 0), "it has none");
                aborted.wait();
            } else if let Ok(Some(child)) = child {
                assert!(settled(&child).is_some() && settled(&comm).is_some(), "rank 0 has told of its abort");
            }
            assert!(sum(&comm).is_err());
            Ok(())
        });
    }

    /// An abort of the child alone: the parent's engine comes back when all ranks have come to the split.
    #[test]
    fn an_abort_of_the_child_during_a_split_leaves_the_parent_as_it_was() {
        let aborted = Barrier::new(2);
        ranks(|comm| {
            if comm.rank() == 1 {
                aborted.wait();
            }
            let child = comm.split(Some(0), 0)?.expect("a color was passed");
            if comm.rank() == 0 {
                child.abort("it is not needed");
                aborted.wait();
            }
            assert!(settled(&comm).is_none());
            // Rank 1 may have made its child before it hears of the abort: then its first call there ends.
            let error = settled(&child).or_else(|| child.barrier().err()).expect("it was aborted");
            assert!(error.message().contains("it is not needed"), "{error}");
            drop(child);
            sum(&comm).map(|sum| assert_eq!(sum, 2))
        });
    }

    /// What a forked child can do with a communicator that makes a child, and with that; whether all of it was refused.
    fn are_refused(comms: [Communicator; 2]) -> bool {
        let is_forked = |error: Error| error.kind() == Kind::InvalidUsage && error.message().contains("forked");
        let refused = comms.each_ref().map(|comm| {
            comm.abort("by a forked child");
            comm.async_error().is_some_and(is_forked)
                && sum(comm).is_err_and(is_forked)
                && comm.split(Some(0), 0).is_err_and(is_forked)
                && comm.shrink(&[9]).is_err()
        });
        let [parent, child] = comms;
        // Nothing waits for the thread, which this process does not have.
        let ranks = (child.rank(), child.size());
        drop(child);
        refused == [true; 2] && ranks == (0, 0) && parent.finalize().is_err_and(is_forked)
    }

    /// The forked child has neither the thread that makes the child nor the locks that it held.
    #[test]
    fn a_fork_during_a_split_leaves_it_to_the_parent() {
        let forked = Barrier::new(2);
        ranks(|comm| {
            if comm.rank() == 1 {
                forked.wait();
            }
            let child = comm.split(Some(0), 0)?.expect("a color was passed");
            let is_first = comm.rank() == 0;
            let mut comms = Some([comm, child]);
            if is_first {
                assert!(fork::in_child(|| comms.take().is_some_and(are_refused)));
                forked.wait();
            }
            comms.iter().flatten().try_for_each(|comm| {
                assert!(settled(comm).is_none());
                sum(comm).map(|sum| assert_eq!(sum, 2))
            })
        });
    }
}
