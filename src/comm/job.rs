//! What begins as a request: messages, a collective, or a group of calls.

use crate::comm::group::Steps;
use crate::comm::{Call, Message};
use crate::log::spans::{self, TraceSpan};
use crate::session::Session;
use crate::session::trace_text::{MANY, SpanKind};

/// What a request is.
#[derive(Debug)]
pub(super) enum Job<'a> {
    /// One message, to another rank.
    Message(Message<'a>),
    /// Messages that run side by side, as those of a `send_recv`, which may go to the own rank.
    Messages(Vec<Message<'a>>),
    /// One collective.
    Collective(Call<'a>),
    /// The calls of a group: messages side by side, then collectives one after the other. Each works on what those
    /// before it have written.
    Group(Vec<Message<'a>>, Steps<'a>),
}

impl Job<'_> {
    /// How much its messages or its largest call move, about.
    pub(super) fn bytes(&self) -> usize {
        let of_messages = |messages: &[Message<'_>]| messages.iter().map(Message::bytes).max().unwrap_or(0);
        match self {
            Job::Message(message) => message.bytes(),
            Job::Messages(messages) => of_messages(messages),
            Job::Collective(call) => call.bytes(),
            Job::Group(messages, steps) => of_messages(messages).max(steps.bytes()),
        }
    }

    /// What the trace has of it, as a request that begins now. Messages have records of their own.
    #[cold]
    pub(super) fn span(&self, session: &Session) -> Option<TraceSpan> {
        let collective = match self {
            Job::Message(_) | Job::Messages(_) => return None,
            Job::Collective(call) => u64::from(call.collective.code()),
            Job::Group(..) => MANY,
        };
        let (now, bytes) = (spans::now(), self.bytes() as u64);
        // Begun at one time on one thread they are told apart by their communicator.
        let number = now ^ session.bootstrap.id();
        Some(SpanKind::Request.span(session, (now, now), [collective, bytes, number]))
    }
}
