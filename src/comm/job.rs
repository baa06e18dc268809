//! What begins as a request: messages, a collective, or a group of calls.

use crate::comm::group::Steps;
use crate::comm::{Call, Message};

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
}
