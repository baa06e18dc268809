//! A request whose turn comes behind others, or of which nothing is left to begin.

use std::collections::VecDeque;

use crate::comm::Message;
use crate::comm::group::Step;
use crate::comm::outcome::{Outcome, Promise};
use crate::sync::primitive::Arc;

/// A group that has not ended.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) messages: Vec<Message<'static>>,
    pub(super) steps: VecDeque<Step<'static>>,
    pub(super) promise: Promise,
    /// Its messages that are under way now.
    pub(super) part: Option<Arc<Outcome>>,
}

impl Queued {
    /// A request of which nothing is to begin: whoever ends its collective, or the communicator, tells how it ended.
    pub(super) fn told_at_end(promise: Promise) -> Queued {
        Queued { messages: Vec::new(), steps: VecDeque::new(), promise, part: None }
    }

    /// Whether it has messages between ranks that have not begun.
    pub(super) fn has_messages(&self) -> bool {
        !self.messages.is_empty() || self.steps.iter().any(|step| matches!(step, Step::Exchange(_)))
    }
}
