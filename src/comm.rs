//! Communicators: ranks that call collectives together.
//!
//! A [`Communicator`] is one rank's handle. One thread at a time makes calls on it; any thread may watch and abort it
//! meanwhile. Ways in: [`local::run`] and [`Communicator::init_all`] (threads), [`Communicator::init`] (a unique id),
//! [`Communicator::from_env`] (launchers), and with feature `mpi` an MPI communicator.

mod all_reduce_value;
mod background_split;
mod begun;
mod collectives;
mod described;
mod engine_home;
mod exchange_counts;
mod group;
mod init;
mod job;
mod last_words;
mod launched;
mod long_rest;
mod meeting;
pub(crate) mod meeting_place;
pub mod local;
mod memory_use;
#[cfg(any(feature = "mpi", feature = "cpp"))]
mod lone_world;
mod on_stream;
mod origin;
mod outcome;
mod owned;
mod panics;
mod persistent;
mod placement;
#[cfg(any(feature = "mpi", feature = "cpp"))]
mod prepared_init;
mod queued;
mod request;
mod requests;
mod scope;
mod several;
mod split;
mod stand_in;
mod status;
mod waiting_hooks;
mod window;
// They fork, and loom's threads cannot.
#[cfg(not(loom))]
#[cfg(test)]
mod tests;
mod typed;
mod under_way;
mod visit;
mod watcher;

use std::fmt;
use std::thread::JoinHandle;

use crate::error::{Error, Kind, Result};
use crate::sync::primitive::{Arc, Mutex, OnceLock};
use crate::sync::{AbortFlag, Progress};
use crate::sys::fork::Birthplace;
use crate::sys::kept_thread::KeptThread;
use crate::sys::thread;
use crate::types::{Rank, World};

pub use crate::engine::choose::Chosen;
pub use crate::exec::{
    Buffer, Buffers, Call, CallCount, DeviceBuffer, DeviceSlice, DeviceSliceMut, DeviceStream, Message, OwnedElements,
    Registered, RegisteredSlice, Registrable, SharedPool, SharedVec, with_registered,
};
#[cfg(feature = "cuda")]
pub use crate::exec::{CudarcSlice, CudarcSliceMut};
#[cfg(feature = "cpp")]
pub(crate) use group::Steps;
pub use group::{Group, Member, StreamMember, group, try_group};
#[cfg(any(feature = "mpi", feature = "cpp"))]
pub(crate) use lone_world::warn_of_lone_world;
pub use memory_use::MemoryUse;
pub use on_stream::OnStream;
pub use owned::{OwnedFuture, OwnedRequest};
#[cfg(feature = "cpp")]
pub(crate) use persistent::ForeignCall;
pub use persistent::{CallBuffers, PersistentCall, Slices, start_all};
pub use placement::{DeviceChoice, Placement};
#[cfg(any(feature = "mpi", feature = "cpp"))]
pub(crate) use prepared_init::PreparedInit;
#[cfg(feature = "cpp")]
pub(crate) use request::Pending;
pub use request::Request;
pub use scope::Scope;
pub use several::{Unfinished, test_all, wait_all, wait_any, wait_some};
pub use window::Window;

use crate::engine::Engine;
use background_split::Away;
use engine_home::{EngineHome, HomeTurn};
use requests::Requests;
use status::{Making, Status};

