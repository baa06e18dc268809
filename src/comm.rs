//! Communicators: ranks that call collectives together.
//!
//! A [`Communicator`] is one rank's handle. It may be moved between threads and is used by one at a time (`Send`, not `Sync`);
//! [`AbortHandle`] may be used from anywhere. Ways in: [`local::run`] (threads), [`Communicator::init`] (a unique id),
//! [`Communicator::from_env`] (launchers).

mod choose;
mod collectives;
mod engine;
pub mod local;
mod messages;
mod news;
mod settings;
#[cfg(test)]
mod tests;

use std::cell::RefCell;

use crate::bootstrap::Bootstrap;
use crate::error::{Error, Kind, Result};
use crate::sync::{AbortFlag, Patience, Wait};
use crate::sys::futex;
use crate::transport::{Fabric, PeerInfo};
use crate::types::World;

pub use crate::exec::{Buffers, Call, CallCount, Message};
pub(crate) use settings::Settings;

use engine::Engine;

/// One rank's handle of a group of ranks that call collectives together.
///
/// Every rank calls the same collectives in the same order with the same counts, types, operators and roots; a rank that does
/// not is named in an error on all of them. Dropping the handle says goodbye to the others; [`Communicator::finalize`] does so and
/// reports errors.
#[derive(Debug)]
pub struct Communicator {
    world: World,
    abort: AbortFlag,
    home: RefCell<Home>,
}

/// Where the engine is.
#[derive(Debug)]
enum Home {
    /// Here, ready for calls.
    Ready(Box<Engine>),
    /// Here, after an error that ended the communicator.
    Failed(Box<Engine>, Error),
    /// Gone: finalized.
    Closed,
}

/// Stops a communicator from any thread.
#[derive(Debug, Clone)]
pub struct AbortHandle(AbortFlag);

impl AbortHandle {
    /// Makes every call on the communicator, the one that waits now included, end with [`Kind::Aborted`], and tells the other
    /// ranks. `reason` is what their errors say.
    pub fn abort(&self, reason: &str) {
        self.0.raise(Error::aborted(format!("the communicator was aborted: {reason}")));
    }
}

impl Communicator {
    /// A communicator over `bootstrap`. Collective: every rank of the bootstrap calls it.
    ///
    /// # Errors
    /// Of the exchange of peer info; [`Kind::Mismatch`] where ranks have different settings.
    pub(crate) fn over(bootstrap: Box<dyn Bootstrap>, settings: Settings, abort: AbortFlag) -> Result<Communicator> {
        let world = bootstrap.world();
        let engine = assemble(bootstrap, settings, &abort).map_err(|error| error.at(world.rank))?;
        Ok(Communicator { world, abort, home: RefCell::new(Home::Ready(Box::new(engine))) })
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

    /// What ended this communicator, if anything did. Never waits.
    pub fn async_error(&self) -> Option<Error> {
        if let Err(error) = self.abort.check() {
            return Some(error.at(self.world.rank));
        }
        match self.home.try_borrow().as_deref() {
            Ok(Home::Failed(_, error)) => Some(error.duplicate()),
            Ok(Home::Ready(_) | Home::Closed) => None,
            Err(_) => Some(Error::new(Kind::InProgress, "a call is under way")),
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
            Home::Failed(mut engine, error) => {
                engine.leave();
                Err(error)
            }
            Home::Closed => Ok(()),
        }
    }

    /// Runs `body` on the engine; an error that other ranks are part of ends the communicator.
    #[inline]
    fn with_engine<T>(&self, body: impl FnOnce(&mut Engine) -> Result<T>) -> Result<T> {
        let Ok(mut home) = self.home.try_borrow_mut() else {
            return Err(Error::invalid_usage("the communicator is in use by an outer call").at(self.world.rank));
        };
        let Home::Ready(engine) = &mut *home else { return Err(unusable(&home).at(self.world.rank)) };
        if self.abort.is_raised() {
            return Err(self.fail(&mut home, None));
        }
        match body(engine) {
            Ok(value) => Ok(value),
            Err(error) => Err(self.settle(&mut home, error)),
        }
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
        let error = error.or(reason).unwrap_or_else(|| Error::internal("failed without a reason")).at(self.world.rank);
        if let Home::Ready(engine) = std::mem::replace(home, Home::Closed) {
            engine.publish_failure(&error);
            self.abort.raise(error.duplicate());
            *home = Home::Failed(engine, error.duplicate());
        }
        error
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        match self.home.replace(Home::Closed) {
            // A rank that unwinds has not finished what the others wait for: dropping the bootstrap without goodbye says so.
            Home::Ready(mut engine) | Home::Failed(mut engine, _) if !std::thread::panicking() => engine.leave(),
            Home::Ready(_) | Home::Failed(..) | Home::Closed => {}
        }
    }
}

/// Gathers what ranks must know of each other and builds the engine.
fn assemble(bootstrap: Box<dyn Bootstrap>, mut settings: Settings, abort: &AbortFlag) -> Result<Engine> {
    let world = bootstrap.world();
    let wait = Wait::new(settings.init_timeout, abort);
    let mine = PeerInfo {
        rank: world.rank,
        host: crate::transport::host_id(&settings.host_id)?,
        process: crate::transport::process_token()?,
        pid: std::process::id(),
        settings: settings.fingerprint(),
    };
    let gathered = bootstrap.all_gather(&mine.encode(), &wait)?;
    let mut peers = Vec::with_capacity(gathered.len());
    for (rank, bytes) in world.ranks().zip(&gathered) {
        peers.push(PeerInfo::decode(rank, bytes)?);
    }
    if let Some(other) = peers.iter().find(|peer| peer.settings != mine.settings) {
        let message = format!(
            "rank {} has other settings than this rank: RSCCL_ and NCCL_ variables and the Config must be equal on all ranks \
             (compare `rsccl env` on both)",
            other.rank
        );
        return Err(Error::mismatch(message).about(other.rank));
    }
    futex::register_barrier();
    let fabric = Fabric::new(world, &peers, settings.policy, settings.sizes);
    settings.patience = Patience::new(fabric.my_host().len(), settings.awake);
    Ok(Engine::new(bootstrap, fabric, settings, abort.clone()))
}

#[cold]
fn unusable(home: &Home) -> Error {
    match home {
        Home::Failed(_, error) => error.duplicate(),
        Home::Closed | Home::Ready(_) => Error::invalid_usage("the communicator was finalized"),
    }
}
