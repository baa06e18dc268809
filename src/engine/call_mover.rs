//! What moves data while a call waits.

use std::any::Any;
use std::fmt;

use crate::exec::{Background, CallTurn, WaitContext};
use crate::session::Session;
use crate::session::failure_watch::FailureWatch;
use crate::sync::{Patience, Progress};
use crate::transport::Fabric;

/// The connections, and how this rank waits for what they carry. One thread at a time has it.
#[derive(Debug)]
pub(super) struct CallMover {
    pub(super) fabric: Fabric,
    /// How patient waits are: learnt from wait to wait.
    pub(super) patience: Patience,
    /// How patient waits for one rank alone are, while ranks share processors. It is learnt too.
    patience_for_one: Patience,
    /// What the program wants moved while a call waits.
    pub(super) progress: Option<Progress>,
    /// The messages of requests that go on beside the call that runs now.
    pub(super) beside: Option<Box<dyn Beside>>,
}

/// Messages of requests that go on beside a call.
pub(crate) trait Beside: Background + fmt::Debug + Send {
    /// The same, for whoever knows its type.
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

/// For whom an operation waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaited {
    /// For one rank alone, as a message does.
    OneRank,
    /// For any number of ranks.
    Ranks,
}

impl CallMover {
    /// Waits begin as patient as `patience`.
    pub(super) fn new(fabric: Fabric, patience: Patience, progress: Option<Progress>) -> CallMover {
        CallMover { fabric, patience, patience_for_one: patience.for_one_rank(), progress, beside: None }
    }

    /// The context in which an operation waits: `watch` says whether the operation can still end well, and `background`
    /// work goes on during the wait. A call beside requests has theirs in place of its own.
    #[inline]
    pub(super) fn wait_context<'a>(
        &'a mut self,
        (session, awaited): (&'a Session, Awaited),
        watch: &'a mut FailureWatch<'_>,
        background: &'a mut dyn Background,
    ) -> WaitContext<'a> {
        let CallMover { fabric, patience, patience_for_one, progress, beside } = self;
        let background = match beside {
            Some(beside) => &mut **beside as &mut dyn Background,
            None => background,
        };
        let is_for_one = awaited == Awaited::OneRank && patience.is_crowded();
        let patience = if is_for_one { patience_for_one } else { patience };
        let bootstrap = &*session.bootstrap;
        WaitContext { turn: CallTurn { patience, watch, bootstrap, background, progress: progress.as_ref() }, fabric }
    }
}
