//! What a communicator and its requests have in common: where the engine is, and how a call gets it, of the
//! communicator itself or one that was prepared on it.

mod driving;

use std::ops::{Deref, DerefMut};

use crate::comm::outcome;
use crate::comm::status::Status;
use crate::comm::{Home, forked, unusable, watcher};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::sync::primitive::{Arc, AtomicBool, AtomicU64, Ordering};
use crate::sync::progress_thread;
use crate::sync::{Denied, TurnGuard, Turns};
use crate::sys::cpu;
use crate::sys::fork::Birthplace;
use crate::types::Rank;

/// What a communicator and its requests have in common.
#[derive(Debug)]
pub(super) struct EngineHome {
    pub(super) status: Arc<Status>,
    pub(super) birthplace: Birthplace,
    /// Taken for the length of a call.
    pub(super) home: Turns<Home>,
    /// Counts how often the program has driven its requests.
    beat: AtomicU64,
    /// Whether the watcher has to look. Written by whoever has a turn.
    is_outstanding: AtomicBool,
    /// Whether the watcher is to begin at once.
    is_urgent: AtomicBool,
    /// Whether the program waits until a visitor has left.
    is_wanted: AtomicBool,
    /// Whether a thread of the program's drives that makes no call.
    is_driven: AtomicBool,
    /// Whether the watcher knows it.
    is_watched: AtomicBool,
}

impl EngineHome {
    pub(super) fn new(status: Arc<Status>, home: Home) -> EngineHome {
        let no = || AtomicBool::new(false);
        EngineHome {
            status,
            birthplace: Birthplace::here(),
            home: Turns::new(home),
            beat: AtomicU64::new(0),
            is_outstanding: no(),
            is_urgent: no(),
            is_wanted: no(),
            is_driven: no(),
            is_watched: no(),
        }
    }

    /// My rank; 0 while a split is still to say.
    pub(super) fn me(&self) -> Rank {
        self.status.world().map_or(Rank::new(0), |world| world.rank)
    }

    /// `error` with my rank, where that is known.
    pub(super) fn at(&self, error: Error) -> Error {
        match self.status.world() {
            Some(world) => error.at(world.rank),
            None => error,
        }
    }

    /// Whether this is the process that made the communicator.
    #[inline]
    pub(super) fn check_process(&self) -> Result<()> {
        if self.birthplace.is_here() { Ok(()) } else { Err(self.at(forked())) }
    }

