//! Messages of device memory: how sends, receives and what is made of them become launches.

#![warn(clippy::wildcard_enum_match_arm)]

use crate::device::Home;
use crate::device::records::{self, LaunchPart, Reduction};
use crate::engine::Engine;
use crate::engine::call_log::LineOfWay;
use crate::engine::on_device::{Launched, Putting};
use crate::error::{Error, Result};
use crate::exec::lower::{self, MessageWay};
use crate::exec::{self, Background, Keeper, Message, Operation, Order};
use crate::log;
use crate::sync::AwaitedMessage;
use crate::sync::ring::Label;
use crate::transport::Channel;
use crate::types::{Collective, DataType};

impl Engine {
    /// Messages of device memory, in their order. What this rank has for itself is copied.
    #[cold]
    pub(super) fn device_messages(
        &mut self,
        messages: Vec<Message<'_>>,
        collective: Option<Operation>,
        (order, background): (Order<'_>, &mut dyn Background),
    ) -> Result<()> {
        let home = messages.iter().map(Message::home).find(|home| *home != Home::Host).unwrap_or(Home::Host);
        if let Some(other) = messages.iter().find(|message| message.count() > 0 && message.home() != home) {
            return Err(Error::invalid_argument(format!(
                "messages of {home} and of {} in one call: give all in one memory",
                other.home()
            )));
        }
        let next = collective.map_or_else(|| self.session.collectives(), |operation| operation.sequence);
        let home = self.enter_device((home, next), order, background)?;
        let keepers: Vec<Keeper<'_>> = messages.iter().map(Message::keeper).collect();
        let messages = messages.into_iter().map(|message| message.in_home(home)).collect();
        let ended = match collective {
            Some(operation) => self.launch_messages(messages, &operation, (order, background)),
            None => self.launch_singles(messages, (order, background)),
        };
        keepers.into_iter().for_each(Keeper::note);
        ended
    }

    /// Launches the messages of a collective, which all ranks call, together with those of the other ranks.
    pub(super) fn launch_messages(
        &mut self,
        messages: Vec<Message<'_>>,
        operation: &Operation,
        (order, background): (Order<'_>, &mut dyn Background),
    ) -> Result<()> {
        exec::check_to_self(self.session.world.rank, &messages)?;
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
        let part = self.message_part((&messages, labels), channel, (&launched, &mut *background))?;
        self.launch_collective(part, operation, (order, background))
    }

    /// Launches sends and recvs: those between ranks of this device meet on the host, the others go through slots.
    fn launch_singles(
        &mut self,
        messages: Vec<Message<'_>>,
        (order, background): (Order<'_>, &mut dyn Background),
    ) -> Result<()> {
        let me = self.session.world.rank;
        exec::check_to_self(me, &messages)?;
        let numbers: Vec<u64> = messages.iter().map(|message| self.number_message(message)).collect();
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
            if self.side_mut()?.shares_device(message.peer()) {
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
            Some(self.message_part(others, Channel::PointToPoint, (&launched, &mut *background))?)
        };
        let blank = (&[][..], Vec::new());
        let mut blank = self.message_part(blank, Channel::PointToPoint, (&launched, &mut *background))?;
        self.launch(&launched, (order, background), |side, Putting { stream, captured, turn }| {
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
        &mut self,
        (messages, labels): (&[Message<'_>], Vec<Label>),
        channel: Channel,
        (launched, background): (&Launched, &mut dyn Background),
    ) -> Result<LaunchPart> {
        let (me, shape) = (self.session.world.rank, self.session.settings.sizes.shape);
        let folding = Reduction { data_type: DataType::U8, op: None, world: self.session.world.size };
        let ways = self.ways_of(messages, launched);
        let lowered = lower::messages(messages, &ways, me, (channel, u64::from(shape.slot_bytes)));
        let queues = self.open_queues(&lowered.steps.ends, launched, background)?;
        let side = self.side_mut()?;
        let mut part = side.part(me, &lowered, (folding, labels));
        part.bases =
            [0; records::FIRST_MESSAGE as usize].into_iter().chain(messages.iter().map(Message::address)).collect();
        part.queues = queues;
        part.keep.extend(messages.iter().filter_map(Message::kept));
        Ok(part)
    }

    /// By what the messages of a launch travel; logs it.
    fn ways_of(&self, messages: &[Message<'_>], launched: &Launched) -> Vec<MessageWay> {
        let (me, hears) = (self.session.world.rank, log::hears_calls());
        let collective = launched.collective();
        let way_of = |message: &Message<'_>| {
            let way = self.chooser.message_way(message, collective);
            if hears && message.peer() != me {
                let bytes = message.count() * u64::from(message.data_type().size());
                let (peer, protocol) = (Some((message.sends(), message.peer())), way.protocol);
                log::detail!(Tuning @ me, "{}", LineOfWay { collective, bytes, peer, protocol });
            }
            way
        };
        messages.iter().map(way_of).collect()
    }
}
