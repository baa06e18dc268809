//! Communicators: ranks that call collectives together.
//!
//! A [`Communicator`] is one rank's handle. It may be moved between threads and is used by one at a time (`Send`, not `Sync`);
//! [`AbortHandle`] may be used from anywhere. Ways in: [`local::run`] and [`Communicator::init_all`] (threads),
//! [`Communicator::init`] (a unique id), [`Communicator::from_env`] (launchers), and with feature `mpi` an MPI communicator.

#[cfg(any(feature = "mpi", feature = "cpp"))]
mod aside;
mod bystander;
mod choose;
mod collectives;
mod desk;
mod engine;
mod family;
mod filters;
mod group;
mod init;
mod journal;
mod launched;
pub mod local;
mod messages;
mod news;
mod origin;
mod placement;
mod request;
pub(crate) mod settings;
mod visible;
#[cfg(test)]
mod tests;
mod typed;

use std::cell::{OnceCell, RefCell};
use std::fmt;
use std::thread::JoinHandle;

use crate::error::{Error, Kind, Result};
use crate::sync::{AbortFlag, Progress};
use crate::types::World;

pub use crate::exec::{Buffer, Buffers, Call, CallCount, Message};
#[cfg(any(feature = "mpi", feature = "cpp"))]
pub(crate) use aside::Preparation;
pub use choose::Chosen;
pub use desk::{Desk, Pending};
#[cfg(feature = "cpp")]
pub(crate) use group::Steps;
pub use group::{Group, Member, group, try_group};
pub use placement::{DeviceChoice, Locality, Placement};
pub use request::{Request, Scope};
pub(crate) use settings::Settings;

use engine::Engine;

/// One rank's handle of a group of ranks that call collectives together.
///
/// Every rank calls the same collectives in the same order with the same counts, types, operators and roots; a rank that does
/// not is named in an error on all of them. Dropping the handle says goodbye to the others; [`Communicator::finalize`] does so and
/// reports errors.
///
/// # Errors
/// All calls: after [`Kind::InvalidArgument`], [`Kind::InvalidUsage`] and [`Kind::InProgress`] the communicator is as before.
/// Every other kind ends it on all ranks: [`Kind::Mismatch`], [`Kind::Remote`] (a rank died or left), [`Kind::Timeout`] (the
/// deadline of [`crate::Config::timeout`]), [`Kind::System`], [`Kind::Aborted`], [`Kind::Internal`]. From then on calls give
/// that error again; [`Communicator::shrink`] makes a new communicator of the ranks that are left. The docs of each call name
/// only what is its own.
pub struct Communicator {
    world: World,
    abort: AbortFlag,
    home: RefCell<Home>,
    /// Where the ranks are, once asked.
    placement: OnceCell<Placement>,
}

/// Where the engine is.
#[derive(Debug)]
enum Home {
    /// Here, ready for calls.
    Ready(Box<Engine>),
    /// Here, after an error that ended the communicator.
    Failed(Option<Box<Engine>>, Error),
    /// On its way, on a thread of its own.
    Starting(JoinHandle<Result<Engine>>),
    /// With a group that runs on several communicators.
    Lent,
    /// Gone: finalized.
    Closed,
}

/// Stops a communicator from any thread. Clones stop the same one.
#[derive(Debug, Clone)]
pub struct AbortHandle(AbortFlag);

impl AbortHandle {
    /// Makes the call that waits on the communicator now, and every later one, end with [`Kind::Aborted`]. The first that ends so tells
    /// the other ranks, whose calls then end likewise, with `reason` in their errors.
    ///
    /// # Examples
    /// ```
    /// use rsccl::error::Kind;
    ///
    /// rsccl::local::run(2, |comm| {
    ///     let mut word = [0u64];
    ///     let error = std::thread::scope(|threads| {
    ///         if comm.rank() == 0 {
    ///             let handle = comm.abort_handle();
    ///             threads.spawn(move || handle.abort("the input is broken"));
    ///         }
    ///         comm.recv(&mut word, 1 - comm.rank()).expect_err("nobody sends")
    ///     });
    ///     assert_eq!(error.kind(), Kind::Aborted);
    ///     assert!(error.message().contains("the input is broken"));
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn abort(&self, reason: &str) {
        self.0.raise(Error::aborted(format!("the communicator was aborted: {reason}")));
    }
}

impl Communicator {
    fn new(world: World, abort: AbortFlag, home: Home) -> Communicator {
        Communicator { world, abort, home: RefCell::new(home), placement: OnceCell::new() }
    }

