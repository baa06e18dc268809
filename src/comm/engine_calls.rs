//! Calls on a communicator's engine: of the communicator itself, and of calls that were prepared on it.

use crate::comm::engine_home::EngineHome;
use crate::comm::{Home, unusable};
use crate::engine::Engine;
use crate::error::{Error, Result};

impl EngineHome {
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
