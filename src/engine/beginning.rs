//! How messages begin: each gets its number, and its line in the log.

use crate::engine::call_log;
use crate::error::Result;
use crate::exec::{self, Message, MessageRun, Operation};
use crate::log;
use crate::session::Session;
use crate::types::{Collective, DataType};

/// Copies what sends to this rank itself have for its own recvs, and logs their lines; returns the messages to other
/// ranks.
pub(crate) fn copy_to_self<'a>(session: &Session, messages: Vec<Message<'a>>) -> Result<Vec<Message<'a>>> {
    if log::hears_calls() {
        let me = session.world.rank;
        messages.iter().filter(|message| message.peer() == me).for_each(|message| _ = number_message(session, message));
    }
    exec::copy_to_self(session.world.rank, messages)
}

/// A message, checked and to another rank, with its number.
#[inline]
pub(crate) fn begin_message<'a>(session: &Session, message: Message<'a>) -> MessageRun<'a> {
    match log::hears_calls() {
        true => begin_message_as::<true>(session, message),
        false => begin_message_as::<false>(session, message),
    }
}

/// The same, by a caller who knows whether somebody hears of it.
#[inline]
pub(crate) fn begin_message_as<'a, const HEARD: bool>(session: &Session, message: Message<'a>) -> MessageRun<'a> {
    let sequence = if HEARD { number_message(session, &message) } else { next_number(session, &message) };
    MessageRun::new(message, Collective::Send, sequence).streaming_from(session.settings.streaming_bytes)
}

/// The number of a message that begins now; logs its line.
pub(crate) fn number_message(session: &Session, message: &Message<'_>) -> u64 {
    let sequence = next_number(session, message);
    if log::hears_calls() {
        call_log::of_message(session, message, sequence);
    }
    sequence
}

#[inline]
fn next_number(session: &Session, message: &Message<'_>) -> u64 {
    let peer = message.peer();
    if message.sends() { session.next_send(peer) } else { session.next_receive(peer) }
}

/// The messages of an `all_to_all_v` to other ranks, and their type; what this rank has for itself is copied.
pub(crate) fn open_exchange<'a>(session: &Session, messages: Vec<Message<'a>>) -> Result<(Vec<Message<'a>>, DataType)> {
    if log::hears_calls() {
        call_log::of_exchange(session, &messages);
    }
    let data_type = messages.first().map_or(DataType::U8, Message::data_type);
    Ok((exec::copy_to_self(session.world.rank, messages)?, data_type))
}

/// The messages of an `all_to_all_v`, checked and to other ranks, with the number of their collective.
pub(crate) fn begin_exchange<'a>(
    session: &Session,
    messages: Vec<Message<'a>>,
    data_type: DataType,
) -> (Operation, Vec<MessageRun<'a>>) {
    let operation = next_exchange(session, data_type, false);
    let Operation { sequence, past, .. } = operation;
    let run = |message| MessageRun::new(message, Collective::AllToAllV, sequence).after(past);
    (operation, messages.into_iter().map(run).collect())
}

/// The `all_to_all_v` that begins now.
pub(crate) fn next_exchange(session: &Session, data_type: DataType, on_device: bool) -> Operation {
    let (sequence, past) = (session.next_collective(), session.history.past());
    let collective = Collective::AllToAllV;
    let operation =
        Operation { collective, data_type, op: None, root: None, count: 0, sequence, past, on_device, windows: 0 };
    session.history.begin(&operation);
    operation
}