    /// My rank, below [`Communicator::size`].
    pub fn rank(&self) -> u32 {
        self.world.rank.get()
    }

    /// The number of ranks.
    pub fn size(&self) -> u32 {
        self.world.size
    }

    /// A handle that stops this communicator from any thread.
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle(self.abort.clone())
    }

    /// Sets what is called while a call on this communicator waits, or with `None` nothing. Every rank for itself; communicators that are
    /// split or shrunk from this one begin with the same hook.
    ///
    /// # Errors
    /// [`Kind::InProgress`] while a non-blocking init is under way; the error that has ended the communicator.
    pub fn set_progress(&self, hook: Option<Progress>) -> Result<()> {
        self.with_engine(|engine| {
            engine.settings.progress = hook;
            Ok(())
        })
    }

    /// What ended this communicator, if anything did; [`Kind::InProgress`] while a non-blocking init is under way. Never waits.
    ///
    /// # Examples
    /// ```
    /// use rsccl::error::Kind;
    /// use rsccl::{Communicator, Config};
    ///
    /// # fn main() -> rsccl::Result<()> {
    /// let config = Config::default().with_socket_interfaces("lo").with_blocking(false);
    /// let id = Communicator::unique_id(&config)?;
    /// let comm = Communicator::init(&id, 0, 1, &config)?; // returns at once
    /// while let Some(error) = comm.async_error() {
    ///     if error.kind() != Kind::InProgress {
    ///         return Err(error);
    ///     }
    ///     std::thread::yield_now(); // ... or something useful
    /// }
    /// comm.barrier()
    /// # }
    /// ```
    pub fn async_error(&self) -> Option<Error> {
        let Ok(mut home) = self.home.try_borrow_mut() else {
            return Some(Error::new(Kind::InProgress, "a call is under way").at(self.world.rank));
        };
        self.settle_start(&mut home);
        if let (Err(error), true) = (self.abort.check(), !matches!(*home, Home::Closed)) {
            return Some(error.at(self.world.rank));
        }
        match &*home {
            Home::Failed(_, error) => Some(error.duplicate()),
            Home::Starting(_) => Some(starting().at(self.world.rank)),
            Home::Ready(_) | Home::Lent | Home::Closed => None,
        }
    }

    /// Says goodbye to the other ranks and frees everything. They go on with what they have begun; a collective that would need
    /// this rank is an error there.
    ///
    /// # Errors
    /// The error that had ended the communicator before.
    pub fn finalize(self) -> Result<()> {
        match self.home.replace(Home::Closed) {
            Home::Ready(mut engine) => {
                engine.leave();
                Ok(())
            }
            Home::Failed(engine, error) => {
                if let Some(mut engine) = engine {
                    engine.leave();
                }
                Err(error)
            }
            Home::Starting(start) => {
                self.abort.raise(Error::aborted("the communicator was finalized before its init was over"));
                drop(start.join());
                Ok(())
            }
            Home::Lent | Home::Closed => Ok(()),
        }
    }

    /// Runs `body` on the engine; an error that other ranks are part of ends the communicator.
    #[inline]
    fn with_engine<T>(&self, body: impl FnOnce(&mut Engine) -> Result<T>) -> Result<T> {
        let Ok(mut home) = self.home.try_borrow_mut() else { return Err(group::lent().at(self.world.rank)) };
        if let Home::Starting(_) = &*home {
            self.settle_start(&mut home);
        }
        let Home::Ready(engine) = &mut *home else { return Err(unusable(&home).at(self.world.rank)) };
        if self.abort.is_raised() {
            return Err(self.fail(&mut home, None));
        }
        match body(engine) {
            Ok(value) => Ok(value),
            Err(error) => Err(self.settle(&mut home, error)),
        }
    }

    /// Runs `body` on the engine, also where the communicator has failed.
    fn with_survivor<T>(&self, body: impl FnOnce(&mut Engine) -> Result<T>) -> Result<T> {
        let Ok(mut home) = self.home.try_borrow_mut() else { return Err(group::lent().at(self.world.rank)) };
        let (Home::Ready(engine) | Home::Failed(Some(engine), _)) = &mut *home else {
            return Err(unusable(&home).at(self.world.rank));
        };
        body(engine).map_err(|error| error.during("shrink").at(self.world.rank))
    }

    /// Where a non-blocking init has ended: takes the engine, or its error.
    #[cold]
    fn settle_start(&self, home: &mut Home) {
        if !matches!(home, Home::Starting(_)) {
            return;
        }
        let Home::Starting(start) = std::mem::replace(home, Home::Closed) else { return };
        *home = match init::poll_start(start) {
            Err(start) => Home::Starting(start),
            Ok(Ok(engine)) => Home::Ready(Box::new(engine)),
            Ok(Err(error)) => Home::Failed(None, error.during("init").at(self.world.rank)),
        };
    }

    /// Waits until a non-blocking init has ended; its own deadline bounds the wait.
    fn await_start(&self) -> Result<()> {
        let mut home = self.home.borrow_mut();
        if let Home::Starting(start) = std::mem::replace(&mut *home, Home::Closed) {
            let joined = start.join().unwrap_or_else(|_| Err(Error::internal("the thread of an init panicked")));
            *home = Home::Ready(Box::new(joined.map_err(|error| error.during("init").at(self.world.rank))?));
        }
        Ok(())
    }

    /// Gives the engine away, to a thread that runs a group.
    fn lend(&self) -> Result<Box<Engine>> {
        self.with_engine(|_| Ok(()))?;
        match self.home.replace(Home::Lent) {
            Home::Ready(engine) => Ok(engine),
            other => {
                let error = unusable(&other);
                self.home.replace(other);
                Err(error.at(self.world.rank))
            }
        }
    }

    /// Takes the engine back, with what came of the group.
    fn take_back(&self, engine: Box<Engine>, result: Result<()>) -> Result<()> {
        let mut home = self.home.borrow_mut();
        *home = Home::Ready(engine);
        result.map_err(|error| self.settle(&mut home, error))
    }

    /// Whether `error` is the caller's own, before anything was sent, or the end of the communicator.
    #[cold]
    fn settle(&self, home: &mut Home, error: Error) -> Error {
        match error.kind() {
            Kind::InvalidArgument | Kind::InvalidUsage | Kind::InProgress => error.at(self.world.rank),
            Kind::Mismatch | Kind::Remote | Kind::Timeout | Kind::System | Kind::Internal | Kind::Aborted => {
                self.fail(home, Some(error))
            }
        }
    }

    /// Ends the communicator with `error`, or with the abort's reason, and tells the others.
    #[cold]
    fn fail(&self, home: &mut Home, error: Option<Error>) -> Error {
        let reason = self.abort.check().err();
        let mut error = error.or(reason).unwrap_or_else(|| Error::internal("failed without a reason"));
        if let Home::Ready(mut engine) = std::mem::replace(home, Home::Closed) {
            error = engine.cause(error).at(self.world.rank);
            engine.publish_failure(&error);
            self.abort.raise(error.duplicate());
            *home = Home::Failed(Some(engine), error.duplicate());
        }
        error.at(self.world.rank)
    }
}

