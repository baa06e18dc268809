//! One turn of requests, by whoever has the connections: the engine may be with a collective of theirs.

use crate::error::Result;
use crate::exec::{Background, CallTurn, WaitContext};
use crate::session::Session;
use crate::session::failure_watch::FailureWatch;
use crate::session::peer_status::WaitingFor;
use crate::sync::{Backoff, Patience, Progress, Turned};
use crate::transport::{Fabric, Need, Receivers};

/// How requests wait: what a turn needs beside the messages and the connections.
#[derive(Debug)]
pub(crate) struct Waiter {
    /// How patient their waits are.
    pub(crate) patience: Patience,
    /// The program's hook.
    pub(crate) hook: Option<Progress>,
}

impl Waiter {
    /// One turn of waiting for `background` work, while nothing else runs. The caller sleeps, where the turn says so.
    ///
    /// # Errors
    /// Of the background work, or of the watch.
    pub(crate) fn turn(
        &mut self,
        (session, fabric): (&Session, &mut Fabric),
        background: &mut dyn Background,
        backoff: &mut Backoff,
    ) -> Result<Turned> {
        // The turn knows the messages.
        let unknown = Vec::new;
        let mut watch = FailureWatch::new(session, WaitingFor::Messages(&unknown)).turn_since(backoff.started());
        let bootstrap = &*session.bootstrap;
        let Waiter { patience, hook } = self;
        let turn = CallTurn { patience, watch: &mut watch, bootstrap, background, progress: hook.as_ref() };
        let WaitContext { mut turn, fabric } = WaitContext { turn, fabric };
        let turned = turn.turn_of_requests(fabric, backoff)?;
        if turned == Turned::Moved && backoff.started().is_some() {
            session.goes_on();
        }
        Ok(turned)
    }

    /// Begins to open connections; turns of the background work move them on.
    pub(crate) fn begin_connect(
        &self,
        (session, fabric): (&Session, &mut Fabric),
        (needs, receivers): (&[Need], Receivers),
    ) -> Result<()> {
        // Of no call: requests have deadlines of their own.
        let wait = session.settings.timeout.wait(&session.abort).with_progress(self.hook.clone());
        fabric.begin_connect(needs, receivers, (&*session.bootstrap, &wait))
    }
}