/// One rank's handle of a group of ranks that call collectives together.
///
/// Every rank calls the same collectives in the same order with the same counts, types, operators and roots; a rank
/// that does not is named in an error on all of them. Dropping the handle says goodbye to the others;
/// [`Communicator::finalize`] does so and reports errors. A mismatch of which no call has told is told on standard
/// error where the handle is dropped, except by a rank that panics.
///
/// # Errors
/// All calls: after [`Kind::InvalidArgument`], [`Kind::InvalidUsage`] and [`Kind::InProgress`] the communicator is as
/// before. Every other kind ends it on all ranks: [`Kind::Mismatch`], [`Kind::Remote`] (a rank died or left),
/// [`Kind::Timeout`] (the deadline of [`crate::Config::timeout`]), [`Kind::System`], [`Kind::Aborted`],
/// [`Kind::Internal`]. From then on calls give that error again; [`Communicator::shrink`] makes a new communicator of
/// the ranks that are left. The docs of each call name only what is its own.
///
/// A split or a shrink that one rank cannot take part in, such as one without descriptors, memory or a
/// thread to spare, ends nothing: all ranks agree on that rank's error, whatever its kind, and the communicator is as
/// before. [`Communicator::async_error`] tells the two apart: it is `None` then.
///
/// # Panics in calls
/// A panic that leaves a call, which is one of the program's own code in it (a progress hook, the body of a
/// [`Communicator::scope`]), ends the communicator with [`Kind::Aborted`] on all ranks before it goes on.
///
/// # Threads
/// One thread at a time makes calls. A call of a second thread meanwhile, or of the program's own code inside of a
/// call, is [`Kind::InvalidUsage`] at once and does no harm. [`Communicator::rank`], [`Communicator::size`],
/// [`Communicator::abort`], [`Communicator::abort_handle`] and [`Communicator::async_error`] never wait for a call, so
/// that a watchdog can use them while one hangs.
///
/// # Forked children
/// A communicator belongs to the process that made it. In a child that `fork` has made, calls are
/// [`Kind::InvalidUsage`], and dropping the handle does nothing. The child may make communicators of its own, whatever
/// its parent has had or has. It does not keep its parent's connections open: if the parent ends, the other ranks know
/// that at once, as without a child. The log's callback and the devices of a process are not its children's.
///
/// This takes `fork` of the C library, which Python calls too; children of `system()` and `posix_spawn` run another
/// program at once. A child that was made otherwise (`_Fork`, a bare `clone`) keeps the connections of its parent open
/// until it runs another program or ends. If the parent dies meanwhile, ranks of its host that have a control
/// connection with it find that in calls that wait, a second later; where there are none, and in an init, ranks wait
/// until their deadlines.
pub struct Communicator {
    /// What its requests know too.
    shared: Arc<EngineHome>,
    /// Where this rank is, known once the engine is made: the engine may be elsewhere when the program asks.
    placement: OnceLock<Placement>,
    /// The thread of groups over several communicators, between two of them.
    thread_of_groups: Mutex<Option<KeptThread>>,
}

/// Where the engine is.
#[derive(Debug)]
enum Home {
    /// Here, ready for calls.
    Ready(Box<Engine>),
    /// Here, with requests that have not ended.
    Busy(Box<Requests>),
    /// Here, after an error that ended the communicator.
    Failed(Option<Box<Engine>>, Error),
    /// A thread is making it.
    Starting(JoinHandle<Result<Engine>>),
    /// With a thread that makes a child.
    Away(Away),
    /// With a thread that runs a group.
    Lent,
    /// Gone: the communicator was finalized.
    Closed,
}

/// Stops a communicator from any thread. Clones stop the same one.
#[derive(Debug, Clone)]
pub struct AbortHandle(AbortFlag, Birthplace);

impl AbortHandle {
    /// Makes the call that waits on the communicator now, and every later one, end with [`Kind::Aborted`]. The first
    /// that ends so tells the other ranks, whose calls then end in the same way; `reason` is in all errors.
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
        let AbortHandle(flag, birthplace) = self;
        // A forked child aborts nothing: a thread of its parent may have had the flag's lock.
        if !birthplace.is_here() {
            return;
        }
        flag.raise_by_program(Error::aborted(format!("the communicator was aborted: {reason}")));
    }
}

impl Communicator {
    /// A communicator that is made.
    fn ready(engine: Engine) -> Communicator {
        let status = Status::ready(engine.session.world, engine.session.abort.clone());
        let made = Communicator::with_status(Arc::new(status), Home::Ready(Box::new(engine)));
        made.note_placement(&made.home());
        made
    }