impl fmt::Debug for Communicator {
    /// Who it is and how it is: an engine is buffers above all, and whoever prints a result has not asked for those.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Communicator");
        shown.field("rank", &self.rank()).field("size", &self.size());
        match self.home.try_borrow().as_deref() {
            Ok(Home::Ready(_)) => shown.field("state", &"ready"),
            Ok(Home::Failed(_, error)) => shown.field("state", &format_args!("failed: {error}")),
            Ok(Home::Starting(_)) => shown.field("state", &"starting"),
            Ok(Home::Lent) | Err(_) => shown.field("state", &"in a call"),
            Ok(Home::Closed) => shown.field("state", &"finalized"),
        };
        shown.finish_non_exhaustive()
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        match self.home.replace(Home::Closed) {
            // A rank that unwinds has not finished what the others wait for: dropping the bootstrap without goodbye says so.
            Home::Ready(mut engine) | Home::Failed(Some(mut engine), _) if !std::thread::panicking() => engine.leave(),
            Home::Starting(start) => {
                self.abort.raise(Error::aborted("the communicator was dropped before its init was over"));
                // The thread sees the flag at its next look; what it returns has no taker.
                drop(start.join());
            }
            Home::Ready(_) | Home::Failed(..) | Home::Lent | Home::Closed => {}
        }
    }
}

#[cold]
fn unusable(home: &Home) -> Error {
    match home {
        Home::Failed(_, error) => error.duplicate(),
        Home::Starting(_) => starting(),
        Home::Lent => group::lent(),
        Home::Closed | Home::Ready(_) => Error::invalid_usage("the communicator was finalized"),
    }
}

fn starting() -> Error {
    Error::new(Kind::InProgress, "the communicator is still being made: ask async_error() again")
}