    /// The right to use the communicator, for the length of a call.
    ///
    /// # Errors
    /// [`InvalidUsage`](crate::error::Kind::InvalidUsage) while another call has it.
    #[inline]
    pub(super) fn take_turn(&self) -> Result<HomeTurn<'_>> {
        // After a panic too: it has ended the communicator, which its home says.
        let turn = match self.home.try_take() {
            Some(turn) => turn,
            None => self.take_after_visit()?,
        };
        Ok(self.in_hand(turn))
    }

    #[inline]
    fn in_hand<'a>(&'a self, turn: TurnGuard<'a, Home>) -> HomeTurn<'a> {
        HomeTurn { turn, _after: Release(self) }
    }

    #[cold]
    fn take_after_visit(&self) -> Result<TurnGuard<'_, Home>> {
        loop {
            match self.home.take_or_why() {
                Ok(turn) => {
                    // Relaxed, as all of these: it makes a visit shorter, and nothing is read because of it.
                    self.is_wanted.store(false, Ordering::Relaxed);
                    return Ok(turn);
                }
                Err(Denied::InUse) => return Err(self.at(in_use())),
                Err(Denied::Visited) => self.want(),
            }
            cpu::yield_now();
        }
    }

    /// Asks the visitor to leave. It may sleep; each visit begins without the wish, so it is said anew to each.
    fn want(&self) {
        if !self.is_wanted.swap(true, Ordering::Relaxed) {
            watcher::wake();
        }
    }

    /// The engine's home, for whoever has the engine or ends the communicator: another thread has a turn at most for
    /// as long as it takes to be refused, or to visit.
    pub(super) fn home(&self) -> HomeTurn<'_> {
        loop {
            match self.take_turn() {
                Ok(turn) => return turn,
                Err(_) => cpu::yield_now(),
            }
        }
    }

    /// Runs `body` on the engine; an error that other ranks are part of ends the communicator, and so does a panic.
    /// Where the communicator is not ready, `settle` makes it so.
    #[inline]
    pub(super) fn with_engine<T>(
        &self,
        settle: impl FnOnce(&mut Home) -> Result<()>,
        body: impl FnOnce(&mut Engine) -> Result<T>,
    ) -> Result<T> {
        self.check_process()?;
        let unwinding = Unwinding(self);
        let result = self.with_engine_here(settle, body);
        std::mem::forget(unwinding);
        result
    }

    /// Runs `body` on the engine with `work`, as [`EngineHome::with_engine`] does, where no request is under way; else
    /// `beside`.
    #[inline]
    pub(super) fn with_engine_or<W, T>(
        &self,
        (settle, work): (impl FnOnce(&mut Home) -> Result<()>, W),
        body: impl FnOnce(&mut Engine, W) -> Result<T>,
        beside: impl FnOnce(W) -> Result<T>,
    ) -> Result<T> {
        self.check_process()?;
        let unwinding = Unwinding(self);
        let result = match self.is_busy() {
            true => beside(work),
            false => self.with_engine_here(settle, |engine| body(engine, work)),
        };
        std::mem::forget(unwinding);
        result
    }

    #[inline]
    fn with_engine_here<T>(
        &self,
        settle: impl FnOnce(&mut Home) -> Result<()>,
        body: impl FnOnce(&mut Engine) -> Result<T>,
    ) -> Result<T> {
        let mut home = self.take_turn()?;
        if !matches!(*home, Home::Ready(_)) {
            settle(&mut home)?;
        }
        if self.status.abort.is_raised() {
            return Err(self.fail_heard(&mut home, None));
        }
        let result = match &mut *home {
            Home::Ready(engine) => {
                engine.session.page.enters_call();
                let result = body(engine);
                engine.session.page.leaves_call();
                result
            }
            home => self.beside(home, body).unwrap_or_else(|| Err(Error::internal("no engine"))),
        };
        match result {
            Ok(value) => Ok(value),
            Err(error) => Err(self.settle_error(&mut home, error)),
        }
    }

    /// Makes a communicator that was made ready for a call: behind collectives of requests, beside their messages.
    ///
    /// # Errors
    /// Where it cannot be.
    #[cold]
    pub(super) fn be_ready_for_call(&self, home: &mut Home) -> Result<()> {
        settle_away(home);
        self.finish_collectives(home)?;
        if let Home::Ready(_) | Home::Busy(_) = home { Ok(()) } else { Err(self.refused(home)) }
    }

    /// Takes the engine back from a thread that is done with a split.
    ///
    /// # Errors
    /// As [`EngineHome::take_turn`].
    pub(super) fn return_from_split(&self) -> Result<()> {
        self.check_process()?;
        settle_away(&mut *self.take_turn()?);
        Ok(())
    }

    /// The error of a call for which there is no engine.
    #[cold]
    pub(super) fn refused(&self, home: &Home) -> Error {
        if matches!(home, Home::Failed(..)) {
            self.status.abort.set_heard(true);
        }
        self.at(unusable(home))
    }

    /// Whether `error` is the caller's own, before anything was sent, or the end of the communicator.
    #[cold]
    pub(super) fn settle_error(&self, home: &mut Home, error: Error) -> Error {
        if error.kind().ends() { self.fail_heard(home, Some(error)) } else { self.at(error) }
    }

    /// [`EngineHome::fail`], of whose error the program knows.
    #[cold]
    pub(super) fn fail_heard(&self, home: &mut Home, error: Option<Error>) -> Error {
        let error = self.fail(home, error);
        self.status.abort.set_heard(true);
        error
    }

    /// Ends the communicator with `error`, or with the abort's reason, tells the others, and then the requests. Never
    /// waits for peers: where a collective of requests waits until peers are out of its buffers, the communicator has
    /// not ended yet, and whoever drives comes here again. On the progress thread, which moves other communicators
    /// meanwhile, the same holds while a peer may still say why it has gone; other threads wait a moment for that.
    #[cold]
    pub(super) fn fail(&self, home: &mut Home, error: Option<Error>) -> Error {
        let reason = self.status.abort.check().err();
        let mut error = error.or(reason).unwrap_or_else(|| Error::internal("failed without a reason"));
        match std::mem::replace(home, Home::Closed) {
            Home::Ready(engine) => {
                error = engine.fail(error);
                *home = Home::Failed(Some(engine), error.duplicate());
            }
            Home::Busy(mut requests) => {
                let stopped = requests.stop(error.duplicate());
                let waits = |first: &Error| progress_thread::is_here() && requests.awaits_cause(first);
                let Some(first) = stopped.filter(|first| !waits(first)) else {
                    *home = Home::Busy(requests);
                    return self.at(error);
                };
                error = first;
                let engine = requests.take_engine();
                if let Some(engine) = &engine {
                    error = engine.fail(error);
                } else {
                    self.status.abort.raise(error.duplicate());
                }
                *home = Home::Failed(engine, error.duplicate());
                requests.give_up(&error);
            }
            other => *home = other,
        }
        self.at(error)
    }

    /// Makes a communicator whose requests have ended ready for calls.
    pub(super) fn settle(&self, home: &mut Home) {
        if let Home::Busy(requests) = home
            && requests.is_idle()
            && let Home::Busy(requests) = std::mem::replace(home, Home::Closed)
        {
            let lost = || Home::Failed(None, Error::internal("requests have lost their engine").at(self.me()));
            *home = requests.into_engine().map_or_else(lost, Home::Ready);
        }
    }

    /// Whether requests may be under way: false where there are none.
    #[inline]
    pub(super) fn may_be_busy(&self) -> bool {
        // Relaxed: whoever calls has begun them, or comes after a thread that has.
        self.is_watched.load(Ordering::Relaxed)
    }

    /// Whether requests are under way, or what they have sent.
    pub(super) fn is_busy(&self) -> bool {
        if !self.may_be_busy() {
            return false;
        }
        let Ok(mut home) = self.take_turn() else { return false };
        self.settle(&mut home);
        matches!(*home, Home::Busy(_))
    }

    /// Runs `body` on the engine, beside messages that are under way.
    ///
    /// # Errors
    /// That of `body`; `None` where there is no engine.
    pub(super) fn beside<T>(&self, home: &mut Home, body: impl FnOnce(&mut Engine) -> T) -> Option<T> {
        let Home::Busy(requests) = home else { return None };
        self.beat();
        requests.go_beside();
        let value = requests.engine().map(|engine| {
            engine.session.page.enters_call();
            let value = body(engine);
            engine.session.page.leaves_call();
            value
        });
        requests.return_from_beside();
        value
    }
}