    /// A communicator that `make` makes on a thread of its own. `world` is `None` where only `make` finds out which
    /// ranks it has.
    fn start_thread(
        name: &str,
        world: Option<World>,
        make: impl FnOnce(&AbortFlag) -> Result<Engine> + Send + 'static,
    ) -> Result<Communicator> {
        let status = Arc::new(Status::starting(world, AbortFlag::new()));
        let (making, abort) = (Making::of(&status), status.abort.clone());
        let start = thread::spawn(name, move || {
            let made = make(&abort).map_err(|error| match world {
                Some(world) => error.during("init").at(world.rank),
                None => error.during("init"),
            });
            making.end(made.as_ref().map(|engine| engine.session.world).map_err(Error::duplicate));
            made
        })?;
        Ok(Communicator::with_status(status, Home::Starting(start)))
    }

    fn with_status(status: Arc<Status>, home: Home) -> Communicator {
        let shared = Arc::new(EngineHome::new(status, home));
        Communicator { shared, placement: OnceLock::new(), thread_of_groups: Mutex::new(None) }
    }

    /// My rank, below [`Communicator::size`]. Of a child that a non-blocking split is making: waits until it is made;
    /// where that fails, rank and size are 0.
    pub fn rank(&self) -> u32 {
        self.settled_world().rank.get()
    }

    /// The number of ranks; waits as [`Communicator::rank`] does.
    pub fn size(&self) -> u32 {
        self.settled_world().size
    }

    fn settled_world(&self) -> World {
        let settled = match self.shared.status.world() {
            None if self.shared.birthplace.is_here() => self.shared.status.await_world(),
            known => known,
        };
        settled.unwrap_or(World { rank: Rank::new(0), size: 0 })
    }

    /// My rank and how many there are, for a call. Never waits.
    ///
    /// # Errors
    /// While a split is still to say, and where it has failed.
    #[inline]
    pub(crate) fn world(&self) -> Result<World> {
        match self.shared.status.world() {
            Some(world) => Ok(world),
            None => self.unsettled_world(),
        }
    }

    #[cold]
    fn unsettled_world(&self) -> Result<World> {
        self.check_process()?;
        if self.shared.status.is_starting() {
            return Err(starting());
        }
        let failed =
            || self.shared.status.error().unwrap_or_else(|| Error::internal("a split has failed without a reason"));
        self.shared.status.await_world().ok_or_else(failed)
    }

    /// My rank and how many there are, where they are known.
    #[cfg(feature = "cpp")]
    #[inline]
    pub(crate) fn known_world(&self) -> Option<World> {
        self.shared.status.world()
    }

    /// `error` with my rank, where that is known.
    fn at(&self, error: Error) -> Error {
        self.shared.at(error)
    }

