//! Messages of device memory: how sends, receives and what is made of them become launches.

#![warn(clippy::wildcard_enum_match_arm)]

use crate::device::Home;
use crate::device::records::{self, LaunchPart, Reduction};
use crate::engine::call_log::LineOfWay;
use crate::engine::device_call::{DeviceCall, Putting};
use crate::engine::device_entry::DeviceEntry;
use crate::engine::given::Given;
use crate::engine::host_messages;
use crate::engine::launches::Launched;
use crate::error::{Error, Result};
use crate::exec::lower::{self, MessageWay};
use crate::exec::peer_traffic::PeerTraffic;
use crate::exec::{self, Background, Keeper, Message, Operation, Order};
use crate::log;
use crate::sync::AwaitedMessage;
use crate::sync::ring::Label;
use crate::transport::Channel;
use crate::types::{Collective, DataType};

/// Messages of device memory, in their order. What this rank has for itself is copied.
#[cold]
pub(super) fn run(
    entry: &mut DeviceEntry,
    given: Given<'_>,
    (messages, collective): (Vec<Message<'_>>, Option<Operation>),
    (order, background): (Order<'_>, &mut dyn Background),
) -> Result<()> {
    let home = messages.iter().map(Message::home).find(|home| *home != Home::Host).unwrap_or(Home::Host);
    if let Some(other) = messages.iter().find(|message| message.count() > 0 && message.home() != home) {
        return Err(Error::invalid_argument(format!(
            "messages of {home} and of {} in one call: give all in one memory",
            other.home()
        )));
    }
    let next = collective.map_or_else(|| given.session.collectives(), |operation| operation.sequence);
    let mut on = entry.enter(given, (home, next), (order, background))?;
    let home = on.side.home;
    let keepers: Vec<Keeper<'_>> = messages.iter().map(Message::keeper).collect();
    let messages = messages.into_iter().map(|message| message.in_home(home)).collect();
    let ended = match collective {
        Some(operation) => launch_collective(&mut on, messages, &operation),
        None => launch_singles(&mut on, messages),
    };
    keepers.into_iter().for_each(Keeper::note);
    ended
}

/// Launches the messages of a collective, which all ranks call, together with those of the other ranks.
pub(super) fn launch_collective(
    on: &mut DeviceCall<'_>,
    messages: Vec<Message<'_>>,
    operation: &Operation,
) -> Result<()> {
    exec::check_to_self(on.given.session.world.rank, &messages)?;
    let channel = exec::channel_of(operation.collective);
    let of_message = |message: &Message<'_>| Operation {
        data_type: message.data_type(),
        op: None,
        root: None,
        count: message.count(),
        ..*operation
    };
    let labels = messages.iter().map(|message| of_message(message).label()).collect();
    let launched = Launched::Collective(*operation);
    let part = message_part(on, (&messages, labels), channel, &launched)?;
    on.launch_collective(part, operation)
}

/// Launches sends and recvs: those between ranks of this device meet on the host, the others go through slots.
fn launch_singles(on: &mut DeviceCall<'_>, messages: Vec<Message<'_>>) -> Result<()> {
    let me = on.given.session.world.rank;
    exec::check_to_self(me, &messages)?;
    let numbers: Vec<u64> =
        messages.iter().map(|message| host_messages::number_message(on.given.session, message)).collect();
    let awaited = |(message, number): (&Message<'_>, &u64)| {
        let (peer, sends) = (message.peer(), message.sends());
        let call = if sends { Collective::Send } else { Collective::Recv };
        (peer != me).then_some(AwaitedMessage { peer, call, number: *number, sends })
    };
    let launched = Launched::Messages(messages.iter().zip(&numbers).filter_map(awaited).collect());
    let label = |(message, sequence): (&Message<'_>, u64)| {
        let (data_type, count) = (message.data_type(), message.count());
        let (collective, op, root) = (Collective::Send, None, None);
        Operation { collective, data_type, op, root, count, sequence, past: 0, on_device: true, windows: 0 }.label()
    };
    let labels: Vec<Label> = messages.iter().zip(numbers).map(label).collect();
    let (mut ends, mut others, mut others_labels) = (Vec::new(), Vec::new(), Vec::new());
    for (message, label) in messages.into_iter().zip(labels) {
        if on.side.shares_device(message.peer()) {
            let (peer, elements) = (message.peer(), message.count());
            let moved = PeerTraffic { peer, way: message.need().way, messages: 1, elements };
            on.count(&[moved], message.data_type().size().into());
            ends.push(message.end(label));
        } else {
            others.push(message);
            others_labels.push(label);
        }
    }
    // Messages to other devices are launched first: they wait on the device and not on the host, so that every rank
    // reaches the rendezvous below.
    let through_slots = if others.is_empty() {
        None
    } else {
        let others = (&others[..], others_labels);
        Some(message_part(on, others, Channel::PointToPoint, &launched)?)
    };
    let blank = (&[][..], Vec::new());
    let mut blank = message_part(on, blank, Channel::PointToPoint, &launched)?;
    on.launch(&launched, |side, Putting { stream, captured, turn }| {
        let mut put = None;
        if let Some(mut part) = through_slots {
            side.keep_by_graph(&mut part, captured);
            put = Some(exec::launch_alone(part, stream, &mut side.messages)?);
        }
        if let (true, Some(end)) = (ends.is_empty(), put) {
            return Ok(end);
        }
        side.keep_by_graph(&mut blank, captured);
        side.meeting.rendezvous().meet((me, blank), ends, stream, turn)?;
        stream.record()
    })
}

/// This rank's part of a launch of messages through slots.
fn message_part(
    on: &mut DeviceCall<'_>,
    (messages, labels): (&[Message<'_>], Vec<Label>),
    channel: Channel,
    launched: &Launched,
) -> Result<LaunchPart> {
    let session = on.given.session;
    let (me, shape) = (session.world.rank, session.settings.sizes.shape);
    let folding = Reduction { data_type: DataType::U8, op: None, world: session.world.size };
    let ways = ways_of(on, messages, launched);
    let lowered = lower::messages(messages, &ways, me, (channel, u64::from(shape.slot_bytes)));
    let queues = on.open_queues(&lowered.steps.ends, launched)?;
    on.count(&lowered.traffic, 1);
    let mut part = on.side.part(me, &lowered, (folding, labels));
    part.bases =
        [0; records::FIRST_MESSAGE as usize].into_iter().chain(messages.iter().map(Message::address)).collect();
    part.queues = queues;
    part.keep.extend(messages.iter().filter_map(Message::kept));
    Ok(part)
}

/// By what the messages of a launch travel; logs it.
fn ways_of(on: &DeviceCall<'_>, messages: &[Message<'_>], launched: &Launched) -> Vec<MessageWay> {
    let chooser = &on.side.chooser;
    let (me, hears) = (on.given.session.world.rank, log::hears_calls());
    let collective = launched.collective();
    let way_of = |message: &Message<'_>| {
        let way = chooser.message_way(message, collective);
        if hears && message.peer() != me {
            let bytes = message.count() * u64::from(message.data_type().size());
            let (peer, protocol) = (Some((message.sends(), message.peer())), way.protocol);
            log::detail!(Tuning @ me, "{}", LineOfWay { collective, bytes, peer, protocol });
        }
        way
    };
    messages.iter().map(way_of).collect()
}
