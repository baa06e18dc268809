//! Children of a communicator that is not to block: made on a thread of their own.
//!
//! The thread has the parent's engine for as long as ranks exchange what the child needs of it, and hands it back before the child's ranks
//! meet. Until then calls on the parent are `InProgress`, and until its ranks have met so are calls on the child.

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::JoinHandle;

use crate::comm::engine::Engine;
use crate::comm::family::Born;
use crate::comm::{Communicator, Home};
use crate::error::{Error, Result};
use crate::sync::AbortFlag;
use crate::sys::thread;
use crate::types::World;

/// An engine that a thread has which makes a child.
#[derive(Debug)]
pub(super) struct Away {
    back: Receiver<Back>,
    /// Where there will be no child to have the thread.
    thread: Option<JoinHandle<Result<Engine>>>,
}

/// The engine, and what has ended its communicator.
type Back = (Box<Engine>, Option<Error>);

/// What a thread makes of the parent's engine: the child, or none for a rank that goes nowhere, and what has ended the parent.
pub(super) type Bearing = (Result<Option<Born>>, Option<Error>);

impl Away {
    /// The engine, if its thread is through with it.
    pub(super) fn poll(self) -> std::result::Result<Home, Away> {
        match self.back.try_recv() {
            Ok(back) => Ok(self.come_home(back)),
            Err(TryRecvError::Empty) => Err(self),
            Err(TryRecvError::Disconnected) => Ok(lost()),
        }
    }

    /// Waits for the engine; the deadline of init bounds that.
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
    /// Gives the engine to a thread that makes a child by `bear`. The child's `world` where it is known, and whether there will be one.
    pub(super) fn make_aside(
        &self,
        engine: Box<Engine>,
        (world, goes_somewhere): (Option<World>, bool),
        bear: impl FnOnce(&mut Engine) -> Bearing + Send + 'static,
    ) -> Result<Option<Communicator>> {
        let abort = AbortFlag::new();
        let (theirs, (sender, back)) = (abort.clone(), channel());
        let mut engine = engine;
        let made = thread::spawn("rsccl child", move || {
            let (born, end) = bear(&mut engine);
            // A parent that has been dropped waits for its engine, so there is always somebody to take it.
            drop(sender.send((engine, end)));
            match born? {
                Some(born) => born.raise(&theirs),
                None => Err(Error::internal("a rank with no color has no child")),
            }
        });
        let made = made.inspect_err(|error| drop(self.home.replace(Home::Failed(None, error.duplicate()))))?;
        let (child, thread) = if goes_somewhere { (Some(made), None) } else { (None, Some(made)) };
        self.home.replace(Home::Away(Away { back, thread }));
        Ok(child.map(|made| Communicator::unfinished(world, abort, Home::Starting(made))))
    }
}