    /// Makes the call that waits on the communicator now, and every later one, end with [`Kind::Aborted`], as
    /// [`AbortHandle::abort`] does. Never waits; any thread may call it.
    ///
    /// # Examples
    /// ```
    /// use rsccl::error::Kind;
    ///
    /// rsccl::local::run(2, |comm| {
    ///     let mut word = [0u64];
    ///     let error = std::thread::scope(|threads| {
    ///         // A watchdog, which has only a reference.
    ///         let watchdog = threads.spawn(|| comm.abort("nothing has come for too long"));
    ///         let error = comm.recv(&mut word, 1 - comm.rank()).expect_err("nobody sends");
    ///         watchdog.join().map(|()| error).expect("it does not panic")
    ///     });
    ///     assert_eq!(error.kind(), Kind::Aborted);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn abort(&self, reason: &str) {
        self.abort_handle().abort(reason);
    }

    /// A handle that stops this communicator from any thread.
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle(self.shared.status.abort.clone(), self.shared.birthplace)
    }

    /// Sets what is called while a call on this communicator waits, or with `None` nothing. Every rank for itself;
    /// communicators that are split or shrunk from this one begin with the same hook.
    ///
    /// # Errors
    /// [`Kind::InProgress`] while a non-blocking init is under way; the error that has ended the communicator.
    pub fn set_progress(&self, hook: Option<Progress>) -> Result<()> {
        self.with_engine(|engine| {
            engine.set_progress(hook);
            Ok(())
        })
    }

    /// What ended this communicator, if anything did; [`Kind::InProgress`] while a non-blocking init, split or shrink
    /// is under way. Never waits; any thread may call it, also while another is in a call.
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
        if let Err(error) = self.check_process() {
            return Some(error);
        }
        let error = self.shared.status.error().map(|error| self.at(error));
        if error.as_ref().is_some_and(|error| error.kind().ends()) {
            self.shared.status.abort.set_heard(true);
        }
        error
    }

    /// Waits for this communicator's calls on streams, says goodbye to the other ranks and frees everything. The others
    /// go on with what they have begun; a collective that needs this rank is an error there. Waits for a non-blocking
    /// split or shrink that is under way, as dropping the handle does: the child needs this communicator.
    ///
    /// # Errors
    /// The error that had ended the communicator before, or with which a call on a stream has ended meanwhile.
    /// [`Kind::Mismatch`] where a peer made another call than this rank and neither waited for the other, such as two
    /// roots of a small broadcast, as far as the peer's call has arrived here: of the two, at least the rank that
    /// finalizes last gets the error.
    pub fn finalize(self) -> Result<()> {
        self.close()
    }

    /// [`Communicator::finalize`], where other threads may still have the communicator: their calls say that it was
    /// finalized.
    pub(crate) fn close(&self) -> Result<()> {
        self.check_process()?;
        let mut turn = self.take_turn()?;
        self.shared.finish(&mut turn);
        if let Home::Lent | Home::Closed = &*turn {
            return Err(self.at(unusable(&turn)));
        }
        self.shared.status.close();
        let home = match std::mem::replace(&mut *turn, Home::Closed) {
            Home::Away(away) => away.wait(),
            home => home,
        };
        match home {
            Home::Ready(mut engine) => {
                let looked = engine.last_look().map_err(|error| engine.fail(error.during("finalize")));
                let left = engine.leave().map_err(|error| self.at(error));
                looked.and(left)
            }
            Home::Failed(engine, error) => {
                if let Some(mut engine) = engine {
                    // Its launches have been told to end.
                    let _same = engine.leave();
                }
                Err(error)
            }
            Home::Starting(start) => {
                self.shared
                    .status
                    .abort
                    .raise(Error::aborted("the communicator was finalized before its init was over"));
                give_up_start(start);
                Ok(())
            }
            Home::Busy(_) | Home::Away(_) | Home::Lent | Home::Closed => Ok(()),
        }
    }

    /// [`Communicator::close`] for a caller who may call again: where a thread makes a child, it does not wait for it.
    ///
    /// # Errors
    /// As there; [`crate::error::Kind::InProgress`] while a non-blocking split or shrink is under way, of the parent
    /// and of the child.
    #[cfg(feature = "cpp")]
    pub(crate) fn close_now(&self) -> Result<()> {
        self.check_process()?;
        let status = &self.shared.status;
        if status.makes_child() {
            return Err(self.at(away()));
        }
        // Only a split does not know it before all ranks have come.
        if status.is_starting() && status.world().is_none() {
            return Err(starting());
        }
        self.close()
    }

    /// Whether it was finalized.
    #[cfg(feature = "cpp")]
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.status.is_closed()
    }

    /// Whether this is the process that made the communicator.
    #[inline]
    fn check_process(&self) -> Result<()> {
        self.shared.check_process()
    }

    /// [`EngineHome::with_engine`].
    #[inline]
    fn with_engine<T>(&self, body: impl FnOnce(&mut Engine) -> Result<T>) -> Result<T> {
        self.shared.with_engine(|home| self.settle_home(home), body)
    }

    /// Makes a communicator ready for a call: behind collectives of requests, beside their messages.
    ///
    /// # Errors
    /// Where it cannot be.
    #[cold]
    fn settle_home(&self, home: &mut Home) -> Result<()> {
        if let Home::Starting(_) | Home::Away(_) = home {
            self.settle_start(home);
        }
        self.shared.be_ready_for_call(home)
    }

    /// Runs `body` on the engine with `work`, where no request is under way; else `beside`.
    #[inline]
    fn with_engine_or<W, T>(
        &self,
        work: W,
        body: impl FnOnce(&mut Engine, W) -> Result<T>,
        beside: impl FnOnce(W) -> Result<T>,
    ) -> Result<T> {
        self.shared.with_engine_or((|home: &mut Home| self.settle_home(home), work), body, beside)
    }

    /// [`EngineHome::refused`].
    #[cold]
    fn refused(&self, home: &Home) -> Error {
        self.shared.refused(home)
    }

    /// Runs `body` on the engine, also where the communicator has failed.
    fn with_survivor<T>(&self, body: impl FnOnce(&mut Engine) -> Result<T>) -> Result<T> {
        self.check_process()?;
        let mut home = self.take_turn()?;
        self.shared.settle(&mut home);
        self.settle_start(&mut home);
        let (Home::Ready(engine) | Home::Failed(Some(engine), _)) = &mut *home else {
            return Err(self.at(unusable(&home)));
        };
        body(engine).map_err(|error| self.at(error.during("shrink")))
    }

    /// Runs `body` on the engine of a communicator that has failed, if it is here.
    #[cold]
    fn with_failed(&self, body: impl FnOnce(&mut Engine)) {
        // Not in a forked child: the engine's locks may be held by threads that do not exist there.
        if self.check_process().is_ok()
            && let Ok(mut home) = self.take_turn()
            && let Home::Failed(Some(engine), _) = &mut *home
        {
            body(engine);
        }
    }

    /// [`EngineHome::take_turn`].
    #[inline]
    fn take_turn(&self) -> Result<HomeTurn<'_>> {
        self.shared.take_turn()
    }

    /// [`EngineHome::home`].
    fn home(&self) -> HomeTurn<'_> {
        self.shared.home()
    }

    /// Takes the engine, or the error, from a thread that has made it or is done with it. Never waits for the thread's
    /// work.
    #[cold]
    fn settle_start(&self, home: &mut Home) {
        *home = match std::mem::replace(home, Home::Closed) {
            Home::Starting(start) if self.shared.status.is_starting() => Home::Starting(start),
            Home::Starting(start) => started(start),
            Home::Away(away) => away.poll().unwrap_or_else(Home::Away),
            other => other,
        };
        self.note_placement(home);
    }

    /// Waits until a non-blocking init has ended; its own deadline bounds the wait.
    fn await_start(&self) -> Result<()> {
        let mut home = self.home();
        *home = match std::mem::replace(&mut *home, Home::Closed) {
            Home::Starting(start) => started(start),
            other => other,
        };
        self.note_placement(&home);
        match &*home {
            Home::Failed(_, error) => Err(error.duplicate()),
            _ => Ok(()),
        }
    }

    /// Gives the engine to a thread that runs a group.
    fn lend(&self) -> Result<Box<Engine>> {
        self.with_engine(|_| Ok(()))?;
        let mut home = self.take_turn()?;
        self.shared.finish(&mut home);
        match std::mem::replace(&mut *home, Home::Lent) {
            Home::Ready(engine) => Ok(engine),
            other => {
                let error = unusable(&other);
                *home = other;
                Err(self.at(error))
            }
        }
    }

    /// Takes the engine back, with what came of the group.
    fn take_back(&self, engine: Box<Engine>, result: Result<()>) -> Result<()> {
        let mut home = self.home();
        *home = Home::Ready(engine);
        result.map_err(|error| self.settle(&mut home, error))
    }

    /// [`EngineHome::settle_error`].
    #[cold]
    fn settle(&self, home: &mut Home, error: Error) -> Error {
        self.shared.settle_error(home, error)
    }

    /// [`EngineHome::fail_heard`].
    #[cold]
    fn fail(&self, home: &mut Home, error: Option<Error>) -> Error {
        self.shared.fail_heard(home, error)
    }
}