/// The engine's home in hand. What requests that end meanwhile leave to the program's code runs once it is back.
#[derive(Debug)]
pub(super) struct HomeTurn<'a> {
    // Declared, and so dropped, first.
    turn: TurnGuard<'a, Home>,
    _after: Release<'a>,
}

#[derive(Debug)]
struct Release<'a>(&'a EngineHome);

impl Drop for Release<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.0.may_be_busy() {
            outcome::release();
        }
    }
}

impl Deref for HomeTurn<'_> {
    type Target = Home;

    #[inline]
    fn deref(&self) -> &Home {
        &self.turn
    }
}

impl DerefMut for HomeTurn<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Home {
        &mut self.turn
    }
}

/// Ends the communicator when it is dropped. Only unwinding drops it: after a panic nobody knows how much of the call
/// was done.
struct Unwinding<'a>(&'a EngineHome);

impl Drop for Unwinding<'_> {
    fn drop(&mut self) {
        let Unwinding(shared) = self;
        if let Ok(mut home) = shared.take_turn()
            && matches!(*home, Home::Ready(_) | Home::Busy(_))
        {
            // The communicator remembers the error and the other ranks are told. The panic goes on.
            drop(shared.fail_heard(&mut home, Some(Error::aborted("a call of this rank panicked"))));
        }
    }
}

#[inline]
fn settle_away(home: &mut Home) {
    if let Home::Away(_) = home {
        *home = match std::mem::replace(home, Home::Closed) {
            Home::Away(away) => away.poll().unwrap_or_else(Home::Away),
            other => other,
        };
    }
}

/// The error of a call while another one has the communicator.
#[cold]
fn in_use() -> Error {
    Error::invalid_usage("the communicator is in use by another thread or an outer call: one thread uses it at a time")
}
