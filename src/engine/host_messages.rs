//! Messages on host memory: how they begin, each with its number and its line in the log, and how they are moved.
//! Those of devices begin here too.

use crate::engine::call_log;
use crate::engine::given::{Awaited, Given};
use crate::error::Result;
use crate::exec::{self, Background, Message, MessageQueue, MessageRun, NoBackground, Operation, Task};
use crate::log;
use crate::session::Session;
use crate::session::failure_watch::FailureWatch;
use crate::session::peer_status::WaitingFor;
use crate::transport::{Need, Receivers};
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
#[inline(always)]
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

/// Runs messages side by side: those of a collective, or of their own.
pub(super) fn drive_all(
    given: &mut Given<'_>,
    needs: (&[Need], Receivers),
    (runs, collective): (&mut [MessageRun<'_>], Option<&Operation>),
    background: &mut dyn Background,
) -> Result<()> {
    let all = || runs.iter().map(MessageRun::awaited).collect::<Vec<_>>();
    given.connect(needs, collective.map_or(WaitingFor::Messages(&all), WaitingFor::Collective), background)?;
    // The tasks know better which of them have not ended.
    let unknown = Vec::new;
    let waiting_for = collective.map_or(WaitingFor::Messages(&unknown), WaitingFor::Collective);
    let mut watch = FailureWatch::of_call(given.session, waiting_for);
    let mut wait_context = given.wait_context(Awaited::Ranks, &mut watch, background);
    let mut queues = MessageQueue::by_connection(runs);
    let mut tasks: Vec<&mut dyn Task> = queues.iter_mut().map(|queue| queue as &mut dyn Task).collect();
    exec::drive(&mut tasks, &mut wait_context)
}

/// Runs one message. What [`drive_all`] does for several, with nothing allocated on the way.
pub(super) fn drive_one(mut given: Given<'_>, need: Need, run: &mut MessageRun<'_>) -> Result<()> {
    let awaited = run.awaited();
    let open = || vec![awaited];
    given.connect((&[need], Receivers::AreAsked), WaitingFor::Messages(&open), &mut NoBackground)?;
    let mut watch = FailureWatch::of_call(given.session, WaitingFor::Messages(&open));
    let mut nothing = NoBackground;
    let mut wait_context = given.wait_context(Awaited::OneRank, &mut watch, &mut nothing);
    exec::drive_one(run, &mut wait_context)
}

/// Runs a message to a rank and one from a rank. What [`drive_all`] does for several, with nothing allocated on
/// the way.
pub(super) fn drive_pair(mut given: Given<'_>, needs: [Need; 2], runs: &mut [MessageRun<'_>; 2]) -> Result<()> {
    let awaited = [runs[0].awaited(), runs[1].awaited()];
    let both = || awaited.to_vec();
    given.connect((&needs, Receivers::AreAsked), WaitingFor::Messages(&both), &mut NoBackground)?;
    // The tasks know better which of them has not ended.
    let unknown = Vec::new;
    let mut watch = FailureWatch::of_call(given.session, WaitingFor::Messages(&unknown));
    let waits_for = if awaited[0].peer == awaited[1].peer { Awaited::OneRank } else { Awaited::Ranks };
    let mut nothing = NoBackground;
    let mut wait_context = given.wait_context(waits_for, &mut watch, &mut nothing);
    let [first, second] = runs;
    exec::drive_pair([first, second], &mut wait_context)
}