impl fmt::Debug for Communicator {
    /// Who it is and how it is: an engine is buffers above all, and whoever prints a result has not asked for those.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Communicator");
        if let Some(World { rank, size }) = self.shared.status.world() {
            shown.field("rank", &rank.get()).field("size", &size);
        }
        let error = if self.shared.birthplace.is_here() { self.shared.status.error() } else { Some(forked()) };
        match error.map(|error| self.at(error)) {
            None => shown.field("state", &"ready"),
            Some(error) if error.kind() == Kind::InProgress => shown.field("state", &error.message()),
            Some(error) => shown.field("state", &format_args!("failed: {error}")),
        };
        shown.finish_non_exhaustive()
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if !self.shared.birthplace.is_here() {
            // Nothing of it is this process's: not even to free it, since threads that do not exist here may hold what
            // it waits for. Nor to take a turn on it, which one of them may have.
            std::mem::forget(Arc::clone(&self.shared));
            return;
        }
        let mut turn = self.home();
        self.end_requests(&mut turn);
        let home = std::mem::replace(&mut *turn, Home::Closed);
        drop(turn);
        self.shared.leave_watch();
        self.let_go(home);
    }
}

impl Communicator {
    /// Closes a communicator that nobody finalizes, where other threads may still have it.
    ///
    /// # Errors
    /// Where it is not here to be closed: in use, closed, or another process's.
    #[cfg(feature = "cpp")]
    pub(crate) fn discard(&self) -> Result<()> {
        self.check_process()?;
        let mut turn = self.take_turn()?;
        self.end_requests(&mut turn);
        if let Home::Lent | Home::Closed = &*turn {
            return Err(self.at(unusable(&turn)));
        }
        self.shared.status.close();
        self.let_go(std::mem::replace(&mut *turn, Home::Closed));
        Ok(())
    }

    /// Waits until requests have ended. A rank that unwinds ends them: their buffers are about to be freed.
    fn end_requests(&self, home: &mut Home) {
        if matches!(home, Home::Busy(_)) && std::thread::panicking() {
            self.shared.fail(home, Some(Error::aborted("this rank panicked beside its requests")));
        }
        self.shared.finish(home);
    }

    /// Ends what `home` holds of a communicator that is dropped.
    fn let_go(&self, home: Home) {
        let home = match home {
            // The child needs the engine a moment longer, and the engine is to say goodbye.
            Home::Away(away) => away.wait(),
            home => home,
        };
        match home {
            // A rank that unwinds has not finished what the others wait for: dropping the bootstrap without goodbye
            // says so.
            Home::Ready(mut engine) if !std::thread::panicking() => last_words::leave(&mut engine),
            Home::Failed(Some(mut engine), error) if !std::thread::panicking() => {
                last_words::leave_failed(&mut engine, error);
            }
            Home::Starting(start) => {
                self.shared.status.abort.raise(Error::aborted("the communicator was dropped before its init was over"));
                give_up_start(start);
            }
            Home::Ready(_) | Home::Busy(_) | Home::Failed(..) | Home::Lent | Home::Away(_) | Home::Closed => {}
        }
    }
}

/// Ends a communicator that a thread is making and that nobody wants: its abort flag is raised, and the thread sees
/// that at its next look. Where it has made an engine before that, the others are told why this rank leaves.
fn give_up_start(start: JoinHandle<Result<Engine>>) {
    if let Home::Ready(engine) = started(start) {
        if let Err(reason) = engine.session.abort.check() {
            engine.session.publish_failure(&reason);
        }
        engine.session.leave();
    }
}

/// What a thread has made that makes a communicator, or will have made in a moment.
fn started(start: JoinHandle<Result<Engine>>) -> Home {
    match start.join() {
        Ok(Ok(engine)) => Home::Ready(Box::new(engine)),
        Ok(Err(error)) => Home::Failed(None, error),
        Err(_) => Home::Failed(None, Error::internal("the thread of an init panicked")),
    }
}

#[cold]
fn unusable(home: &Home) -> Error {
    match home {
        Home::Failed(_, error) => error.duplicate(),
        Home::Starting(_) => starting(),
        Home::Away(_) => away(),
        Home::Lent => group::lent_to_group(),
        Home::Busy(_) => requests::under_way(),
        Home::Closed | Home::Ready(_) => Error::invalid_usage("the communicator was finalized"),
    }
}

fn away() -> Error {
    Error::new(Kind::InProgress, "a split or shrink of the communicator is under way: ask async_error() again")
}

#[cold]
fn forked() -> Error {
    Error::invalid_usage("the communicator belongs to the process that this one was forked from: make one of its own")
}

fn starting() -> Error {
    Error::new(Kind::InProgress, "the communicator is still being made: ask async_error() again")
}
